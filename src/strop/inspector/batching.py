"""Requests that meet are served together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, PriorityQueue
from threading import Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """A thread that does `work` on everything its callers want at the moment, `most` at a time.

    Callers block until their own item is done and so have one in the queue each: somebody with
    much to do takes turns with everybody else. What is `urgent` goes first, and not together with
    what is not, because somebody is watching.
    """

    def __init__(self, work: Callable[[list[Item]], list[Result]], most: int) -> None:
        self._work, self._most = work, most
        # Not urgent, number, item, future: in the order they are taken.
        self._queue: PriorityQueue[tuple[bool, int, Item, Future[Result]]] = PriorityQueue()
        self._numbers = itertools.count()
        Thread(target=self._serve, daemon=True).start()

    def __call__(self, item: Item, urgent: bool = False) -> Result:
        """What `work` makes of `item`, or what it raises."""
        future: Future[Result] = Future()
        self._queue.put((not urgent, next(self._numbers), item, future))
        return future.result()

    def _serve(self) -> None:
        while True:
            taken = [self._queue.get()]
            while len(taken) < self._most:
                try:
                    entry = self._queue.get_nowait()
                except Empty:
                    break
                if entry[0] != taken[0][0]:
                    self._queue.put(entry)
                    break
                taken.append(entry)
            self._finish([(item, future) for _, _, item, future in taken])

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
