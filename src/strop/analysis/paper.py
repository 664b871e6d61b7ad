"""The figures of the paper, and which of our results have the same setting."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from strop.config import from_dict, to_dict
from strop.curriculum import CurriculumConfig
from strop.data.spec import Spec, parse_spec
from strop.errors import StropError
from strop.model.tokenizer import TokenizerConfig
from strop.objective import ObjectiveConfig
from strop.training.preset import Preset, load_preset

TABLES = Path(__file__).with_name("paper.toml")
OFFICIAL: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "voc": (("val",), (1449,)),
    "cocostuff": (("val",), (5000, 2175)),  # all images, or STEGO's list
    "ade20k": (("validation", "val"), (2000,)),
    "cityscapes": (("val",), (500,)),
    "nyuv2": (("test",), (654,)),
    "clevr": (("val",), (15_000,)),
}
"""The splits of each dataset that the paper measures on, and their numbers of images."""
MEAN_OVER: dict[str, tuple[str, ...]] = {
    "alignment": ("voc", "cocostuff", "ade20k", "cityscapes", "nyuv2"),
    "multilabel": ("cocostuff", "voc"),
}
"""The datasets of the paper's columns of means, by analysis."""
TRAINING_IMAGES = {"coco": 118_287, "imagenet": 1_281_167, "clevr": 70_000}
"""The images of the split `train` of the paper's training data."""
LEAST_SHARE = 0.99
"""The share of the training images that must have been trained on: some are held out."""


def _all_but(config: type[Any], *others: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(config) if each.name not in others)


STATED: dict[str, tuple[str, ...]] = {
    "training": (
        "steps",
        "batch",
        "learning_rate",
        "warmup",
        "hold_until",
        "final_learning_rate",
        "weight_average",
        "views",
    ),
    "objective": _all_but(ObjectiveConfig, "diversity_temperature"),
    "curriculum": _all_but(CurriculumConfig, "alpha_start"),
}
"""The settings of training that the paper states; `docs/paper.md` lists what it leaves open."""
OTHERS = ("flextok-d12-d12-in1k", "one-d-piece-s-256")
"""The other tokenizers in the paper."""
MEAN = "mean"


class Cell(NamedTuple):
    """One figure. `variant` is a preset, a teacher or a baseline; `representation` may be empty."""

    table: str
    suite: str
    trained_on: str
    variant: str
    representation: str
    dataset: str
    measure: str
    value: float


@cache
def cells() -> tuple[Cell, ...]:
    """All figures of all tables."""
    found = []
    for table in tomllib.loads(TABLES.read_text(encoding="utf-8"))["table"]:
        keys = table["keys"]
        for row in table["rows"]:
            place = {"representation": "", **dict(zip(keys, row, strict=False))}
            for column, value in zip(table["columns"], row[len(keys) :], strict=True):
                *dataset, measure = column.split()
                where = {**place, "dataset": dataset[0]} if dataset else place
                about = {name: table[name] for name in ("suite", "trained_on")}
                cell = Cell(table["label"], **about, **where, measure=measure, value=float(value))
                found.append(cell)
    return tuple(found)


def variants() -> list[str]:
    """The presets in the paper's tables."""
    named = dict.fromkeys(cell.variant for cell in cells())
    return [name for name in named if name.startswith(("strop-", "clevr-"))]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting of a result in terms of the paper's tables, and its differences from them."""

    variant: str
    trained_on: str
    dataset: str
    differs: tuple[str, ...]

    def value(self, suite: str, measure: str, representation: str = "") -> float | None:
        """The paper's value for this setting, if it has one."""
        if self.differs:
            return None
        # The teacher has its own row.
        row = self.variant.split("-", 2)[2] if representation == "teacher" else self.variant
        wanted = (suite, self.trained_on, row, representation, self.dataset, measure)
        return next((cell.value for cell in cells() if cell[1:-1] == wanted), None)


def setting_of(part: Mapping[str, Any]) -> Setting:
    """The setting of a result, and in what it differs from every setting of the paper."""
    model, spec = part["model"], parse_spec(part["data"])
    differs = []
    variant, trained_on = variant_of(model["config"]), _kind(model["about"].get("data"))
    if model["name"] in OTHERS:  # the same values are in both of the paper's tables
        variant, trained_on = model["name"], "coco"
    if variant is None:
        differs.append("the model is none of the paper's variants")
    if trained_on is None or not any(cell.trained_on == trained_on for cell in cells()):
        known = model["about"].get("data") or "unknown data"
        differs.append(f"trained on {known}, not on the paper's COCO, ImageNet or CLEVR")
    elif variant is not None and model["name"] not in OTHERS:
        differs += _training_differs(load_preset(variant), model["about"].get("training"))
    differs += _data_differs(spec, part["images"])
    if part["suite"] in ("segmentation", "multilabel", "depth") and part["protocol"] != "paper":
        differs.append(f"the probe protocol is {part['protocol']}")
    return Setting(
        variant=variant or "",
        trained_on=trained_on or "",
        dataset=spec.kind,
        differs=tuple(differs),
    )


def variant_of(config: Mapping[str, Any]) -> str | None:
    """The preset of the paper that a model's config matches, or None.

    The decoder, the widths of the length head and the scale of targets do not matter: the paper
    leaves them open. A teacher given as a folder does not count as DINOv3.
    """
    try:
        found = _essence(from_dict(TokenizerConfig, dict(config), "model"))
    except StropError:
        return None
    return next((name for name, each in _essences().items() if each == found), None)


@cache
def _essences() -> dict[str, TokenizerConfig]:
    """The paper's presets by name, read from their files once."""
    return {name: _essence(load_preset(name).model) for name in variants()}


def _essence(config: TokenizerConfig) -> TokenizerConfig:
    return replace(
        config,
        decoder=None,
        fit="squash",
        teacher=replace(config.teacher, scale=1.0),
        length_head=replace(config.length_head, hidden=(1,)),
    )


def _training_differs(preset: Preset, recorded: Mapping[str, Any] | None) -> list[str]:
    """In what a model's recorded training differs from what the paper states."""
    if recorded is None:
        return ["the model does not record how it was trained"]
    wanted = to_dict(preset)
    differs = [
        f"{table}.{name} is {found}, not {expected}"
        for table, names in STATED.items()
        for name in names
        if (found := recorded[table].get(name)) != (expected := wanted[table][name])
    ]
    spec, images = parse_spec(recorded["data"]), recorded["images"]
    split, official = spec.parameters.get("split", "train"), TRAINING_IMAGES.get(spec.kind)
    if split != "train":
        differs.append(f"trained on the split {split}, not train")
    elif official is not None and not LEAST_SHARE * official <= images <= official:
        differs.append(f"trained on {images:,} images of {official:,}")
    return differs


def _data_differs(spec: Spec, images: int) -> list[str]:
    if not any(cell.dataset == spec.kind for cell in cells()):
        return [f"the paper does not measure on {spec.kind}"]
    splits, sizes = OFFICIAL.get(spec.kind, ((), ()))
    split = spec.parameters.get("split")
    if splits and split is not None and split not in splits:
        return [f"measured on the split {split}, not {splits[0]}"]
    if sizes and images not in sizes:
        return [f"measured on {images:,} images of {sizes[0]:,}"]
    return []


def _kind(spec: object) -> str | None:
    """The kind of data that a model was trained on, according to its `about`."""
    try:
        return parse_spec(str(spec)).kind if spec else None
    except StropError:
        return None
