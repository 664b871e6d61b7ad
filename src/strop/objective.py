"""The losses: latent alignment, commitment, diversity and length, each in float32.

In a distributed run each process returns its share of the loss of the whole batch: shares are
sums over local samples divided by global counts, so that summed gradients equal those of one
process with all the samples. `reduce` sums a tensor over the processes; alone it does nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.curriculum import IN_STEPS, Reduce
from strop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Weights of the composite loss. Steps are for a run of 500,000.

    diversity_warmup       steps over which the diversity term rises to its weight
    diversity_temperature  of the soft assignment, on cosine similarities
    distillation_weight    of the alignment of what a program's prefix says with what the whole
                           program says, which stands still; not in the paper
    """

    commitment_weight: float = 1.0
    diversity_weight: float = 0.3
    diversity_warmup: int = field(default=40_000, metadata=IN_STEPS)
    diversity_temperature: float = 0.1
    length_weight: float = 1.0
    distillation_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.diversity_temperature <= 0:
            raise ConfigError(
                f"objective.diversity_temperature is {self.diversity_temperature}.",
                "Give a number above 0.",
            )


def _alone(value: Tensor) -> Tensor:
    return value


def diversity_warmup(config: ObjectiveConfig, step: int) -> float:
    """The share of the diversity weight in force at `step`: linear from 0 to 1."""
    if config.diversity_warmup == 0:
        return 1.0
    return min(step / config.diversity_warmup, 1.0)


def latent_alignment(predicted: Tensor, target: Tensor) -> Tensor:
    """(B,): `1 - mean cosine + MSE` of each sample. Both (B, S, d), in the scaled space."""
    cosine = F.cosine_similarity(predicted.float(), target.float(), dim=-1).mean(-1)
    return 1 - cosine + squared_error(predicted, target)


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """(B,): mean squared error of each sample, what R² is made of. Both (B, S, d)."""
    return (predicted.float() - target.float()).square().mean((-2, -1))


def commitment(z: Tensor, code: Tensor, active: Tensor, *, reduce: Reduce = _alone) -> Tensor:
    """Squared distance of tokens to their codes, summed over channels, mean over active tokens.

    z       (B, K, d_c) normalised raw tokens
    code    (B, K, d_c) the code of each; no gradient reaches it
    active  (B, K) bool
    """
    weight = active.float()
    distance = (z.float() - code.detach().float()).square().sum(-1)
    return (distance * weight).sum() / reduce(weight.sum()).clamp(min=1.0)


def diversity(
    similarity: Tensor, active: Tensor, temperature: float, *, reduce: Reduce = _alone
) -> Tensor:
    """`1 - H(p) / log N`: 0 when all codes are used alike, 1 when a single one is.

    p is the mean soft assignment over all active tokens of the batch, not per position, which
    would cap the entropy at the log of the batch size.

    similarity  (B, K, N) cosines of tokens and codes
    active      (B, K) bool
    """
    weight = active.float()
    soft = torch.softmax(similarity.float() / temperature, dim=-1)
    total = (soft * weight[..., None]).sum((0, 1))  # not a product of matrices: autocast
    # The value is that of the whole batch; the gradient is that of the local samples.
    total = reduce(total.detach()) + (total - total.detach())
    p = total / reduce(weight.sum()).clamp(min=1.0)
    entropy = -torch.special.xlogy(p, p).sum()
    return 1 - entropy / math.log(similarity.shape[-1])


def length_loss(predicted: Tensor, target: Tensor, k: int) -> Tensor:
    """`mean(((L_hat - sg[L]) / K)^2)` of (B,) predicted and target lengths."""
    return ((predicted.float() - target.detach().float()) / k).square().mean()
