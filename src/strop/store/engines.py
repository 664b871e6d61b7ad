"""Engines: they move slices of a corpus to an encoder and bring back rows, in order.

What happens to the images is the same in all of them, see `strop.store.encoder`. An engine takes
slices, each a list of indices into the corpus, and yields one `Encoded` for each.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from queue import Queue
from typing import Any, TypeVar

import torch

from strop.errors import StoreError
from strop.model.checkpoint import load
from strop.model.graph_engine import use_graphs
from strop.model.tokenizer import Tokenizer
from strop.pool import DeadWorkerError, Pool, cores, default_context
from strop.store.corpus import Corpus, Item
from strop.store.encoder import Encoded, Encoder, Squares, joined
from strop.store.extras import require

_CHUNK = 8  # images in a task of a CPU worker
_RETRIES = 8  # of a task of Ray, whose process or machine may go away for other reasons
_AHEAD = 4  # tasks for each worker that may be submitted or wait to be taken

T = TypeVar("T")
Slice = list[int]
Task = tuple[list[int], list[Item] | None]
"""Indices into the corpus, and the items there if the main process has to read them."""


@dataclass(frozen=True)
class Job:
    """What an engine does.

    corpus   the images
    encoder  turns them into rows
    model    name of the model; its `identity.codes` is `codes`
    """

    corpus: Corpus
    encoder: Encoder
    model: str
    codes: str


# One machine.


def encode_locally(
    job: Job,
    tokenizer: Tokenizer,
    slices: Iterable[Slice],
    *,
    workers: int | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[Encoded]:
    """Encode slices on this machine.

    workers  processes; by default one for each core, and 0 is this process. If the model is on the
             CPU they read and encode; one thread in each is faster than all threads on one image.
             If it is on a GPU they read, and this process encodes.
    done     called with the number of images after each task
    """
    count = cores() if workers is None else workers
    on_cpu = tokenizer.device.type == "cpu"
    use_graphs(tokenizer, job.encoder.batch)
    work = _ReadAndEncode(job, tokenizer) if on_cpu else _Read(job)
    chunk = _CHUNK if on_cpu else job.encoder.batch
    sizes: deque[list[int]] = deque()  # of the tasks of each slice that was cut

    def tasks() -> Iterator[Task]:
        for indices in slices:
            parts = [indices[start : start + chunk] for start in range(0, len(indices), chunk)]
            sizes.append([len(part) for part in parts])
            for part in parts:
                yield part, job.corpus.items(part) if job.corpus.in_main_process else None

    results = _map(work, tasks(), count)
    if not on_cpu:
        results = (job.encoder.encode(tokenizer, read) for read in _in_thread(results))
    while True:
        first = next(results, None)
        if first is None:
            return
        parts = [first]
        expected = sizes.popleft()
        done(expected[0])
        for size in expected[1:]:
            parts.append(next(results))
            done(size)
        yield joined(parts)


class _Read:
    """The job of a worker that reads."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, task: Task) -> Squares:
        indices, items = task
        return self._job.encoder.read(self._job.corpus.items(indices) if items is None else items)

    def rejected(self, task: Task, reason: str) -> Squares:
        """The result for one image that ends the process."""
        index = task[0][0]
        problem = StoreError(f"Reading this image ended the process: {reason}.", "Check the file.")
        source = next(item.source for item in self._job.corpus.items([index]))
        return self._job.encoder.read([Item(self._job.corpus.keys[index], source, problem, {})])


class _ReadAndEncode:
    """The job of a worker that reads and encodes."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._read = _Read(job)
        self._encode = functools.partial(job.encoder.encode, tokenizer)

    def __call__(self, task: Task) -> Encoded:
        return self._encode(self._read(task))

    def rejected(self, task: Task, reason: str) -> Encoded:
        """The result for one image that ends the process."""
        return self._encode(self._read.rejected(task, reason))


def _map(work: Any, tasks: Iterable[Task], workers: int) -> Iterator[Any]:
    """`map(work, tasks)` in worker processes that are replaced if they die.

    A task during which a worker dies twice is done image by image, and an image that still ends
    its process is rejected.
    """
    waiting: deque[Task] = deque()  # drawn, but without a result
    left = _drawn(tasks, waiting)  # outlives each pool: `chain` does not close it
    deaths = 0
    while True:
        again = list(waiting)
        with _fork_quietly():
            pool: Pool[Task, Any] = Pool(work, workers, default_context())
        try:
            for result in pool.map(chain(again, left), _AHEAD * max(workers, 1)):
                waiting.popleft()
                deaths = 0
                yield result
            return
        except DeadWorkerError:
            deaths += 1
            if deaths == 2:
                yield _one_by_one(work, waiting.popleft())
                deaths = 0
        finally:
            pool.close()


def _drawn(tasks: Iterable[Task], waiting: deque[Task]) -> Iterator[Task]:
    for task in tasks:
        waiting.append(task)
        yield task


def _one_by_one(work: Any, task: Task) -> Any:
    """The result of a task, each image of it in a process of its own."""
    indices, items = task
    results = []
    for row, index in enumerate(indices):
        single: Task = ([index], None if items is None else [items[row]])
        with _fork_quietly():
            pool: Pool[Task, Any] = Pool(work, 1, default_context())
        try:
            results += list(pool.map([single], 1))
        except DeadWorkerError as death:
            results.append(work.rejected(single, death.how))
        finally:
            pool.close()
    return joined(results) if isinstance(results[0], Encoded) else Squares.joined(results)


@contextmanager
def _fork_quietly() -> Iterator[None]:
    """Lance warns of every fork. The workers never call it: see `Corpus.in_main_process`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        yield


def _in_thread(values: Iterator[T], ahead: int = 2) -> Iterator[T]:
    """`values`, computed ahead in a thread, so that workers never wait for the consumer."""
    queue: Queue[tuple[bool, Any]] = Queue(ahead)
    stopped = threading.Event()

    def fill() -> None:
        try:
            for value in values:
                queue.put((True, value))
                if stopped.is_set():
                    return
            queue.put((False, None))
        except BaseException as error:
            queue.put((False, error))

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        while True:
            more, value = queue.get()
            if more:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stopped.set()
        while thread.is_alive() and not queue.empty():
            queue.get()


# Many machines.


def encode_with_ray(
    job: Job,
    slices: Iterable[Slice],
    *,
    address: str | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[Encoded]:
    """Encode slices on the machines of a Ray cluster, one task for each slice.

    Tasks, not the actor pool of Ray Data: a task has no home, so Ray runs it on any machine that is
    left when one goes away, and it takes its processor only while it runs, so reading cannot be
    starved. A worker process keeps the model between tasks. Rows come back to this process, which
    alone writes: 40 bytes an image are not worth a file system that all machines share.

    address  of a cluster; "auto" finds the one of this machine, None starts one here
    """
    ray = require("ray")
    if not ray.is_initialized():
        # Without an address, Ray would connect to any cluster that it finds on this machine.
        ray.init(address=address or "local", log_to_driver=False, include_dashboard=False)
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0) > 0
    share = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    task = ray.remote(max_retries=_RETRIES, **share)(_encode_slice)
    lanes = int(resources.get("GPU" if gpus else "CPU", 1))
    shared = ray.put(job)
    waiting: deque[tuple[Slice, Any]] = deque()
    left = iter(slices)
    try:
        while True:
            # Two for each lane: one that runs and one that waits.
            while len(waiting) < 2 * lanes and (indices := next(left, None)) is not None:
                waiting.append((indices, task.remote(shared, indices, gpus)))
            if not waiting:
                return
            indices, reference = waiting.popleft()
            encoded = _collected(ray, task, shared, gpus, indices, reference)
            done(len(indices))
            yield encoded
    finally:
        for _, reference in waiting:
            ray.cancel(reference, force=True)


def _collected(
    ray: Any, task: Any, shared: Any, gpus: bool, indices: Slice, reference: Any
) -> Encoded:
    """The result of a task. A slice whose process ends at every try is cut into halves, down to
    the image that does it, which is rejected."""
    try:
        encoded: Encoded = ray.get(reference)
        return encoded
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        if len(indices) == 1:
            rejected = _Read(ray.get(shared)).rejected((indices, None), type(error).__name__)
            return Encoded(ray.get(shared).encoder.no_rows(), rejected.rejects)
        middle = len(indices) // 2
        halves = [indices[:middle], indices[middle:]]
        references = [task.remote(shared, half, gpus) for half in halves]
        return joined(
            [
                _collected(ray, task, shared, gpus, half, reference)
                for half, reference in zip(halves, references, strict=True)
            ]
        )


def _encode_slice(job: Job, indices: Slice, gpu: bool) -> Encoded:
    """What a task does: read a slice and encode it, in the same parts as a local worker."""
    if not gpu:
        torch.set_num_threads(1)  # as in a local worker: a sum in another order can change a code
    tokenizer = _loaded(job.model, "cuda" if gpu else "cpu")
    if tokenizer.identity.codes != job.codes:
        raise StoreError(
            f"The model {job.model!r} on this machine ({tokenizer.identity.codes}) is not that of "
            f"the command ({job.codes}).",
            "Put the same model on all machines, under the same path.",
        )
    workers = cores() if gpu else 0
    (encoded,) = encode_locally(job, tokenizer, [indices], workers=workers)
    return encoded


@functools.lru_cache(maxsize=1)
def _loaded(model: str, device: str) -> Tokenizer:
    return load(model, device=device)


def slices_of(rows: Iterable[int], size: int) -> Iterator[Slice]:
    """Rows cut at the multiples of `size`, so that a slice is the same whatever is left of it."""
    part: Slice = []
    for row in map(int, rows):
        if part and row // size != part[-1] // size:
            yield part
            part = []
        part.append(row)
    if part:
        yield part
