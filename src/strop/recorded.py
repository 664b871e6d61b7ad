"""Functions recorded in a CUDA graph and replayed, without kernel launches from the host."""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

WARM_STEPS = 3
"""Calls before the recording, in which kernels are chosen and optimizer state is made."""

ATTEMPTS = 3
"""How often a recording is tried. Another process on the GPU can make one fail: see `capture`."""

_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed. The allocator may still ask them, so they are never freed."""

Result = TypeVar("Result")


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's state before a recording, which would otherwise make it in every replay.

    With learning rates of zero this changes no parameter.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings():
        # It warns once of steps outside a graph; the first few are outside by design.
        warnings.simplefilter("ignore", UserWarning)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for kept in optimizer.state.values():
        kept["step"].zero_()


Capture = Callable[[Callable[[], Any], object | None], tuple[Callable[[], None], Any, object]]
"""Turns a function without arguments into one that repeats its work on the same tensors: gives that
function, the result that it overwrites, and the pool of its memory, which may be given."""


def capture(
    function: Callable[[], Result], pool: object | None
) -> tuple[Callable[[], None], Result, object]:
    """Record `function` in a CUDA graph; it runs nothing.

    A capture fails with "operation failed due to a previous error during capture" if its thread
    makes a call that CUDA does not allow during a capture. Another process on the GPU can cause
    this: when memory runs out, the allocator waits for events and frees blocks, which is not
    allowed. Therefore unused blocks are freed first, and the caller tries again. Finalizers of
    tensors and graphs also make such calls, so garbage collection is off during the capture.
    Only calls of this thread matter: other threads, which read batches, continue.
    """
    # The memory of the first calls belongs to another stream and is of no use to a recording.
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
            result = function()
    except BaseException:
        _failed.append(graph)
        raise
    finally:
        if collecting:
            gc.enable()
    return graph.replay, result, graph.pool()


class Recorded(Generic[Result]):
    """Calls `function`; on a GPU, after the first calls, replays a recording of it.

    The function takes tensors whose shapes never change and may change others in place, such as
    weights. The next call overwrites its result. A function that cannot be recorded is called
    every time.

    enabled       False to call the function every time
    shares_with   another recorded function, never in use at the same time, to share memory with
    capture       how to record; by default in a CUDA graph on a GPU, and not at all on a CPU
    """

    def __init__(
        self,
        function: Callable[..., Result],
        device: torch.device,
        *,
        enabled: bool = True,
        shares_with: Recorded[Any] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.function, self.device = function, device
        self.recording = enabled and (capture is not None or device.type == "cuda")
        self._capture = capture
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._pool: object | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result: Result | None = None
        self._shares_with = shares_with
        self._stream: torch.cuda.Stream | None = None
        if self.recording and device.type == "cuda":
            shared = shares_with._stream if shares_with is not None else None
            self._stream = shared or torch.cuda.Stream(device)

    @property
    def recorded(self) -> bool:
        """Whether calls replay a recording."""
        return self._replay is not None

    def __call__(self, *inputs: Tensor) -> Result:
        """The function's result for `inputs`, valid until the next call."""
        if not self.recording:
            return self.function(*inputs)
        if self._calls < WARM_STEPS:
            self._calls += 1
            with self.aside():
                return self.function(*inputs)
        if self._replay is None and not self._record(inputs):
            return self.function(*inputs)
        assert self._replay is not None
        assert self._result is not None
        for kept, new in zip(self._inputs, inputs, strict=True):
            kept.copy_(new, non_blocking=True)
        self._replay()
        return self._result

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Run on a stream of its own if there is to be a recording: earlier work must not leave
        work on the default stream that the recording would depend on."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        on_gpu = self.device.type == "cuda"
        return torch.cuda.device(self.device) if on_gpu else contextlib.nullcontext()

    def _record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the function with copies of `inputs`; whether it worked. Runs nothing."""
        self._inputs = tuple(each.clone() for each in inputs)
        record: Capture = self._capture or capture
        pool = self._shares_with._pool if self._shares_with is not None else None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._on_device():
                    self._replay, self._result, self._pool = record(
                        lambda: self.function(*self._inputs), pool
                    )
                return True
            except RuntimeError as error:
                if attempt < ATTEMPTS:
                    time.sleep(0.1 * attempt)
                    continue
                # Slower is better than not at all; a custom loss may not be recordable.
                warnings.warn(f"Runs without CUDA graphs, more slowly: {error}", stacklevel=3)
        self.recording = False
        self._inputs = ()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return False
