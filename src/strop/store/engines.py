"""Engines: they read the images of a corpus, encode them and bring back rows, in order.

What happens to an image is the same in all of them, see `Job`. An engine takes slices, each a list
of indices into the corpus, and yields one `Part` for each.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from strop.errors import StoreError, StropError
from strop.images import read_square_and_size
from strop.model.checkpoint import load
from strop.model.graph_engine import use_graphs
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.optional import require
from strop.pool import DeadWorkerError, Pool, cores, default_context, map_ahead
from strop.program import Program
from strop.store.corpus import Corpus, Item
from strop.store.schema import COLUMNS

_CHUNK = 8  # images in a task of a CPU worker
_RETRIES = 8  # of a task of Ray, whose process or machine may go away for other reasons
_AHEAD = 4  # tasks for each worker that may be submitted or wait to be taken

Slice = list[int]
Task = tuple[list[int], list[Item] | None]
"""Indices into the corpus, and the items there if the main process has to read them."""

Reject = dict[str, str]
"""`key`, `source` and `reason` of an image that cannot be read."""

Done = Callable[[int], None]
"""Called with the number of images that were done since the last call."""


@dataclass(frozen=True)
class Part:
    """Some images of a corpus.

    rows     of the images that could be read: the values of the columns of a store. Codes are
             there once they are encoded: all K codes of the program (K,) int64, active or not
    rejects  the images that could not be read
    images   (n, 3, S, S) uint8 until they are encoded
    """

    rows: list[dict[str, Any]]
    rejects: list[Reject]
    images: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows) + len(self.rejects)

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """Parts as one, in order."""
        images = [part.images for part in parts if part.images is not None]
        return Part(
            [row for part in parts for row in part.rows],
            [reject for part in parts for reject in part.rejects],
            np.concatenate(images) if images else None,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """Reads the images of a corpus and encodes them to rows.

    corpus  the images
    model   name of the model
    codes   `identity.codes` of the model
    config  of the model
    rule    how lengths are chosen
    batch   how many images are on the device at a time
    """

    corpus: Corpus
    model: str
    codes: str
    config: TokenizerConfig
    rule: LengthRule
    batch: int

    def __call__(self, task: Task, tokenizer: Tokenizer | None = None) -> Part:
        """Read the images of a task and, with a tokenizer, encode them."""
        indices, items = task
        read = self.read(self.corpus.items(indices) if items is None else items)
        return read if tokenizer is None else self.encode(tokenizer, [read])

    def read(self, items: Sequence[Item]) -> Part:
        """Decode and resize images."""
        rows: list[dict[str, Any]] = []
        rejects: list[Reject] = []
        size, fit = self.config.image_size, self.config.fit
        images = np.empty((len(items), 3, size, size), dtype=np.uint8)
        for item in items:
            try:
                if isinstance(item.image, StropError):
                    raise item.image
                name = item.key if isinstance(item.image, bytes) else ""
                square, (width, height) = read_square_and_size(item.image, size, fit, name)
            except StropError as error:
                rejects.append({"key": item.key, "source": item.source, "reason": str(error)})
                continue
            images[len(rows)] = square.numpy()
            row = {"key": item.key, "width": width, "height": height, "source": item.source}
            rows.append({**row, **item.values})
        return Part(rows, rejects, images[: len(rows)])

    def rejected(self, index: int, how: str) -> Part:
        """The result for an image that ends the process which reads it."""
        error = StoreError(f"Reading this image ended the process: {how}.", "Check the file.")
        place = {"key": self.corpus.keys[index], "source": self.corpus.places[index]}
        return Part([], [{**place, "reason": str(error)}])

    def encode(self, tokenizer: Tokenizer, parts: Iterable[Part]) -> Part:
        """Encode images that were read, as one part: a mean length is that of all of them."""
        read: list[Part] = []

        def batches() -> Iterator[Tensor]:
            for part in parts:
                read.append(Part(part.rows, part.rejects))
                if part.rows:
                    yield from torch.from_numpy(part.images).split(self.batch)

        images = batches()
        first = next(images, None)
        if first is not None:
            images = chain([first], images)
            program = tokenizer.encode_batches(images, self.rule, batch=self.batch).to("cpu")
            quality = [None] * len(program) if program.quality is None else program.quality.tolist()
            codes, lengths = program.codes.numpy(), program.lengths.tolist()
            rows = (row for part in read for row in part.rows)
            for number, row in enumerate(rows):
                row |= {"codes": codes[number], "length": lengths[number]}
                row["quality"] = quality[number]
        return Part.joined(read)

    def program(self, rows: Sequence[dict[str, Any]]) -> Program:
        """The programs in encoded rows, at least one, named by their keys."""
        quality = [row["quality"] for row in rows]
        return Program(
            codes=torch.from_numpy(np.stack([row["codes"] for row in rows])),
            lengths=torch.tensor([row["length"] for row in rows]),
            codebook_size=self.config.quantizer.codes,
            model=self.codes,
            names=tuple(row["key"] for row in rows),
            quality=None if None in quality else torch.tensor(quality),
            check=False,
        )

    def table(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Encoded rows as a store has them: with the active codes only, and without checks."""
        active = [{**row, "codes": row["codes"][: row["length"]].tolist()} for row in rows]
        return pa.Table.from_pylist(active, pa.schema({**COLUMNS, **self.corpus.kept}))


def slices_of(rows: Iterable[int], size: int) -> Iterator[Slice]:
    """Rows cut at the multiples of `size`, so that a slice is the same whatever is left of it."""
    for _, part in groupby(map(int, rows), lambda row: row // size):
        yield list(part)


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

    def counted(parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            done(len(part))
            yield part

    work = functools.partial(job, tokenizer=tokenizer if in_workers else None)
    results = _map(work, job.rejected, tasks(), workers)
    if together:
        yield job.encode(tokenizer, counted(results))
        return
    if not in_workers:  # in a thread, so that this one feeds the workers meanwhile
        results = map_ahead(lambda part: job.encode(tokenizer, [part]), results, 2)
    parts: list[Part] = []
    for part in counted(results):
        parts.append(part)
        left[0] -= len(part)
        if left[0] == 0:
            left.popleft()
            yield Part.joined(parts)
            parts.clear()


def _map(
    work: Callable[[Task], Part],
    rejected: Callable[[int, str], Part],
    tasks: Iterable[Task],
    workers: int,
) -> Iterator[Part]:
    """`map(work, tasks)` in worker processes, which are started again if one of them dies.

    The images of the task that it died of are then read one by one. `rejected` gives the result for
    one that ends its process again.
    """
    waiting: deque[Task] = deque()  # drawn, but without a result

    def drawn() -> Iterator[Task]:
        for task in tasks:
            waiting.append(task)
            yield task

    left = drawn()  # outlives each pool: `chain` does not close it
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
        parts: list[Part] = []
        indices, items = waiting.popleft()
        for number, index in enumerate(indices):
            task = [index], None if items is None else [items[number]]
            try:
                with _pool(work, 1) as pool:
                    parts += pool.map([task], 1)
            except DeadWorkerError as death:
                parts.append(rejected(index, death.how))
        yield Part.joined(parts)


def _pool(work: Callable[[Task], Part], workers: int) -> Pool[Task, Part]:
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
    crashes = (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError)

    def submit(indices: Slice) -> tuple[Slice, Any]:
        return indices, remote.remote(shared, indices, gpus)

    def result(indices: Slice, reference: Any) -> Part:
        """What a task returns. Images of one that ends its process are tried one by one."""
        try:
            part: Part = ray.get(reference)
            return part
        except crashes as error:
            if len(indices) == 1:
                return job.rejected(indices[0], type(error).__name__)
        alone = [submit([index]) for index in indices]
        return Part.joined([result(*each) for each in alone])

    waiting: deque[tuple[Slice, Any]] = deque()
    left = iter(slices)
    try:
        while True:
            # Two for each lane: one that runs and one that waits.
            while len(waiting) < 2 * lanes and (indices := next(left, None)) is not None:
                waiting.append(submit(indices))
            if not waiting:
                return
            part = result(*waiting.popleft())
            done(len(part))
            yield part
    finally:
        for _, reference in waiting:
            ray.cancel(reference, force=True)


def _encode_slice(job: Job, indices: Slice, gpu: bool) -> Part:
    """What a task does: read a slice and encode it, in the same parts as a local worker."""
    if not gpu:
        torch.set_num_threads(1)  # as in a local worker: a sum in another order can change a code
    tokenizer = _loaded(job.model, device="cuda" if gpu else "cpu")
    if tokenizer.identity.codes != job.codes:
        raise StoreError(
            f"The model {job.model!r} on this machine ({tokenizer.identity.codes}) is not that of "
            f"the command ({job.codes}).",
            "Put the same model on all machines, under the same path.",
        )
    workers = cores() if gpu else 0
    (encoded,) = encode_locally(job, tokenizer, [indices], workers=workers)
    return encoded


_loaded = functools.lru_cache(maxsize=1)(load)
