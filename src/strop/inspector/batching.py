"""Requests that meet are served together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """A thread that does `work` on everything its callers want at the moment, `most` at a time.

    Callers block until their own item is done and so have one in the queue each: somebody with
    much to do takes turns with everybody else.
    """

    def __init__(self, work: Callable[[list[Item]], list[Result]], most: int) -> None:
        self._work, self._most = work, most
        self._queue: SimpleQueue[tuple[Item, Future[Result]]] = SimpleQueue()
        Thread(target=self._serve, daemon=True).start()

    def __call__(self, item: Item) -> Result:
        """What `work` makes of `item`, or what it raises."""
        future: Future[Result] = Future()
        self._queue.put((item, future))
        return future.result()

    def _serve(self) -> None:
        while True:
            waiting = [self._queue.get()]
            while len(waiting) < self._most:
                try:
                    waiting.append(self._queue.get_nowait())
                except Empty:
                    break
            self._finish(waiting)

    def _finish(self, waiting: list[tuple[Item, Future[Result]]]) -> None:
        try:
            results = self._work([item for item, _ in waiting])
        except Exception as error:
            if len(waiting) == 1:
                waiting[0][1].set_exception(error)
                return
            for one in waiting:  # what is wrong with one is no fault of the others
                self._finish([one])
            return
        for (_, future), result in zip(waiting, results, strict=True):
            future.set_result(result)
