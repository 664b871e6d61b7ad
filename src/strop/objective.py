"""The losses of Section 2.2: latent alignment, commitment, diversity, length. All in float32.

In a distributed run each process returns its share of the loss of the whole batch: a sum over
local samples divided by a global count. Summed gradients then equal those of one process with all
samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.collectives import summed
from strop.config import check_ranges
from strop.curriculum import EPSILON, IN_STEPS


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Weights of the composite loss. Steps are for a run of 500,000.

    diversity_warmup       steps over which the diversity term rises to its weight
    diversity_temperature  temperature of the soft assignment, on cosine similarities
    length_weight          weight of the length head's loss, whichever head the model has
    """

    commitment_weight: float = field(default=1.0, metadata={"min": 0})
    diversity_weight: float = field(default=0.3, metadata={"min": 0})
    diversity_warmup: int = field(default=40_000, metadata=IN_STEPS)
    diversity_temperature: float = field(default=0.1, metadata={"above": 0})
    length_weight: float = field(default=1.0, metadata={"min": 0})

    def __post_init__(self) -> None:
        check_ranges(self, "objective")


def diversity_warmup(config: ObjectiveConfig, step: int) -> float:
    """The share of the diversity weight in force at `step`: linear from 0 to 1."""
    if config.diversity_warmup == 0:
        return 1.0
    return min(step / config.diversity_warmup, 1.0)


def latent_alignment(predicted: Tensor, target: Tensor) -> Tensor:
    """L_lat of Section 2.2 (B,): `1 - mean cosine + MSE`. Both (B, S, d), in the scaled space."""
    return cosine_error(predicted, target) + squared_error(predicted, target)


def cosine_error(predicted: Tensor, target: Tensor) -> Tensor:
    """(B,): one minus the mean cosine similarity of each sample. Both (B, S, d)."""
    return 1 - F.cosine_similarity(predicted.float(), target.float(), dim=-1).mean(-1)


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """(B,): mean squared error of each sample. Both (B, S, d)."""
    return (predicted.float() - target.float()).square().mean((-2, -1))


def commitment(z: Tensor, code: Tensor, active: Tensor) -> Tensor:
    """L_commit of Section 2.2: squared distance of tokens to their codes, summed over channels.

    The mean over the active tokens of the batch; the paper does not say over what it averages.

    z       (B, K, d_c) normalised raw tokens
    code    (B, K, d_c) the code of each; no gradient reaches it
    active  (B, K) bool
    """
    weight = active.float()
    distance = (z.float() - code.detach().float()).square().sum(-1)
    return (distance * weight).sum() / summed(weight.sum()).clamp(min=1.0)


def diversity(similarity: Tensor, active: Tensor, temperature: float) -> Tensor:
    """L_div of Section 2.2, as `1 - H(p) / log N`: the paper gives no formula.

    0 when all codes are equally frequent, 1 when only one is in use.
    p is the mean soft assignment over all active tokens of the batch, not per position, which
    would cap the entropy at the log of the batch size.

    similarity  (B, K, N) cosines of tokens and codes
    active      (B, K) bool
    """
    weight = active.float()
    soft = torch.softmax(similarity.float() / temperature, dim=-1)
    total = (soft * weight[..., None]).sum((0, 1))  # autocast would round a matrix product
    # The value is that of the whole batch; the gradient is that of the local samples.
    total = summed(total.detach()) + (total - total.detach())
    p = total / summed(weight.sum()).clamp(min=1.0)
    entropy = -torch.special.xlogy(p, p).sum()
    return 1 - entropy / math.log(similarity.shape[-1])


def length_loss(predicted: Tensor, target: Tensor, k: int) -> Tensor:
    """Eq. 6 of Appendix A: `mean(((L_hat - sg[L]) / K)^2)` of (B,) lengths."""
    return ((predicted.float() - target.detach().float()) / k).square().mean()


def rate_loss(log_error: Tensor, lengths: Tensor, errors: Tensor) -> Tensor:
    """Mean smooth L1 distance of predicted log errors to those measured, at the active lengths.

    log_error  (B, 2, K) predicted logarithms of cosine error and squared error at lengths 1 to K
    lengths    (B,) int64 active lengths, or (B, m) for several of each image
    errors     (B, 2) or (B, m, 2), cosine error and squared error measured there; no gradient
    """
    at = lengths.reshape(len(lengths), 1, -1).expand(-1, 2, -1) - 1
    predicted = log_error.float().gather(2, at)
    measured = errors.detach().float().reshape(len(errors), -1, 2).mT
    return F.smooth_l1_loss(predicted, (measured + EPSILON).log())
