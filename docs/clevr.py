"""The tables and figures of `clevr.md`, of the rows in `benchmarks/results/clevr`.

Each row is a folder that `recipes/clevr.py` wrote. `docs/make.py` fills in the tables,
`docs/figures.py` draws the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from strop.config import flatten, to_dict
from strop.data.spec import open_dataset, parse_spec
from strop.errors import DataError
from strop.evaluation.measures import MEASURES
from strop.evaluation.page import Block, Picture, Points, Table, Text, to_markdown
from strop.evaluation.paper import cells as paper_cells
from strop.evaluation.parts import Part
from strop.evaluation.report import read_runs
from strop.figures import MUTED, PALETTE, new_figure, plain_axes, save_figure
from strop.files import read_json
from strop.statistics import pearson
from strop.training.preset import load_preset

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "clevr"
FLOOR = RESULTS.parent / "mean_image.json"
FOLLOWED = RESULTS.parent / "what_lengths_follow.json"
IMAGES = DOCS / "images" / "clevr"

LINES = {
    "32": ("#bbbbbb", "-"),
    "64": (PALETTE[6], "-"),
    "128": ("#666666", "-"),
    "64-fixed": (MUTED, "-"),
    "128-fixed": (MUTED, "-"),
    "ceiling": (PALETTE[0], "-"),
    "tolerance": (PALETTE[1], "-"),
    "price": (PALETTE[2], "-"),
    "contrast": (PALETTE[4], "-"),
    "residue": (PALETTE[3], "-"),
    "distillation": (PALETTE[5], "-"),
    "together": (PALETTE[3], "-."),
    "variation": ("#882255", "-"),
    "refitted": (PALETTE[0], "-."),
}
"""The rows in their order, each with the colour and style of its line in the figures."""

MARKERS = {"-": "o", "--": "s", "-.": "D", ":": "^"}
"""What stands on a line of each style, so that lines of one colour can be told apart."""

HOURS_THERE = {
    "clevr-32": 27.0,
    "clevr-64": 27.3,
    "clevr-128": 27.3,
    "clevr-64-fixed": 24.7,
    "clevr-128-fixed": 24.9,
}
"""Of one H100: Appendix F's second table, and its text for 32 codes."""

LENGTHS_THERE = {"clevr-32": ("≈ 0.74", "8 to 32")}
"""Pearson r (section 4, with a figure of 32 codes) and range of lengths (Appendix F)."""

REFERENCE, TEACHER = "64", "vits14-focus"
"""The paper's row that trials change, and the teacher of most rows."""

FIELDS_TELL = {
    "spread": "variance over locations",
    "variation": "log variation between neighbours",
    "volume": "log volume of locations",
    "taught": "the pooled field, by a linear map that was taught the number",
}
"""In the words of the page: see `benchmarks/what_lengths_follow.py`."""

HELD_OUT = "scenes"
DATA = {HELD_OUT: "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
"""What is measured on, by the kind of its spec. Rows are judged by the first alone."""

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
"""With the number of objects, for a trial to count as better than the paper's curriculum."""

LOGISTICS = ("data", "validate_every", "checkpoint_every")
"""Settings of training that leave the model as it is."""


@dataclass(frozen=True)
class Row:
    """A model of the study: what its run was, and its parts by kind of data and suite."""

    name: str
    facts: dict[str, Any]
    parts: dict[tuple[str, str], Part]

    @property
    def is_trial(self) -> bool:
        """Whether it goes past the paper."""
        return bool(self.facts["changes"])

    @property
    def setting(self) -> tuple[str, str, int]:
        """What a trial and the paper's row must share to be compared."""
        return self.facts["preset"], self.facts["teacher"], self.facts["seed"]

    def values(self, kind: str) -> dict[str, float | None]:
        """The figures of alignment and of pixels, as far as they were measured."""
        suites = ("alignment", "pixels")
        found = [self.parts.get((kind, suite), {}).get("values", {}) for suite in suites]
        return found[0] | found[1]

    def images(self, kind: str, suite: str = "alignment") -> int:
        return self.parts[kind, suite]["images"]


def read_rows(folder: Path) -> list[Row]:
    """Every row that is there, in the order of the study."""
    rows = [
        Row(path.parent.name, read_json(path, "clevr", 1), _parts(path.parent))
        for path in folder.glob("*/row.json")
    ]
    place = {name: number for number, name in enumerate(LINES)}
    return sorted(rows, key=lambda row: (place.get(row.facts["row"], len(place)), row.name))


def _parts(folder: Path) -> dict[tuple[str, str], Part]:
    parts: dict[tuple[str, str], Part] = {}
    for part in read_runs([folder]):
        key = parse_spec(part["data"]).kind, part["suite"]
        if key in parts:
            raise DataError(f"{folder} has two parts of {key}.", "Delete the one that is stale.")
        parts[key] = part
    return parts


def measured_on(rows: Iterable[Row], kind: str, suite: str = "alignment") -> list[Row]:
    """The rows that have this part."""
    return [row for row in rows if (kind, suite) in row.parts]


# The paper's two tables.


def settings(rows: list[Row]) -> Iterator[Block]:
    """What is not as in the paper's preset, from the config of the first row."""
    first = next((row for row in rows if not row.is_trial), None)
    if first is None:
        return
    run = flatten(read_json(RESULTS / first.name / "run.json", "run", 1))
    paper = flatten(to_dict(load_preset(first.facts["preset"])))
    differs = [
        [f"`{key}`", _plain(paper[key]), _plain(value)]
        for key, value in run.items()
        if key in paper and paper[key] != value and key.split(".")[-1] not in LOGISTICS
    ]
    yield Table(["setting", "the paper's preset", "here"], differs)


def tables(rows: list[Row]) -> Iterator[Block]:
    """Ours and the paper's, on each data; what seeds change; what the curriculum costs."""
    ours = [row for row in rows if not row.is_trial]
    for kind, told in DATA.items():
        some = measured_on(ours, kind)
        if not some:
            continue
        known = [found for row in some for found in (row.values(kind), _paper(row.facts["preset"]))]
        shown = [name for name in COLUMNS if any(name in found for found in known)]
        yield Text(f"On {some[0].images(kind):,} {told}:")
        yield Table(["", *(MEASURES[name].heading for name in shown)], _beside(some, kind, shown))
        yield from _without_bits(some, kind)
        yield from _seeds(some, kind, shown)
        yield from _cost_of_lengths(some, kind)
    yield Text(f"What training took on one {rows[0].facts['machine']}:")
    header = ["", "minutes", "img/s", "images seen", "the paper's images", "the paper's hours"]
    yield Table(header, list(map(_cost, rows)))


def _beside(rows: list[Row], kind: str, shown: list[str]) -> list[list[str]]:
    """The rows of each preset, and below them what the paper has for it."""

    def line(name: str, values: Mapping[str, float | None]) -> list[str]:
        return [name, *(MEASURES[each].format(values.get(each)) for each in shown)]

    lines = []
    for preset in dict.fromkeys(row.facts["preset"] for row in rows):
        same = [row for row in rows if row.facts["preset"] == preset]
        lines += [line(f"`{row.name}`", row.values(kind)) for row in same]
        lines.append(line("the paper's", _paper(preset)))
    return lines


def _cost(row: Row) -> list[str]:
    facts, paper = row.facts, load_preset(row.facts["preset"]).training
    return [
        f"`{row.name}`",
        f"{facts['minutes']:.1f}",
        f"{facts['images_per_second']:,.0f}",
        *(f"{seen / 1e6:.1f} M" for seen in (facts["images_seen"], paper.steps * paper.batch)),
        f"{HOURS_THERE[facts['preset']]:.1f}",
    ]


def _paper(preset: str) -> dict[str, float]:
    return {cell.measure: cell.value for cell in paper_cells() if cell.variant == preset}


def _without_bits(rows: list[Row], kind: str) -> Iterator[Block]:
    """What one field for all images has, which says how easy each teacher's fields are."""
    found = {row.facts["teacher"]: row.values(kind)["r2_mean_field"] for row in rows}
    told = ", ".join(f"{_number(r2, 3)} of `{teacher}`" for teacher, r2 in found.items())
    image = read_json(FLOOR, "benchmark", 1)["sets"][kind]["ssim"]
    yield Text(
        f"The mean field, one for all images, has R² {told}; the mean image has SSIM "
        f"{MEASURES['ssim'].format(image)}."
    )


def _seeds(rows: list[Row], kind: str, shown: list[str]) -> Iterator[Block]:
    """How far runs lie apart that differ in their seed alone."""

    def but_seed(row: Row) -> tuple[str, str]:
        return row.facts["row"], row.facts["teacher"]

    for _, group in groupby(sorted(rows, key=but_seed), key=but_seed):
        same = list(group)
        if len(same) > 1:
            apart = [
                f"{MEASURES[name].title} {MEASURES[name].format(max(found) - min(found))}"
                for name in shown
                if len(found := _numbers(row.values(kind).get(name) for row in same)) > 1
            ]
            names = " and ".join(f"`{row.name}`" for row in same)
            yield Text(f"{names} differ in their seed alone and lie apart by {', '.join(apart)}.")


def _cost_of_lengths(rows: list[Row], kind: str) -> Iterator[Block]:
    """R² that a model with one fixed length has above the one that chooses."""
    by_name = {row.name: row for row in rows}
    told = []
    for name, row in by_name.items():
        fixed = by_name.get(f"{name}-fixed")
        if fixed and (found := _numbers([fixed.values(kind)["r2"], row.values(kind)["r2"]])):
            paper = _paper(fixed.facts["preset"])["r2"] - _paper(row.facts["preset"])["r2"]
            told.append(f"{found[0] - found[1]:+.3f} for `{name}` (the paper's: {paper:+.3f})")
    if told:
        yield Text(
            "One fixed length of all K tokens, in a model of its own, changes R² by "
            f"{', '.join(told)}."
        )


# Length against complexity.


def lengths(rows: list[Row]) -> Iterator[Block]:
    """How the length follows the number of objects, for every row that chooses lengths."""
    for kind, told in DATA.items():
        some = [row for row in measured_on(rows, kind) if _chooses(row, kind)]
        if not some:
            continue
        follows = {row.name: row.facts["complexity"][kind] for row in some}
        counts = sorted({int(count) for each in follows.values() for count in each["mean_length"]})
        yield Text(
            f"On {some[0].images(kind):,} {told}; correlations with 95 % intervals, and the mean "
            f"length of scenes of {counts[0]} to {counts[-1]} objects:"
        )
        header = ["", "Pearson r", "Spearman r", "lengths", *map(str, counts)]
        body = []
        for row in some:
            found, values = follows[row.name], row.values(kind)
            means = (found["mean_length"].get(str(count)) for count in counts)
            body.append(
                [
                    f"`{row.name}`",
                    *(_interval(found[name]) for name in ("pearson", "spearman")),
                    f"{values['length_least']:.0f} to {values['length_most']:.0f}",
                    *("–" if mean is None else f"{mean:.1f}" for mean in means),
                    _number(found.get("percentiles", {}).get("ratio"), 2),
                ]
            )
            if row.facts["preset"] in LENGTHS_THERE:
                correlation, lengths = LENGTHS_THERE[row.facts["preset"]]
                body.append(["the paper's", correlation, "–", lengths, *["–"] * (len(counts) + 1)])
        yield Table([*header, "95 % at ten over 5 % at three"], body)
    yield from _picture("lengths", "Mean length by the number of objects, on held-out scenes")


def follow(rows: list[Row]) -> Iterator[Block]:
    """What the chosen lengths follow, and what fields alone, or the number of objects, would."""
    if not FOLLOWED.is_file():
        return
    found = read_json(FOLLOWED, "benchmark", 1)
    header = ["", "objects", "covered", "outlines"]

    def line(name: str, each: Mapping[str, Any]) -> list[str]:
        return [name, *(_interval(each[key]) for key in header[1:])]

    kept = [row for row in rows if row.name in found["rows"]]
    for row in kept:
        now = _followed(row.parts[HELD_OUT, "rate"])["chosen"]
        if abs(found["rows"][row.name]["objects"]["value"] - now) > 1e-6:
            raise DataError(
                f"{FOLLOWED.name} is of another run of {row.name}.",
                "Run benchmarks/what_lengths_follow.py again.",
            )
    images = " or ".join(sorted({str(found["rows"][row.name]["images"]) for row in kept}))
    yield Text(
        f"Pearson r, with 95 % intervals, of the lengths of {images} held-out scenes with the "
        "number of objects, the share of the image that they cover, and the length of their "
        "outlines:"
    )
    yield Table(header, [line(f"`{row.name}`", found["rows"][row.name]) for row in kept])
    yield Text(f"The same of {found['images']:,} scenes, without a model:")
    fields = [
        line(f"`{teacher}`: {FIELDS_TELL[name]}", each)
        for teacher, said in found["fields"].items()
        for name, each in said.items()
    ]
    yield Table(header, [line("the number of objects", found["objects"]), *fields])


def _chooses(row: Row, kind: str) -> bool:
    return row.parts[kind, "alignment"]["model"]["config"]["length_head"]["fixed"] is None


# Past the paper.


def changes(rows: list[Row]) -> Iterator[Block]:
    """Every setting that a trial changes in the paper's row."""
    told = {row.facts["row"]: row.facts["changes"] for row in rows if row.is_trial}
    yield Points(
        [
            f"`{name}`: {', '.join(f'`{key} = {_plain(value)}`' for key, value in found.items())}"
            for name, found in told.items()
        ]
    )


def trials(rows: list[Row]) -> Iterator[Block]:
    """The trials beside the paper's curriculum; judged on held-out scenes alone."""
    for kind, told in DATA.items():
        some = _tried(rows, kind)
        if not some:
            continue
        found = [_rated(row, kind) for row in some]
        if kind == HELD_OUT:
            found = [
                {**cells, "better than the paper's": _verdict(row, some)}
                for row, cells in zip(some, found, strict=True)
            ]
        yield Text(
            f"On {some[0].images(kind, 'rate'):,} {told}, each interpreted at every length; the "
            f"correlation with the number of objects on all {some[0].images(kind):,}:"
        )
        header = list(dict.fromkeys(name for cells in found for name in cells))
        yield Table(header, [[cells.get(name, "–") for name in header] for cells in found])
    yield from _picture("rate", "R² at forced lengths, and at the lengths that each row chooses")


def _rated(row: Row, kind: str) -> dict[str, str]:
    """The cells of a row: R² at its own and at forced lengths, and what its choice is worth."""
    rate, aligned = row.parts[kind, "rate"], row.values(kind)
    values, curve = rate["values"], rate["curve"]["r2"]
    forced = [len(curve) // part for part in (8, 4, 2, 1)]
    r2 = MEASURES["r2"].format
    cells = {
        "": f"`{row.name}`",
        "R² at its own lengths": r2(values["r2"]),
        **{f"at {length}": r2(curve[length - 1]) for length in forced},
        "K above own": f"{curve[-1] - values['r2']:+.4f}",
        "mean length": MEASURES["length_mean"].format(values["length_mean"]),
        "Pearson r": _number(_correlation(row, kind), 3),
        **_searched(rate),
        MEASURES["codebook_effective"].heading: MEASURES["codebook_effective"].format(
            aligned["codebook_effective"]
        ),
        "regret": MEASURES["regret_r2"].format(values["regret_r2"]),
        "regret of one length": MEASURES["regret_r2_fixed"].format(values["regret_r2_fixed"]),
    }
    if "margin_r2" in aligned:
        cells["above the best baseline"] = MEASURES["margin_r2"].format(aligned["margin_r2"])
    return cells


def _searched(rate: Part) -> dict[str, str]:
    """How the chosen lengths of these images follow their objects, and those of a search.

    Only where it is known here how many objects there are.
    """
    if parse_spec(rate["data"]).kind != HELD_OUT:
        return {}
    found = _followed(rate).values()
    return {"here, and of a search": " / ".join(_number(each, 3) for each in found)}


def _followed(rate: Part) -> dict[str, float]:
    """Pearson r of chosen and of searched lengths with the number of objects, on our scenes."""
    objects = open_dataset(rate["data"]).object_counts()[: rate["images"]].numpy()
    lengths = rate["lengths"]
    return {who: pearson(np.array(lengths[who]), objects) for who in ("chosen", "searched")}


def _tried(rows: list[Row], kind: str) -> list[Row]:
    """All trials, after the paper's rows that they change something in."""
    some = measured_on(rows, kind, "rate")
    changed = {row.setting[:2] for row in some if row.is_trial}
    return [row for row in some if row.is_trial or row.setting[:2] in changed]


def _verdict(row: Row, rows: list[Row]) -> str:
    """Whether a trial beats the paper's row in all of three respects; if not, where it does not."""
    paper = next((each for each in rows if not each.is_trial and each.setting == row.setting), None)
    if not row.is_trial or paper is None:
        return "–"
    rate, beside = (each.parts[HELD_OUT, "rate"] for each in (row, paper))
    better = {
        "R² at its own lengths": rate["values"]["r2"] > beside["values"]["r2"],
        "R² at K": rate["curve"]["r2"][-1] > beside["curve"]["r2"][-1],
        "Pearson r": (_correlation(row, HELD_OUT) or 0.0) >= LEAST_CORRELATION,
    }
    lacking = [name for name, holds in better.items() if not holds]
    return f"not in {', '.join(lacking)}" if lacking else "**yes**"


def _correlation(row: Row, kind: str) -> float | None:
    return row.facts["complexity"][kind]["pearson"]["value"]


# Figures.


def draw_figures() -> None:
    """Both figures, of held-out scenes."""
    rows = read_rows(RESULTS)
    choosing = [row for row in measured_on(rows, HELD_OUT) if _chooses(row, HELD_OUT)]
    tried = _tried(rows, HELD_OUT)
    if choosing:
        draw_lengths([row for row in choosing if not row.is_trial], tried)
    if tried:
        draw_rates(tried)


def draw_lengths(paper: list[Row], tried: list[Row]) -> None:
    """Mean length by object count: the paper's rows on the left, trials on the right."""
    figure = new_figure(10.5, 4.2)
    panels = []
    for position, rows in ((121, paper), (122, tried)):
        axes = plain_axes(figure, "objects in the scene", "mean length", position)
        for row in rows:
            means = row.facts["complexity"][HELD_OUT]["mean_length"]
            axes.plot([*map(int, means)], [*means.values()], ms=4, **_line(row))
        _legend(axes)
        panels.append(axes)
    panels[1].sharey(panels[0])
    panels[0].set_title("the paper's curriculum", size=10)
    panels[1].set_title("trials", size=10)
    save_figure(figure, IMAGES / "lengths.png")


def draw_rates(rows: list[Row]) -> None:
    """R² by forced length, to K / 4 and from there on; a hollow mark is what a row chose."""
    figure = new_figure(10.5, 4.4)
    rates = [row.parts[HELD_OUT, "rate"] for row in rows]
    longest = rates[0]["curve"]["length"][-1]
    for position, first, last in ((121, 1, longest // 4), (122, longest // 4, longest)):
        axes = plain_axes(figure, "forced length", "R²", position)
        for row, rate in zip(rows, rates, strict=True):
            line, chosen = _line(row), rate["values"]
            x, y = (rate["curve"][name][first - 1 : last] for name in ("length", "r2"))
            axes.plot(x, y, markevery=[], **line)
            if first <= chosen["length_mean"] <= last:
                hollow = {"ms": 7, "mfc": "white", "mec": line["color"], "mew": 1.8, "zorder": 5}
                axes.plot(chosen["length_mean"], chosen["r2"], line["marker"], **hollow)
        axes.set_title(f"{first} to {last} tokens", size=10)
    _legend(axes)
    save_figure(figure, IMAGES / "rate.png")


def _line(row: Row) -> dict[str, Any]:
    """How the row's line looks; another seed's is dashed, another teacher's dotted."""
    facts = row.facts
    colour, style = LINES.get(facts["row"], (MUTED, "-"))
    style = ":" if facts["teacher"] != TEACHER else "--" if facts["seed"] else style
    width = 2.2 if row.name == REFERENCE else 1.5
    drawn = {"color": colour, "ls": style, "lw": width, "marker": MARKERS[style]}
    return {**drawn, "label": row.name}


def _legend(axes: Any) -> None:
    """Beside the axes, in the order in which the lines end."""
    handles, names = axes.get_legend_handles_labels()
    lines = sorted(zip(handles, names, strict=True), key=lambda each: -each[0].get_ydata()[-1])
    if lines:
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        axes.legend(*zip(*lines, strict=True), frameon=False, fontsize=8, handlelength=3.5, **place)


def _picture(name: str, caption: str) -> Iterator[Block]:
    path = IMAGES / f"{name}.png"
    if path.is_file():
        yield Picture(path, caption)


# Words for numbers.


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _numbers(values: Iterable[float | None]) -> list[float]:
    """The values, if all are there."""
    found = list(values)
    return [value for value in found if value is not None] if None not in found else []


def _interval(found: dict[str, float | None]) -> str:
    value, low, high = (_number(found[name], 3) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value)


def block(make: Callable[[list[Row]], Iterator[Block]]) -> str:
    """One of the page's blocks as Markdown."""
    rows = read_rows(RESULTS)
    return to_markdown(list(make(rows)), DOCS).strip() if rows else "Not measured yet."
