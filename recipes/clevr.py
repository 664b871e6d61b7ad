"""The CLEVR study of the paper's Appendix F on rendered scenes, a row at a time, and past it.

    python recipes/clevr.py 64 128 --teacher /nets/vits14-focus
    python recipes/clevr.py price --teacher tiny --clevr clevr:/data/clevr --seed 1
    python recipes/clevr.py 64 outlines --teacher tiny --small

Rows are named in `PAPER` and `TRIALS`: the paper's five, with a decoder, and what was tried to make
lengths and programs better, each with a codebook of 64. Rows that are asked for together share the
teacher's fields. `--small` makes rows for a CPU, without decoders. Nothing is chosen by looking at
`--clevr`. `strop report runs/clevr/results/*` makes the tables; those of docs/clevr.md are of what
lies in benchmarks/results/clevr and, of small rows, in benchmarks/results/clevr-small.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from measure import length_by_objects

from strop.analysis.evaluate import evaluate
from strop.cli.console import err
from strop.data.spec import open_dataset
from strop.evaluation.clevr.rows import FACTS
from strop.files import read_json, write_json, write_text
from strop.training.callbacks import Callback, Metrics, ProgressBar, Run
from strop.training.decoder import train_decoder
from strop.training.fields import data_name
from strop.training.lengths import train_lengths
from strop.training.loop import machine, train
from strop.training.preset import load_preset

# Minutes where the paper has a day: larger batches at a higher rate, averaged weights, and
# probes on a quarter of the batch, which estimate the same slopes.
FAST = {
    "training.steps": 3_000,
    "training.batch": 512,
    "training.learning_rate": 1e-3,
    "training.final_learning_rate": 5e-5,
    "training.weight_average": 0.999,
    "training.weight_decay": 0.05,
    "training.validate_every": 100_000,
    "training.checkpoint_every": 500_000,
    "curriculum.probe_fraction": 0.25,
}


@dataclass(frozen=True)
class Size:
    """Of a study.

    settings  of its rows
    instead   what trials that change these settings change them to, not what stands with the row
    scenes    to train on; `held_out` are others to measure on
    runs      folder for them
    """

    settings: dict[str, Any]
    instead: dict[str, Any]
    scenes: int
    held_out: int
    runs: str


FULL = Size(FAST, {}, scenes=49_152, held_out=2_000, runs="runs/clevr")

# A row in minutes on a CPU core, so that each can be had several times: what one run of a row shows
# at full size may be chance. It takes many small steps at a high rate to get off the ground.
SMALL_MODEL = {
    f"model.{part}.{name}": value
    for part in ("generator", "interpreter")
    for name, value in (("width", 64), ("depth", 4), ("heads", 4), ("feedforward", 256))
}
SMALL_STEPS = {
    "training.steps": 4_000,
    "training.batch": 32,
    "training.learning_rate": 4e-3,
    "training.final_learning_rate": 2e-4,
}
# Trials that are asked for a mean length get about the one that `64` comes to by itself at this
# size, with its first seed. And of a small batch more has to be probed.
SMALL = Size(
    {**FAST, **SMALL_MODEL, **SMALL_STEPS},
    {"curriculum.oracle_scale": 0.45, "curriculum.probe_fraction": 0.25},
    scenes=4_096,
    held_out=1_000,
    runs="runs/clevr-small",
)


CEILING = {"curriculum.handoff_ceiling": 0.7}
RATES = {**CEILING, "curriculum.probe_fraction": 0.0625, "curriculum.truncation_minimum": 2}
PRICE = {**RATES, "curriculum.oracle": "price", "curriculum.oracle_scale": 0.5}
CONTRAST = {
    **PRICE,
    "curriculum.price_per": "doubling",
    "curriculum.oracle_contrast": 1.5,
    "curriculum.handoff_ceiling": 0.5,
}
RESIDUE = {**PRICE, "curriculum.oracle": "residue", "curriculum.handoff_ceiling": 0.5}
HIGH_CEILING = {"curriculum.handoff_ceiling": 0.9}
OUTLINES = {**HIGH_CEILING, "curriculum.oracle": "outlines", "curriculum.oracle_scale": 0.57}
CENTRED = {"model.quantizer.centred": True}
REFITTED = {**CEILING, "lengths.mean": 18, "lengths.per": "doubling", "lengths.contrast": 1.15}

Row = tuple[str, dict[str, Any]]
"""A preset and what is changed in it. What stands under `lengths` is for `train_lengths`, once the
model is trained."""

PAPER: dict[str, Row] = {
    "32": ("clevr-32", {}),
    "64": ("clevr-64", {}),
    "128": ("clevr-128", {}),
    "64-fixed": ("clevr-64-fixed", {}),
    "128-fixed": ("clevr-128-fixed", {}),
}
TRIALS: dict[str, Row] = {
    "ceiling": ("clevr-64", CEILING),
    "high-ceiling": ("clevr-64", HIGH_CEILING),
    "tolerance": ("clevr-64", {**RATES, "curriculum.oracle": "tolerance"}),
    "price": ("clevr-64", PRICE),
    "contrast": ("clevr-64", CONTRAST),
    "residue": ("clevr-64", RESIDUE),
    "distillation": ("clevr-64", {**CEILING, "objective.distillation_weight": 0.5}),
    "together": ("clevr-64", {**RESIDUE, **CENTRED}),
    "refitted": ("clevr-64", REFITTED),
    "outlines": ("clevr-64", OUTLINES),
    "centred": ("clevr-64", CENTRED),
    "centred-outlines": ("clevr-64", {**OUTLINES, **CENTRED}),
}
ROWS = {**PAPER, **TRIALS}


SHOWN, FITTED = 8_192, 2_048
"""Scenes that a row's decoder learns on, and that lengths are fitted to anew."""


class Rate(Callback):
    """Remembers how fast the run went."""

    images_per_second = 0.0

    def on_log(self, run: Run, metrics: Metrics) -> None:
        self.images_per_second = metrics["images_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="+", choices=ROWS)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a model and budgets for a CPU")
    parser.add_argument("--scenes", type=int, help="scenes to train on")
    parser.add_argument("--held-out", type=int, help="other scenes to measure on")
    parser.add_argument("--clevr", help="spec of Blender's scenes to report on as well: clevr:PATH")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--decoder-steps", type=int, default=500)
    parser.add_argument("--runs", help=f"for models and checkpoints; {FULL.runs} or {SMALL.runs}")
    parser.add_argument("--out", help="for the figures; the folder `results` of --runs")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="leave out rows that are done; put aside, and begin anew, those that were broken off",
    )
    arguments = parser.parse_args()
    fill_in(arguments)
    # What would fail after minutes of training is better said now.
    if arguments.clevr and not arguments.clevr.startswith("clevr:"):
        parser.error(f"--clevr {arguments.clevr}: give clevr:PATH")
    if arguments.clevr:
        open_dataset(arguments.clevr)
    for name in (name_of(row, arguments) for row in arguments.rows):
        for option in ("runs", "out"):
            folder = Path(getattr(arguments, option)) / name
            if folder.exists() and not arguments.missing:
                parser.error(f"{folder} is there already: give --missing, or another --{option}")

    done = [row for row in arguments.rows if is_done(row, arguments)]
    for row in done:
        err.print(f"{row}: its figures are there.")
    # First those that go by outlines: the file that they write does for the others, not vice versa.
    missing = (row for row in arguments.rows if row not in done)
    rows = sorted(missing, key=lambda row: not by_outlines(row))
    fields = fields_of(rows, arguments)
    for row in rows:
        name = name_of(row, arguments)
        for option in ("runs", "out"):  # of a row that was broken off, whose times would be wrong
            put_aside(Path(getattr(arguments, option)) / name)
        torch.compiler.reset()  # a function keeps eight compiled versions at most
        train_row(row, fields, arguments)


def fill_in(arguments: argparse.Namespace) -> None:
    """What was not given is that of the study's size."""
    size = SMALL if arguments.small else FULL
    usual = {
        "scenes": size.scenes,
        "held_out": size.held_out,
        "steps": size.settings["training.steps"],
        "batch": size.settings["training.batch"],
        "runs": size.runs,
    }
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    vars(arguments).update({**usual, **given})
    arguments.out = arguments.out or str(Path(arguments.runs) / "results")


def is_done(row: str, arguments: argparse.Namespace) -> bool:
    """Whether a row's figures are there. They must be of a run such as is asked for."""
    figures = Path(arguments.out) / name_of(row, arguments)
    if not (figures / FACTS).is_file():
        return False
    facts = read_json(figures / FACTS, "clevr", 1)
    seen, asked = facts["images_seen"], arguments.steps * arguments.batch
    if seen != asked or (arguments.clevr and "clevr" not in facts["complexity"]):
        raise SystemExit(
            f"{figures} is of {seen:,} images, measured on {', '.join(facts['complexity'])}: move "
            "it away, or ask for the same."
        )
    return True


def put_aside(folder: Path) -> None:
    """Out of the way, under a name that `*` does not find."""
    if folder.exists():
        names = (folder.with_name(f".{folder.name}.{number}") for number in count(1))
        folder.rename(next(name for name in names if not name.exists()))


def name_of(row: str, arguments: argparse.Namespace) -> str:
    """Of a run: the row, and its teacher and seed where they are not those of most rows."""
    teacher = Path(arguments.teacher).name
    parts = [row, *([] if teacher == "vits14-focus" else [teacher])]
    return "-".join([*parts, *([f"seed{arguments.seed}"] if arguments.seed else [])])


def fields_of(rows: list[str], arguments: argparse.Namespace) -> Path:
    """The file of fields for all of these rows: with outlines, if one goes by them."""
    runs, teacher = Path(arguments.runs), Path(arguments.teacher).name
    outlined = runs / f"{teacher}-outlines.safetensors"
    if outlined.exists() or any(by_outlines(row) for row in rows):
        return outlined
    return runs / f"{teacher}.safetensors"


def by_outlines(row: str) -> bool:
    """Whether its targets are."""
    return ROWS[row][1].get("curriculum.oracle") == "outlines"


def train_row(row: str, fields: Path, arguments: argparse.Namespace) -> None:
    """Train and measure one row; its fields are in, or are put into, this file."""
    teacher, runs = Path(arguments.teacher).name, Path(arguments.runs)
    preset, changes = ROWS[row]
    size = SMALL if arguments.small else FULL
    changes = {key: size.instead.get(key, value) for key, value in changes.items()}
    asked = {
        "training.seed": arguments.seed,
        "training.steps": arguments.steps,
        "training.batch": arguments.batch,
    }
    fitting = {key: changes[key] for key in changes if key.startswith("lengths.")}
    settings = {key: value for key, value in changes.items() if key not in fitting}
    plan = load_preset(preset, {**size.settings, **settings, **asked})
    pixels = plan.model.image_size
    scenes = f"scenes:?n={{}}&seed=1&size={pixels}"
    rate, started = Rate(), time.monotonic()
    result = train(
        plan,
        scenes.format(arguments.scenes),
        out=runs / name_of(row, arguments),
        cache=fields,
        teacher=arguments.teacher,
        callbacks=[rate, ProgressBar(err)],
    )
    minutes = (time.monotonic() - started) / 60
    tokenizer, run = result.tokenizer, result.folder
    assert run is not None
    if not result.finished:
        raise SystemExit(f"{row} was stopped after {result.step} steps and is not measured.")
    if fitting:
        train_lengths(
            tokenizer,
            scenes.format(min(FITTED, arguments.scenes)),
            **{key.removeprefix("lengths."): value for key, value in fitting.items()},
        )
    suites = ["alignment", "rate"]
    if row in PAPER and not arguments.small:
        suites.append("pixels")
        train_decoder(
            tokenizer,
            scenes.format(min(SHOWN, arguments.scenes)),
            steps=arguments.decoder_steps,
            batch=min(128, arguments.batch),
        )
    tokenizer.save_pretrained(run / "model")
    tokenizer.precision = "fp32"
    held_out = f"scenes:?n={arguments.held_out}&seed=2000&size={pixels}"
    specs = [held_out, *([arguments.clevr] if arguments.clevr else [])]
    folder = Path(arguments.out) / run.name
    evaluate(tokenizer, specs, folder, suites=suites, name=run.name, batch=256)
    facts = {
        "row": row,
        "preset": preset,
        "changes": changes,
        "teacher": teacher,
        "seed": arguments.seed,
        "machine": machine(tokenizer.device),
        "minutes": minutes,
        "images_per_second": rate.images_per_second,
        "images_seen": arguments.steps * arguments.batch,
        "complexity": {
            spec.partition(":")[0]: length_by_objects(tokenizer, spec) for spec in specs
        },
    }
    write_text(folder / "metrics.jsonl", (run / "metrics.jsonl").read_text(encoding="utf-8"))
    write_text(folder / "run.json", (run / "run.json").read_text(encoding="utf-8"))
    names = {arguments.clevr: data_name(arguments.clevr)} if arguments.clevr else {}
    if Path(arguments.teacher).is_dir():
        names[arguments.teacher] = teacher
    call_by_names(folder, names)
    write_json(folder / FACTS, "clevr", 1, facts)  # the last: with it the row is done


def call_by_names(folder: Path, names: dict[str, str]) -> None:
    """In all results: networks and data are called by their names, not by where they lay."""
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        for place, name in names.items():
            before, after = (json.dumps(each, ensure_ascii=False) for each in (place, name))
            text = text.replace(before, after)
        write_text(path, text)


if __name__ == "__main__":
    main()
