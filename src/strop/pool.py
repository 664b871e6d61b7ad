"""Worker processes that map a job over tasks in order, and report the death of a worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from strop.errors import DataError, StropError

if TYPE_CHECKING:
    import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


class DeadWorkerError(DataError):
    """A worker process ended by itself or was killed; `how` says by what."""

    def __init__(self, problem: str, remedy: str, how: str) -> None:
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


class Pool(Generic[Task, Result]):
    """`workers` processes that run `job`. With 0 workers, the job runs in this process.

    Each worker has its own pipe. The pipe closes at once when the worker dies, while a shared queue
    would stay empty for ever.
    """

    def __init__(
        self, job: Callable[[Task], Result], workers: int, context: BaseContext | None = None
    ) -> None:
        self._job = job
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[BaseProcess] = []
        self._owed: list[list[int]] = [[] for _ in range(workers)]  # unanswered tasks
        self._turn = 0
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
        """Yield results in the order of `tasks`.

        At most `ahead` tasks are submitted whose results have not been taken. A task is drawn from
        `tasks` when it is submitted, so the resources of tasks whose results were taken can be
        reused.
        """
        self._turn += 1
        turn = self._turn
        if not self._processes:
            for task in tasks:
                yield self._job(task)
            return
        if not self._finalizer.alive:
            raise DataError("These loading workers were stopped.", "Make a new loader.")
        while any(self._owed):  # results of an iteration that was abandoned
            self._receive({})
        source = iter(tasks)
        results: dict[int, Result] = {}
        given = taken = 0
        exhausted = False
        while True:
            while not exhausted and given - taken < ahead:
                try:
                    task = next(source)
                except StopIteration:
                    exhausted = True
                    break
                worker = min(range(len(self._owed)), key=lambda w: len(self._owed[w]))
                self._send(worker, task)
                self._owed[worker].append(given)
                given += 1
            if taken == given:
                return
            while taken not in results:
                self._receive(results)
            yield results.pop(taken)
            taken += 1
            if turn != self._turn:
                raise DataError(
                    "A newer iteration over the same loader has started.",
                    "Finish one iteration before the next, or use two loaders.",
                )

    def close(self) -> None:
        """Stop the workers."""
        self._finalizer()

    def _send(self, worker: int, task: Task) -> None:
        try:
            self._pipes[worker].send(task)
        except (BrokenPipeError, ConnectionError):
            self._report_death(worker)

    def _receive(self, results: dict[int, Result]) -> None:
        """Wait for at least one result. Each worker answers its tasks in order."""
        waiting = {self._pipes[w]: w for w, numbers in enumerate(self._owed) if numbers}
        for pipe in wait(list(waiting)):
            worker = waiting[pipe]  # type: ignore[index]
            try:
                failed, value = self._pipes[worker].recv()
            except (EOFError, ConnectionError):
                self._report_death(worker)
            if failed:
                self.close()
                if isinstance(value, Exception):
                    raise value
                raise DataError(
                    f"A loading worker failed.\n{value}", "This is a bug in the dataset."
                )
            results[self._owed[worker].pop(0)] = value

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
    tasks: SimpleQueue[tuple[Any] | None] = SimpleQueue()
    # If it did not receive while it sends, a worker with a large result and a parent with a large
    # task would wait for each other.
    threading.Thread(target=_receive, args=(pipe, tasks), daemon=True).start()
    while (received := tasks.get()) is not None:
        (task,) = received
        try:
            answer = (False, job(task))
        except (StropError, OSError) as error:
            answer = (True, error)
        except Exception:
            answer = (True, traceback.format_exc())
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionError):
            return


def _receive(pipe: Connection[Any, Any], tasks: SimpleQueue[tuple[Any] | None]) -> None:
    try:
        while True:
            tasks.put((pipe.recv(),))
    except (EOFError, ConnectionError):
        pass
    finally:
        tasks.put(None)


def _stop(pipes: list[Connection[Any, Any]], processes: list[BaseProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.kill()  # workers read, or write files atomically
    for process in processes:
        process.join(5)
