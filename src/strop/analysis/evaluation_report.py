"""The report: the results of one or more runs on one page, beside the paper's figures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from strop.analysis.evaluate import KIND, Result
from strop.analysis.findings import FORMAT, Table
from strop.analysis.metric_info import METRICS, Metric
from strop.analysis.page import Block, picture, to_html, to_markdown
from strop.analysis.paper import MEAN, MEAN_OVER, Setting, setting_of
from strop.analysis.registry import EVALUATIONS
from strop.data.spec import parse_spec
from strop.errors import DataError
from strop.files import PathLike, read_json, write_json, write_text
from strop.statistics import pearson

COLUMNS: dict[str, tuple[str, ...]] = {
    "alignment": (
        "cosine",
        "r2",
        "r2_centred",
        "rmse",
        "codebook_used",
        "codebook_effective",
        "perplexity",
        "length_mean",
        "length_spread",
        "bits_fixed_rate",
        "bits_entropy",
        "compression",
    ),
    "pixels": ("ssim", "ssim_mean_image", "lpips"),
    "rate": (
        "length_mean",
        "r2",
        "search_length_mean",
        "search_correlation",
        "regret_r2",
        "regret_r2_fixed",
        "regret_r2_search",
        "choice_gain_r2",
        "search_cost",
    ),
    "segmentation": ("miou", "pixel_accuracy", "class_accuracy", "r2_probe"),
    "multilabel": ("map", "map_11"),
    "depth": ("depth_rmse", "abs_rel", "delta1", "delta2", "delta3"),
}
"""The columns of each evaluation's table."""


def read_runs(runs: Sequence[PathLike]) -> list[Result]:
    """The results of all runs, by model and analysis, each with the paths of its `pictures`."""
    each_once = {run.resolve(): run for run in map(Path, runs)}
    parts = [part for run in each_once.values() for part in read_run(run)]
    models = list(dict.fromkeys(part["model"]["fingerprint"] for part in parts))
    suites = list(EVALUATIONS)
    names = {part["model"]["fingerprint"]: part["model"]["name"] for part in parts}
    for part in parts:
        model = part["model"]
        if list(names.values()).count(model["name"]) > 1:  # two folders may both be called `model`
            part["model"] = {**model, "name": f"{model['name']} {model['fingerprint'][:6]}"}
    return sorted(
        parts,
        key=lambda part: (models.index(part["model"]["fingerprint"]), suites.index(part["suite"])),
    )


def read_run(run: Path) -> list[Result]:
    """The results of one run, by analysis."""
    paths = [path for name in EVALUATIONS for path in sorted(run.glob(f"*/{name}.json"))]
    if not paths:
        raise DataError(
            f"{run} holds no finished result of an evaluation.",
            "Give folders that `strop eval` wrote.",
        )
    return [
        {
            **read_json(path, KIND, FORMAT),
            "pictures": sorted(path.parent.glob(f"{path.stem}*.png")),
        }
        for path in paths
    ]


def write_report(runs: Sequence[PathLike], out: PathLike) -> list[Path]:
    """Write `report.md`, `.html` and `.json` to the folder `out`."""
    folder = Path(out)
    parts = read_runs(runs)
    for number, part in enumerate(parts):
        _copy_pictures(part, folder / "figures", number)
    markdown = to_markdown(["# Evaluation", *report_blocks(parts, folder)])
    pages = {"report.md": markdown, "report.html": to_html(markdown, folder)}
    for name, text in pages.items():
        write_text(folder / name, text)
    plain = [{key: part[key] for key in part if key != "pictures"} for part in parts]
    content = {"parts": plain, "paper": compare(parts)}
    write_json(folder / "report.json", "report", 1, content)
    return [folder / name for name in (*pages, "report.json")]


def _copy_pictures(part: Result, folder: Path, number: int) -> None:
    """Copy the pictures of a result into the folder of the page."""
    copies = {path: folder / f"{number:02d}-{path.name}" for path in part["pictures"]}
    for path, copy in copies.items():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    part["pictures"] = list(copies.values())


def compare(parts: Sequence[Result]) -> list[dict[str, Any]]:
    """Every value that the paper also has, for the same setting, with the paper's value."""
    rows = []
    for part in parts:
        setting = setting_of(part)
        for representation, values in figures_of(part):
            for measure, ours in values.items():
                rows.append(_compared(part, setting, representation, measure, ours))
    rows += _means(parts)
    return [row for row in rows if row["paper"] is not None]


def figures_of(part: Result) -> Iterator[tuple[str, dict[str, float | None]]]:
    """The values of a result by representation; the name is empty if it has none."""
    yield "", part.get("values", {}) | part.get("timing", {})
    for name, found in part.get("representations", {}).items():
        yield name, found["values"]


def _compared(
    part: Result, setting: Setting, representation: str, measure: str, ours: float | None
) -> dict[str, Any]:
    return {
        "model": part["model"]["name"],
        "suite": part["suite"],
        "dataset": setting.dataset,
        "representation": representation,
        "measure": measure,
        "ours": ours,
        "paper": setting.value(part["suite"], measure, representation),
    }


def _means(parts: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """The means over datasets that the paper has, of models that are measured on all of them."""
    for (suite, _), group in groupby(
        (part for part in parts if part["suite"] in MEAN_OVER),
        key=lambda part: (part["suite"], part["model"]["fingerprint"]),
    ):
        same = [(part, setting_of(part)) for part in group]
        same = [(part, s) for part, s in same if not s.differs and s.dataset in MEAN_OVER[suite]]
        if {setting.dataset for _, setting in same} == set(MEAN_OVER[suite]):
            part, mean = same[0][0], replace(same[0][1], dataset=MEAN)
            for representation, means in _means_of([part for part, _ in same]).items():
                for measure, ours in means.items():
                    yield _compared(part, mean, representation, measure, ours)


def _means_of(parts: Sequence[Result]) -> dict[str, dict[str, float | None]]:
    """The mean over results of every value, by representation."""
    found = [dict(figures_of(part)) for part in parts]
    return {
        representation: {
            measure: _mean([each[representation].get(measure) for each in found])
            for measure in values
        }
        for representation, values in found[0].items()
        if all(representation in each for each in found)
    }


# The page.


def report_blocks(parts: list[Result], folder: Path) -> Iterator[Block]:
    """The page in `folder` without its title."""
    yield from _models(parts)
    for suite in EVALUATIONS:
        some = [part for part in parts if part["suite"] == suite]
        if some:
            yield from _suite(suite, some, folder)
    yield from _predictors(parts)
    yield from _beside_the_paper(parts)
    yield from _definitions(parts)
    yield from _circumstances(parts)


def _models(parts: list[Result]) -> Iterator[Block]:
    models = {part["model"]["fingerprint"]: part["model"] for part in parts}
    header = ["model", "teacher", "image", "K", "codes", "trained on"]
    yield Table("", header, [_facts(model) for model in models.values()])


def _facts(model: dict[str, Any]) -> list[str]:
    config = model["config"]
    if not config:  # another tokenizer: only its bits are known
        return [model["name"], *["–"] * 3, f"{model['about']['bits']:,.0f} bits", "–"]
    return [
        model["name"],
        Path(config["teacher"]["name"]).name,
        f"{config['image_size']} px",
        str(config["max_length"]),
        str(config["quantizer"]["codes"]),
        _data_label(str(model["about"].get("data", "–"))),
    ]


def _suite(suite: str, parts: list[Result], folder: Path) -> Iterator[Block]:
    yield f"## {suite.capitalize()}"
    columns = [
        name
        for name in COLUMNS[suite]
        if any(name in values for part in parts for _, values in figures_of(part))
    ]
    header = ["", "images", *(METRICS[name].heading for name in columns)]
    rows = []
    for part in parts:
        for representation, values in figures_of(part):
            if any(name in values for name in columns):
                label = f"{_label(part)} {representation}".strip()
                cells = [_cell(part, representation, name, values) for name in columns]
                rows.append([label, f"{part['images']:,}", *cells])
    if suite in MEAN_OVER:
        rows += _mean_rows(parts, columns)
    yield Table("", header, rows)
    for part in parts:
        # 0.1.0 wrote a single `note`.
        for note in part.get("notes", [part["note"]] if "note" in part else []):
            yield f"{_label(part)}: {note}"
        if suite == "alignment":
            yield from _baselines(part)
        if differences := part.get("differences"):
            yield from _differences(part, differences, columns)
        if lengths := part.get("lengths") if "representations" in part else None:
            yield from _at_lengths(part, lengths, columns)
        for path in part["pictures"]:
            yield picture(path, f"{suite.capitalize()}: {_label(part)}", folder)


def _mean_rows(parts: list[Result], columns: list[str]) -> Iterator[list[str]]:
    """The mean over datasets, for each model that was measured on several."""
    for name, group in groupby(parts, key=lambda part: part["model"]["name"]):
        several = list(group)
        for representation, means in _means_of(several).items() if len(several) > 1 else ():
            if any(column in means for column in columns):
                cells = [METRICS[column].format(means.get(column)) for column in columns]
                label = f"{name}, mean of {len(several)} {representation}".strip()
                yield [label, "", *cells]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _cell(part: Result, representation: str, name: str, values: dict[str, float | None]) -> str:
    """A value with its interval, if it has one."""
    if name not in values:
        return ""
    found = part["representations"][representation] if representation else part
    return _with_interval(METRICS[name], {**found, "values": values}, name)


def _with_interval(metric: Metric, found: Result, name: str) -> str:
    interval = found.get("intervals", {}).get(name)
    bounds = f" [{', '.join(map(metric.format, interval))}]" if interval else ""
    return metric.format(found["values"][name]) + bounds


def _baselines(part: Result) -> Iterator[Block]:
    """Model, baselines and floor at equal bits."""
    shown = ("cosine", "r2", "r2_centred")
    floor = {name: part["values"][f"{name}_mean_field"] for name in shown}
    header = ["lengths", "code", "bits", *(METRICS[name].heading for name in shown)]
    rows = []
    for budget in part.get("budgets", []):
        codes = {"the model": {**budget["model"], "bits": budget["bits"]}, **budget["baselines"]}
        rows += [
            [
                budget["lengths"],
                name,
                f"{code['bits']:,.1f}",
                *(METRICS[each].format(code[each]) for each in shown),
            ]
            for name, code in codes.items()
        ]
    scores = ", ".join(f"{METRICS[name].title} {floor[name]:.3f}" for name in shown)
    yield (f"{_label(part)}: the mean field of these images, with no bits at all, has {scores}.")
    if rows:
        yield Table("", header, rows)


def _differences(part: Result, differences: Result, columns: list[str]) -> Iterator[Block]:
    """Differences of representations, the images drawn together."""
    shown = [name for name in columns if name in next(iter(differences.values()))["values"]]
    rows = [
        [pair, *(_with_interval(METRICS[name], found, name) for name in shown)]
        for pair, found in differences.items()
    ]
    yield f"{_label(part)}: differences of representations."
    yield Table("", ["", *(METRICS[name].heading for name in shown)], rows)


def _at_lengths(part: Result, lengths: list[Result], columns: list[str]) -> Iterator[Block]:
    """Probes at forced lengths."""
    names = [name for name in lengths[0] if name != "length"] if lengths else []
    header = ["length", *(f"{name} {METRICS[each].heading}" for name in names for each in columns)]
    rows = [
        [
            str(row["length"]),
            *(
                METRICS[each].format(row[name]["values"].get(each))
                for name in names
                for each in columns
            ),
        ]
        for row in lengths
    ]
    yield f"{_label(part)}: probes at forced lengths."
    yield Table("", header, rows)


def _predictors(parts: list[Result]) -> Iterator[Block]:
    """The correlation of alignment metrics with mIoU, if there are at least three models."""
    fields = {
        (part["model"]["fingerprint"], part["data"]): part["values"]
        for part in parts
        if part["suite"] == "alignment"
    }
    rows: list[dict[str, float]] = []
    for part in parts:
        beside = fields.get((part["model"]["fingerprint"], part["data"]))
        latent = part.get("representations", {}).get("latent")
        if part["suite"] == "segmentation" and beside and latent:
            rows.append(beside | part.get("values", {}) | {"miou": latent["values"]["miou"]})
    if len(rows) < 3:
        return
    names = [name for name in ("cosine", "r2", "r2_centred", "r2_probe") if name in rows[0]]
    miou = [row["miou"] for row in rows]
    yield "## Which metric predicts mIoU"
    yield (
        f"Pearson's r with the mIoU of the interpreted field, over {len(rows)} pairs of model and "
        "dataset."
    )
    found = [[METRICS[n].title, f"{pearson([row[n] for row in rows], miou):.3f}"] for n in names]
    yield Table("", ["", "r"], found)


def _beside_the_paper(parts: list[Result]) -> Iterator[Block]:
    yield "## Beside the paper"
    rows = []
    for row in compare(parts):
        measure = METRICS[row["measure"]]
        label = " ".join(
            filter(None, [row["model"], row["suite"], row["dataset"], row["representation"]])
        )
        ours, paper = row["ours"], row["paper"]
        gap = "–" if ours is None else f"{ours - paper:+.{measure.digits}f}"
        rows.append([label, measure.heading, measure.format(ours), measure.format(paper), gap])
    if rows:
        yield Table("", ["", "measure", "ours", "paper", "difference"], rows)
    others: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for part in parts:
        if differs := setting_of(part).differs:
            others.setdefault((_label(part), differs), []).append(part["suite"])
    if others:
        yield "The paper has no figures of the same setting as these:"
        yield [
            f"{label} ({', '.join(suites)}): {'; '.join(differs)}."
            for (label, differs), suites in others.items()
        ]


def _definitions(parts: list[Result]) -> Iterator[Block]:
    used = {name for part in parts for _, values in figures_of(part) for name in values}
    yield "## Definitions"
    yield [f"{each.title}: {each.definition}." for name, each in METRICS.items() if name in used]


def _circumstances(parts: list[Result]) -> Iterator[Block]:
    yield "## Circumstances"
    header = ["part", "fitted on", "protocol", "seed", "device", "torch", "seconds", "finished"]
    rows = [
        [
            f"{part['suite']} of {_label(part)}",
            _data_label(part["train"]) if part["train"] else "–",
            part["protocol"],
            str(part["seed"]),
            f"{part['machine']['device']}, {part['machine']['cores']} cores",
            part["machine"]["torch"],
            f"{part['seconds']:.1f}",
            part["finished"],
        ]
        for part in parts
    ]
    yield Table("", header, rows)


def _label(part: Result) -> str:
    return f"{part['model']['name']} on {_data_label(part['data'])}"


def _data_label(text: str) -> str:
    """A spec without its path, which is specific to a machine."""
    try:
        spec = parse_spec(text)
    except DataError:  # a model may have been trained on data without a spec
        return text
    chosen = ", ".join(f"{key}={value}" for key, value in spec.parameters.items())
    return f"{spec.kind} ({chosen})" if chosen else spec.kind
