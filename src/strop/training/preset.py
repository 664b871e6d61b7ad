"""Presets: named configurations in TOML, complete or as changes to another preset."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strop import config as configs
from strop.curriculum import CurriculumConfig
from strop.errors import ConfigError, did_you_mean, parsing
from strop.model.tokenizer import TokenizerConfig
from strop.objective import ObjectiveConfig
from strop.training.training_config import TrainingConfig

FOLDER = Path(__file__).parents[1] / "presets"

RETIRED = {
    "curriculum.oracle": "error",
    "curriculum.oracle_contrast": 1.0,
    "curriculum.oracle_zoom": 4,
    "curriculum.oracle_tolerance": 0.05,
    "curriculum.price_per": "token",
    "curriculum.price_rate": 0.02,
    "curriculum.rate_knots": 10,
    "objective.distillation_weight": 0.0,
}
"""Removed settings of older presets and runs, and their defaults; see `drop_retired`."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The configuration of a run: the tables of a preset file."""

    name: str = "custom"
    model: TokenizerConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        fixed, k = self.curriculum.fixed_length, self.model.max_length
        if fixed is not None and fixed > k:
            raise ConfigError(
                f"curriculum.fixed_length is {fixed}, and model.max_length {k}.",
                f"Give a length of at most {k}.",
            )


def preset_from_dict(values: Mapping[str, Any], where: str = "preset") -> Preset:
    """A preset from the tables of a file, a run or a checkpoint; `where` names it in errors."""
    return configs.from_dict(Preset, configs.drop_retired(values, RETIRED, where), where)


def preset_names() -> list[str]:
    """The names of all bundled presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str, overrides: Mapping[str, Any] | None = None) -> Preset:
    """A preset by name, or from a `.toml` file, with dotted keys replaced.

    A file with `extends = "NAME"` holds only what differs from the preset of that name. Keys and
    types are checked after the tables are merged.
    """
    preset = preset_from_dict({**_tables(name, ()), "name": Path(name).stem})
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
