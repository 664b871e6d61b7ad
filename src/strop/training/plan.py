"""Sizes, phases, memory and time of a run, for `strop train --dry-run`."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch

from strop.curriculum import scaled
from strop.data.spec import open_dataset
from strop.data.subset import Subset
from strop.model.teacher import describe_teacher, teacher_parameters
from strop.model.tokenizer import Tokenizer
from strop.recorded import WARM_STEPS
from strop.training.attention import attended, sound_attention
from strop.training.distributed import Workers
from strop.training.fields import FieldComputer
from strop.training.forward import StepConfig, step_values
from strop.training.preset import Preset
from strop.training.run_data import check_held_out, fitting, split
from strop.training.step import Stepper

PAPER_HOURS = {
    ("dinov3-s", 256): 27,
    ("dinov3-s", 512): 45,
    ("dinov3-b", 256): 32,
    ("dinov3-b", 512): 50,
    ("dinov3-l", 512): 66,
}
"""Hours on one H100 by teacher and width of the generator: the paper's table of variants."""

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
    """Parameters, phase boundaries and estimated memory of a run."""
    model, training = preset.model, preset.training
    with torch.device("meta"):
        trainable = Tokenizer(model).trainable_parameters
    curriculum = scaled(preset.curriculum, training.steps)
    starts = (0, *curriculum.phase_ends)
    ends = (*curriculum.phase_ends, training.steps)
    phases = {name: (start, end) for name, start, end in zip(PHASES, starts, ends, strict=True)}
    if model.length_head.fixed is not None:
        phases = {"fixed length": (0, training.steps)}
    name = model.teacher.name.removeprefix("random:")
    return {
        "trainable parameters": trainable,
        "teacher parameters": teacher_parameters(model.teacher.name),
        "phases": phases,
        "estimated memory, GB": round(estimated_memory(preset, trainable) / 1e9, 2),
        "paper hours on an H100": PAPER_HOURS.get((name, model.generator.width)),
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


def estimated_memory(preset: Preset, trainable: int) -> float:
    """Rough number of bytes: weights, gradients, moments, and activations for the backward pass.

    Activations are about ten vectors of the width and two of the feed-forward per token and layer
    in bf16, three rows of similarities per program token in fp32, and the field in fp32.
    """
    model, training = preset.model, preset.training
    locations, k = model.grid**2, model.max_length

    def kept(tokens: int, depth: int, width: int, feedforward: int) -> int:
        return tokens * depth * (10 * width + 2 * feedforward) * 2

    generator, interpreter = model.generator, model.interpreter
    image = kept(locations + k, generator.depth, generator.width, generator.feedforward)
    image += kept(locations, interpreter.depth, interpreter.width, interpreter.feedforward)
    image += 3 * k * model.quantizer.codes * 4 + 4 * locations * model.teacher.width * 4
    return 16 * trainable + training.batch * image


def measure(preset: Preset, device: torch.device, *, steps: int = 5) -> dict[str, Any]:
    """Time a few steps of each kind on random fields: speed, peak memory and projected hours."""
    with sound_attention(*attended(preset.model)):  # as in the run itself
        return _measured(preset, device, steps)


def _measured(preset: Preset, device: torch.device, steps: int) -> dict[str, Any]:
    # A CPU takes proportionally longer for a larger batch.
    batch = min(preset.training.batch, CPU_BATCH if device.type == "cpu" else sys.maxsize)
    share = preset.training.batch / batch
    preset = replace(preset, training=replace(preset.training, batch=batch))
    model, training = preset.model, preset.training
    tokenizer = Tokenizer(model).to(device)
    config = StepConfig.of(preset, tokenizer)
    shape = (training.batch, model.grid**2, model.teacher.width)
    fields = torch.randn(shape, device=device, dtype=torch.bfloat16)
    loaded = (fields,)
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], config, device=device)
    stepper.initialise_codebook(loaded)
    first_probe = config.curriculum.phase_ends[0]
    at = {"phase 1": 0}
    if config.has_oracle:
        at["phases 2 to 4"] = first_probe
    started = time.perf_counter()
    stepper.warm_up(loaded, step_values(config, 0).to(device))
    for step in at.values():
        # Enough steps to choose kernels and, on a GPU, to record the graph.
        for _ in range(WARM_STEPS + 1 if stepper.compiled else 1):
            stepper(loaded, step_values(config, step).to(device), step)
    _wait(device)
    report: dict[str, Any] = {"seconds to compile": round(time.perf_counter() - started, 1)}
    seconds = {}
    for name, step in at.items():
        values = step_values(config, step).to(device)
        stepper(loaded, values, step)
        _wait(device)
        started = time.perf_counter()
        for _ in range(steps):
            stepper(loaded, values, step)
        _wait(device)
        seconds[name] = share * (time.perf_counter() - started) / steps
        report[f"images per second, {name}"] = round(share * training.batch / seconds[name], 1)
    if device.type == "cuda":
        report["peak memory, GB"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 1)
    early = first_probe if config.has_oracle else training.steps
    late = seconds.get("phases 2 to 4", seconds["phase 1"])
    total = early * seconds["phase 1"] + (training.steps - early) * late
    report["projected hours"] = round(total / 3600, 4)
    return report


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
