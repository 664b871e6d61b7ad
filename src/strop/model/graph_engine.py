"""The engine of a GPU: each computation recorded in CUDA graphs, one for each of a few batch sizes.

A batch is padded to the next size, so that no other size is ever recorded. Programs are padded to
all K codes, so that lengths do not matter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.encoding import Encoding
from strop.model.model_engine import ModelEngine
from strop.model.teacher import Teacher
from strop.model.vit import ViT
from strop.recorded import WARM_STEPS, Capture, Recorded

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

Tensors = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Sizes up to `largest` at which batches are recorded: 1, 8, 32, 128, ... and `largest`."""
    sizes, size = {1, largest}, 8
    while size < largest:
        sizes.add(size)
        size *= 4
    return tuple(sorted(sizes))


class GraphEngine(ModelEngine):
    """Replays recordings; threads take turns.

    sizes     batch sizes that are recorded; larger batches are divided
    compiled  options with which `torch.compile` compiles `forward`; None to record it as it is
    capture   see `Recorded`

    A size is recorded when it was used a few times, or by `prepare`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        compiled: dict[str, Any] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.sizes = tuple(sorted(sizes))
        self._compiled, self._capture = compiled, capture
        self._recorded: dict[tuple[object, ...], Recorded[Tensors]] = {}
        self._models: dict[tuple[tuple[str, ...], torch.dtype], _Rounded] = {}
        self._lock = threading.Lock()
        self._done: torch.cuda.Event | None = None

    @torch.no_grad()
    def prepare(self, tokenizer: Tokenizer) -> None:
        """Record every size of every computation now."""
        config, device = tokenizer.config, tokenizer.device
        shape = (self.sizes[-1], 3, config.image_size, config.image_size)
        images = torch.zeros(shape, dtype=torch.uint8, device=device)
        codes = torch.zeros(len(images), config.max_length, dtype=torch.int64, device=device)
        field = images.new_zeros(
            len(images), config.grid**2, config.teacher.width, dtype=torch.float32
        )
        for size in reversed(self.sizes):  # the largest first: the others fit into its memory
            for _ in range(WARM_STEPS + 1):
                self.encode(tokenizer, images[:size])
                self.interpret(tokenizer, codes[:size], codes[:size] == 0)
                if tokenizer.decoder is not None:
                    self.decode(tokenizer, field[:size])

    def encode(self, tokenizer: Tokenizer, images: Tensor) -> Encoding:
        """See `ModelEngine.encode`."""

        def run(images: Tensor) -> Tensors:
            encoding: Encoding = rounded(images)
            return encoding.as_dict()

        rounded = self._rounded(tokenizer, "teacher", "generator")
        return Encoding(**self._run(("encode", tokenizer.precision), run, images))

    def field(self, tokenizer: Tokenizer, images: Tensor) -> Tensor:
        """See `ModelEngine.field`: a part of what the recorded graph computes."""
        return self.encode(tokenizer, images).field

    def interpret(self, tokenizer: Tokenizer, codes: Tensor, active: Tensor) -> Tensor:
        """See `ModelEngine.interpret`."""

        def run(codes: Tensor, active: Tensor) -> Tensors:
            return {"field": rounded.interpret_codes(codes, active)}

        rounded = self._rounded(tokenizer, "interpreter")
        missing = tokenizer.config.max_length - codes.shape[1]
        codes, active = (F.pad(each, (0, missing)) for each in (codes, active))
        return self._run(("interpret", tokenizer.precision), run, codes, active)["field"]

    def decode(self, tokenizer: Tokenizer, field: Tensor) -> Tensor:
        """See `ModelEngine.decode`."""

        def run(field: Tensor) -> Tensors:
            return {"pixels": tokenizer.decode_field(field)}

        return self._run(("decode",), run, field)["pixels"]

    def _rounded(self, tokenizer: Tokenizer, *parts: str) -> Tokenizer:
        key = parts, tokenizer.product_dtype
        with self._lock:
            if key not in self._models:
                self._models[key] = _Rounded(tokenizer, parts, self._compiled)
            self._models[key].update()
        return self._models[key].tokenizer

    def _run(
        self, what: tuple[object, ...], function: Callable[..., Tensors], *inputs: Tensor
    ) -> Tensors:
        """The function's results for batches of any size. Equal `what`, equal function."""
        largest = self.sizes[-1]
        parts = [
            self._run_part(what, function, *(each[start : start + largest] for each in inputs))
            for start in range(0, len(inputs[0]), largest)
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _run_part(
        self, what: tuple[object, ...], function: Callable[..., Tensors], *inputs: Tensor
    ) -> Tensors:
        count = len(inputs[0])
        size = next(size for size in self.sizes if size >= count)
        device = inputs[0].device
        padded = [_padded(each, size) for each in inputs]
        with self._lock:
            recorded = self._recorded.get((*what, size))
            if recorded is None:
                shared = next(iter(self._recorded.values()), None)
                recorded = self._recorded[*what, size] = Recorded(
                    function, device, shares_with=shared, capture=self._capture
                )
            if self._done is not None:  # another thread may use another stream
                torch.cuda.current_stream(device).wait_event(self._done)
            # Copies: the next call overwrites the results.
            found = {name: out[:count].clone() for name, out in recorded(*padded).items()}
            if device.type == "cuda":
                self._done = torch.cuda.Event()
                self._done.record(torch.cuda.current_stream(device))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "compiled": self._compiled, "capture": self._capture}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _Rounded:
    """A tokenizer that shares everything with another, except that weights of products are rounded
    to half precision where these are computed in it.

    parts  of the tokenizer whose products are computed so

    Autocast would round them in every call, and a recording would repeat that in every replay: for
    a single image it takes about a quarter of the time.
    """

    def __init__(
        self, tokenizer: Tokenizer, parts: Sequence[str], compiled: dict[str, Any] | None
    ) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._versions = -1
        self.tokenizer = _copy(tokenizer)
        dtype = tokenizer.product_dtype
        for part in parts if dtype != torch.float32 else ():
            module = getattr(tokenizer, part)
            if isinstance(module, Teacher):  # no submodule
                teacher = self.tokenizer.__dict__["_teacher"] = _copy(module)
                if isinstance(module.backbone, ViT):
                    teacher._modules["backbone"] = self._with_rounded(module.backbone, dtype)
            else:
                self.tokenizer._modules[part] = self._with_rounded(module, dtype)
        if compiled is not None:
            nn.Module.compile(self.tokenizer, **compiled)

    @torch.no_grad()
    def update(self) -> None:
        """Round again if a weight has changed."""
        versions = sum(0 if x.is_inference() else x._version for x, _ in self._pairs)
        if versions != self._versions:
            for exact, rounded in self._pairs:
                rounded.copy_(exact)
            self._versions = versions

    def _with_rounded(self, module: nn.Module, dtype: torch.dtype) -> nn.Module:
        twin = _copy(module)
        for name, child in module._modules.items():
            if child is not None:
                twin._modules[name] = self._with_rounded(child, dtype)
        if isinstance(module, nn.Linear | nn.Conv2d):
            for name, weight in module.named_parameters():
                with torch.inference_mode(False):
                    rounded = torch.empty_like(weight, dtype=dtype, requires_grad=False)
                self._pairs.append((weight, rounded))
                twin._parameters[name] = nn.Parameter(rounded, requires_grad=False)
        return twin


def _copy(module: Module) -> Module:
    """A module with the same parameters, buffers and children, which can be exchanged."""
    twin = object.__new__(type(module))
    own = {name: dict(module.__dict__[name]) for name in ("_parameters", "_modules")}
    twin.__dict__ = {**module.__dict__, **own, "_compiled_call_impl": None}
    return twin


def _padded(values: Tensor, size: int) -> Tensor:
    """Rows up to `size`; those added repeat the first, so that they are valid."""
    missing = size - len(values)
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])]) if missing else values


def use_graphs(tokenizer: Tokenizer, batch: int) -> None:
    """Let a tokenizer that is on a GPU and has no other engine record batches up to `batch`."""
    if tokenizer.device.type == "cuda" and type(tokenizer.engine) is ModelEngine:
        tokenizer.engine = GraphEngine(batch_sizes(batch))
