"""Processes and threads that map a function over tasks, in order and in advance."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from strop.errors import DataError, StropError

if TYPE_CHECKING:
    import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


class DeadWorkerError(DataError):
    """A worker process ended by itself or was killed; `how` says by what."""

    def __init__(self, problem: str, remedy: str = "", how: str = "") -> None:
        super().__init__(problem, remedy)
        self.how = how


def cores() -> int:
    """The CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def default_context(device: torch.device | str = "cpu") -> BaseContext:
    """The start method of worker processes that compute on `device`.

    Forking is cheap, and safe on Linux for single-threaded workers without a GPU. Thread pools and
    CUDA do not survive a fork, so all other workers are spawned.
    """
    forks = sys.platform == "linux" and str(device).startswith("cpu")
    return multiprocessing.get_context("fork" if forks else "spawn")


def map_ahead(
    function: Callable[[Task], Result], tasks: Iterable[Task], ahead: int, *, threads: int = 1
) -> Iterator[Result]:
    """`map(function, tasks)` with up to `ahead` results computed in advance.

    An exception of `function` is raised in place of its result. When the iterator is closed, calls
    that have started are awaited and the others are cancelled.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="strop-prefetch") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Pool(Generic[Task, Result]):
    """`workers` processes that run `job`. With 0 workers, the job runs in this process.

    Workers take tasks in turn, each through its own pipe. The pipe closes at once when the worker
    dies, while a shared queue would stay empty for ever.
    """

    def __init__(
        self, job: Callable[[Task], Result], workers: int, context: BaseContext | None = None
    ) -> None:
        self._job = job
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[BaseProcess] = []
        context = context or default_context()
        for _ in range(workers):
            ours, theirs = context.Pipe()
            # A forked worker has copies of these: while they are open, no pipe closes.
            copies = [*self._pipes, ours] if context.get_start_method() == "fork" else []
            process = context.Process(target=_work, args=(job, theirs, copies), daemon=True)  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._finalizer = weakref.finalize(self, _stop, self._pipes, self._processes)

    def map(self, tasks: Iterable[Task], ahead: int) -> Iterator[Result]:
        """Yield results in the order of `tasks`; one iteration at a time.

        At most `ahead` tasks are submitted whose results have not been taken. A task is drawn from
        `tasks` when it is submitted, so the resources of tasks whose results were taken can be
        reused.
        """
        if not self._processes:
            yield from map(self._job, tasks)
            return
        waiting: deque[int] = deque()  # the worker of each task without a result
        for worker, task in zip(cycle(range(len(self._pipes))), tasks, strict=False):
            try:
                self._pipes[worker].send(task)
            except (BrokenPipeError, ConnectionError):
                self._report_death(worker)
            waiting.append(worker)
            if len(waiting) == ahead:
                yield self._receive(waiting.popleft())
        while waiting:
            yield self._receive(waiting.popleft())

    def close(self) -> None:
        """Stop the workers."""
        self._finalizer()

    def __enter__(self) -> Pool[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, worker: int) -> Result:
        """The next result of a worker, which answers its tasks in order."""
        try:
            failed, value = self._pipes[worker].recv()
        except (EOFError, ConnectionError):
            self._report_death(worker)
        if not failed:
            result: Result = value
            return result
        self.close()
        if isinstance(value, Exception):
            raise value
        raise DataError(f"A loading worker failed.\n{value}", "This is a bug in the dataset.")

    def _report_death(self, worker: int) -> NoReturn:
        process = self._processes[worker]
        process.join(5)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how += f", {signal.Signals(-code).name}"
        self.close()
        hint = "Often the machine ran out of memory: use fewer workers or smaller batches."
        raise DeadWorkerError(
            f"Loading worker {worker} (process {process.pid}) died: {how}.", hint, how
        )


def _work(
    job: Callable[[Any], Any], pipe: Connection[Any, Any], copies: list[Connection[Any, Any]]
) -> None:
    for copy in copies:
        copy.close()
    # The parent handles signals to the process group. It may write a checkpoint first, and would
    # report workers that exit as dead. If the parent dies, the pipe closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import torch

    # Parallelism comes from the processes. Threads would not be safe after a fork.
    torch.set_num_threads(1)
    answers: SimpleQueue[memoryview] = SimpleQueue()
    # A worker that has a large result must not wait until it is taken: it has other tasks, and the
    # parent may be sending it a large one.
    threading.Thread(target=_send, args=(pipe, answers), daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = ForkingPickler.dumps((False, job(task)))
        except (StropError, OSError) as error:
            answer = ForkingPickler.dumps((True, error))
        except Exception:
            answer = ForkingPickler.dumps((True, traceback.format_exc()))
        answers.put(answer)


def _send(pipe: Connection[Any, Any], answers: SimpleQueue[memoryview]) -> None:
    with suppress(BrokenPipeError, ConnectionError):  # the parent has ended
        while True:
            pipe.send_bytes(answers.get())


def _stop(pipes: list[Connection[Any, Any]], processes: list[BaseProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.kill()  # workers read, or write files atomically
    for process in processes:
        process.join(5)
