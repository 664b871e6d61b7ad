"""What happens to a batch of images on the way to their programs, whichever engine moves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from strop.errors import StropError
from strop.images import read_square_and_size
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program
from strop.store.corpus import Corpus, Item
from strop.store.schema import COLUMNS, code_lists

Reject = dict[str, str]
"""`key`, `source` and `reason` of an image that cannot be read."""

_ENCODED = {"codes": pa.list_(pa.int32()), "length": pa.uint16(), "quality": pa.float32()}


@dataclass(frozen=True)
class Part:
    """Some images of a corpus.

    rows     columns of a store, without checks; before encoding also without codes, and after it
             with all K codes of each program, active or not
    rejects  the images that could not be read
    images   (n, 3, S, S) uint8 until they are encoded
    """

    rows: pa.Table
    rejects: list[Reject]
    images: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows) + len(self.rejects)

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """Parts as one, in order."""
        images = [part.images for part in parts if part.images is not None]
        return Part(
            rows=pa.concat_tables([part.rows for part in parts]).combine_chunks(),
            rejects=[reject for part in parts for reject in part.rejects],
            images=np.concatenate(images) if images else None,
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

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return pa.schema({**COLUMNS, **_ENCODED, **self.corpus.kept})

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
        known = pa.schema([field for field in self.schema if field.name not in _ENCODED])
        return Part(pa.Table.from_pylist(rows, known), rejects, images[: len(rows)])

    def encode(self, tokenizer: Tokenizer, parts: Iterable[Part]) -> Part:
        """Encode images that were read, as one part: a mean length is that of all of them."""
        read: list[Part] = []

        def batches() -> Iterator[Tensor]:
            for part in parts:
                read.append(Part(part.rows, part.rejects))
                if len(part.rows):
                    yield from torch.from_numpy(part.images).split(self.batch)

        images = batches()
        first = next(images, None)
        if first is None:
            return Part(self.schema.empty_table(), [each for part in read for each in part.rejects])
        program = tokenizer.encode_batches(chain([first], images), self.rule, batch=self.batch)
        program = program.to("cpu")
        joined = Part.joined(read)
        ends = np.arange(0, program.codes.numel() + 1, program.capacity, dtype=np.int32)
        flat = pa.array(program.codes.flatten().numpy(), pa.int32())
        quality = [None] * len(program) if program.quality is None else program.quality.numpy()
        columns = {
            "codes": pa.ListArray.from_arrays(pa.array(ends), flat),
            "length": program.lengths.numpy(),
            "quality": quality,
            **{name: joined.rows[name] for name in joined.rows.column_names},
        }
        rows = pa.table([columns[name] for name in self.schema.names], self.schema)
        return Part(rows, joined.rejects)

    def program(self, rows: pa.Table) -> Program:
        """The programs in the rows of an encoded part, which are not empty, named by their keys."""
        codes = rows["codes"].combine_chunks().flatten().to_numpy().astype(np.int64)
        quality = rows["quality"].to_numpy()
        return Program(
            codes=torch.from_numpy(codes.reshape(len(rows), -1)),
            lengths=torch.from_numpy(rows["length"].to_numpy().astype(np.int64)),
            codebook_size=self.config.quantizer.codes,
            model=self.codes,
            names=tuple(rows["key"].to_pylist()),
            quality=None if rows["quality"].null_count else torch.from_numpy(quality.copy()),
            check=False,
        )

    def stored(self, rows: pa.Table) -> pa.Table:
        """The rows of an encoded part with the active codes only, as a store has them."""
        if not len(rows):
            return rows
        place = rows.column_names.index("codes")
        return rows.set_column(place, "codes", code_lists(self.program(rows)))
