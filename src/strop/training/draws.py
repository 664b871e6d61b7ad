"""Random numbers of a run, as pure functions of seed and step.

There is no generator state, so a resumed run draws the same numbers. Every process draws the
numbers of the whole batch and uses its own rows.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from strop.data.loader import epoch_order


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """A generator seeded by all arguments."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def uniform(seed: int, purpose: str, number: int, *shape: int) -> Tensor:
    """Random numbers in [0, 1), float32, on the CPU."""
    return torch.rand(shape, generator=generator(seed, purpose, number))


def versions(seed: int, step: int, batch: int, count: int) -> Tensor:
    """(B,) int64: a random version out of `count` for each image of a batch."""
    return (uniform(seed, "version", step, batch) * count).long()


class Order:
    """The images of each batch, in the order of `strop.data.loader.Loader`.

    Each epoch has a new permutation. An incomplete batch at its end is dropped.
    """

    def __init__(self, images: int, batch: int, *, seed: int) -> None:
        self.images, self.batch, self.seed = images, batch, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def place(self, step: int) -> tuple[int, int]:
        """Epoch and position (in images) at the start of `step`."""
        epoch, number = divmod(step, self.images // self.batch)
        return epoch, number * self.batch

    def rows(self, step: int) -> Tensor:
        """(B,) int64: the images in the batch of `step`, over all processes."""
        epoch, position = self.place(step)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.from_numpy(epoch_order(self.images, self.seed, epoch))
        return self._order[position : position + self.batch]
