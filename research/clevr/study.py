"""Train and measure the rows of the CLEVR study: the paper's Appendix F, and variants of it.

    python research/clevr/study.py --out runs/clevr --teacher /nets/vits14-focus
    python research/clevr/study.py --out runs/clevr --rows 64 64-rate --seeds 0 --teacher tiny

A row and seed become one file in `--out`; those that exist are skipped. Processes with different
seeds share the teacher's fields in `--fields`: the first computes them, the others wait.
`report.py` makes tables of the files. No setting is chosen on what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.agreement import agree
from strop.analysis import usage
from strop.data.loader import image_batches, record_batches
from strop.data.spec import open_dataset
from strop.device import choose_device, describe_machine, exact_products, to_device_if_fits
from strop.errors import BusyError
from strop.files import atomic_path, exclusive, read_json, write_json
from strop.identity import digest
from strop.model.length_rule import LengthRule, predicted_lengths
from strop.model.teacher import Teacher, load_teacher
from strop.model.tokenizer import Tokenizer
from strop.pool import cores
from strop.program import Program
from strop.statistics import bootstrap, pearson, ranks
from strop.training.callbacks import Callback, Metrics
from strop.training.field_cache import compute_fields
from strop.training.loop import TrainingRun, train
from strop.training.preset import Preset, load_preset, parse_assignments
from strop.training.run_data import data_name

# Minutes instead of the paper's day: larger batches at a higher learning rate, averaged weights,
# and probes on a quarter of the batch, which estimate the same slopes.
FAST: dict[str, Any] = {
    "training.learning_rate": 1e-3,
    "training.final_learning_rate": 5e-5,
    "training.weight_average": 0.999,
    "training.weight_decay": 0.05,
    "training.held_out": 0,
    "curriculum.probe_fraction": 0.25,
}
NO_RESEED = {"training.reseed_below": 0.0}  # no count is below zero
RATE = {  # as in strop-s-fast
    "model.length_head.kind": "rate",
    "model.length_head.hidden": [256],
    "curriculum.truncation_minimum": 1,
    "curriculum.handoff_ceiling": 0.0,
}
CENTRED = {"model.quantizer.centred": True}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "32": ("clevr-32", {}),
    "64": ("clevr-64", {}),
    "128": ("clevr-128", {}),
    "64-fixed": ("clevr-64-fixed", {}),
    "128-fixed": ("clevr-128-fixed", {}),
    "32-no-reseed": ("clevr-32", NO_RESEED),
    "64-no-reseed": ("clevr-64", NO_RESEED),
    "128-no-reseed": ("clevr-128", NO_RESEED),
    "64-rate": ("clevr-64", RATE),
    "64-centred": ("clevr-64", CENTRED),
    "64-rate-centred": ("clevr-64", RATE | CENTRED),
}
"""By name: a preset, and the settings that change in it."""

CHUNK = 256
DRAWS = 500
Measured = tuple[Tensor, Tensor]
"""Fields (n, S, d_enc) float32 of scenes, and their numbers of objects (n,) int64."""


class LastWeights(Callback):
    """Keeps the weights of the last step, before their average replaces them, and the speed."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.speeds: list[float] = []

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Copy the weights if this is the last step."""
        self.speeds.append(metrics["images_per_second"])
        if run.step == run.preset.training.steps:
            state = run.stepper.tokenizer.state_dict()
            self.weights = {name: value.clone() for name, value in state.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--fields", type=Path, help="folder of cached fields (OUT/fields)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--teacher", default="tiny")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--scenes", type=int, default=49_152, help="scenes to train on")
    parser.add_argument("--held-out", type=int, default=2_000, help="other scenes to measure on")
    parser.add_argument("--clevr", help="also measure on Blender's scenes: clevr:PATH")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.clevr and not arguments.clevr.startswith("clevr:"):
        parser.error(f"--clevr {arguments.clevr}: give clevr:PATH")

    todo = []
    for row in arguments.rows:
        for seed in arguments.seeds:
            path = arguments.out / f"{row}-seed{seed}.json"
            plan, settings = plan_of(row, seed, arguments)
            if not path.exists():
                todo.append((path, plan, settings))
            elif read_json(path, "clevr", 2)["settings"] != settings:
                raise SystemExit(f"{path} has other settings: move it away, or give another --out.")
    if not todo:
        return

    device = torch.device(choose_device(None))
    training, measured = fields_of(arguments, device)
    for path, plan, settings in todo:
        if path.exists():  # another process was faster
            continue
        torch.compiler.reset()  # a function keeps at most eight compiled versions
        last, started = LastWeights(), time.monotonic()
        result = train(plan, training, teacher=arguments.teacher, callbacks=[last], progress=False)
        if not result.finished:
            raise SystemExit(f"{path.stem} stopped after {result.step} steps.")
        seconds = time.monotonic() - started
        tokenizer, started = result.tokenizer, time.monotonic()
        found = {}
        for weights in ("averaged", "plain"):
            if weights == "plain":
                tokenizer.train().eval()  # forgets what it knows of the other weights
                tokenizer.load_state_dict(last.weights)
            found[weights] = {name: measure(tokenizer, *each) for name, each in measured.items()}
        facts = {
            "settings": settings,
            "machine": describe_machine(device),
            "seconds": {"training": seconds, "measuring": time.monotonic() - started},
            "images_per_second": statistics.median(last.speeds),
            "weights": found,
        }
        write_json(path, "clevr", 2, facts)
        print(f"{path.stem}: {seconds:.0f} s", file=sys.stderr, flush=True)


def plan_of(row: str, seed: int, arguments: argparse.Namespace) -> tuple[Preset, dict[str, Any]]:
    """The preset of a run, and what identifies it: without paths, which differ by machine."""
    preset, changes = ROWS[row]
    changes = {
        **FAST,
        **changes,
        "training.steps": arguments.steps,
        "training.batch": arguments.batch,
        "training.seed": seed,
        **parse_assignments(arguments.settings),
    }
    settings = {
        "row": row,
        "seed": seed,
        "preset": preset,
        "changes": changes,
        "teacher": Path(arguments.teacher).name,
        "scenes": arguments.scenes,
        "held_out": arguments.held_out,
        "clevr": data_name(arguments.clevr) if arguments.clevr else None,
    }
    return load_preset(preset, changes), settings


def fields_of(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[Tensor, dict[str, Measured]]:
    """Fields (n, 2, S, d_enc) bf16 to train on, and what to measure on, on the device if they fit.

    They are read from files in `--fields`, which the first process writes.
    """
    teacher = load_teacher(arguments.teacher).to(device)
    plan = load_preset("clevr-32", FAST | parse_assignments(arguments.settings))
    size, versions = plan.model.image_size, plan.training.versions
    folder = arguments.fields or arguments.out / "fields"

    def training(spec: str) -> dict[str, Tensor]:
        images = image_batches(open_dataset(spec), device=device, **options)
        return {"fields": torch.cat([*compute_fields(images, teacher, plan.training)])}

    def held_out(spec: str) -> dict[str, Tensor]:
        found = list(measured_fields(spec, teacher, device, options))
        fields, objects = (torch.cat(part) for part in zip(*found, strict=True))
        return {"fields": fields, "objects": objects}

    def shared(spec: str, compute: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
        path = folder / f"{digest(teacher.digest, spec, size, versions)}.safetensors"
        while not path.exists():
            try:
                with exclusive(folder):
                    if not path.exists():
                        with atomic_path(path) as temporary:
                            save_file(compute(spec), temporary)
            except BusyError:
                time.sleep(1)
        found = load_file(path)
        return {name: to_device_if_fits(value, device) for name, value in found.items()}

    options: dict[str, Any] = {"size": size, "fit": plan.model.fit, "workers": min(cores(), 8)}
    fields = shared(f"scenes:?n={arguments.scenes}&seed=1&size={size}", training)["fields"]
    specs = {"scenes": f"scenes:?n={arguments.held_out}&seed=2000&size={size}"}
    if arguments.clevr:
        specs["clevr"] = arguments.clevr
    measured = {name: shared(spec, held_out) for name, spec in specs.items()}
    return fields, {name: (each["fields"], each["objects"]) for name, each in measured.items()}


@torch.no_grad()
def measured_fields(
    spec: str, teacher: Teacher, device: torch.device, options: dict[str, Any]
) -> Iterator[Measured]:
    """Fields in full precision and numbers of objects, by batch."""
    with exact_products():
        for batch in record_batches(open_dataset(spec), device=device, **options):
            assert batch.scenes is not None
            objects = torch.tensor([len(scene["objects"]) for scene in batch.scenes])
            yield teacher(batch.images.to(device)).float(), objects


def measure(tokenizer: Tokenizer, fields: Tensor, objects: Tensor) -> dict[str, Any]:
    """Alignment, lengths, codes, and length against objects, by how lengths are chosen.

    own      as the model chooses them; a rate head distributes K / 2 tokens per image on average
    mean     the predicted lengths shifted to that mean; not for a rate head or one fixed length
    quality  a rate head's shortest lengths at the quality that takes that mean
    8 ...    one forced length: K / 4, K / 2 and K

    mean_field is one field for all images, which needs no tokens.
    """
    tokenizer.precision = "fp32"
    encoding = tokenizer.analyse_field(fields, batch=CHUNK)
    k, head = tokenizer.config.max_length, tokenizer.length_head

    def by_rule(rule: LengthRule) -> Tensor:
        return predicted_lengths(rule, head, encoding.predicted, encoding.log_error, k)

    half = LengthRule(mean_length=k / 2)
    if encoding.log_error is not None:
        lengths = {"own": by_rule(half), "quality": at_quality(encoding.log_error[:, 0], k / 2)}
    elif tokenizer.config.length_head.fixed is None:
        lengths = {"own": encoding.lengths, "mean": by_rule(half)}
    else:
        lengths = {"own": encoding.lengths}
    lengths |= {str(forced): by_rule(LengthRule(length=forced)) for forced in (k // 4, k // 2, k)}
    mean = fields.mean(dim=0)
    flat = ((mean.expand_as(part), part) for part in fields.split(CHUNK))
    found: dict[str, Any] = {"images": len(fields), "mean_field": agree(flat).scores()}
    for name, each in lengths.items():
        program = Program(
            codes=encoding.codes, lengths=each, codebook_size=tokenizer.config.quantizer.codes
        )
        found[name] = {
            **agree(interpreted(tokenizer, program, fields)).scores(),
            **usage.codebook(program),
            **usage.lengths(program, fields),
        }
        if each.unique().numel() > 1:
            found[name] |= correlations(each, objects)
    return found


def at_quality(log_error: Tensor, mean_length: float) -> Tensor:
    """Lengths (n,) at the quality for which they have this mean, from log errors (n, K).

    `RateHead.shortest` compares the errors of all images with one threshold, which falls with the
    quality; so a threshold is searched for, and the head need not be calibrated.
    """
    low, high = log_error.min(), log_error.max()
    for _ in range(50):
        middle = (low + high) / 2
        lengths = (1 + (log_error > middle).sum(dim=1)).clamp(max=log_error.shape[1])
        too_long = lengths.double().mean() > mean_length
        low, high = torch.where(too_long, middle, low), torch.where(too_long, high, middle)
    return lengths


def interpreted(
    tokenizer: Tokenizer, program: Program, fields: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Interpreted fields of programs with the teacher's, in chunks."""
    for start in range(0, len(fields), CHUNK):
        made = tokenizer.interpret(program[start : start + CHUNK], batch=CHUNK)
        yield made, fields[start : start + CHUNK].to(made.device)


def correlations(lengths: Tensor, objects: Tensor) -> dict[str, Any]:
    """Pearson's and Spearman's r of lengths and objects; intervals are over images."""
    x, y = lengths.double().cpu().numpy(), objects.double().cpu().numpy()
    return {
        "pearson": bootstrap(pearson, x, y, draws=DRAWS)._asdict(),
        # Ranks are taken once, not in every resample.
        "spearman": bootstrap(pearson, ranks(x), ranks(y), draws=DRAWS)._asdict(),
    }


if __name__ == "__main__":
    main()
