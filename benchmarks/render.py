"""Rendering speed at 128 px.

A GPU runs the dense renderer compiled, a CPU the sparse one, in one process per
core as `strop data scenes` and loaders with workers do. CPU results assume an idle machine.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import device, machine, save, seconds
from strop.pool import cores
from strop.scenes import render, sample_scenes, truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--images", type=int, help="per call (default 256 on a GPU, 12 on a CPU)")
    parser.add_argument("--workers", type=int, default=cores())
    arguments = parser.parse_args()
    where = device()
    gpu = where.type == "cuda"
    images = arguments.images or (256 if gpu else 12)
    if not gpu:
        torch.set_num_threads(1)
    scenes = sample_scenes(0, range(images), where)

    start = time.perf_counter()
    render(scenes, arguments.size)
    if gpu:
        torch.cuda.synchronize()
    compile_seconds = time.perf_counter() - start
    times = {"whole": seconds(partial(render, scenes, arguments.size), repeat=3) / images}
    times["masks and depth"] = seconds(partial(truth, scenes, arguments.size), repeat=3) / images
    start = time.perf_counter()
    many = 4096 if gpu else 64
    sample_scenes(1, range(many), where)
    if gpu:
        torch.cuda.synchronize()
        start = time.perf_counter()
        sample_scenes(2, range(many), where)
        torch.cuda.synchronize()
    times["sampling scenes"] = (time.perf_counter() - start) / many

    whole = times["whole"]
    result: dict[str, Any] = {
        "size": arguments.size,
        "images_per_call": images,
        "renderer": "dense, compiled" if gpu else "sparse, eager, one thread",
        "relative": {name: value / whole for name, value in times.items()},
        "images_per_s": 1.0 / whole,
        "images_per_s_with_sampling": 1.0 / (whole + times["sampling scenes"]),
    }
    if gpu:
        result["microseconds_per_image"] = {k: v * 1e6 for k, v in times.items()}
        result["compile_s"] = compile_seconds
        result["target_images_per_s"] = 2000
    else:
        result["workers"] = arguments.workers
        result["images_per_s_all_workers"] = _with_workers(arguments.workers, arguments.size)
        result["target_images_per_s"] = 5

    print_table(result)
    save(f"render_{where.type}", result)


def _with_workers(workers: int, size: int, chunks: int = 6, chunk: int = 8) -> float:
    """Images per second in `workers` running processes, including sampling."""
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        list(pool.map(_make, [(size, 0, 1)] * workers * 2))
        start = time.perf_counter()
        jobs = [(size, index * chunk, chunk) for index in range(workers * chunks)]
        list(pool.map(_make, jobs))
        return workers * chunks * chunk / (time.perf_counter() - start)


def _make(job: tuple[int, int, int]) -> int:
    size, first, count = job
    return len(render(sample_scenes(0, range(first, first + count)), size))


def print_table(result: dict[str, Any]) -> None:
    where = machine()
    table = Table(title=f"{where['device']}, {result['size']} px, {result['renderer']}")
    table.add_column("task")
    table.add_column("time, relative to rendering", justify="right")
    for name in ("sampling scenes", "masks and depth"):
        table.add_row(name, f"{result['relative'][name]:.0%}")
    console = Console()
    console.print(table)
    console.print(
        f"{result['images_per_s']:,.1f} images/s, {result['images_per_s_with_sampling']:,.1f} with "
        f"sampling (target {result['target_images_per_s']:,})"
    )
    if "images_per_s_all_workers" in result:
        console.print(
            f"{result['images_per_s_all_workers']:,.1f} images/s with sampling in "
            f"{result['workers']} processes on {where['cores']} cores"
        )


if __name__ == "__main__":
    main()
