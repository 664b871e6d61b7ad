"""Functions recorded in a CUDA graph and replayed, without kernel launches from the host."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

WARM_STEPS = 3
"""Calls before the recording, in which kernels are chosen and optimizer state is made."""

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


class Recorded(Generic[Result]):
    """Calls `function`; on a GPU, after the first calls, replays a recording of it.

    The function takes tensors whose shapes never change and may change others in place, such as
    weights. The next call overwrites its result. A function that cannot be recorded is called
    every time.

    enabled       False to call the function every time
    shares_with   another recorded function, never in use at the same time, to share memory with
    """

    def __init__(
        self,
        function: Callable[..., Result],
        device: torch.device,
        *,
        enabled: bool = True,
        shares_with: Recorded[Any] | None = None,
    ) -> None:
        self.function, self.device = function, device
        self.recording = enabled and device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result: Result | None = None
        self._shares_with = shares_with
        self._stream: torch.cuda.Stream | None = None
        if self.recording:
            shared = shares_with._stream if shares_with is not None else None
            self._stream = shared or torch.cuda.Stream(device)

    def __call__(self, *inputs: Tensor) -> Result:
        """The function's result for `inputs`, valid until the next call."""
        if not self.recording:
            return self.function(*inputs)
        if self._calls < WARM_STEPS:
            self._calls += 1
            with self.aside():
                return self.function(*inputs)
        if self._graph is None and not self._record(inputs):
            return self.function(*inputs)
        assert self._graph is not None
        assert self._result is not None
        for kept, new in zip(self._inputs, inputs, strict=True):
            kept.copy_(new, non_blocking=True)
        self._graph.replay()
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

    def _record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the function with copies of `inputs`; whether it worked. Runs nothing."""
        shared = self._shares_with._graph if self._shares_with is not None else None
        self._inputs = tuple(each.clone() for each in inputs)
        # The first calls' memory is of another stream and of no use to a recording.
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which read batches, continue meanwhile.
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(
                    graph,
                    pool=None if shared is None else shared.pool(),
                    capture_error_mode="thread_local",
                ),
            ):
                self._result = self.function(*self._inputs)
            self._graph = graph
        except RuntimeError as error:
            # Slower is better than not at all; a custom loss may not be recordable.
            warnings.warn(f"Steps run without CUDA graphs: {error}", stacklevel=3)
            self.recording = False
            torch.cuda.synchronize(self.device)
        return self._graph is not None
