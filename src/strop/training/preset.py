"""The settings of runs, and presets: TOML files of them, complete or as changes to another."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strop import config as configs
from strop.curriculum import IN_STEPS, CurriculumConfig
from strop.errors import ConfigError, did_you_mean, expect, parsing
from strop.model.tokenizer import TokenizerConfig
from strop.objective import ObjectiveConfig

FOLDER = Path(__file__).parents[1] / "presets"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a run. Fields marked (s) are for 500,000 steps and scale with `steps`.

    data                 spec of the dataset, such as `coco:/data/coco?split=train`
    steps, batch         optimizer steps, and images per step over all processes
    learning_rate        peak rate: reached after `warmup` (s), held until `hold_until` (s), then
                         decayed along a cosine to `final_learning_rate`
    optimizer            `adamw`, as in the paper; or `muon`: Muon for the matrices of linear layers
                         outside the length head, and AdamW for the rest, with one learning rate
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
    optimizer: Literal["adamw", "muon"] = "adamw"
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
        configs.check_ranges(self, "training")
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


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The configuration of a run: the tables of a preset file."""

    name: str = "custom"
    model: TokenizerConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def preset_names() -> list[str]:
    """The names of all bundled presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Preset:
    """A preset by name, or from a `.toml` file, with dotted keys replaced.

    A file with `extends = "NAME"` holds only what differs from the preset of that name. Keys and
    types are checked after the tables are merged.
    """
    expect(name, str | Path, "a preset", ConfigError, "Give a name or a .toml file.")
    values = {**_tables(str(name), ()), "name": Path(name).stem}
    preset = configs.from_dict(Preset, values, "preset")
    expect(overrides, Mapping | None, "a table of settings", ConfigError, "Give {KEY: VALUE}.")
    return configs.override(preset, overrides) if overrides else preset


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`["training.batch=64", "training.data=coco:/x"]` to a dict of dotted keys.

    A value is read as TOML (numbers, booleans, lists, quoted strings), otherwise as a string.
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{assignment!r} does not set anything.", "Write it as training.batch=64."
            )
        with parsing(ConfigError, f"{key.strip()} cannot be read", "Give a simpler value."):
            try:
                parsed[key.strip()] = tomllib.loads(f"value = {text}")["value"]
            except tomllib.TOMLDecodeError:
                parsed[key.strip()] = text.strip()
    return parsed


def _tables(name: str, below: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a preset, merged into those of the preset it extends."""
    if name in below:
        raise ConfigError(
            f"The presets {' -> '.join((*below, name))} extend each other in a circle.",
            "Remove one `extends`.",
        )
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    with parsing(ConfigError, "The name of a preset cannot be looked up", "Give a shorter one."):
        found = path.is_file()
    if not found:
        known = preset_names()
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"There is no {'file' if name.endswith('.toml') else 'preset'} {name!r}.",
            f"{hint}Known presets: {', '.join(known)}; or give the path of a .toml file.",
        )
    with parsing(ConfigError, f"{path} is not valid TOML", "Correct the file."):
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ConfigError(f"extends in {path} is {parent!r}.", "Give the name of one preset.")
    return _merged(_tables(parent, (*below, name)), values)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result
