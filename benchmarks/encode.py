"""Throughput from uint8 images on the device: the teacher alone, and `encode`.

A DINOv3-S with random weights and STROP-S, 256 px. On a GPU both run compiled in half precision, on
a CPU in fp32 and eager. CPU results are only meaningful as a ratio.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from common import device, machine, save, side_by_side
from strop import Tokenizer
from strop.model.teacher import TeacherConfig
from strop.training.preset import load_preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()

    where = device()
    torch.manual_seed(0)
    config = replace(
        load_preset("strop-s-dinov3-s").model,
        teacher=TeacherConfig(name="random:dinov3-s", width=384),
    )
    tokenizer = Tokenizer(config).to(where).eval()

    def teacher(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(where.type, torch.float16, enabled=where.type == "cuda"):
            return tokenizer.teacher(images)

    if where.type == "cuda":
        tokenizer.compile(fullgraph=True, dynamic=False)
        teacher = torch.compile(teacher, fullgraph=True, dynamic=False)

    rows = []
    for batch in arguments.batches:
        images = torch.randint(0, 256, (batch, 3, 256, 256), dtype=torch.uint8, device=where)
        calls = {
            "teacher": lambda images=images: teacher(images),
            "encode": lambda images=images, batch=batch: tokenizer.encode(images, batch=batch),
        }
        with torch.no_grad():
            times = side_by_side(calls, repeat=arguments.repeat)
        # The minimum: other load only makes a call slower.
        alone, whole = min(times["teacher"]), min(times["encode"])
        rows.append(
            {
                "batch": batch,
                "teacher_images_per_s": batch / alone,
                "encode_images_per_s": batch / whole,
                "encode_over_teacher_time": whole / alone,
            }
        )

    table = Table(
        "batch",
        "teacher img/s",
        "encode img/s",
        "time ratio",
        title=f"encode on {machine()['device']}, {machine()['cores']} cores",
    )
    for row in rows:
        table.add_row(
            str(row["batch"]),
            f"{row['teacher_images_per_s']:,.1f}",
            f"{row['encode_images_per_s']:,.1f}",
            f"{row['encode_over_teacher_time']:.2f}",
        )
    Console().print(table)
    save(f"encode_{where.type}", {"setting": "STROP-S on DINOv3-S's shape, 256 px", "rows": rows})


if __name__ == "__main__":
    main()
