"""The report: the results of one or more runs on one page, beside the paper's figures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from strop.analysis.evaluate import KIND, Result
from strop.analysis.findings import FORMAT, Table
from strop.analysis.metric_info import METRICS
from strop.analysis.page import Block, picture, to_html, to_markdown
from strop.analysis.paper import MEAN, MEAN_OVER, setting_of
from strop.analysis.registry import EVALUATIONS
from strop.data.spec import parse_spec
from strop.errors import DataError
from strop.files import PathLike, read_json, write_json, write_text

COLUMNS = {
    "alignment": "cosine r2 r2_centred rmse codebook_used codebook_effective perplexity "
    "length_mean length_spread bits_fixed_rate bits_entropy compression",
    "pixels": "ssim ssim_mean_image lpips",
    "rate": "length_mean r2 search_length_mean search_correlation regret_r2 regret_r2_fixed "
    "choice_gain_r2 search_cost",
    "segmentation": "miou pixel_accuracy class_accuracy",
    "multilabel": "map map_11",
    "depth": "depth_rmse abs_rel delta1 delta2 delta3",
}
"""The columns of each evaluation's table."""
HEADLINE = "cosine r2 r2_centred"

Found = Mapping[str, Any]
"""Scores: `values` by metric, and perhaps `intervals`."""


def read_runs(runs: Sequence[PathLike]) -> list[Result]:
    """The results of all runs, by model and analysis, each with the paths of its `pictures`."""
    parts: list[Result] = []
    for run in {Path(run).resolve(): Path(run) for run in runs}.values():
        paths = [path for name in EVALUATIONS for path in sorted(run.glob(f"*/{name}.json"))]
        if not paths:
            raise DataError(
                f"{run} holds no finished result of an evaluation.",
                "Give folders that `strop eval` wrote.",
            )
        for path in paths:
            pictures = sorted(path.parent.glob(f"{path.stem}*.png"))
            parts.append({**read_json(path, KIND, FORMAT), "pictures": pictures})
    names = {part["model"]["fingerprint"]: part["model"]["name"] for part in parts}
    for part in parts:
        model = part["model"]
        if list(names.values()).count(model["name"]) > 1:  # two folders may both be called `model`
            part["model"] = {**model, "name": f"{model['name']} {model['fingerprint'][:6]}"}
    models, suites = list(names), list(EVALUATIONS)
    return sorted(
        parts,
        key=lambda part: (models.index(part["model"]["fingerprint"]), suites.index(part["suite"])),
    )


def write_report(runs: Sequence[PathLike], out: PathLike) -> list[Path]:
    """Write `report.md`, `.html` and `.json` to the folder `out`."""
    folder = Path(out)
    parts, figures = read_runs(runs), folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        part["pictures"] = [
            shutil.copyfile(path, figures / f"{number:02d}-{path.name}")
            for path in part["pictures"]
        ]
    markdown = to_markdown(["# Evaluation", *report_blocks(parts, folder)])
    pages = {"report.md": markdown, "report.html": to_html(markdown, folder)}
    for name, text in pages.items():
        write_text(folder / name, text)
    plain = [{key: part[key] for key in part if key != "pictures"} for part in parts]
    content = {"parts": plain, "paper": compare(parts)}
    write_json(folder / "report.json", "report", 1, content)
    return [folder / name for name in (*pages, "report.json")]


def scores_of(part: Result) -> dict[str, Found]:
    """The scores of a result by representation; the name is empty for those of the model."""
    own = {
        "values": part.get("values", {}) | part.get("timing", {}),
        "intervals": part.get("intervals", {}),
    }
    return {"": own, **part.get("representations", {})}


def means_of(parts: Sequence[Result]) -> dict[str, Found]:
    """The mean over results of every value that all of them have, by representation."""
    found = [scores_of(part) for part in parts]
    means: dict[str, Found] = {}
    for representation in found[0]:
        if all(representation in each for each in found):
            rows = [each[representation]["values"] for each in found]
            known = [name for name in rows[0] if all(row.get(name) is not None for row in rows)]
            mean = {name: sum(row[name] for row in rows) / len(rows) for name in known}
            means[representation] = {"values": mean}
    return means


def compare(parts: Sequence[Result]) -> list[dict[str, Any]]:
    """Every value that the paper also has, for the same setting, with the paper's value."""
    compared = [(part, setting_of(part), scores_of(part)) for part in parts]
    # The paper also has means over datasets, of models that are measured on all of them.
    for (suite, _), group in groupby(
        ((part, setting) for part, setting, _ in compared if part["suite"] in MEAN_OVER),
        key=lambda each: (each[0]["suite"], each[0]["model"]["fingerprint"]),
    ):
        wanted = MEAN_OVER[suite]
        same = [(p, s) for p, s in group if not s.differs and s.dataset in wanted]
        if {setting.dataset for _, setting in same} == set(wanted):
            part, setting = same[0]
            means = means_of([part for part, _ in same])
            compared.append((part, replace(setting, dataset=MEAN), means))
    return [
        {
            "model": part["model"]["name"],
            "suite": part["suite"],
            "dataset": setting.dataset,
            "representation": representation,
            "measure": measure,
            "ours": ours,
            "paper": paper,
        }
        for part, setting, scores in compared
        for representation, found in scores.items()
        for measure, ours in found["values"].items()
        if (paper := setting.value(part["suite"], measure, representation)) is not None
    ]


# The page.


def report_blocks(parts: list[Result], folder: Path) -> Iterator[Block]:
    """The page in `folder` without its title."""
    models = {part["model"]["fingerprint"]: part["model"] for part in parts}
    header = ["model", "teacher", "image", "K", "codes", "trained on"]
    yield Table(
        "",
        header,
        [
            [
                model["name"],
                Path(config["teacher"]["name"]).name,
                f"{config['image_size']} px",
                config["max_length"],
                config["quantizer"]["codes"],
                _data_label(str(model["about"].get("data", "–"))),
            ]
            if (config := model["config"])
            # Of another tokenizer only its bits are known.
            else [model["name"], None, None, None, f"{model['about']['bits']:,.0f} bits", None]
            for model in models.values()
        ],
    )
    for suite in EVALUATIONS:
        some = [part for part in parts if part["suite"] == suite]
        if some:
            yield from _suite(suite, some, folder)
    yield from _beside_the_paper(parts)
    used = {
        name for part in parts for found in scores_of(part).values() for name in found["values"]
    }
    yield "## Definitions"
    yield [f"{each.title}: {each.definition}." for name, each in METRICS.items() if name in used]
    yield "## Circumstances"
    header = ["part", "fitted on", "protocol", "seed", "device", "torch", "seconds", "finished"]
    rows = [
        [
            f"{part['suite']} of {_label(part)}",
            _data_label(part["train"]) if part["train"] else "–",
            part["protocol"],
            part["seed"],
            part["machine"]["device"],
            part["machine"]["torch"],
            f"{part['seconds']:.1f}",
            part["finished"],
        ]
        for part in parts
    ]
    yield Table("", header, rows)


def _suite(suite: str, parts: list[Result], folder: Path) -> Iterator[Block]:
    columns, rows = COLUMNS[suite], []
    for part in parts:
        images = f"{part['images']:,}"
        rows += [((_label(part, name), images), each) for name, each in scores_of(part).items()]
    if suite in MEAN_OVER:
        for model, group in groupby(parts, key=lambda part: part["model"]["name"]):
            if len(several := list(group)) > 1:
                label = f"{model}, mean of {len(several)}"
                means = means_of(several).items()
                rows += [((f"{label} {name}".strip(), ""), each) for name, each in means]
    yield f"## {suite.capitalize()}"
    yield metric_table(("", "images"), rows, columns)
    for part in parts:
        # 0.1.0 wrote a single `note`.
        for note in part.get("notes", [part["note"]] if "note" in part else []):
            yield f"{_label(part)}: {note}"
        if suite == "alignment":
            yield from _baselines(part)
        if differences := part.get("differences"):
            yield f"{_label(part)}: differences of representations."
            pairs = [((pair,), found) for pair, found in differences.items()]
            yield metric_table(("",), pairs, columns)
        if "representations" in part and (lengths := part.get("lengths")):
            yield f"{_label(part)}: probes at forced lengths."
            forced = [
                ((str(row["length"]), name), row[name])
                for row in lengths
                for name in row
                if name != "length"
            ]
            yield metric_table(("length", ""), forced, columns)
        for path in part["pictures"]:
            yield picture(path, f"{suite.capitalize()}: {_label(part)}", folder)


def metric_table(
    header: Sequence[str], rows: Sequence[tuple[Sequence[str], Found]], metrics: str
) -> Table:
    """Labels and values with intervals, under those of the metrics that any row has."""
    names = [name for name in metrics.split() if any(name in found["values"] for _, found in rows)]

    def cell(found: Found, name: str) -> str:
        if name not in found["values"]:
            return ""
        interval = found.get("intervals", {}).get(name)
        bounds = f" [{', '.join(map(METRICS[name].format, interval))}]" if interval else ""
        return METRICS[name].format(found["values"][name]) + bounds

    return Table(
        "",
        [*header, *(METRICS[name].heading for name in names)],
        [
            [*labels, *(cell(found, name) for name in names)]
            for labels, found in rows
            if any(name in found["values"] for name in names)
        ],
    )


def _baselines(part: Result) -> Iterator[Block]:
    """Model, baselines and floor at equal bits."""
    floor = ", ".join(
        f"{METRICS[name].title} {part['values'][f'{name}_mean_field']:.3f}"
        for name in HEADLINE.split()
    )
    yield f"{_label(part)}: the mean field of these images, with no bits at all, has {floor}."
    rows = [
        ((budget["lengths"], name, f"{code['bits']:,.1f}"), {"values": code})
        for budget in part.get("budgets", [])
        for name, code in {
            "the model": {**budget["model"], "bits": budget["bits"]},
            **budget["baselines"],
        }.items()
    ]
    if rows:
        yield metric_table(("lengths", "code", "bits"), rows, HEADLINE)


def _beside_the_paper(parts: list[Result]) -> Iterator[Block]:
    yield "## Beside the paper"
    rows = []
    for row in compare(parts):
        measure, ours, paper = METRICS[row["measure"]], row["ours"], row["paper"]
        keys = ("model", "suite", "dataset", "representation")
        label = " ".join(row[key] for key in keys if row[key])
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


def _label(part: Result, representation: str = "") -> str:
    return f"{part['model']['name']} on {_data_label(part['data'])} {representation}".strip()


def _data_label(text: str) -> str:
    """A spec without its path, which is specific to a machine."""
    try:
        spec = parse_spec(text)
    except DataError:  # a model may have been trained on data without a spec
        return text
    chosen = ", ".join(f"{key}={value}" for key, value in spec.parameters.items())
    return f"{spec.kind} ({chosen})" if chosen else spec.kind
