"""What happens to a batch of images on the way into a store, whichever engine moves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from strop.errors import StropError
from strop.images import Fit, read_square_and_size
from strop.model.tokenizer import Tokenizer
from strop.store.corpus import Item
from strop.store.schema import COLUMNS, code_lists

Reject = dict[str, str]
"""`key`, `source` and `reason` of an image that cannot be read."""


@dataclass(frozen=True)
class Squares:
    """Images that were read.

    images   (n, 3, S, S) uint8
    about    the columns of the store that are known before encoding, n values each
    rejects  the images that could not be read
    """

    images: np.ndarray
    about: dict[str, list[Any]]
    rejects: list[Reject]

    @staticmethod
    def joined(parts: Sequence[Squares]) -> Squares:
        """Parts as one, in order."""
        return Squares(
            images=np.concatenate([part.images for part in parts]),
            about={
                name: [v for part in parts for v in part.about[name]] for name in parts[0].about
            },
            rejects=[reject for part in parts for reject in part.rejects],
        )


@dataclass(frozen=True)
class Encoded:
    """Rows of the store, without checks; and the images that could not be read."""

    rows: pa.Table
    rejects: list[Reject]


@dataclass(frozen=True)
class Encoder:
    """Reads images and encodes them to rows.

    size, fit  of the squares that the model takes
    kept       the types of the columns that are kept
    options    of `Tokenizer.encode`: how lengths are chosen
    batch      how many images are on the device at a time
    """

    size: int
    fit: Fit
    kept: Mapping[str, pa.DataType]
    options: Mapping[str, Any]
    batch: int = 32

    def read(self, items: Sequence[Item]) -> Squares:
        """Decode and resize images."""
        squares: list[Tensor] = []
        about: dict[str, list[Any]] = {
            name: [] for name in ("key", "width", "height", "source", *self.kept)
        }
        rejects: list[Reject] = []
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
            squares.append(square)
            row = {"key": item.key, "width": width, "height": height, "source": item.source}
            for column, value in {**row, **item.values}.items():
                about[column].append(value)
        images = np.empty((len(squares), 3, self.size, self.size), dtype=np.uint8)
        for number, square in enumerate(squares):
            images[number] = square.numpy()
        return Squares(images, about, rejects)

    def encode(self, tokenizer: Tokenizer, squares: Squares) -> Encoded:
        """Encode images that were read."""
        if not len(squares.images):
            return Encoded(self.no_rows(), squares.rejects)
        images = torch.from_numpy(squares.images)
        program = tokenizer.encode(images, batch=self.batch, **self.options).to("cpu")
        quality = program.quality
        columns = {
            "codes": code_lists(program),
            "length": program.lengths.numpy(),
            "quality": [None] * len(program) if quality is None else quality.numpy(),
            **squares.about,
        }
        schema = self.no_rows().schema
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        return Encoded(pa.Table.from_arrays(arrays, schema=schema), squares.rejects)

    def no_rows(self) -> pa.Table:
        """The empty table."""
        return pa.schema({**COLUMNS, **self.kept}).empty_table()


def joined(parts: Sequence[Encoded]) -> Encoded:
    """Parts as one, in order."""
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    return Encoded(rows, [reject for part in parts for reject in part.rejects])
