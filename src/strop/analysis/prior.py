"""A prior over programs in integers: its probabilities are the same on every machine.

The length of a program comes first, from counts. Each code then has the logit

    table[k, c] + out[c] . sum over j < k of mix[k, j] embed[c_j]

at position k: its frequency there, and a term that is linear in vectors of d numbers for all codes
before it. All four tensors are 8-bit integers, so that products and sums are exact in float64, in
any order, and a range coder gets the same frequencies wherever it runs.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from strop.analysis.range_coder import TOTAL, WORD
from strop.config import in_range
from strop.errors import FormatError, ModelError, ProgramError, expect, parsing
from strop.files import PathLike, check_format, format_tag
from strop.model.checkpoint import find_folder
from strop.program import Program

FORMAT = 2
FILE = "prior.safetensors"
"""The file of the prior in the folder of a bundled model."""

STEPS = 16  # logits per bit
TABLE_STEPS = 8  # entries of the table per bit
MOST_CODES = TOTAL // 2
TENSORS = ("table", "embed", "mix", "out", "factor", "lengths")
_DEEP = 40  # bits below the most probable code, where probabilities round to 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Prior:
    """Probabilities of programs of at most K of N codes.

    table    (K, N) int8: log2 of the probability at each position, in 1/8 bits, up to a constant
    embed    (N, d) int8
    mix      (K * (K - 1) / 2, d, d) int8: the entries of (K, K, d, d) below the diagonal
    out      (N, d) int8
    factor   (K,) float64: logits per unit of the linear term
    lengths  (K,) int64: how often each length occurs
    model    `identity.codes` of the model that wrote the programs, empty if unknown
    """

    table: Tensor
    embed: Tensor
    mix: Tensor
    out: Tensor
    factor: Tensor
    lengths: Tensor
    model: str = ""

    @property
    def capacity(self) -> int:
        """K."""
        return len(self.table)

    @property
    def codebook_size(self) -> int:
        """N."""
        return self.table.shape[1]

    def frequencies(self, past: Tensor, first: int = 0) -> Tensor:
        """Codes so far `(B, T)`, T less than K, to frequencies `(B, T + 1 - first, N)` int64.

        Row t is that of the code after the first `first + t` codes; rows sum to `TOTAL`.
        """
        last = past.shape[1]
        mix, embed, out = self._linear
        context = torch.einsum("kjed,bjd->bke", mix[first : last + 1, :last], embed[past])
        term = (context @ out.T) * self.factor[first : last + 1, None]
        table = self.table[first : last + 1].double() * (STEPS // TABLE_STEPS)
        return integer_softmax(table + term.floor())

    @cached_property
    def length_frequencies(self) -> Tensor:
        """`(K,)` int64, which sum to `TOTAL`: no length is impossible."""
        return _to_total(self.lengths.double())

    @torch.no_grad()
    def bits(self, program: Program, *, batch: int = 64) -> Tensor:
        """`(B,)` float64: the bits that a range coder spends on each program, with its length."""
        rows = self.check(program)
        spent = WORD - self.length_frequencies.double().log2()[rows.lengths - 1]
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            longest = int(part.lengths.max())
            codes = part.codes[:, :longest]
            found = self.frequencies(codes[:, :-1]).gather(-1, codes[..., None])[..., 0]
            cost = WORD - found.double().log2()
            inside = torch.arange(longest) < part.lengths[:, None]
            spent[start : start + batch] += (cost * inside).sum(1)
        return spent

    def surprise(self, program: Program) -> Tensor:
        """`(B,)`: bits per code; high for programs unlike the training data."""
        return self.bits(program) / program.as_batch().lengths.cpu()

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Program:
        """`count` programs drawn from the prior."""
        count, random = in_range(count, "count", 1), torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(self.length_frequencies.double(), count, True, generator=random)
        codes = torch.empty(count, 0, dtype=torch.int64)
        for k in range(self.capacity):
            odds = self.frequencies(codes, first=k)[:, 0].double()
            codes = torch.cat([codes, torch.multinomial(odds, 1, generator=random)], dim=1)
        within = torch.arange(self.capacity) < drawn[:, None] + 1
        return Program(
            codes=codes.where(within, 0),
            lengths=drawn + 1,
            codebook_size=self.codebook_size,
            model=self.model,
        )

    def check(self, program: Program) -> Program:
        """The programs as a batch on the CPU; `ProgramError` if they are not of this prior."""
        expect(program, Program, "a program", ProgramError, "Give what `encode` returns.")
        rows = program.to("cpu").as_batch()
        if (rows.codebook_size, rows.capacity) != (self.codebook_size, self.capacity):
            raise ProgramError(
                f"Programs of {rows.capacity} out of {rows.codebook_size} codes were not written "
                f"for this prior, which has {self.capacity} and {self.codebook_size}.",
                "Use the prior of the model that wrote them.",
            )
        if self.model and rows.model and self.model != rows.model:
            raise ProgramError(
                f"The programs are of model {rows.model}, the prior is of {self.model}.",
                "Use the prior of the model that wrote them.",
            )
        if bool(rows.erased.any()):
            raise ProgramError(
                "Programs with erased tokens have no probability.", "Use `delete` or `truncate`."
            )
        return rows

    def to_bytes(self) -> bytes:
        """The prior as a safetensors file, for `load_prior`."""
        about = {"format": format_tag("prior", FORMAT), "model": self.model}
        return save_tensors({name: getattr(self, name).contiguous() for name in TENSORS}, about)

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor, Tensor]:
        """`mix` (K, K, d, d), with 0 on and above the diagonal, `embed` and `out`, in float64."""
        mix = from_triangle(self.mix.double(), self.capacity)
        return mix, self.embed.double(), self.out.double()


def integer_softmax(logits: Tensor) -> Tensor:
    """Whole logits `(..., N)` float64, in 1/16 bits, to frequencies of at least 1, int64.

    They sum to `TOTAL`.
    """
    below = (logits.amax(-1, keepdim=True) - logits).clamp(max=STEPS * _DEEP).long()
    return _to_total(torch.tensor(_powers(), dtype=torch.double, device=logits.device)[below])


@cache
def _powers() -> tuple[int, ...]:
    """2^(30 - i / 16), rounded down: integer roots, since `pow` differs between machines."""
    roots = []
    for step in range(STEPS):
        root = 1 << (31 * STEPS - step)
        for _ in range(STEPS.bit_length() - 1):
            root = math.isqrt(root)
        roots.append(root)
    return tuple(roots[i % STEPS] >> (1 + i // STEPS) for i in range(STEPS * _DEEP + 1))


def _to_total(weights: Tensor) -> Tensor:
    """Whole weights `(..., N)` float64 to frequencies of at least 1, int64, that sum to `TOTAL`.

    One division and one product are rounded, in the same way by every IEEE machine.
    """
    spare = TOTAL - weights.shape[-1]
    found = 1 + (weights * (spare / weights.sum(-1, keepdim=True))).long()
    # What rounding leaves goes to the first of the most probable ones.
    first = weights.argmax(-1, keepdim=True)
    return found.scatter_add(-1, first, TOTAL - found.sum(-1, keepdim=True))


def from_triangle(rows: Tensor, capacity: int) -> Tensor:
    """(K * (K - 1) / 2, ...) to (K, K, ...), with 0 on and above the diagonal."""
    full = rows.new_zeros(capacity, capacity, *rows.shape[1:])
    lower = torch.tril_indices(capacity, capacity, -1, device=rows.device)
    return full.index_put((lower[0], lower[1]), rows)


def load_prior(path: PathLike) -> Prior:
    """A file of `Prior.to_bytes`, or that of a model by its name or folder."""
    expect(path, str | os.PathLike, "the name of a model", ModelError, "Give its name or folder.")
    file = Path(path)
    if not file.is_file():
        file = find_folder(path) / FILE
        if not file.is_file():
            raise ModelError(
                f"The model {path} has no prior.",
                "Train one with `train_prior`, write its `to_bytes()` to a file, and give that.",
            )
    remedy = "Use a bundled model, or a file of `Prior.to_bytes`."
    with parsing(FormatError, f"{file} holds no prior", remedy), safe_open(file, "pt") as opened:
        about = opened.metadata() or {}
        check_format(about.get("format"), "prior", FORMAT, file)
        tensors = {name: opened.get_tensor(name) for name in TENSORS}
        prior = Prior(**tensors, model=about["model"])
        _check_tensors(prior)
        return prior


def _check_tensors(prior: Prior) -> None:
    capacity, codes = prior.table.shape
    width = prior.embed.shape[-1]
    wanted = {
        "table": (torch.int8, (capacity, codes)),
        "embed": (torch.int8, (codes, width)),
        "mix": (torch.int8, (capacity * (capacity - 1) // 2, width, width)),
        "out": (torch.int8, (codes, width)),
        "factor": (torch.double, (capacity,)),
        "lengths": (torch.int64, (capacity,)),
    }
    for name, found in wanted.items():
        tensor = getattr(prior, name)
        if (tensor.dtype, tuple(tensor.shape)) != found:
            raise ValueError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
    if not 0 < codes <= MOST_CODES or not bool(((prior.factor >= 0) & (prior.factor < 1)).all()):
        raise ValueError("its numbers are out of range")
    if not 0 < int(prior.lengths.max()) < 1 << 31 or bool((prior.lengths < 0).any()):
        raise ValueError("its lengths are out of range")
