"""What happens to a batch of images on the way into a store, whichever engine moves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from strop.errors import StropError
from strop.images import Fit, read_square_and_size
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer
from strop.store.corpus import Corpus, Item
from strop.store.schema import COLUMNS, code_lists

Reject = dict[str, str]
"""`key`, `source` and `reason` of an image that cannot be read."""

_ENCODED = ("codes", "length", "quality")


@dataclass(frozen=True)
class Part:
    """Some images of a corpus.

    rows     rows of the store, without checks; before encoding also without codes
    rejects  the images that could not be read
    images   (n, 3, S, S) uint8 until they are encoded
    """

    rows: pa.Table
    rejects: list[Reject]
    images: np.ndarray | None = None

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

    corpus     the images
    model      name of the model; its `identity.codes` is `codes`
    size, fit  of the squares that the model takes
    options    of `Tokenizer.encode`: how lengths are chosen
    batch      how many images are on the device at a time
    """

    corpus: Corpus
    model: str
    codes: str
    size: int
    fit: Fit
    options: Mapping[str, Any]
    batch: int = 32

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, without checks."""
        return pa.schema({**COLUMNS, **self.corpus.kept})

    def read(self, items: Sequence[Item]) -> Part:
        """Decode and resize images."""
        rows: list[dict[str, Any]] = []
        rejects: list[Reject] = []
        images = np.empty((len(items), 3, self.size, self.size), dtype=np.uint8)
        for item in items:
            try:
                if isinstance(item.image, StropError):
                    raise item.image
                name = item.key if isinstance(item.image, bytes) else ""
                square, (width, height) = read_square_and_size(
                    item.image, self.size, self.fit, name
                )
            except StropError as error:
                rejects.append({"key": item.key, "source": item.source, "reason": str(error)})
                continue
            images[len(rows)] = square.numpy()
            row = {"key": item.key, "width": width, "height": height, "source": item.source}
            rows.append({**row, **item.values})
        known = pa.schema([field for field in self.schema if field.name not in _ENCODED])
        return Part(pa.Table.from_pylist(rows, known), rejects, images[: len(rows)])

    def encode(self, tokenizer: Tokenizer, part: Part) -> Part:
        """Encode images that were read."""
        if not len(part.rows):
            return Part(self.schema.empty_table(), part.rejects)
        images = torch.from_numpy(part.images)
        rule = LengthRule(**self.options)  # whoever encodes a store says what it does not reach
        program = tokenizer.encode_batches(images.split(self.batch), rule, batch=self.batch)
        program = program.to("cpu")
        quality = [None] * len(program) if program.quality is None else program.quality.numpy()
        columns = {
            "codes": code_lists(program),
            "length": program.lengths.numpy(),
            "quality": quality,
            **{name: part.rows[name] for name in part.rows.column_names},
        }
        return Part(
            pa.table([columns[name] for name in self.schema.names], self.schema), part.rejects
        )
