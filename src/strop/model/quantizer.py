"""Vector quantization on the unit sphere, with a codebook that follows its tokens.

Sections 2.1 and 2.2; Table 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from strop.collectives import joined_rows, summed, together
from strop.model.layers import initialise


@dataclass(frozen=True, kw_only=True)
class QuantizerConfig:
    """The codebook: `codes` unit vectors of `code_width` dimensions, kept by EMA of `decay`.

    centred  shift the tokens of every position to one common mean first. Without it, as in the
             paper, the tokens of each position lie around a different mean, positions divide the
             codebook among them, and part of a code only encodes its position, which is known
    """

    codes: int = field(default=1024, metadata={"min": 2, "max": 2**24})
    code_width: int = 16
    decay: float = field(default=0.95, metadata={"above": 0, "below": 1})
    centred: bool = False


class Quantized(NamedTuple):
    """The output of the quantizer. Everything but the codes is fp32.

    codes       (B, K) int64
    projected   (B, K, d_c) the raw tokens in the space of the codes
    z           (B, K, d_c) these on the sphere
    z_q         (B, K, d_c) their code vectors; the gradient passes straight through to `z`
    similarity  (B, K, N) cosine of `z` with every code
    """

    codes: Tensor
    projected: Tensor
    z: Tensor
    z_q: Tensor
    similarity: Tensor


class Quantizer(nn.Module):
    """Linear to `d_c`, l2-normalise, nearest code. `forward` never changes the codebook.

    "Vector quantization" in Section 2.1 and "Codebook design" in Section 2.2.

    The codebook is a buffer: the mean direction of the tokens assigned to each code, as an EMA of
    their counts and sums; so is the mean of each position, where tokens are centred. `update`,
    `initialise` and `reseed` are the only ways to move the codebook, `recentre` the means, and only
    a trainer calls them. Everything here is fp32, also under autocast: in bf16 the nearest code is
    often another one.
    """

    def __init__(self, config: QuantizerConfig, *, width: int, length: int) -> None:
        super().__init__()
        self.decay = config.decay
        self.project = nn.Linear(width, config.code_width)
        initialise(self)
        # Random directions until the first batch is seen.
        codebook = F.normalize(torch.randn(config.codes, config.code_width), dim=-1)
        self.register_buffer("codebook", codebook)
        self.register_buffer("counts", torch.ones(config.codes))
        self.register_buffer("sums", codebook.clone())
        self.register_buffer(
            "centre", torch.zeros(length, config.code_width) if config.centred else None
        )
        self.codebook: Tensor
        self.centre: Tensor | None
        self.counts: Tensor
        self.sums: Tensor

    def forward(self, raw: Tensor) -> Quantized:
        """Raw tokens `(B, K, d)` to codes and code vectors."""
        with torch.autocast(raw.device.type, enabled=False):
            projected = self.project(raw.float())
            z = F.normalize(projected - self._offset(projected), dim=-1)
            similarity = z @ self.codebook.T
            codes = similarity.argmax(dim=-1)
            z_q = z + (self.codebook[codes] - z).detach()
        return Quantized(codes, projected, z, z_q, similarity)

    def vectors(self, codes: Tensor) -> Tensor:
        """Codes `(B, L)` to code vectors `(B, L, d_c)`."""
        return self.codebook[codes]

    def _offset(self, projected: Tensor) -> Tensor:
        """How far the mean token of each position is from that of all, `(K, d_c)`.

        Its value is by the stored means; its gradient is by those of the batch. Without that, the
        tokens of a position could move together at no cost, and would run away from the stored.
        """
        if self.centre is None:
            return projected.new_zeros(())
        stored = self.centre - self.centre.mean(dim=0)
        if not torch.is_grad_enabled():
            return stored
        batch = _mean_token(projected)
        batch = batch - batch.mean(dim=0)
        return stored + (batch - batch.detach())

    @torch.no_grad()
    def recentre(self, projected: Tensor, *, decay: float | None = None) -> None:
        """Move each position's mean towards that of a batch `(B, K, d_c)`, active or not.

        A mean that followed the active tokens alone would be stale where programs seldom reach.
        `decay` is the codebook's unless given.
        """
        if self.centre is not None:
            rate = 1 - (self.decay if decay is None else decay)
            self.centre.lerp_(_mean_token(projected), rate)

    @torch.no_grad()
    def update(self, z: Tensor, codes: Tensor, active: Tensor) -> None:
        """Move the codebook towards the active tokens of a batch: z `(B, K, d_c)`, rest `(B, K)`.

        Under several processes all of them see the sum over all, so the codebooks stay equal.
        """
        weight = active.flatten().double()
        assigned = codes.flatten()
        # In doubles, so that the result does not depend on the order of addition: the same batch
        # split over processes, or summed by GPU atomics, rounds to the same codebook.
        batch = torch.zeros(len(self.counts), 1 + z.shape[-1], dtype=torch.double, device=z.device)
        batch.index_add_(
            0,
            assigned,
            torch.cat([weight[:, None], z.flatten(0, 1).double() * weight[:, None]], dim=-1),
        )
        batch = summed(batch)
        self.counts.lerp_(batch[:, 0].float(), 1 - self.decay)
        self.sums.lerp_(batch[:, 1:].float(), 1 - self.decay)
        self._refresh(batch[:, 0] > 0)

    @torch.no_grad()
    def begin(self, raw: Tensor, uniform: Tensor) -> None:
        """Take means and codes from the raw tokens `(B, K, d)` of the first batch, all active."""
        everywhere = torch.ones(raw.shape[:2], dtype=torch.bool, device=raw.device)
        self.recentre(self(raw).projected, decay=0.0)
        self.initialise(self(raw).z, everywhere, uniform)

    @torch.no_grad()
    def initialise(self, z: Tensor, active: Tensor, uniform: Tensor) -> None:
        """Place every code on an active token of the first batch; see `reseed` for `uniform`."""
        self.counts.zero_()
        self.reseed(z, active, uniform, below=1.0)

    @torch.no_grad()
    def reseed(self, z: Tensor, active: Tensor, uniform: Tensor, below: float) -> None:
        """Move codes whose EMA count fell under `below` onto random active tokens of this batch.

        `uniform` `(N,)` holds one random number in [0, 1) per code, the same on every process. A
        moved code starts over as if one token had been assigned to it; otherwise its old sum
        would pull it back at the next update.
        """
        tokens, weight = joined_rows(z.flatten(0, 1)), joined_rows(active.flatten().float())
        share = weight.cumsum(0) / weight.sum()
        drawn = torch.searchsorted(share, uniform, right=True).clamp(max=len(share) - 1)
        dead = self.counts < below
        self.sums.copy_(torch.where(dead[:, None], tokens[drawn], self.sums))
        self.counts.copy_(torch.where(dead, torch.ones_like(self.counts), self.counts))
        self._refresh(dead)

    def _refresh(self, moved: Tensor) -> None:
        # Dividing sums by counts would change nothing: only the direction survives. The other
        # codes stay as they are, or the direction of a long unused one would fade with its sum.
        directions = F.normalize(self.sums, dim=-1)
        self.codebook.copy_(torch.where(moved[:, None], directions, self.codebook))


def _mean_token(projected: Tensor) -> Tensor:
    """The mean of `(B, K, d_c)` over the images of all processes; gradients go back to all."""
    # In doubles, for the reason given in `update`.
    total, count = projected.double().sum(dim=0), len(projected)
    if together():
        total = _SumOverProcesses.apply(total)  # type: ignore[no-untyped-call]
        count *= dist.get_world_size()
    return (total / count).float()


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes, and on the way back that of its gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return summed(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverProcesses.forward(ctx, gradient.contiguous())
