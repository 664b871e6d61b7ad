"""Engines: they move slices of a corpus to an encoder and bring back rows, in order.

What happens to the images is the same in all of them, see `strop.store.encoder`. An engine takes
slices, each a list of indices into the corpus, and yields one `Part` for each.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import Any

import torch

from strop.errors import StoreError
from strop.model.checkpoint import load
from strop.model.graph_engine import use_graphs
from strop.model.tokenizer import Tokenizer
from strop.optional import require
from strop.pool import DeadWorkerError, Pool, cores, default_context
from strop.prefetch import map_ahead
from strop.store.corpus import Item
from strop.store.encoder import Job, Part

_CHUNK = 8  # images in a task of a CPU worker
_RETRIES = 8  # of a task of Ray, whose process or machine may go away for other reasons
_AHEAD = 4  # tasks for each worker that may be submitted or wait to be taken

Slice = list[int]
Task = tuple[list[int], list[Item] | None]
"""Indices into the corpus, and the items there if the main process has to read them."""

Done = Callable[[int], None]
"""Called with the number of images that were done since the last call."""


# One machine.


def encode_locally(
    job: Job,
    tokenizer: Tokenizer,
    slices: Iterable[Slice],
    *,
    workers: int | None = None,
    done: Done = lambda count: None,
) -> Iterator[Part]:
    """Encode slices on this machine.

    workers  processes; by default one for each core, and 0 is this process. If the model is on the
             CPU they read and encode; one thread in each is faster than all threads on one image.
             If it is on a GPU, or lengths depend on all images, they read, and this process encodes
    """
    workers = cores() if workers is None else workers
    together = job.rule.mean_length is not None
    in_workers = tokenizer.device.type == "cpu" and not together
    use_graphs(tokenizer, job.batch)
    chunk = _CHUNK if in_workers else job.batch
    left: deque[int] = deque()  # images of each slice that was cut

    def tasks() -> Iterator[Task]:
        for indices in slices:
            left.append(len(indices))
            for start in range(0, len(indices), chunk):
                part = indices[start : start + chunk]
                yield part, job.corpus.items(part) if job.corpus.in_main_process else None

    results = _map(_Work(job, tokenizer if in_workers else None), tasks(), workers)
    if together:
        yield job.encode(tokenizer, _counted(results, done))
        return
    if not in_workers:  # in a thread, so that this one feeds the workers meanwhile
        results = map_ahead(lambda part: job.encode(tokenizer, [part]), results, 2)
    parts: list[Part] = []
    for part in _counted(results, done):
        parts.append(part)
        left[0] -= len(part)
        if left[0] == 0:
            left.popleft()
            yield Part.joined(parts)
            parts.clear()


def _counted(parts: Iterable[Part], done: Done) -> Iterator[Part]:
    for part in parts:
        done(len(part))
        yield part


class _Work:
    """The job of a worker: read images and, with a tokenizer, encode them."""

    def __init__(self, job: Job, tokenizer: Tokenizer | None = None) -> None:
        self._job, self._tokenizer = job, tokenizer

    def __call__(self, task: Task) -> Part:
        indices, items = task
        return self._part(self._job.corpus.items(indices) if items is None else items)

    def rejected(self, task: Task, how: str) -> Part:
        """The result for one image that ends the process."""
        index = task[0][0]
        problem = StoreError(f"Reading this image ended the process: {how}.", "Check the file.")
        corpus = self._job.corpus
        return self._part([Item(corpus.keys[index], corpus.places[index], problem, {})])

    def _part(self, items: list[Item]) -> Part:
        read = self._job.read(items)
        return read if self._tokenizer is None else self._job.encode(self._tokenizer, [read])


def _map(work: Any, tasks: Iterable[Task], workers: int) -> Iterator[Part]:
    """`map(work, tasks)` in worker processes, which are started again if one of them dies."""
    waiting: deque[Task] = deque()  # drawn, but without a result
    left = _drawn(tasks, waiting)  # outlives each pool: `chain` does not close it
    while True:
        again = list(waiting)
        try:
            with _pool(work, workers) as pool:
                for result in pool.map(chain(again, left), _AHEAD * max(workers, 1)):
                    waiting.popleft()
                    yield result
            return
        except DeadWorkerError:
            pass
        yield isolated(functools.partial(_alone, work), waiting.popleft(), work.rejected)


def _drawn(tasks: Iterable[Task], waiting: deque[Task]) -> Iterator[Task]:
    for task in tasks:
        waiting.append(task)
        yield task


def isolated(
    run: Callable[[Task], Part], task: Task, rejected: Callable[[Task, str], Part]
) -> Part:
    """The result of a task that may end its process, as `DeadWorkerError` says.

    Such a task is cut into halves, down to the image that does it, which is rejected.
    """
    indices, items = task
    try:
        return run(task)
    except DeadWorkerError as death:
        if len(indices) == 1:
            return rejected(task, death.how)
    middle = len(indices) // 2
    halves = [
        (indices[part], None if items is None else items[part])
        for part in (slice(middle), slice(middle, None))
    ]
    return Part.joined([isolated(run, half, rejected) for half in halves])


def _alone(work: Any, task: Task) -> Part:
    """The result of a task in a process of its own."""
    with _pool(work, 1) as pool:
        (part,) = pool.map([task], 1)
        return part


def _pool(work: Any, workers: int) -> Pool[Task, Part]:
    with warnings.catch_warnings():
        # Lance warns of every fork. The workers never call it: see `Corpus.in_main_process`.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        return Pool(work, workers, default_context())


# Many machines.


def encode_with_ray(
    job: Job,
    slices: Iterable[Slice],
    *,
    address: str | None = None,
    done: Done = lambda count: None,
) -> Iterator[Part]:
    """Encode slices on the machines of a Ray cluster, one task for each slice.

    Tasks, not the actor pool of Ray Data: a task has no home, so Ray runs it on any machine that is
    left when one goes away, and it takes its processor only while it runs, so reading cannot be
    starved. A worker process keeps the model between tasks. Rows come back to this process, which
    alone writes: few bytes an image are not worth a file system that all machines share.

    address  of a cluster; "auto" finds the one of this machine, None starts one here
    """
    ray = require("ray", StoreError)
    if not ray.is_initialized():
        # Without an address, Ray would connect to any cluster that it finds on this machine.
        ray.init(address=address or "local", log_to_driver=False, include_dashboard=False)
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0) > 0
    share = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    remote = ray.remote(max_retries=_RETRIES, **share)(_encode_slice)
    lanes = int(resources.get("GPU" if gpus else "CPU", 1))
    shared = ray.put(job)

    def submit(task: Task) -> Any:
        return remote.remote(shared, task[0], gpus)

    def collect(reference: Any) -> Part:
        try:
            part: Part = ray.get(reference)
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
            raise DeadWorkerError(str(error), "", type(error).__name__) from error
        return part

    def rejected(task: Task, how: str) -> Part:
        return Part(job.schema.empty_table(), _Work(job).rejected(task, how).rejects)

    waiting: deque[tuple[Slice, Any]] = deque()
    left = iter(slices)
    try:
        while True:
            # Two for each lane: one that runs and one that waits.
            while len(waiting) < 2 * lanes and (indices := next(left, None)) is not None:
                waiting.append((indices, submit((indices, None))))
            if not waiting:
                return
            indices, reference = waiting.popleft()
            try:
                part = collect(reference)
            except DeadWorkerError:
                part = isolated(lambda task: collect(submit(task)), (indices, None), rejected)
            done(len(indices))
            yield part
    finally:
        for _, reference in waiting:
            ray.cancel(reference, force=True)


def _encode_slice(job: Job, indices: Slice, gpu: bool) -> Part:
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
    for _, part in groupby(map(int, rows), lambda row: row // size):
        yield list(part)
