"""The tables of the CLEVR study, as blocks of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from rows import DATA, HELD_OUT, Row, choosing, measured_on, rated
from strop.analysis.evaluate import Result as Part
from strop.analysis.findings import Table
from strop.analysis.metric_info import METRICS
from strop.analysis.page import Block, Points, Text
from strop.analysis.paper import cells as paper_cells
from strop.config import flatten, to_dict
from strop.data.rendered import ScenesDataset
from strop.data.spec import open_dataset
from strop.statistics import pearson
from strop.training.preset import Preset, load_preset

COLUMNS = (
    "cosine",
    "r2",
    "r2_centred",
    "ssim",
    "lpips",
    "codebook_used",
    "codebook_effective",
    "length_mean",
)

LEAST_CORRELATION = 0.85
"""Pearson's r with the number of objects that a trial needs to beat the paper's curriculum."""

LOGISTICS = ("data", "validate_every", "checkpoint_every")
"""Training settings without influence on the model."""


# The paper's two tables.


def settings(rows: Sequence[Row]) -> Iterator[Block]:
    """Settings of the first row of the paper that differ from the paper's preset."""
    first = next((row for row in rows if not row.is_trial), None)
    if first is None:
        return
    paper = flatten(to_dict(load_preset(first.facts["preset"])))
    differs = [
        [f"`{key}`", _plain(paper[key]), _plain(value)]
        for key, value in flatten(to_dict(first.plan)).items()
        if key in paper and paper[key] != value and key.split(".")[-1] not in LOGISTICS
    ]
    yield Table("", [f"setting of `{first.name}`", "the paper's preset", "here"], differs)


def beside_the_paper(rows: Sequence[Row]) -> Iterator[Block]:
    """Ours and the paper's metrics per dataset, the spread over seeds, the cost of choosing."""
    ours = [row for row in rows if not row.is_trial]
    for kind, label in DATA.items():
        some = measured_on(ours, kind)
        if not some:
            continue
        known = [found for row in some for found in (row.values(kind), _paper(row))]
        shown = [name for name in COLUMNS if any(name in found for found in known)]
        yield Text(f"On {_images(some, kind)} {label}:")
        yield Table(
            "", ["", *(METRICS[name].heading for name in shown)], _beside(some, kind, shown)
        )
        yield from _without_bits(some, kind)
        yield from _seeds(some, kind, shown)
        yield from _cost_of_lengths(some, kind)


def _images(rows: list[Row], kind: str, suite: str = "alignment") -> str:
    """The number of images measured, which may differ between rows."""
    return " or ".join(f"{n:,}" for n in sorted({row.images(kind, suite) for row in rows}))


def _beside(rows: list[Row], kind: str, shown: list[str]) -> list[list[str]]:
    """The rows of each preset, followed by the paper's."""

    def line(name: str, values: Mapping[str, float | None]) -> list[str]:
        return [name, *(METRICS[each].format(values.get(each)) for each in shown)]

    lines = []
    for preset in dict.fromkeys(row.facts["preset"] for row in rows):
        same = [row for row in rows if row.facts["preset"] == preset]
        lines += [line(f"`{row.name}`", row.values(kind)) for row in same]
        lines.append(line("the paper's", _paper(same[0])))
    return lines


def _paper(row: Row) -> dict[str, float]:
    """The paper's figures for the row's preset."""
    preset = row.facts["preset"]
    return {cell.measure: cell.value for cell in paper_cells() if cell.variant == preset}


def _without_bits(rows: list[Row], kind: str) -> Iterator[Block]:
    """The R² of the mean field: how easy the fields of each teacher are."""
    found = {row.facts["teacher"]: row.values(kind)["r2_mean_field"] for row in rows}
    listed = ", ".join(f"{_number(r2, 3)} for `{teacher}`" for teacher, r2 in found.items())
    yield Text(f"The mean field, one for all images, has R² {listed}.")


def _seeds(rows: list[Row], kind: str, shown: list[str]) -> Iterator[Block]:
    """The range over runs that differ only in their seed."""

    def but_seed(row: Row) -> tuple[str, str]:
        return row.facts["row"], row.facts["teacher"]

    for _, group in groupby(sorted(rows, key=but_seed), key=but_seed):
        same = list(group)
        if len(same) > 1:
            apart = [
                f"{METRICS[name].title} {METRICS[name].format(max(found) - min(found))}"
                for name in shown
                if len(found := _numbers(row.values(kind).get(name) for row in same)) > 1
            ]
            names = " and ".join(f"`{row.name}`" for row in same)
            yield Text(f"{names} differ only in their seed, by {', '.join(apart)}.")


def _cost_of_lengths(rows: list[Row], kind: str) -> Iterator[Block]:
    """R² of a model with one fixed length minus R² of the model that chooses."""

    def place(row: Row) -> tuple[Any, ...]:
        return (row.facts["row"], row.facts["teacher"], *row.setting[1:])

    by_place = {place(row): row for row in rows}
    changes = []
    for (name, *others), row in by_place.items():
        fixed = by_place.get((f"{name}-fixed", *others))
        if fixed and (found := _numbers(each.values(kind)["r2"] for each in (fixed, row))):
            paper = _numbers(_paper(each).get("r2") for each in (fixed, row))
            beside = f" (the paper's: {paper[0] - paper[1]:+.3f})" if paper else ""
            changes.append(f"{found[0] - found[1]:+.3f} for `{row.name}`{beside}")
    if changes:
        yield Text(
            "One fixed length of all K tokens, in a separate model, changes R² by "
            f"{', '.join(changes)}."
        )


def cost(rows: Sequence[Row]) -> Iterator[Block]:
    """The cost of training, beside the paper's."""
    machines = " or ".join(dict.fromkeys(row.facts["machine"] for row in rows))
    yield Text(f"Training on one {machines}; the paper's hours are on one H100:")
    header = ["", "minutes", "img/s", "images seen", "the paper's images", "the paper's hours"]
    yield Table("", header, [_cost(row) for row in rows])


def _cost(row: Row) -> list[str]:
    facts, paper = row.facts, load_preset(row.facts["preset"]).training
    return [
        f"`{row.name}`",
        f"{facts['minutes']:.1f}",
        f"{facts['images_per_second']:,.0f}",
        *(f"{seen / 1e6:.1f} M" for seen in (facts["images_seen"], paper.steps * paper.batch)),
        METRICS["training_hours"].format(_paper(row).get("training_hours")),
    ]


# Length against complexity.


def lengths(rows: Sequence[Row]) -> Iterator[Block]:
    """How the length follows the number of objects, for every row that predicts lengths."""
    for kind, label in DATA.items():
        some = choosing(rows, kind)
        if not some:
            continue
        counts = sorted(
            {int(count) for row in some for count in row.complexity(kind)["mean_length"]}
        )
        yield Text(
            f"On {_images(some, kind)} {label}; correlations with 95 % intervals, and the mean "
            f"length of scenes of {counts[0]} to {counts[-1]} objects:"
        )
        header = ["", "Pearson r", "Spearman r", "lengths", *map(str, counts)]
        body = []
        for row in some:
            found = row.complexity(kind)
            means = (found["mean_length"].get(str(count)) for count in counts)
            body.append(
                [
                    f"`{row.name}`",
                    *(interval(found[name]) for name in ("pearson", "spearman")),
                    _range(row.values(kind)),
                    *(_number(mean, 1) for mean in means),
                    _number(found.get("percentiles", {}).get("ratio"), 2),
                ]
            )
            if "objects_correlation" in (paper := _paper(row)):
                correlation = (
                    f"≈ {METRICS['objects_correlation'].format(paper['objects_correlation'])}"
                )
                blank = ["–"] * (len(counts) + 1)
                body.append(["the paper's", correlation, "–", _range(paper), *blank])
        yield Table("", [*header, "95 % at ten over 5 % at three"], body)


def _range(values: Mapping[str, float | None]) -> str:
    return " to ".join(
        METRICS[name].format(values[name]) for name in ("length_least", "length_most")
    )


# Past the paper.


def changes(rows: Sequence[Row]) -> Iterator[Block]:
    """The settings that each trial changes in the paper's row."""
    listed = {}
    for row in rows:
        if row.is_trial:
            preset = flatten(to_dict(load_preset(row.facts["preset"])))
            changed = {key: x for key, x in row.facts["changes"].items() if preset.get(key) != x}
            listed[row.facts["row"]] = ", ".join(
                f"`{key} = {_plain(changed[key])}`" for key in changed
            )
    yield Points([f"`{name}`: {found}" for name, found in listed.items()])


def trials(rows: Sequence[Row]) -> Iterator[Block]:
    """The trials beside the paper's curriculum; judged on held-out scenes only."""
    for kind, label in DATA.items():
        some = rated(rows, kind)
        if not some:
            continue
        found = [_rated(row, kind) for row in some]
        if kind == HELD_OUT:
            found = [
                {**cells, "better than the paper's": _verdict(row, some)}
                for row, cells in zip(some, found, strict=True)
            ]
        yield Text(
            f"On {_images(some, kind, 'rate')} {label}, each interpreted at every length; the "
            f"correlation with the number of objects on all {_images(some, kind)}:"
        )
        yield _table(found)


def over_seeds(rows: Sequence[Row]) -> Iterator[Block]:
    """Rows that were trained with several seeds, on held-out scenes."""
    some = rated(rows, HELD_OUT)
    same: dict[tuple[str, Preset], list[Row]] = {}
    for row in some:
        any_seed = replace(row.plan, training=replace(row.plan.training, seed=0))
        same.setdefault((row.facts["row"], any_seed), []).append(row)
    groups = [group for group in same.values() if len(group) > 1]
    if not groups:
        return
    few, many = _images(some, HELD_OUT, "rate"), _images(some, HELD_OUT)
    yield Text(
        f"Mean over seeds, with minimum and maximum, on {few} {DATA[HELD_OUT]}; the "
        f"correlation on all {many}:"
    )
    yield _table([_over(group, some) for group in groups])


def _table(found: list[dict[str, str]]) -> Table:
    """A table from cells by column name; missing cells are empty."""
    header = list(dict.fromkeys(name for cells in found for name in cells))
    return Table("", header, [[cells.get(name, "–") for name in header] for cells in found])


def _over(group: list[Row], rows: list[Row]) -> dict[str, str]:
    """The cells of rows that differ only in their seed."""
    name = group[0].name.removesuffix(f"-seed{group[0].facts['seed']}")
    rates = [row.parts[HELD_OUT, "rate"] for row in group]
    values = [rate["values"] for rate in rates]
    found: dict[str, tuple[list[float | None], str]] = {
        "R² at its own lengths": ([each["r2"] for each in values], ".3f"),
        **{
            f"at {length}": ([rate["curve"]["r2"][length - 1] for rate in rates], ".3f")
            for length in _forced(rates[0]["curve"]["r2"])
        },
        "K since the handoff": ([row.since_handoff for row in group], "+.4f"),
        "mean length": ([each["length_mean"] for each in values], ".1f"),
        "Pearson r": ([row.correlation(HELD_OUT) for row in group], ".3f"),
        "gain of choosing": (
            [each["regret_r2_fixed"] - each["regret_r2"] for each in values],
            "+.4f",
        ),
        "regret to a search": ([each.get("regret_r2_search") for each in values], ".4f"),
    }
    verdicts = [_verdict(row, rows) for row in group]
    judged = [verdict for verdict in verdicts if verdict != "–"]
    better = f"{judged.count('yes')} of {len(judged)}" if judged else "–"
    return {
        "": f"`{name}`",
        "runs": str(len(group)),
        **{what: _spanned(_numbers(each), form) for what, (each, form) in found.items()},
        "better than the paper's": better,
    }


def _spanned(values: list[float], form: str) -> str:
    """A mean with minimum and maximum."""
    if not values:
        return "–"
    mean = math.fsum(values) / len(values)
    return f"{mean:{form}} ({min(values):{form}} to {max(values):{form}})"


def _forced(curve: Sequence[float]) -> list[int]:
    """The forced lengths in the tables: K/8, K/4, K/2 and K."""
    return sorted({max(len(curve) // part, 1) for part in (8, 4, 2, 1)})


def _rated(row: Row, kind: str) -> dict[str, str]:
    """The cells of a row: R² at chosen and forced lengths, and the value of its choice."""
    rate, aligned = row.parts[kind, "rate"], row.values(kind)
    values, curve = rate["values"], rate["curve"]["r2"]
    r2 = METRICS["r2"].format
    cells = {
        "": f"`{row.name}`",
        "R² at its own lengths": r2(values["r2"]),
        **{f"at {length}": r2(curve[length - 1]) for length in _forced(curve)},
        "K above own": _signed(curve[-1] - values["r2"]),
        **({"K since the handoff": _signed(row.since_handoff)} if kind == HELD_OUT else {}),
        "mean length": METRICS["length_mean"].format(values["length_mean"]),
        "Pearson r": _number(row.correlation(kind), 3),
        **_searched(rate),
        METRICS["codebook_effective"].heading: METRICS["codebook_effective"].format(
            aligned["codebook_effective"]
        ),
        "regret": METRICS["regret_r2"].format(values["regret_r2"]),
        "gain of choosing": _signed(values["regret_r2_fixed"] - values["regret_r2"]),
    }
    if "regret_r2_search" in values:
        measure = METRICS["regret_r2_search"]
        cells["regret to a search"] = measure.format(values["regret_r2_search"])
        bounds = ", ".join(map(_signed, rate["intervals"]["choice_gain_r2"]))
        cells["gain of choosing"] += f" [{bounds}]"
    return cells


def _searched(rate: Part) -> dict[str, str]:
    """Correlations with the number of objects, of the chosen and of the searched lengths."""
    found = followed(rate).values()
    return {"r here, chosen / searched": " / ".join(_number(r, 3) for r in found)} if found else {}


def followed(rate: Part) -> dict[str, float]:
    """Pearson r of chosen and of searched lengths with the number of objects.

    Empty for other datasets than rendered scenes: only there the spec gives the numbers.
    """
    scenes = open_dataset(rate["data"]) if rate["data"].startswith(f"{HELD_OUT}:") else None
    if not isinstance(scenes, ScenesDataset):
        return {}
    objects = scenes.object_counts()[: rate["images"]].numpy()
    lengths = rate["lengths"]
    return {who: pearson(np.array(lengths[who]), objects) for who in ("chosen", "searched")}


def _verdict(row: Row, rows: list[Row]) -> str:
    """Whether a trial beats the paper's row in every respect, else the respects it fails in."""
    paper = next((each for each in rows if not each.is_trial and each.setting == row.setting), None)
    if not row.is_trial or paper is None:
        return "–"
    rate, beside = (each.parts[HELD_OUT, "rate"] for each in (row, paper))
    better = {
        "R² at its own lengths": rate["values"]["r2"] > beside["values"]["r2"],
        "R² at K": rate["curve"]["r2"][-1] > beside["curve"]["r2"][-1],
        "K since the handoff": row.since_handoff is not None and row.since_handoff >= 0,
        "Pearson r": (row.correlation(HELD_OUT) or 0.0) >= LEAST_CORRELATION,
    }
    lacking = [name for name, holds in better.items() if not holds]
    return f"not in {', '.join(lacking)}" if lacking else "yes"


# Formatting.


def interval(found: Mapping[str, float | None]) -> str:
    """A value with its bounds."""
    value, low, high = (_number(found[name], 3) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"


def _numbers(values: Iterable[float | None]) -> list[float]:
    """The values; empty if one of them is missing."""
    found = list(values)
    return [value for value in found if value is not None] if None not in found else []


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value)
