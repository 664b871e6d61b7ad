"""What an analysis looks at: a tokenizer and a dataset, encoded once, when first needed."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.data.loader import record_batches
from strop.data.record import VOID, Batch, Dataset, concat
from strop.errors import DataError
from strop.model.tokenizer import Encoding, Tokenizer
from strop.program import Program
from strop.progress import Progress, no_progress

MEMORY = 16.0
"""Gigabytes of main memory that the fields of one dataset may take."""


@dataclass(eq=False, kw_only=True)
class Subject:
    """A tokenizer and a dataset of n readable images; broken records are left out.

    data      the spec of the dataset, or another name for it
    train     a subject to fit on: the same tokenizer, other images
    folder    where the analysis may keep files of its own, such as a transcript
    memory    gigabytes of main memory for `fields`; larger ones are kept in a temporary file
    cache     results that several analyses of one subject share, by name
    """

    tokenizer: Tokenizer
    dataset: Dataset
    data: str
    train: Subject | None = None
    folder: Path = Path()
    batch: int = 32
    workers: int = 0
    memory: float = MEMORY
    progress: Progress = no_progress
    cache: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the ids in semantic masks."""
        return self.dataset.classes

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the entries of labels."""
        return self.dataset.label_names

    @property
    def records(self) -> Batch:
        """All n records at the model's size, on the CPU.

        To save memory, semantic masks are uint8 and instance masks int16: convert them with
        `.long()` before arithmetic.
        """
        return self._encoded[0]

    @property
    def program(self) -> Program:
        """The n programs, on the CPU: all K codes, and the lengths that the model chose."""
        return self._encoded[1]

    @property
    def z(self) -> Tensor:
        """(n, K, d_c) float32, on the CPU: tokens before quantization, on the unit sphere."""
        return self._encoded[2]

    @cached_property
    def fields(self) -> Tensor:
        """(n, S, d_enc) float32, on the CPU: the teacher's fields, in the teacher's own scale.

        If they are needed before anything else, one pass over the images gives them and the
        programs.
        """
        if "_encoded" not in self.__dict__:
            self.__dict__["_encoded"] = self._encode(fields := self._room(len(self.dataset)))
            return fields[: len(self)]
        found = self._room(len(self))
        for start in range(0, len(self), self.batch):
            rows = slice(start, start + self.batch)
            found[rows] = self.tokenizer.field(self.records.images[rows], batch=self.batch).cpu()
            self.progress("fields", min(rows.stop, len(self)), len(self))
        return found

    @property
    def inside(self) -> Tensor | None:
        """(n, S) bool: the locations that show nothing but the picture; None if all do.

        With `fit="pad"` the others show padding, which no score may count.
        """
        if self.records.valid is None:
            return None
        grid = self.tokenizer.config.grid
        share = F.adaptive_avg_pool2d(self.records.valid[:, None].float(), grid)
        return (share[:, 0] > 1 - 1e-6).flatten(1)

    def fitted_on(self) -> Subject:
        """`train`, checked: `DataError` if there is none, or if it shares an image with this."""
        if self.train is None:
            raise DataError(
                f"There is nothing to fit on for {self.data}.", "Give it with --train SPEC."
            )
        if "apart" not in self.cache:
            check_disjoint(self.train.named_images(), self.named_images())
            self.cache["apart"] = True
        return self.train

    def named_images(self) -> Iterator[tuple[Tensor, str]]:
        """Each image (3, H, H) uint8 with its name."""
        return zip(self.records.images, self.records.names, strict=True)

    @cached_property
    def _encoded(self) -> tuple[Batch, Program, Tensor]:
        return self._encode(None)

    def _encode(self, fields: Tensor | None) -> tuple[Batch, Program, Tensor]:
        """Records, programs and z, in the order of the dataset; fields go into `fields`."""
        tokenizer, config = self.tokenizer, self.tokenizer.config
        batches: list[Batch] = []
        programs: list[Program] = []
        z, done = [], 0
        for batch in record_batches(
            self.dataset,
            size=config.image_size,
            fit=config.fit,
            batch=self.batch,
            device=tokenizer.device,
            workers=self.workers,
        ):
            encoding = tokenizer.analyse(batch.images, batch=self.batch)
            if fields is not None:
                fields[done : done + len(batch)] = encoding.field.cpu()
            programs.append(program_of(tokenizer, encoding, batch.names).to("cpu"))
            z.append(encoding.z.float().cpu())
            batches.append(narrow(batch))
            done += len(batch)
            self.progress("encoding", done, len(self.dataset))
        return concat(batches), Program.cat(programs), torch.cat(z)

    def _room(self, images: int) -> Tensor:
        """An empty tensor for the fields of that many images, in memory or in a file."""
        config = self.tokenizer.config
        shape = (images, config.grid**2, config.teacher.width)
        nbytes = 4 * math.prod(shape)
        if nbytes <= self.memory * 1e9:
            return torch.empty(shape)
        with tempfile.NamedTemporaryFile() as file:  # the mapping outlives the file's name
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:
                raise DataError(
                    f"The fields of {images} images take {nbytes / 1e9:.0f} GB, and the temporary "
                    f"folder {tempfile.gettempdir()} cannot hold them ({error}).",
                    "Use fewer images (limit=N), or set TMPDIR to a larger disk.",
                ) from error
            return torch.from_file(file.name, shared=True, size=math.prod(shape)).view(shape)


def encode_fields(tokenizer: Tokenizer, fields: Tensor, *, batch: int = 64) -> Program:
    """Fields (n, S, d_enc) in the teacher's scale to the programs that their images would have."""
    return program_of(tokenizer, tokenizer.analyse_field(fields, batch=batch))


def program_of(tokenizer: Tokenizer, encoding: Encoding, names: tuple[str, ...] = ()) -> Program:
    """The programs in an encoding, with the lengths that the model chose."""
    return Program(
        codes=encoding.codes,
        lengths=encoding.lengths,
        codebook_size=tokenizer.config.quantizer.codes,
        model=tokenizer.identity.codes,
        names=names,
    )


def check_disjoint(
    train: Iterator[tuple[Tensor, str]], measured: Iterator[tuple[Tensor, str]]
) -> None:
    """Refuse named images (3, H, W) uint8 of which one is in both sets, pixel by pixel."""
    names = {_digest(image): name for image, name in train}
    for image, name in measured:
        twin = names.get(_digest(image))
        if twin is not None:
            raise DataError(
                f"The image {name} to be scored is also trained on, as {twin}.",
                "Choose splits that share no image: another split, seed, skip or limit.",
            )


def _digest(image: Tensor) -> bytes:
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()


def narrow(batch: Batch) -> Batch:
    """The batch with masks in the smallest type that holds their ids."""
    semantic, instance = batch.semantic, batch.instance
    return replace(
        batch,
        semantic=None if semantic is None else semantic.clamp(max=VOID).to(torch.uint8),
        instance=None if instance is None else instance.to(torch.int16),
    )
