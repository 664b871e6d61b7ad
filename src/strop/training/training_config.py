"""Settings of a run: optimizer, schedule, data, logs and checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from strop.config import check_ranges
from strop.curriculum import IN_STEPS
from strop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a run. Fields marked (s) are for 500,000 steps and scale with `steps`.

    data                 spec of the dataset, such as `coco:/data/coco?split=train`
    steps, batch         optimizer steps, and images per step over all processes
    learning_rate        peak rate: reached after `warmup` (s), held until `hold_until` (s), then
                         decayed along a cosine to `final_learning_rate`
    betas, weight_decay  of AdamW; norms, biases and embeddings do not decay
    clip                 maximal gradient norm; 0 for no clipping
    weight_average       decay d of an exponential average of the weights, which is validated and
                         saved instead of them; 0 for none. Before step `9 / (1 - d)` the average
                         spans a ninth of the steps so far
    seed                 seed of all random numbers
    precision            `bf16` autocast or `fp32`; `auto` is bf16 on a GPU and fp32 on a CPU
    compile              torch.compile and CUDA graphs; `auto` is on a GPU only, `max` searches
                         longer for fast kernels
    flip                 add the mirrored version of each image
    views, view_area     add this number of random views of each image: crops with at least this
                         share of the area, mirrored (with `flip`) and colour-jittered. A cache
                         stores them; without one, each step draws new ones
    reseed_every         steps between reseeding of dead codes
    reseed_below         mean count of tokens per step below which a code is dead
    held_out             number of validation images taken from the data
    log_every            steps between lines of the log
    validate_every       (s) steps between validations
    checkpoint_every     (s) steps between checkpoints
    keep_checkpoints     number of checkpoints that are kept
    loss_limit           a loss term above this stops the run
    """

    data: str = ""
    steps: int = field(default=500_000, metadata={"min": 1})
    batch: int = field(default=32, metadata={"min": 1})
    learning_rate: float = field(default=3e-4, metadata={"above": 0})
    warmup: int = field(default=30_000, metadata=IN_STEPS)
    hold_until: int = field(default=100_000, metadata=IN_STEPS)
    final_learning_rate: float = field(default=1e-4, metadata={"above": 0})
    betas: tuple[float, ...] = field(default=(0.9, 0.95), metadata={"min": 0, "below": 1})
    weight_decay: float = field(default=0.02, metadata={"min": 0})
    clip: float = field(default=1.0, metadata={"min": 0})
    weight_average: float = field(default=0.0, metadata={"min": 0, "below": 1})
    seed: int = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: Literal["auto", "on", "max", "off"] = "auto"
    flip: bool = True
    views: int = field(default=0, metadata={"min": 0})
    view_area: float = field(default=0.4, metadata={"above": 0, "max": 1})
    reseed_every: int = field(default=100, metadata={"min": 1})
    reseed_below: float = 0.1
    held_out: int = field(default=256, metadata={"min": 0})
    log_every: int = field(default=50, metadata={"min": 1})
    validate_every: int = field(default=5_000, metadata=IN_STEPS | {"min": 1})
    checkpoint_every: int = field(default=10_000, metadata=IN_STEPS | {"min": 1})
    keep_checkpoints: int = field(default=2, metadata={"min": 1})
    loss_limit: float = field(default=1e4, metadata={"above": 0})

    def __post_init__(self) -> None:
        check_ranges(self, "training")
        if len(self.betas) != 2:
            raise ConfigError(f"training.betas is {list(self.betas)}.", "Give two numbers.")
        if self.hold_until < self.warmup:
            raise ConfigError(
                f"training.hold_until ({self.hold_until}) comes before the end of the warm-up "
                f"({self.warmup}).",
                "Give a later step.",
            )

    @property
    def versions(self) -> int:
        """The number of versions of each image."""
        return 1 + self.flip + self.views


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The rate of Section 5.1 at `step`: warm-up, hold, cosine. `config` is already scaled."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if step < config.hold_until:
        return config.learning_rate
    progress = (step - config.hold_until) / max(config.steps - config.hold_until, 1)
    share = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return config.final_learning_rate + share * (config.learning_rate - config.final_learning_rate)
