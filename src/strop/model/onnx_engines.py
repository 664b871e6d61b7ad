"""ONNX Runtime and OpenVINO as engines of a tokenizer, on a CPU.

Both run the graphs of `strop.model.onnx_export`, which are written when an engine is first used and
kept under the digest of the model.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from strop.errors import ModelError
from strop.identity import digest
from strop.model.encoding import Encoding
from strop.model.model_engine import ModelEngine
from strop.model.onnx_export import ENCODER, FORMAT, INTERPRETER, OPSET, write_graphs
from strop.optional import require

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""Inputs of a graph by name to its outputs by name."""


_FORKED: list[Run] = []
"""Graphs that the parent of this process opened. They are never freed."""


class _GraphEngine(ModelEngine):
    """Runs the graphs of the weights that the tokenizer has now."""

    packages: tuple[str, ...]

    def __init__(self, tokenizer: Tokenizer) -> None:
        for package in self.packages:
            require(package, ModelError)
        self.folder = graphs_of(tokenizer)
        self._runs: dict[str, tuple[int, Run]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def open(self, path: Path) -> Run:
        """Make a graph ready to run, in any number of threads."""

    def encode(self, tokenizer: Tokenizer, images: Tensor) -> Encoding:
        """See `ModelEngine.encode`."""
        found = self._run(ENCODER, images=images)
        names = Encoding.__dataclass_fields__
        return Encoding(**{name: found[name] for name in found if name in names})

    def field(self, tokenizer: Tokenizer, images: Tensor) -> Tensor:
        """See `ModelEngine.field`: an output of the encoder."""
        return self.encode(tokenizer, images).field

    def interpret(self, tokenizer: Tokenizer, codes: Tensor, active: Tensor) -> Tensor:
        """See `ModelEngine.interpret`."""
        return self._run(INTERPRETER, codes=codes, active=active)["field"]

    def _run(self, graph: str, **inputs: Tensor) -> dict[str, Tensor]:
        arrays = {name: value.contiguous().numpy() for name, value in inputs.items()}
        return {
            name: torch.from_numpy(found) for name, found in self._opened(graph)(arrays).items()
        }

    def _opened(self, graph: str) -> Run:
        """A graph, opened once in every process: threads of a runtime do not survive a fork."""
        process = os.getpid()
        with self._lock:
            before = self._runs.get(graph)
            if before is None or before[0] != process:
                if before is not None:  # freeing it would wait for threads that do not exist here
                    _FORKED.append(before[1])
                self._runs[graph] = process, self.open(self.folder / graph)
            return self._runs[graph][1]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder = state["folder"]
        self._runs, self._lock = {}, threading.Lock()


class OnnxEngine(_GraphEngine):
    """ONNX Runtime, in as many threads as PyTorch uses."""

    packages = ("onnxruntime",)

    def open(self, path: Path) -> Run:
        """See `_GraphEngine.open`."""
        runtime = require("onnxruntime", ModelError)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        return lambda arrays: dict(zip(names, session.run(names, arrays), strict=True))


class OpenVinoEngine(_GraphEngine):
    """OpenVINO, in as many threads as PyTorch uses."""

    packages = ("openvino",)

    def open(self, path: Path) -> Run:
        """See `_GraphEngine.open`."""
        openvino = require("openvino", ModelError)
        options = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": "f32",  # its default on some CPUs is bf16
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        model = core.read_model(path)
        one = path.name == ENCODER  # image by image, as on every CPU: fixed shapes are faster
        if one:
            model.reshape([1, *list(model.inputs[0].partial_shape)[1:]])
        request = core.compile_model(model, "CPU", options).create_infer_request()
        names = [each.any_name for each in request.model_outputs]
        lock = threading.Lock()  # a request runs once at a time

        def infer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            with lock:
                found = request.infer(arrays, share_inputs=True)
                return {name: np.array(found[at]) for at, name in enumerate(names)}

        def infer_each(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            (images,) = arrays.values()
            rows = [infer({"images": images[row : row + 1]}) for row in range(len(images))]
            return {name: np.concatenate([row[name] for row in rows]) for name in names}

        return infer_each if one else infer


def graphs_of(tokenizer: Tokenizer) -> Path:
    """The folder of the graphs of a tokenizer, written if it is not there yet.

    They are under `$XDG_CACHE_HOME/strop`, or `~/.cache/strop`.
    """
    identity = tokenizer.identity
    key = digest(identity.as_dict(), FORMAT, OPSET, torch.__version__)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "strop" / "onnx" / key
    graphs = [folder / ENCODER, folder / INTERPRETER]
    if not all(path.is_file() for path in graphs):
        write_graphs(tokenizer, folder)
    return folder
