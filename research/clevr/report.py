"""Write the tables of the CLEVR study, for `docs/make.py`, from the files that `study.py` left.

python research/clevr/report.py runs/clevr --out benchmarks/results/clevr.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.analysis.paper import cells
from strop.config import flatten, to_dict
from strop.files import read_json, write_json
from strop.training.preset import load_preset
from study import ROWS

Block = dict[str, Any]
"""A table: caption, header and rows of text."""

HEADLINE = {"cosine": "cosine ↑", "r2": "R² ↑", "r2_centred": "R² centred ↑"}
WEIGHTS = {"averaged": "averaged weights", "plain": "the last weights, as in the paper"}
DATA = {"scenes": "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
DIGITS = {"codebook_used": 1, "codebook_effective": 1, "length_mean": 2}
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for an interval at 95 %, by the number of values."""


@dataclass(frozen=True)
class Study:
    """All runs of one setting, by row and seed; and the settings that they share."""

    runs: dict[str, dict[int, dict[str, Any]]]
    shared: dict[str, Any]

    @property
    def rows(self) -> list[str]:
        """The rows that were measured, in the order of the study."""
        return [row for row in ROWS if row in self.runs]

    @property
    def k(self) -> int:
        """The most tokens of a program."""
        return load_preset(ROWS[self.rows[0]][0]).model.max_length

    def measured(self, row: str, weights: str, data: str) -> dict[int, dict[str, Any]]:
        """What was measured of a row, by seed."""
        runs = self.runs.get(row, {})
        return {seed: run["weights"][weights][data] for seed, run in runs.items()}

    def values(self, row: str, weights: str, data: str, rule: str, measure: str) -> list[Any]:
        """One figure of each seed; empty if the row lacks that rule of lengths."""
        each = self.measured(row, weights, data).values()
        return [one[rule][measure] for one in each if measure in one.get(rule, {})]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="what study.py was given as --out")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    study = read(sorted(arguments.folder.glob("*-seed*.json")))
    blocks = {
        "settings": list(settings(study)),
        "difference": list(difference(study)),
        "alignment": list(alignment(study)),
        "lengths": list(lengths(study)),
        "codes": list(codes(study)),
    }
    write_json(arguments.out, "benchmark", 1, {"setting": study.shared, "blocks": blocks})


def read(paths: Iterable[Path]) -> Study:
    """The runs in files of `study.py`; they must have the same settings but for row and seed."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    shared: dict[str, Any] = {}
    for path in paths:
        run = read_json(path, "clevr", 2)
        about = dict(run["settings"])
        row, seed, _ = about.pop("row"), about.pop("seed"), about.pop("preset")
        own = {"training.seed", *ROWS[row][1]}
        about["changes"] = {k: v for k, v in about["changes"].items() if k not in own}
        if about != (shared := shared or about):
            raise SystemExit(f"{path} has other settings than the files before it.")
        runs.setdefault(row, {})[seed] = run
    if not runs:
        raise SystemExit("There are no results: give the folder that study.py wrote.")
    return Study({row: dict(sorted(seeds.items())) for row, seeds in runs.items()}, shared)


def settings(study: Study) -> Iterator[Block]:
    """What differs from the paper's presets."""
    preset = flatten(to_dict(load_preset("clevr-64")))
    changed = {"model.teacher.name": study.shared["teacher"], **study.shared["changes"]}
    rows = [
        [f"`{key}`", *(f"{each:,}" if isinstance(each, int) else str(each) for each in both)]
        for key, value in changed.items()
        if len(set(both := (preset[key], value))) > 1 and key != "training.held_out"
    ]
    steps, batch = (study.shared["changes"][f"training.{name}"] for name in ("steps", "batch"))
    each = [run["machine"]["device"] for runs in study.runs.values() for run in runs.values()]
    machines = " and ".join(sorted(set(each)))
    paper = preset["training.steps"] * preset["training.batch"] / 1e6
    caption = (
        f"Trained on {study.shared['scenes']:,} scenes and their mirror images, "
        f"{steps * batch:,} images in all (the paper: {paper:.0f} million), on {machines}."
    )
    yield table(caption, ["setting", "the paper's preset", "here"], rows)


def difference(study: Study) -> Iterator[Block]:
    """Curriculum minus one fixed length, over seeds that both have."""
    lines = []
    for base in ("64", "128"):
        ours = paper("alignment", f"clevr-{base}", "r2")
        fixed = paper("alignment", f"clevr-{base}-fixed", "r2")
        assert ours is not None
        assert fixed is not None
        for data, weights in pairs(study, base):
            both = [study.measured(row, weights, data) for row in (base, f"{base}-fixed")]
            seeds = [seed for seed in both[0] if seed in both[1]]
            if not seeds:
                continue
            line = [base, DATA[data], WEIGHTS[weights]]
            for rule in ("own", str(study.k)):
                found = [both[0][seed][rule]["r2"] - both[1][seed][rule]["r2"] for seed in seeds]
                line.append(interval(found))
            lines.append([*line, ", ".join(map(str, seeds)), signed(ours - fixed)])
    own = ["at the lengths the curriculum chose", f"at all {study.k} tokens"]
    caption = "R² of the curriculum minus R² of one fixed length, with 95 % intervals over seeds:"
    yield table(caption, ["codes", "images", "weights", *own, "seeds", "the paper's"], lines)


def alignment(study: Study) -> Iterator[Block]:
    """Alignment, codes and lengths of all rows, with the paper's figures below."""
    measures = {**HEADLINE, "codebook_used": "CB (%)", "codebook_effective": "Eff. CB (%)"}
    half, k = str(study.k // 2), str(study.k)
    header = ["", "seeds", *measures.values(), "length"]
    header += [f"R² at {half} on average", f"R² at {half} each", f"R² at {k} each"]
    for data, weights in pairs(study):
        lines = []
        for row in study.rows:
            own = [*measures, "length_mean"]
            shown = [(each, study.values(row, weights, data, "own", each)) for each in own]
            # The own lengths of a rate head have that average.
            for rule in ("own" if "rate" in row else "mean", half, k):
                shown.append(("r2", study.values(row, weights, data, rule, "r2")))
            spreads = [spread(values, DIGITS.get(name, 3)) for name, values in shown]
            lines.append([f"`{row}`", str(len(study.runs[row])), *spreads])
            theirs = [paper("alignment", ROWS[row][0], name) for name in measures]
            if row in PAPERS:
                figures = ["–" if each is None else f"{each:g}" for each in theirs]
                lines.append(["the paper's", "", *figures, *["–"] * 4])
        some = next(iter(study.measured(study.rows[0], weights, data).values()))
        floor = some["mean_field"]
        caption = (
            f"On {some['images']:,} {DATA[data]}, {WEIGHTS[weights]}; mean ± standard deviation "
            f"over seeds. One mean field for all images has R² {floor['r2']:.3f}, "
            f"R² centred {floor['r2_centred']:.3f}."
        )
        yield table(caption, header, lines)


def lengths(study: Study) -> Iterator[Block]:
    """Length against number of objects, of models whose lengths differ."""
    header = ["", "seeds", "Pearson r", "over images", "Spearman r", "lengths"]
    for data, weights in pairs(study):
        lines = []
        for row in study.rows:
            for rule, name in (("own", ""), ("quality", ", one quality")):
                found = study.values(row, weights, data, rule, "pearson")
                if not found:
                    continue
                ranked = study.values(row, weights, data, rule, "spearman")
                r = [spread([each["value"] for each in of], 2) for of in (found, ranked)]
                over = f"{found[0]['low']:.2f} to {found[0]['high']:.2f}"
                least = min(study.values(row, weights, data, rule, "length_least"))
                most = max(study.values(row, weights, data, rule, "length_most"))
                line = [r[0], over, r[1], f"{least:.0f} to {most:.0f}"]
                lines.append([f"`{row}`{name}", str(len(found)), *line])
            if row == "32":
                figure, low, high = (
                    paper("complexity", "clevr-32", name)
                    for name in ("objects_correlation", "length_least", "length_most")
                )
                span = f"{low:.0f} to {high:.0f}"
                lines.append(["the paper's", "", f"≈ {figure:.2f}", "–", "–", span])
        caption = (
            f"On {DATA[data]}, {WEIGHTS[weights]}; mean ± standard deviation over seeds, and the "
            "95 % interval over images of the first seed:"
        )
        yield table(caption, header, lines)


def codes(study: Study) -> Iterator[Block]:
    """Codes in use with and without reseeding."""
    lines = []
    for base in ("32", "64", "128"):
        each = [
            spread(study.values(row, "plain", "scenes", "own", "codebook_used"), 1)
            for row in (base, f"{base}-no-reseed")
        ]
        lines.append([base, *each, f"{paper('alignment', f'clevr-{base}', 'codebook_used'):.1f}"])
    caption = f"Codes that active tokens use on {DATA['scenes']}, in %; {WEIGHTS['plain']}:"
    yield table(caption, ["codes", "reseeded", "never reseeded", "the paper's"], lines)


PAPERS = tuple(row for row, (_, changes) in ROWS.items() if not changes)


def pairs(study: Study, row: str | None = None) -> Iterator[tuple[str, str]]:
    """Each dataset with each kind of weights, where the row was measured."""
    runs = study.runs.get(row or study.rows[0], {})
    for run in list(runs.values())[:1]:
        for data in run["weights"]["averaged"]:
            yield from ((data, weights) for weights in WEIGHTS)


def paper(suite: str, preset: str, measure: str) -> float | None:
    """The paper's figure."""
    wanted = (suite, preset, "clevr", measure)
    for cell in cells():
        if (cell.suite, cell.variant, cell.dataset, cell.measure) == wanted:
            return cell.value
    return None


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def interval(values: Sequence[float]) -> str:
    """Mean with its interval by Student's t; without one for a single value."""
    mean = statistics.mean(values)
    if len(values) == 1:
        return signed(mean)
    half = T95.get(len(values), 2.776) * statistics.stdev(values) / len(values) ** 0.5
    return f"{signed(mean)} ({signed(mean - half)} to {signed(mean + half)})"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def table(caption: str, header: list[str], rows: list[list[str]]) -> Block:
    return {"caption": caption, "header": header, "rows": rows}


if __name__ == "__main__":
    main()
