"""Everything a tokenizer computes from a batch of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from strop.errors import ModelError


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """Everything a tokenizer computes on the way from B images to their programs.

    field      (B, S, d_enc) float32, the teacher's, in the teacher's own scale
    raw        (B, K, d) the generator's tokens
    z          (B, K, d_c) float32, raw tokens projected onto the unit sphere
    codes      (B, K) int64
    z_q        (B, K, d_c) float32, the code vectors
    predicted  (B,) float32, lengths as predicted: real numbers in (0, K)
    lengths    (B,) int64, rounded and clipped to [1, K]
    log_error  (B, 2, K) float32, predictions of the rate head at lengths 1 to K; None without one
    """

    field: Tensor
    raw: Tensor
    z: Tensor
    codes: Tensor
    z_q: Tensor
    predicted: Tensor
    lengths: Tensor
    log_error: Tensor | None = None

    def __getitem__(self, index: int) -> Tensor:
        """A tensor by its number, the `field` first, which pipelines of transformers take."""
        return list(self.as_dict().values())[index]

    def as_dict(self) -> dict[str, Tensor]:
        """All tensors that are not None, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def joined(parts: Sequence[Encoding]) -> Encoding:
        """Parts as one, in order; `ModelError` if a field is not finite."""
        each = [part.as_dict() for part in parts]
        joined: dict[str, Any] = {
            name: torch.cat([part[name] for part in each]) for name in each[0]
        }
        check_finite(joined["predicted"])
        return Encoding(**joined)


def check_finite(predicted: Tensor) -> None:
    """Refuse predictions that come from fields that are not finite."""
    if not torch.isfinite(predicted).all():
        raise ModelError(
            "The teacher's field is not finite.",
            'If its features leave fp16\'s range, set `precision = "bf16"`.',
        )
