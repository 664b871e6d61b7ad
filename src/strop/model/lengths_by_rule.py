"""The lengths of programs by a rule: those that need no interpretation, and those that do."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.encoding import Encoding
from strop.model.interpreter import prefix_mask
from strop.model.length_head import whole_lengths
from strop.model.length_rule import TOLERANCE, LengthRule, needs_rate_head
from strop.model.rate import (
    allocated_lengths,
    lengths_for_mean,
    shortest_within,
    verified_lengths,
)
from strop.model.rate_head import CONFIDENCE, RateHead


def rate_head_of(head: nn.Module, what: str) -> RateHead:
    """`head`, which `what` needs to be a rate head; `ModelError` if it is another."""
    if not isinstance(head, RateHead):
        raise needs_rate_head(what)
    return head


def expected_quality(
    head: nn.Module, log_error: Tensor | None, lengths: Tensor, confidence: float | None = None
) -> Tensor | None:
    """The cosine similarity `(B,)` that lengths reach with that confidence, if known."""
    if log_error is None:
        return None
    at = log_error[:, 0].gather(1, lengths[:, None] - 1)[:, 0]
    return rate_head_of(head, "a quality").expected(at, confidence or CONFIDENCE)


def predicted_lengths(
    rule: LengthRule, head: nn.Module, predicted: Tensor, log_error: Tensor | None, capacity: int
) -> Tensor:
    """Lengths `(B,)` int64 that need no interpretation."""
    if rule.length is not None:
        forced = torch.as_tensor(capacity if rule.length == "max" else rule.length)
        forced = forced.to(predicted.device, torch.int64)
        return forced if forced.ndim else forced.repeat(len(predicted))
    if log_error is None:
        if rule.mean_length is not None:
            return lengths_for_mean(predicted, rule.mean_length, capacity)
        return whole_lengths(predicted, capacity)
    if rule.mean_length is not None:
        return allocated_lengths(log_error[:, 1].exp(), rule.mean_length)
    head = rate_head_of(head, "a quality")
    return head.shortest(log_error, rule.quality or head.quality, rule.confidence or CONFIDENCE)


def measured_lengths(
    rule: LengthRule,
    head: nn.Module,
    encoding: Encoding,
    interpret: Callable[[Tensor, Tensor], Tensor],
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Lengths `(B,)` found by interpreting prefixes, and the quality that they reach.

    interpret  codes and mask `(b, K)`, b at most `batch`, to fields
    """
    images, capacity = encoding.codes.shape

    def cosine(rows: Tensor, lengths: Tensor) -> Tensor:
        similarities = [
            F.cosine_similarity(
                interpret(encoding.codes[row], prefix_mask(length, capacity)),
                encoding.field[row],
                dim=-1,
            ).mean(dim=1)
            for row, length in zip(rows.split(batch), lengths.split(batch), strict=True)
        ]
        return torch.cat(similarities)

    if rule.verify:
        quality = rule.quality or rate_head_of(head, "verify").quality
        assert encoding.log_error is not None
        return verified_lengths(encoding.log_error[:, 0], quality, cosine)
    device = encoding.codes.device
    every = torch.arange(1, capacity + 1, device=device).repeat(images)
    rows = torch.arange(images, device=device).repeat_interleave(capacity)
    reached = cosine(rows, every).view(images, capacity)
    tolerance = TOLERANCE if rule.tolerance is None else rule.tolerance
    lengths = shortest_within(1 - reached, tolerance)
    return lengths, reached.gather(1, lengths[:, None] - 1)[:, 0]
