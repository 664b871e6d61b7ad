"""A function of tensors that is recorded in a CUDA graph and replayed: no launch, no host."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

WARM_CALLS = 3
"""Calls before the recording: kernels are chosen and optimizer state made by then."""


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
        if self._calls < WARM_CALLS:
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

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On a stream of its own, if there is to be a recording: what runs before it must not
        leave work on the default stream that the recording would depend on."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the function with its inputs at fixed addresses, which runs nothing.

        Other threads, which read batches, may go on meanwhile. Whether it worked.
        """
        self._inputs = tuple(each.clone() for each in inputs)
        # The first calls' memory is of another stream and of no use to a recording.
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                self._output = self.function(*self._inputs)
        except RuntimeError as error:
            # Slower is better than not at all.
            warnings.warn(f"Steps run without CUDA graphs: {error}", stacklevel=3)
            self.recording = False
            torch.cuda.synchronize(self.device)
            return False
        self._graph = graph
        return True
