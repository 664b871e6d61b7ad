"""The model behind the server: requests of many threads, batched and cached."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from queue import PriorityQueue
from threading import Thread
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.colours import Basis
from strop.images import tensor_to_bytes
from strop.model.graph_engine import use_graphs
from strop.model.length_head import CONFIDENCE, RateHead
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.store.search import Results
from strop.store.store import Store

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[list[Item]], list[Result]]

CHUNK = {"cpu": 2, "cuda": 64}
"""Programs that one request submits at a time; other requests run between two chunks. The cost is
per call on a GPU and per program on a CPU."""
MAX_BATCH = 4
"""Chunks or images in one call of the model."""
CACHE_SIZE = 64
"""Analysed images in the least-recently-used cache."""


class Batcher:
    """A thread that does work on batches of items that callers submit, `max_batch` at most.

    All work is done in this one thread: torch keeps a pool of workers for each calling thread, and
    several pools would compete for the same cores.

    A call blocks until its item is done, so each caller has one item in the queue, and a caller
    with many items takes turns with the others. Urgent items go first and are never in one batch
    with other items.
    """

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        # Not urgent, number, work, item, future: sorted in the order of processing.
        self._queue: PriorityQueue[tuple[bool, int, Work[Any, Any], Any, Future[Any]]]
        self._queue = PriorityQueue()
        self._numbers = itertools.count()
        Thread(target=self._run, daemon=True).start()

    def __call__(self, work: Work[Item, Result], item: Item, urgent: bool = False) -> Result:
        """The result of `work` for `item`; an exception of `work` is raised here."""
        future: Future[Result] = Future()
        self._queue.put((not urgent, next(self._numbers), work, item, future))
        return future.result()

    def _run(self) -> None:
        while True:
            later, _, work, item, future = self._queue.get()
            batch = [(item, future)]
            while len(batch) < self._max_batch and not self._queue.empty():
                entry = self._queue.get()
                if (entry[0], entry[2]) != (later, work):
                    self._queue.put(entry)
                    break
                batch.append(entry[3:])
            _process(work, batch)


def _process(work: Work[Item, Result], batch: list[tuple[Item, Future[Result]]]) -> None:
    try:
        results = work([item for item, _ in batch])
    except Exception as error:
        if len(batch) == 1:
            batch[0][1].set_exception(error)
            return
        for entry in batch:  # an error of one item must not fail the others
            _process(work, [entry])
        return
    for (_, future), result in zip(batch, results, strict=True):
        future.set_result(result)


@dataclass(frozen=True)
class AnalysedImage:
    """What the model computes from an image.

    program    a batch of one
    predicted  the predicted length before rounding
    expected   cosine similarities that a rate head expects at lengths 1 to K; None without one
    field      the teacher's, (1, S, d_enc)
    basis      the colours of that field
    """

    program: Program
    predicted: float
    expected: list[float] | None
    field: Tensor
    basis: Basis


class Engine:
    """A tokenizer shared by many threads; requests that arrive together run as one batch.

    Results are cached by the content of the image. Only a client that has the image can ask for
    its result, so no client sees the images of another.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.config = tokenizer.config
        self.device = tokenizer.device
        self.chunk = CHUNK[self.device.type]
        use_graphs(tokenizer, MAX_BATCH * self.chunk)
        self._run = Batcher(MAX_BATCH)
        self._analysed = lru_cache(CACHE_SIZE)(self._analyse)

    @property
    def sees_scenes(self) -> bool:
        """Whether the model was trained on rendered scenes: it starts with one."""
        return str(self.tokenizer.about.get("data", "")).startswith("scenes")

    @property
    def as_tokenizer(self) -> Tokenizer:
        """This engine, for erasure functions: they need `interpret`, `config` and `device` only."""
        return cast(Tokenizer, self)

    def analyse(self, square: Tensor) -> AnalysedImage:
        """Analyse a uint8 image `(3, H, H)` of the model's size."""
        return self._analysed(square.numpy().tobytes())

    def interpret(self, program: Program, *, batch: int = 256) -> Tensor:
        """Programs to fields `(B, S, d_enc)`, chunk by chunk."""
        rows = program.as_batch().to(self.device)
        # Chunks of different requests can be concatenated only if they have the same width.
        padding = self.config.max_length - rows.capacity
        if padding > 0:
            rows = replace(
                rows, codes=F.pad(rows.codes, (0, padding)), erased=F.pad(rows.erased, (0, padding))
            )
        step = min(batch, self.chunk)
        urgent = len(rows) == 1  # an edit on the page; several programs are a study
        parts = [rows[start : start + step] for start in range(0, len(rows), step)]
        return torch.cat([self._run(self._interpret_batch, part, urgent) for part in parts])

    def decode(self, field: Tensor) -> Tensor | None:
        """A field `(1, S, d_enc)` to uint8 pixels `(3, H, H)`, or None without a decoder."""
        return None if self.tokenizer.decoder is None else self._run(self._decode_batch, field)

    def _analyse(self, content: bytes) -> AnalysedImage:
        side = self.config.image_size
        square = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(3, side, side)
        return self._run(self._analyse_batch, square)

    def _analyse_batch(self, squares: list[Tensor]) -> list[AnalysedImage]:
        result = self.tokenizer.analyse(torch.stack(squares))
        program = self.tokenizer.to_program(result)
        head, expected = self.tokenizer.length_head, None
        if isinstance(head, RateHead) and result.log_error is not None:
            expected = head.expected(result.log_error[:, 0], CONFIDENCE).tolist()
        return [
            AnalysedImage(
                program=program[row : row + 1],
                predicted=result.predicted[row].item(),
                expected=expected and expected[row],
                field=result.field[row : row + 1],
                basis=Basis.of(result.field[row]),
            )
            for row in range(len(squares))
        ]

    def _interpret_batch(self, programs: list[Program]) -> list[Tensor]:
        field = self.tokenizer.interpret(Program.cat(programs))
        return list(field.split([len(program) for program in programs]))

    def _decode_batch(self, fields: list[Tensor]) -> list[Tensor]:
        return list(tensor_to_bytes(self.tokenizer.decode(torch.cat(fields))))

    def picture(self, store: Store, row: int) -> Tensor:
        """The image of a row of a store, of the model's size: uint8 `(3, H, H)`."""
        size = self.config.image_size
        return self._run(lambda rows: [store.picture(row, size) for row in rows], row)

    def search(self, store: Store, query: Any, **options: Any) -> tuple[Results, list[Tensor]]:
        """`store.search`, and the pictures of its hits, uint8 `(3, h, h)`."""

        def work(queries: list[Any]) -> list[tuple[Results, list[Tensor]]]:
            found = [store.search(query, **options) for query in queries]
            return [(each, [store.picture(hit.row) for hit in each.hits]) for each in found]

        return self._run(work, query)
