"""Tokenizers as ONNX graphs that need neither strop nor PyTorch, and the engines that run them.

`encoder.onnx` contains the teacher and its preprocessing: uint8 images in, codes, lengths and all
else of an `Encoding` out. `interpreter.onnx` takes codes and a mask to the field. Both take batches
of any size. ONNX Runtime and OpenVINO run them on a CPU; their graphs are written when an engine is
first used and kept under the digest of the model.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strop.errors import ModelError
from strop.files import PathLike, atomic_path, exclusive, write_json, write_text
from strop.identity import digest
from strop.model.encoding import Encoding
from strop.model.interpreter import prefix_mask
from strop.model.length_head import RateHead
from strop.model.model_engine import ModelEngine
from strop.model.teacher import PIXELS_PER_LOCATION, Teacher, bicubic
from strop.model.tokenizer import Tokenizer
from strop.optional import require

ENCODER, INTERPRETER = "encoder.onnx", "interpreter.onnx"
FORMAT = 1
OPSET = 20  # ONNX Runtime reads it from version 1.17 on
CONFIDENCE = 0.5  # of the curve in the graph, as in `Tokenizer.rate_curve`
_MAX_BYTES = 1_900_000_000  # a protocol buffer holds 2 GiB

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""Inputs of a graph by name to its outputs by name."""


class _Encoder(nn.Module):
    """Images to the tensors of an `Encoding`, and the rate curve if there is a rate head."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.teacher = tokenizer.teacher  # no submodule of a tokenizer

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """uint8 `(B, 3, H, H)` to tensors by name."""
        found: dict[str, Tensor] = self.tokenizer(images).as_dict()
        head = self.tokenizer.length_head
        if isinstance(head, RateHead):
            cosine, squared = found["log_error"].unbind(1)
            found["cosine"] = head.expected(cosine, CONFIDENCE)
            found["squared_error"] = squared.exp() / self.tokenizer.config.teacher.scale**2
        return found


class _Interpreter(nn.Module):
    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, codes: Tensor, active: Tensor) -> dict[str, Tensor]:
        """Codes and mask `(B, L)` to the field `(B, S, d_enc)`."""
        return {"field": self.tokenizer.interpret_codes(codes, active)}


def export_onnx(tokenizer: Tokenizer, folder: PathLike) -> Path:
    """Write both graphs, a README with code that runs them, and an example of input and output."""
    folder = Path(folder)
    if (folder / "model.safetensors").exists():
        raise ModelError(f"{folder} holds a model.", "Name another folder.")
    images = example_images(tokenizer.config.image_size)
    with exclusive(folder):
        outputs = write_graphs(tokenizer, folder)
        with torch.no_grad():
            encoding = tokenizer(images.to(tokenizer.device))
        with atomic_path(folder / "example.npz") as path, path.open("wb") as file:
            np.savez_compressed(
                file,
                images=images.numpy(),
                codes=encoding.codes.cpu().numpy(),
                lengths=encoding.lengths.cpu().numpy(),
            )
        config = tokenizer.config
        about = {
            "identity": tokenizer.identity.as_dict(),
            "image_size": config.image_size,
            "fit": config.fit,
            "max_length": config.max_length,
            "codebook_size": config.quantizer.codes,
            "outputs": outputs,
        }
        write_json(folder / "export.json", "onnx", FORMAT, about)
        write_text(folder / "README.md", _readme(tokenizer, outputs))
    return folder


def write_graphs(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Write `encoder.onnx` and `interpreter.onnx`; returns the names of the encoder's outputs."""
    for package in ("onnx", "onnxscript"):
        require(package, ModelError)
    _check_size(tokenizer)
    config, device = tokenizer.config, tokenizer.device
    images = example_images(config.image_size).to(device)
    batch = torch.export.Dim("batch")
    width = torch.export.Dim("length", max=config.max_length)
    precision, tokenizer.precision = tokenizer.precision, "fp32"
    teacher = tokenizer.teacher
    resize, teacher.resize = teacher.resize, _resize_by_products(teacher, config.image_size)
    try:
        with torch.no_grad():
            # The first call also computes the positions that the teacher keeps: constants below.
            found = _Encoder(tokenizer)(images)
        codes = found["codes"][:, :-1]  # a width below K, or it would be taken for a constant
        active = prefix_mask(found["lengths"], codes.shape[1])
        images_of = {"images": images}, {"images": {0: batch}}
        _write(folder / ENCODER, _Encoder(tokenizer), *images_of, list(found))
        programs = {"codes": codes, "active": active}
        shapes = {name: {0: batch, 1: width} for name in programs}
        _write(folder / INTERPRETER, _Interpreter(tokenizer), programs, shapes, ["field"])
    finally:
        tokenizer.precision, teacher.resize = precision, resize
    return list(found)


def example_images(size: int) -> Tensor:
    """Three blocky pictures, uint8 `(3, 3, size, size)`, always the same."""
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8, generator=random)
    return blocks.repeat_interleave(size // 8, dim=-1).repeat_interleave(size // 8, dim=-2)


def _resize_by_products(teacher: Teacher, size: int) -> Callable[[Tensor, list[int]], Tensor]:
    """What `bicubic` does to squares of `size`, as products with its weights.

    Runtimes do not agree on how to resize with antialiasing.
    """
    wanted = size // PIXELS_PER_LOCATION * teacher.patch
    identity = torch.eye(size, device=teacher.mean.device)[None, None]
    weights = bicubic(identity, [size, wanted])[0, 0]  # (size, wanted)
    return lambda pixels, _: weights.T @ pixels @ weights


def _write(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], shapes: Any, outputs: list[str]
) -> None:
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            kwargs=inputs,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=shapes,
            input_names=list(inputs),
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    with atomic_path(path) as temporary:
        program.save(temporary, external_data=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on packages that it does not find and on its own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _check_size(tokenizer: Tokenizer) -> None:
    weights = [*tokenizer.parameters(), *tokenizer.teacher.parameters()]
    size = sum(weight.nbytes for weight in weights)
    if size > _MAX_BYTES:
        raise ModelError(
            f"The model and its teacher have {size / 1e9:.1f} GB of weights.",
            f"An ONNX file holds {_MAX_BYTES / 1e9:.1f} GB at most; use a smaller teacher.",
        )


def _readme(tokenizer: Tokenizer, outputs: list[str]) -> str:
    config = tokenizer.config
    size, capacity = config.image_size, config.max_length
    others = ", ".join(f"`{name}`" for name in outputs if name not in ("codes", "lengths"))
    return f"""# A strop tokenizer as ONNX graphs

`{ENCODER}` turns images into codes and lengths, `{INTERPRETER}` turns codes into the teacher's
patch field. They need a runtime such as ONNX Runtime, and neither strop nor PyTorch.

```python
import numpy as np
import onnxruntime

example = np.load("example.npz")
images = example["images"]  # uint8 (B, 3, {size}, {size}), RGB

encoder = onnxruntime.InferenceSession("{ENCODER}")
codes, lengths = encoder.run(["codes", "lengths"], {{"images": images}})
programs = [row[:length].tolist() for row, length in zip(codes, lengths)]
print(programs[0])

interpreter = onnxruntime.InferenceSession("{INTERPRETER}")
active = np.arange(codes.shape[1]) < lengths[:, None]
(field,) = interpreter.run(["field"], {{"codes": codes, "active": active}})
print(field.shape)  # (B, S, d_enc)

assert np.mean(codes == example["codes"]) > 0.99
assert np.array_equal(lengths, example["lengths"])
```

A photograph has to be resized to {size} x {size} pixels ({config.fit}) with bicubic antialiasing.

Outputs of `{ENCODER}`, for B images:

- `codes` (B, {capacity}) int64 in [0, {config.quantizer.codes})
- `lengths` (B,) int64 in [1, {capacity}]
- {others}: of an `Encoding` and of `rate_curve` of strop

Inputs of `{INTERPRETER}`: `codes` (B, L) int64 and `active` (B, L) bool, L at most {capacity}.
Codes that are not active have no effect; each row needs one that is.

The same graphs run inside strop: `strop.load(NAME, engine="onnx")`.
"""


# Engines.


class _GraphEngine(ModelEngine):
    """Runs the graphs of the weights that the tokenizer has now."""

    packages: tuple[str, ...]

    def __init__(self, tokenizer: Tokenizer) -> None:
        for package in self.packages:
            require(package, ModelError)
        self.folder = graphs_of(tokenizer)
        self._runs: dict[tuple[str, int], Run] = {}

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
        # Opened once in every process: threads of a runtime do not survive a fork. What the parent
        # opened is kept, because freeing it would wait for threads that do not exist here.
        key = graph, os.getpid()
        if key not in self._runs:
            self._runs[key] = self.open(self.folder / graph)
        arrays = {name: value.contiguous().numpy() for name, value in inputs.items()}
        return {name: torch.from_numpy(found) for name, found in self._runs[key](arrays).items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_runs": {}}


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
