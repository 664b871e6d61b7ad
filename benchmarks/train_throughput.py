"""Images per second of the whole training loop: step, optimizer, codebook update, batches.

Each setting of the table runs `Stepper` on `FieldSource` (fields on the device) or on
`ResidentImageSource` (uint8 images on the device and the teacher in the step), as `strop.train`
does, and is timed over whole optimizer steps. FLOPs are counted on the uncompiled step; the
ceiling is a large bf16 matrix product measured in the same run. `--profile` prints the kernels
that take the time of the first setting.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from common import device, machine, save, seconds
from strop.curriculum import scaled
from strop.model.teacher import TeacherConfig, load_teacher
from strop.model.tokenizer import Tokenizer
from strop.training.distributed import Workers
from strop.training.preset import Preset, load_preset
from strop.training.sources import (
    FieldSource,
    ResidentImageSource,
    Source,
    compiled_teacher,
    to_device,
)
from strop.training.step import Recipe, Stepper, step_values


@dataclass(frozen=True)
class Setting:
    """One row: a preset at a batch size, with or without probes, with or without the teacher."""

    preset: str
    batch: int
    probing: bool = False
    online: bool = False

    @property
    def name(self) -> str:
        source = "online teacher" if self.online else "cached"
        phase = "phase 2 to 4" if self.probing else "phase 1"
        return f"{self.preset}, {source}, {phase}, batch {self.batch}"


SETTINGS = {
    "small": [Setting("strop-s-dinov3-s", batch) for batch in (256, 512, 1024, 2048)],
    "probes": [Setting("strop-s-dinov3-s", batch, probing=True) for batch in (512, 1024)],
    "paper": [Setting("strop-s-dinov3-s", 32)],
    "online": [Setting("strop-s-dinov3-s", batch, online=True) for batch in (256, 512)],
    "medium": [Setting("strop-m-dinov3-s", 512)],
    "clevr": [Setting("clevr-64", batch) for batch in (1024, 2048, 4096)],
}


def prepared(setting: Setting, where: torch.device, images: int) -> tuple[Stepper, Recipe, Source]:
    """A run as `strop.train` would set it up, on random fields or images."""
    preset = load_preset(setting.preset)
    teacher = TeacherConfig(
        name=f"random:{preset.model.teacher.name}", width=preset.model.teacher.width, scale=0.38
    )
    preset = replace(
        preset,
        model=replace(preset.model, teacher=teacher, decoder=None),
        curriculum=replace(preset.curriculum, probe_fraction=0.25),
        training=replace(preset.training, batch=setting.batch, steps=500_000),
    )
    recipe = Recipe(preset.objective, scaled(preset.curriculum, 500_000), preset.training)
    torch.manual_seed(0)
    tokenizer = Tokenizer(preset.model).to(where).train()
    source = _source(setting, preset, where, max(images, setting.batch))
    return Stepper(tokenizer, source.field_of, recipe, device=where), recipe, source


def _source(setting: Setting, preset: Preset, where: torch.device, images: int) -> Source:
    size, width = preset.model.image_size, preset.model.teacher.width
    generator = torch.Generator(where).manual_seed(0)
    if setting.online:
        pixels = torch.randint(
            0, 256, (images, 3, size, size), dtype=torch.uint8, device=where, generator=generator
        )
        teacher = load_teacher(preset.model.teacher.name).to(where)
        return ResidentImageSource(
            pixels,
            compiled_teacher(teacher, where.type == "cuda"),
            preset.training,
            Workers(),
            device=where,
        )
    shape = (images, 1, preset.model.grid**2, width)
    fields = torch.randn(shape, dtype=torch.bfloat16, device=where, generator=generator)
    return FieldSource(fields, preset.training, Workers(), device=where)


def measure(setting: Setting, where: torch.device, at_least: float) -> dict[str, Any]:
    """Images and steps per second, and the FLOPs of a step."""
    stepper, recipe, source = prepared(setting, where, images=4096)
    first = recipe.curriculum.phase_ends[1] if setting.probing else 1000
    # Steps start just after a reseed, as 99 in 100 do.
    first += 1
    batches = source.batches(first)
    loaded = next(batches)
    values = to_device(step_values(recipe, first), where)
    stepper.initialise_codebook(loaded)
    begun = time.perf_counter()
    stepper.warm_up(loaded, values)

    step = first

    def several(number: int) -> None:
        nonlocal step
        for _ in range(number):
            stepper(next(batches), to_device(step_values(recipe, step), where), step)
            step += 1

    several(10)
    _synchronize(where)
    compiling = time.perf_counter() - begun
    number, elapsed = 10, 0.0
    while elapsed < at_least:
        number = max(number, int(1.1 * number * at_least / elapsed)) if elapsed else number
        begun = time.perf_counter()
        several(number)
        _synchronize(where)
        elapsed = time.perf_counter() - begun
    stepper.take_metrics()
    return {
        "name": setting.name,
        "batch": setting.batch,
        "images_per_s": setting.batch * number / elapsed,
        "steps_per_s": number / elapsed,
        "tflop_per_s": flops(setting, where) * setting.batch * number / elapsed / 1e12,
        "compile_s": compiling,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30 if where.type == "cuda" else None,
    }


def flops(setting: Setting, where: torch.device) -> float:
    """Of one image in one training step, forward and backward, by PyTorch's own counter."""
    rows = 8
    stepper, recipe, source = prepared(replace(setting, batch=rows), where, images=rows)
    stepper.compiled = stepper.graphed = False
    run = stepper._compiled_forward(False)
    loaded = next(source.batches(1))
    with FlopCounterMode(display=False) as step:
        values = to_device(step_values(recipe, 1), where)
        run(source.field_of(loaded), values, stepper.state).loss.backward()
    total = step.get_total_flops() / rows
    if setting.probing:  # two more interpretations, forward only, of a share of the rows
        config = stepper.tokenizer.config
        z_q = torch.randn(rows, config.max_length, config.quantizer.code_width, device=where)
        active = torch.ones(rows, config.max_length, dtype=torch.bool, device=where)
        with FlopCounterMode(display=False) as probe:
            stepper.tokenizer.interpreter(z_q, active)
        total += 2 * recipe.curriculum.probe_fraction * probe.get_total_flops() / rows
    return total


def ceiling(where: torch.device) -> float:
    """TFLOP/s of a large bf16 matrix product on random data."""
    side = 8192 if where.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=where, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b) / 1e12


def profile(setting: Setting, where: torch.device) -> None:
    """The kernels of a step, by time."""
    stepper, recipe, source = prepared(setting, where, images=setting.batch)
    stepper.graphed = False
    batches = source.batches(1)
    values = to_device(step_values(recipe, 1), where)
    stepper.warm_up(next(batches), values)
    for step in range(1, 4):
        stepper(next(batches), values, step)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        for step in range(4, 7):
            stepper(next(batches), values, step)
        _synchronize(where)
    averages = profiled.key_averages()
    print(averages.table(sort_by="self_device_time_total", row_limit=45, max_name_column_width=90))


def _synchronize(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--batch", type=int, help="this batch instead of the settings' own")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each row")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--save", default="train_throughput", help="name of the JSON; '' for none")
    arguments = parser.parse_args()
    where = device()
    if where.type != "cuda":
        print("There is no GPU: this benchmark is about one. See train_cpu.py for the ratio here.")
    settings = [row for name in arguments.settings for row in SETTINGS[name]]
    if arguments.batch:
        settings = list(dict.fromkeys(replace(row, batch=arguments.batch) for row in settings))
    if arguments.profile:
        profile(settings[0], where)

    most = ceiling(where)
    rows = []
    table = Table("setting", "img/s", "steps/s", "TFLOP/s", "of ceiling", "compile s", "GiB")
    for setting in settings:
        if where.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.compiler.reset()
        row = measure(setting, where, arguments.seconds)
        row["share_of_ceiling"] = row["tflop_per_s"] / most
        rows.append(row)
        print(row, flush=True)
        table.add_row(
            setting.name,
            f"{row['images_per_s']:,.0f}",
            f"{row['steps_per_s']:.1f}",
            f"{row['tflop_per_s']:.0f}",
            f"{row['share_of_ceiling']:.0%}",
            f"{row['compile_s']:.0f}",
            f"{row['memory_gib'] or 0:.0f}",
        )
    table.title = f"training on {machine()['device']}, matmul ceiling {most:.0f} TFLOP/s"
    Console(width=140).print(table)
    if arguments.save:
        save(arguments.save, {"ceiling_tflop_per_s": most, "rows": rows})


if __name__ == "__main__":
    main()
