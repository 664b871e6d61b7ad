"""Sizes, phases, time and memory of a run, for `strop train --dry-run`."""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch

from strop.curriculum import scaled
from strop.data.spec import open_dataset
from strop.data.subset import Subset
from strop.device import sound_attention
from strop.model.teacher import describe_teacher, teacher_parameters
from strop.model.tokenizer import Tokenizer
from strop.recorded import WARM_STEPS
from strop.training.distributed import Workers
from strop.training.field_cache import FieldComputer
from strop.training.forward import StepConfig, step_values
from strop.training.preset import Preset
from strop.training.run_data import check_held_out, fitting, split
from strop.training.step import Stepper

CPU_BATCH = 8
"""Images of a step that is timed on a CPU."""

PHASES = (
    "1 random truncation",
    "2 + oracle",
    "3 + length head",
    "4 handoff",
    "predicted lengths only",
)


def describe(preset: Preset) -> dict[str, Any]:
    """Parameters and phase boundaries of a run."""
    model, training = preset.model, preset.training
    with torch.device("meta"):
        trainable = Tokenizer(model).trainable_parameters
    ends = (*scaled(preset.curriculum, training.steps).phase_ends, training.steps)
    phases = dict(zip(PHASES, itertools.pairwise((0, *ends)), strict=True))
    if model.length_head.fixed is not None:
        phases = {"fixed length": (0, training.steps)}
    return {
        "trainable parameters": trainable,
        "teacher parameters": teacher_parameters(model.teacher.name),
        "phases": phases,
    }


def describe_data(
    preset: Preset,
    data: str,
    validation: str | None,
    teacher: str | None,
    device: torch.device,
) -> tuple[Preset, dict[str, Any]]:
    """Open the data, run the teacher on its first image: the preset as it will be, and sizes."""
    # `measure` needs only the teacher's shapes, but a run its weights, and readable images.
    model = preset.model
    if teacher is not None:
        model = replace(model, teacher=describe_teacher(teacher))
    dataset = open_dataset(data)
    check_held_out(data, validation)
    shown = None if validation is None else open_dataset(validation)
    kept, held = split(len(dataset), preset.training.held_out if shown is None else 0)
    training = fitting(preset.training, len(kept), Workers(), warnings.warn)
    FieldComputer(model, training, device, report=warnings.warn).plain(Subset(dataset, [0]))
    field = model.grid**2 * model.teacher.width * 2
    return replace(preset, model=model, training=training), {
        "training images": len(kept),
        "held-out images": len(held) if shown is None else len(shown),
        "cached fields, GB": round(len(dataset) * training.versions * field / 1e9, 2),
    }


def measure(preset: Preset, device: torch.device, *, steps: int = 5) -> dict[str, Any]:
    """Time a few steps of each kind on random fields: speed, peak memory and projected hours."""
    # A CPU takes proportionally longer for a larger batch.
    batch = min(preset.training.batch, CPU_BATCH if device.type == "cpu" else sys.maxsize)
    share = preset.training.batch / batch
    preset = replace(preset, training=replace(preset.training, batch=batch))
    model, training = preset.model, preset.training
    tokenizer = Tokenizer(model).to(device)
    config = StepConfig(preset)
    shape = (training.batch, model.grid**2, model.teacher.width)
    loaded = (torch.randn(shape, device=device, dtype=torch.bfloat16),)
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], config, device=device)
    first_probe = config.curriculum.phase_ends[0] if config.has_oracle else training.steps
    at = {"phase 1": 0} | ({"phases 2 to 4": first_probe} if config.has_oracle else {})

    def seconds(step: int, count: int) -> float:
        values = step_values(config, step).to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        for _ in range(count):
            stepper(loaded, values, step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / count

    with sound_attention():  # as in the run itself
        stepper.initialise_codebook(loaded)
        started = time.perf_counter()
        stepper.warm_up(loaded, step_values(config, 0).to(device))
        for step in at.values():
            # Enough steps to choose kernels and, on a GPU, to record the graph.
            seconds(step, WARM_STEPS + 1 if stepper.compiled else 1)
        report: dict[str, Any] = {"seconds to compile": round(time.perf_counter() - started, 1)}
        taken = {name: share * seconds(step, steps) for name, step in at.items()}
    for name, each in taken.items():
        report[f"images per second, {name}"] = round(share * batch / each, 1)
    if device.type == "cuda":
        report["peak memory, GB"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 1)
    late = taken.get("phases 2 to 4", taken["phase 1"])
    total = first_probe * taken["phase 1"] + (training.steps - first_probe) * late
    report["projected hours"] = round(total / 3600, 4)
    return report
