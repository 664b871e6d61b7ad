"""Steps that are recorded in a CUDA graph and replayed: no launch, no host."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

WARM_STEPS = 3
"""Calls before the recording: kernels are chosen and optimizer state made by then."""

Result = TypeVar("Result")


@contextlib.contextmanager
def aside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On a stream of its own, if there is to be a recording: what runs before it must not leave
    work on the default stream that the recording would depend on."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(stream.device).wait_stream(stream)


def recording_of(
    run: Callable[[], Result], device: torch.device, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A recording of `run`, whose inputs lie at fixed addresses, and what each replay writes to.

    Recording runs nothing. Other threads, which read batches, may go on meanwhile. `pool` is that
    of a recording to share memory with.
    """
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(device),
        torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
    ):
        result = run()
    return graph, result


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's state now: made while a CUDA graph is recorded, each replay would
    make it anew. With rates of zero this moves no parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings():
        # It warns, once, of steps outside a graph; the first few are meant to be.
        warnings.simplefilter("ignore", UserWarning)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for kept in optimizer.state.values():
        kept["step"].zero_()


class Recorded:
    """Calls `function`; on a GPU, after its first calls, by replaying what it did.

    The function takes tensors whose shapes never change and may change others in place, such as
    weights. What it returns is overwritten by the next call. Where it cannot be recorded, it goes
    on being called.
    """

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        self.function, self.device = function, device
        self.recording = device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output: Tensor | None = None
        self._stream = torch.cuda.Stream(device) if self.recording else None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the function returns for `inputs`, until the next call."""
        if not self.recording:
            return self.function(*inputs)
        if self._calls < WARM_STEPS:
            self._calls += 1
            with self.aside():
                return self.function(*inputs)
        if self._graph is None and not self._record(inputs):
            return self.function(*inputs)
        assert self._graph is not None
        assert self._output is not None
        for kept, new in zip(self._inputs, inputs, strict=True):
            kept.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._output

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Where to run what prepares the first call."""
        return aside(self._stream)

    def _record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the function with copies of `inputs`; whether it worked."""
        self._inputs = tuple(each.clone() for each in inputs)
        # The first calls' memory is of another stream and of no use to a recording.
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        try:
            self._graph, self._output = recording_of(
                lambda: self.function(*self._inputs), self.device
            )
        except RuntimeError as error:
            # Slower is better than not at all.
            warnings.warn(f"Steps run without CUDA graphs: {error}", stacklevel=3)
            self.recording = False
            torch.cuda.synchronize(self.device)
        return self._graph is not None
