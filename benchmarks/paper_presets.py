"""Train every preset of the paper for a few steps: its own sizes and batch, all phases.

    python benchmarks/paper_presets.py --steps 200
    python benchmarks/paper_presets.py --only strop-m-dinov3-l

The teacher has the right architecture with random weights and runs in every step. The phases are
compressed into `--steps`. The images are noise: only speed, memory and finite, falling losses are
meaningful.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import device, save_rows
from strop.data.record import Batch, Record, stack
from strop.training.callbacks import read_metrics
from strop.training.loop import train
from strop.training.preset import load_preset

PRESETS = (
    "strop-s-dinov3-s",
    "strop-m-dinov3-s",
    "strop-s-dinov3-b",
    "strop-m-dinov3-b",
    "strop-m-dinov3-l",
    "clevr-32",
    "clevr-64",
    "clevr-128",
    "clevr-64-fixed",
    "clevr-128-fixed",
)
console = Console()


class Noise:
    """Smooth random images, determined by their index."""

    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    name = "noise"

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        generator = torch.Generator().manual_seed(index)
        coarse = torch.rand(1, 3, 8, 8, generator=generator)
        image = torch.nn.functional.interpolate(coarse, (self.size, self.size), mode="bilinear")
        return Record(image=(image[0] * 255).to(torch.uint8), name=str(index))

    def batch(self, indices: Sequence[int]) -> Batch:
        return stack([self[index] for index in indices], indices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PRESETS), help="comma-separated presets")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, help="overrides the preset's batch")
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "max", "off"])
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.only.split(","):
        row = run(name, arguments)
        console.print({key: row[key] for key in ("preset", "finished", "images_per_second")})
        rows = save_rows("paper_presets", [row], ("preset",))
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    table = Table("preset", "batch", "phases seen", "loss", "to", "img/s", "GB")
    for row in rows:
        table.add_row(
            row["preset"],
            str(row["batch"]),
            ", ".join(map(str, row["phases"])),
            f"{row['first_loss']:.3f}",
            f"{row['last_loss']:.3f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['memory_gb']:.1f}",
        )
    console.print(table)


def run(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one preset, with checkpoints and the model folder."""
    changes: dict[str, Any] = {
        "training.steps": arguments.steps,
        "training.compile": arguments.compile,
        "training.log_every": max(1, arguments.steps // 20),
    }
    if arguments.batch:
        changes["training.batch"] = arguments.batch
    preset = load_preset(name, changes)
    teacher = replace(preset.model.teacher, name=f"random:{preset.model.teacher.name}", scale=0.38)
    preset = replace(preset, model=replace(preset.model, teacher=teacher))
    images = Noise(max(1024, 4 * preset.training.batch), preset.model.image_size)
    where = device()
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        result = train(preset, images, out=folder, device=where, loading_workers=4)
        lines = read_metrics(Path(folder) / "metrics.jsonl")
        written = (Path(folder) / "model" / "model.safetensors").is_file()
    logs = [line for line in lines if line["kind"] == "training"]
    rates = sorted(line["images_per_second"] for line in logs)
    memory = torch.cuda.max_memory_allocated() / 1e9 if where.type == "cuda" else 0.0
    return {
        "preset": name,
        "steps": result.step,
        "compile": arguments.compile,
        "batch": preset.training.batch,
        "finished": result.finished,
        "model_written": written,
        "phases": sorted({int(line["phase"]) for line in logs}),
        "first_loss": logs[0]["loss"],
        "last_loss": logs[-1]["loss"],
        "images_per_second": rates[len(rates) // 2],
        "memory_gb": memory,
        "trainable_parameters": result.tokenizer.trainable_parameters,
        "validation": result.metrics,
    }


if __name__ == "__main__":
    main()
