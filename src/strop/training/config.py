"""How a run is trained: optimizer, schedule, data, and what is written when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from strop.curriculum import IN_STEPS
from strop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a run. The fields marked (s) are for 500,000 steps and scale with `steps`.

    data                 spec of the dataset, such as `coco:/data/coco?split=train`
    steps, batch         optimizer steps, and images in each over all processes
    learning_rate        peak: reached after `warmup` (s), held until `hold_until` (s), then
                         lowered along a cosine to `final_learning_rate`
    betas, weight_decay  of AdamW; norms, biases and embeddings do not decay
    clip                 largest gradient norm; 0 for no clipping
    weight_average       decay per step of an average of the weights, which is then what is
                         validated and saved, 0 for none. Up to step `9 / (1 - d)` it decays
                         faster than this `d`, so as to span a ninth of the steps so far
    seed                 of everything random in the run
    precision            `bf16` autocast or `fp32`; `auto` is bf16 on a GPU and fp32 on a CPU
    compile              torch.compile and CUDA graphs; `auto` is on a GPU only, `max` searches
                         longer for the fastest kernels
    flip                 each image also mirrored
    views, view_area     each image also in so many random views: crops that keep at least this
                         share of its area, mirrored (with `flip`) and recoloured at random.
                         A cache holds them; the teacher online sees new ones each time
    reseed_every         steps between looks for dead codes (every so many, however long the run)
    reseed_below         average count of tokens per step under which a code is dead
    held_out             images kept from training, to measure R² and cosine on
    log_every            steps between lines of the log
    validate_every       (s) steps between looks at the held-out images
    checkpoint_every     (s) steps between checkpoints
    keep_checkpoints     how many of the latest checkpoints stay on disk
    loss_limit           a loss term above this has exploded, and stops the run
    """

    data: str = ""
    steps: int = 500_000
    batch: int = 32
    learning_rate: float = 3e-4
    warmup: int = field(default=30_000, metadata=IN_STEPS)
    hold_until: int = field(default=100_000, metadata=IN_STEPS)
    final_learning_rate: float = 1e-4
    betas: tuple[float, ...] = (0.9, 0.95)
    weight_decay: float = 0.02
    clip: float = 1.0
    weight_average: float = 0.0
    seed: int = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: Literal["auto", "on", "max", "off"] = "auto"
    flip: bool = True
    views: int = 0
    view_area: float = 0.4
    reseed_every: int = 100
    reseed_below: float = 0.1
    held_out: int = 256
    log_every: int = 50
    validate_every: int = field(default=5_000, metadata=IN_STEPS)
    checkpoint_every: int = field(default=10_000, metadata=IN_STEPS)
    keep_checkpoints: int = 2
    loss_limit: float = 1e4

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch",
            "reseed_every",
            "log_every",
            "validate_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"training.{name} is {getattr(self, name)}.", "Give at least 1.")
        for name in ("learning_rate", "final_learning_rate", "loss_limit"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"training.{name} is {value}.", "Give a number above 0.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"training.betas is {list(self.betas)}.", "Give two numbers in [0, 1)."
            )
        if not 0 <= self.weight_average < 1:
            raise ConfigError(
                f"training.weight_average is {self.weight_average}.", "Give a number in [0, 1)."
            )
        if not 0 < self.view_area <= 1:
            raise ConfigError(
                f"training.view_area is {self.view_area}.", "Give a share above 0, at most 1."
            )
        for name in ("held_out", "clip", "weight_decay", "warmup", "views"):
            if getattr(self, name) < 0:
                raise ConfigError(f"training.{name} is {getattr(self, name)}.", "Give 0 or more.")
        if self.hold_until < self.warmup:
            raise ConfigError(
                f"training.hold_until ({self.hold_until}) comes before the end of the warm-up "
                f"({self.warmup}).",
                "Give a later step.",
            )

    @property
    def versions(self) -> int:
        """How many versions of each image the model is trained on."""
        return 1 + self.flip + self.views


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The rate of the update made at `step`: warm-up, hold, cosine. `config` already scaled."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if step < config.hold_until:
        return config.learning_rate
    progress = (step - config.hold_until) / max(config.steps - config.hold_until, 1)
    share = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return config.final_learning_rate + share * (config.learning_rate - config.final_learning_rate)
