"""Compute results in advance, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int, *, threads: int = 1
) -> Iterator[Result]:
    """`map(function, items)` with up to `ahead` results computed in advance.

    An exception of `function` is raised in place of its result. When the iterator is closed, calls
    that have started are awaited and the others are cancelled.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="strop-prefetch") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
