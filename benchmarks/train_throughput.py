"""Training throughput: full steps with optimizer and codebook, through the real `Stepper`.

    python benchmarks/train_throughput.py                       # the full table
    python benchmarks/train_throughput.py --only batch-32 --profile
    python benchmarks/train_throughput.py --only cached --batches 512,1024,2048

Also reports the model's TFLOP/s and their share of a large matrix product measured in the same run.
`SETTINGS` names the settings.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import alone, device, preparing, save_rows
from strop.device import sound_attention, to_device
from strop.model.teacher import load_teacher, teacher_parameters
from strop.model.tokenizer import Tokenizer
from strop.recorded import WARM_STEPS
from strop.training.distributed import Workers
from strop.training.field_cache import compiled_teacher, teacher_field
from strop.training.forward import StepConfig, step_values
from strop.training.preset import Preset, TrainingConfig, load_preset, parse_assignments
from strop.training.run_data import CachedFieldLoader, FieldLoader, Loaded
from strop.training.step import Stepper
from strop.training.views import draw_versions, version_images

console = Console()


@dataclass(frozen=True)
class Setting:
    """One or two rows of the table: phase 1, and with `probes` also the later phases."""

    preset: str
    batches: tuple[int, ...]
    probes: bool = False
    online: bool = False
    reach: str = "report"


SETTINGS = {
    "cached": Setting("strop-s-dinov3-s", (512, 1024, 2048), probes=True, reach="9,000 img/s"),
    "batch-32": Setting("strop-s-dinov3-s", (32,), probes=True, reach="120 steps/s"),
    "online": Setting("strop-s-dinov3-s", (256, 512, 1024), online=True, reach="5,500 img/s"),
    "medium": Setting("strop-m-dinov3-s", (256, 512, 1024)),
    "clevr": Setting("clevr-64", (1024, 2048, 4096), reach="28,000 img/s"),
}
PROBES_REACH = "at most 10 % slower"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(SETTINGS), help="comma-separated settings")
    parser.add_argument("--batches", help="comma-separated, overrides the setting")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed per row")
    parser.add_argument("--probe-fraction", type=float, default=0.25)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "max", "off"])
    parser.add_argument(
        "--set", action="append", default=[], help="a setting of the preset, KEY=VALUE"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--name", default="train_throughput", help="of the JSON in results/")
    arguments = parser.parse_args()

    where = device()
    rows: list[dict[str, Any]] = []
    for name in arguments.only.split(","):
        setting = SETTINGS[name]
        batches = setting.batches
        if arguments.batches:
            batches = tuple(map(int, arguments.batches.split(",")))
        for batch in batches:
            try:
                measured = measure(name, setting, batch, arguments, where)
            except torch.OutOfMemoryError:
                console.print(f"{name} at batch {batch}: out of memory")
                continue
            finally:
                torch._dynamo.reset()
                gc.collect()
                if where.type == "cuda":
                    torch.cuda.empty_cache()
            for row in measured:
                console.print(
                    f"{name} batch {batch} phase {row['phase']}: "
                    f"{row['images_per_second']:,.0f} img/s, "
                    f"{row['steps_per_second']:.1f} steps/s, {row['tflops']:.0f} TFLOP/s "
                    f"({row['share_of_ceiling']:.0%}), {row['memory_gb']:.1f} GB, "
                    f"compiled in {row['seconds_to_compile']:.0f} s"
                )
            # After every setting, so that an interrupted run keeps its results.
            rows = save_rows(arguments.name, measured, ("setting", "batch", "phase"))
    show(rows)


def measure(
    name: str, setting: Setting, batch: int, arguments: argparse.Namespace, where: torch.device
) -> list[dict[str, Any]]:
    """Steady steps of one setting at one batch size, a row for each of its phases."""
    preset = load_preset(
        setting.preset,
        {
            "training.batch": batch,
            "training.compile": arguments.compile,
            "curriculum.probe_fraction": arguments.probe_fraction,
            **parse_assignments(arguments.set),
        },
    )
    preset = replace(preset, model=replace(preset.model, decoder=None))
    with sound_attention():  # as in a real run
        return measure_preset(preset, name, setting, arguments, where)


def measure_preset(
    preset: Preset,
    name: str,
    setting: Setting,
    arguments: argparse.Namespace,
    where: torch.device,
) -> list[dict[str, Any]]:
    """Time a configured preset; one row per phase."""
    batch = preset.training.batch
    torch.manual_seed(0)
    tokenizer = Tokenizer(preset.model).to(where).train()
    config = StepConfig(preset)
    loader = make_loader(preset, setting, where)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    stepper = Stepper(tokenizer, loader.field_of, config, device=where)
    phases = {1: 1}
    if setting.probes:
        phases[2] = config.curriculum.phase_ends[0]
    step = 1
    batches = loader.batches(step)

    def take() -> None:
        """One step of the training loop: draw, load, step."""
        nonlocal step
        stepper(next(batches), to_device(step_values(config, step), where), step)
        step += 1

    started = time.perf_counter()
    with preparing():
        loaded = next(batches)
        stepper.initialise_codebook(loaded)
        stepper.warm_up(loaded, to_device(step_values(config, step), where))
        for _ in range(WARM_STEPS + 3):
            take()
        wait(where)
    compiled_in = time.perf_counter() - started

    rows = []
    for phase, first in phases.items():
        step = first
        with alone():
            ceiling = matmul_ceiling(where)
            take()
            seconds = timed(take, arguments.seconds, where)
            if arguments.profile:
                profile(take, where)
        metrics = stepper.take_metrics()
        if not metrics["loss"] == metrics["loss"]:
            raise RuntimeError(f"{name}: the loss is not a number")
        images = batch / seconds
        flops = flops_per_image(preset, setting, phase, arguments.probe_fraction)
        rows.append(
            {
                "setting": name,
                "preset": setting.preset,
                "phase": phase,
                "batch": batch,
                "reach": setting.reach if phase == 1 else PROBES_REACH,
                "images_per_second": images,
                "steps_per_second": 1 / seconds,
                "gflop_per_image": flops / 1e9,
                "tflops": images * flops / 1e12,
                "matmul_tflops": ceiling / 1e12,
                "share_of_ceiling": images * flops / ceiling,
                "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if where.type == "cuda" else 0,
                "seconds_to_compile": compiled_in,
                "loss": metrics["loss"],
            }
        )
    return rows


class ResidentImages(FieldLoader):
    """uint8 images (n, 3, H, H) on the device; the teacher runs in the step."""

    def __init__(
        self, images: torch.Tensor, teacher: Callable[..., torch.Tensor], training: TrainingConfig
    ) -> None:
        super().__init__(len(images), training, Workers(), images.device)
        self.pixels, self.teacher = images, teacher

    def batches(self, step: int) -> Iterator[Loaded]:
        where = self.pixels.device
        while True:
            drawn = draw_versions(self.training, step)
            yield to_device(self.order.rows(step), where), to_device(drawn, where)
            step += 1

    def field_of(self, loaded: Loaded) -> torch.Tensor:
        rows, drawn = loaded
        return teacher_field(self.teacher, version_images(self.pixels[rows], drawn, self.training))


def make_loader(preset: Preset, setting: Setting, where: torch.device) -> FieldLoader:
    """A few batches of random data on the device, in the sources of the training loop."""
    model, training = preset.model, preset.training
    count = max(2 * training.batch, 256)
    if setting.online:
        size = model.image_size
        images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=where)
        name = model.teacher.name
        teacher = load_teacher(name if ":" in name else f"random:{name}").to(where)
        function = compiled_teacher(
            teacher, where.type == "cuda" and training.compile != "off", size
        )
        return ResidentImages(images, function, training)
    shape = (count, 2, model.grid**2, model.teacher.width)
    fields = torch.randn(shape, device=where, dtype=torch.bfloat16)
    return CachedFieldLoader(fields, training, Workers(), device=where)


def timed(take: Callable[[], None], budget: float, where: torch.device) -> float:
    """Median seconds per step, over rounds between two synchronisations."""
    wait(where)
    started = time.perf_counter()
    take()
    wait(where)
    rounds = max(1, int(budget / 5 / max(time.perf_counter() - started, 1e-6)))
    found = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(rounds):
            take()
        wait(where)
        found.append((time.perf_counter() - started) / rounds)
    return statistics.median(found)


def flops_per_image(preset: Preset, setting: Setting, phase: int, probe_fraction: float) -> float:
    """FLOPs of the matrix products of a training step: forward, and twice that for backward.

    They are counted from the architecture, independent of the implementation.
    """
    model = preset.model
    s, k = model.grid**2, model.max_length
    g, i, d_enc = model.generator, model.interpreter, model.teacher.width

    def linear(tokens: int, before: int, after: int) -> int:
        return 2 * tokens * before * after

    layer = linear(s + k, g.width, 4 * g.width) + 2 * linear(s + k, g.width, g.feedforward)
    attention = 4 * g.width * (s * s + k * (s + k))
    generator = g.depth * (layer + attention) + linear(s, d_enc, g.width)
    layer = 2 * linear(s, i.width, i.width) + 2 * linear(k, i.width, i.width)
    layer += 2 * linear(s, i.width, i.feedforward) + 4 * i.width * s * k
    interpreter = i.depth * layer + linear(s, i.width, d_enc)
    codes = linear(k, model.quantizer.code_width, model.quantizer.codes)
    total = 3.0 * (generator + interpreter + codes)
    if phase > 1:
        total += 2 * probe_fraction * interpreter
    if setting.online:
        total += 2 * s * teacher_parameters(f"random:{model.teacher.name}")
    return total


def matmul_ceiling(where: torch.device) -> float:
    """FLOP/s of a large matrix product, bf16 on a GPU, fp32 on a CPU."""
    size, kind = (8192, torch.bfloat16) if where.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=where, dtype=kind) for _ in range(2))
    for _ in range(3):
        a @ b
    wait(where)
    found = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(10):
            a @ b
        wait(where)
        found.append((time.perf_counter() - started) / 10)
    return 2 * size**3 / statistics.median(found)


def profile(take: Callable[[], None], where: torch.device) -> None:
    """Print the time of ten steps by kernel."""
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU]
    if where.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(10):
            take()
        wait(where)
    by = "self_cuda_time_total" if where.type == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=90))


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "setting", "batch", "phase", "img/s", "steps/s", "TFLOP/s", "of ceiling", "GB", "reach"
    )
    for row in rows:
        table.add_row(
            row["setting"],
            str(row["batch"]),
            "1" if row["phase"] == 1 else "2 to 4",
            f"{row['images_per_second']:,.0f}",
            f"{row['steps_per_second']:.1f}",
            f"{row['tflops']:.0f}",
            f"{row['share_of_ceiling']:.0%}",
            f"{row['memory_gb']:.1f}",
            row["reach"],
        )
    console.print(table)


def wait(where: torch.device) -> None:
    """Wait until the device has finished."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)


if __name__ == "__main__":
    main()
