"""Train and measure rows of the CLEVR study: the paper's Appendix F, and trials beyond it.

    python research/clevr/study.py 64 128 --teacher /nets/vits14-focus
    python research/clevr/study.py ceiling --teacher tiny --clevr clevr:/data/clevr --seed 1
    python research/clevr/study.py 64 centred --teacher tiny --small

`PAPER` and `TRIALS` name the rows. The rows of one command share the cached teacher fields.
`--small` trains small models without decoders, for a CPU. `report.py` makes tables and figures of
the results. No setting is chosen on `--clevr`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from rows import FACTS
from strop.analysis.evaluate import evaluate
from strop.cli.console import err, progress_bars
from strop.data.spec import open_dataset
from strop.device import describe_machine
from strop.files import read_json, write_json, write_text
from strop.training.callbacks import Callback, Metrics, TrainingRun
from strop.training.decoder_training import train_decoder
from strop.training.loop import train
from strop.training.preset import load_preset
from strop.training.run_data import data_name

sys.path.append(str(Path(__file__).parents[1] / "bundle"))
from measure import length_by_objects

# Minutes instead of the paper's day: larger batches at a higher learning rate, averaged weights,
# and probes on a quarter of the batch, which estimate the same slopes.
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
    """The size of a study.

    settings  of all its rows
    scenes    to train on
    held_out  other scenes to measure on
    runs      folder for runs and results
    """

    settings: dict[str, Any]
    scenes: int
    held_out: int
    runs: str


FULL = Size(FAST, scenes=49_152, held_out=2_000, runs="runs/clevr")

# A row in minutes on a CPU core, so that several seeds are affordable. Small models need many small
# steps at a high learning rate to leave the plateau of the mean field.
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
SMALL = Size(
    {**FAST, **SMALL_MODEL, **SMALL_STEPS}, scenes=4_096, held_out=1_000, runs="runs/clevr-small"
)

PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "32": ("clevr-32", {}),
    "64": ("clevr-64", {}),
    "128": ("clevr-128", {}),
    "64-fixed": ("clevr-64-fixed", {}),
    "128-fixed": ("clevr-128-fixed", {}),
}
TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "ceiling": ("clevr-64", {"curriculum.handoff_ceiling": 0.7}),
    "high-ceiling": ("clevr-64", {"curriculum.handoff_ceiling": 0.9}),
    "centred": ("clevr-64", {"model.quantizer.centred": True}),
}
ROWS = {**PAPER, **TRIALS}
"""By name: a preset, and the settings that change in it."""

DECODER_SCENES = 8_192
"""Scenes that a row's decoder is trained on."""


class Throughput(Callback):
    """Keeps the last throughput of a run."""

    images_per_second = 0.0

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        self.images_per_second = metrics["images_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="+", choices=ROWS)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="models and budgets for a CPU")
    parser.add_argument("--scenes", type=int, help="scenes to train on")
    parser.add_argument("--held-out", type=int, help="other scenes to measure on")
    parser.add_argument("--clevr", help="also measure on Blender's scenes: clevr:PATH")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--decoder-steps", type=int, default=500)
    parser.add_argument("--runs", help=f"folder for runs (default {FULL.runs} or {SMALL.runs})")
    parser.add_argument("--out", help="folder for results (default: `results` in --runs)")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="skip finished rows; move interrupted ones away and train them from the start",
    )
    arguments = parser.parse_args()
    set_defaults(arguments)
    # Report now what would fail after minutes of training.
    if arguments.clevr and not arguments.clevr.startswith("clevr:"):
        parser.error(f"--clevr {arguments.clevr}: give clevr:PATH")
    if arguments.clevr:
        open_dataset(arguments.clevr)
    for name in (name_of(row, arguments) for row in arguments.rows):
        for option in ("runs", "out"):
            folder = Path(getattr(arguments, option)) / name
            if folder.exists() and not arguments.missing:
                parser.error(f"{folder} already exists: give --missing, or another --{option}")

    for row in arguments.rows:
        if is_finished(row, arguments):
            err.print(f"{row}: already measured.")
            continue
        for option in ("runs", "out"):  # the times of an interrupted row would be wrong
            move_away(Path(getattr(arguments, option)) / name_of(row, arguments))
        torch.compiler.reset()  # a function keeps at most eight compiled versions
        train_row(row, arguments)


def set_defaults(arguments: argparse.Namespace) -> None:
    """Fill in the options that were not given, by the size of the study."""
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


def is_finished(row: str, arguments: argparse.Namespace) -> bool:
    """Whether a row has results. Results of another number of images or other data are refused."""
    results = Path(arguments.out) / name_of(row, arguments)
    if not (results / FACTS).is_file():
        return False
    facts = read_json(results / FACTS, "clevr", 1)
    seen, wanted = facts["images_seen"], arguments.steps * arguments.batch
    if seen != wanted or (arguments.clevr and "clevr" not in facts["complexity"]):
        raise SystemExit(
            f"{results} was trained on {seen:,} images and measured on "
            f"{', '.join(facts['complexity'])}: move it away, or use the same options."
        )
    return True


def move_away(folder: Path) -> None:
    """Rename a folder so that `*` does not match it."""
    if folder.exists():
        names = (folder.with_name(f".{folder.name}.{number}") for number in count(1))
        folder.rename(next(name for name in names if not name.exists()))


def name_of(row: str, arguments: argparse.Namespace) -> str:
    """The name of a run: the row, with teacher and seed where they are not the usual ones."""
    teacher = Path(arguments.teacher).name
    parts = [row, *([] if teacher == "vits14-focus" else [teacher])]
    return "-".join([*parts, *([f"seed{arguments.seed}"] if arguments.seed else [])])


def train_row(row: str, arguments: argparse.Namespace) -> None:
    """Train and measure one row."""
    teacher, runs = Path(arguments.teacher).name, Path(arguments.runs)
    preset, changes = ROWS[row]
    options = {
        "training.seed": arguments.seed,
        "training.steps": arguments.steps,
        "training.batch": arguments.batch,
    }
    size = SMALL if arguments.small else FULL
    plan = load_preset(preset, {**size.settings, **changes, **options})
    pixels = plan.model.image_size
    scenes = f"scenes:?n={{}}&seed=1&size={pixels}"
    throughput, started = Throughput(), time.monotonic()
    with progress_bars() as bars:
        result = train(
            plan,
            scenes.format(arguments.scenes),
            out=runs / name_of(row, arguments),
            cache=runs / f"{teacher}.safetensors",
            teacher=arguments.teacher,
            callbacks=[throughput],
            progress=bars,
        )
    minutes = (time.monotonic() - started) / 60
    tokenizer, run = result.tokenizer, result.folder
    assert run is not None
    if not result.finished:
        raise SystemExit(f"{row} stopped after {result.step} steps and was not measured.")
    suites = ["alignment", "rate"]
    if row in PAPER and not arguments.small:
        suites.append("pixels")
        train_decoder(
            tokenizer,
            scenes.format(min(DECODER_SCENES, arguments.scenes)),
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
        "machine": describe_machine(tokenizer.device)["device"],
        "minutes": minutes,
        "images_per_second": throughput.images_per_second,
        "images_seen": arguments.steps * arguments.batch,
        "complexity": {
            spec.partition(":")[0]: length_by_objects(tokenizer, spec) for spec in specs
        },
    }
    for name in ("metrics.jsonl", "run.json"):
        write_text(folder / name, (run / name).read_text(encoding="utf-8"))
    names = {arguments.clevr: data_name(arguments.clevr)} if arguments.clevr else {}
    if Path(arguments.teacher).is_dir():
        names[arguments.teacher] = teacher
    replace_paths(folder, names)
    write_json(folder / FACTS, "clevr", 1, facts)  # last: it marks the row as finished


def replace_paths(folder: Path, names: dict[str, str]) -> None:
    """Replace the paths of networks and data by their names in all results."""
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        for place, name in names.items():
            before, after = (json.dumps(each, ensure_ascii=False) for each in (place, name))
            text = text.replace(before, after)
        write_text(path, text)


if __name__ == "__main__":
    main()
