"""`strop encode FILES` beside its two halves: reading alone, and encoding alone.

All three are whole commands, from the start of the process to its end, taken in turn and repeated.
Reading alone is what worker processes do: read, decode and resize. Encoding alone starts from
squares that were read before, eight at a time. Both take a process of one thread for each core. The
share is the rate of the whole command over that of the slower half, by wall time and by the CPU
time of all processes, which depends less on other load: the least of each.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from common import in_processes, save
from strop.model.checkpoint import load
from strop.model.length_rule import LengthRule
from strop.squares import read_squares, reading_workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="photos")
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480))
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--half", choices=["read", "encode"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.half:
        run_half(arguments.half, arguments.folder, arguments.model, arguments.engine)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_files(folder, arguments.files, *arguments.size)
        own = [sys.executable, __file__, "--folder", scratch, "--model", arguments.model]
        own += ["--engine", arguments.engine]
        whole = [sys.executable, "-m", "strop", "encode", str(folder / "images")]
        whole += ["-o", str(folder / "programs.parquet"), "-m", arguments.model]
        whole += ["--engine", arguments.engine]
        commands = {
            "read": [*own, "--half", "read"],
            "encode": [*own, "--half", "encode"],
            "whole": whole,
        }
        subprocess.run(commands["read"], check=True)  # writes the squares
        times: dict[str, list[float]] = {name: [] for name in commands}
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.repeat):
            for name, command in commands.items():
                start, before = time.perf_counter(), _cpu_seconds()
                subprocess.run(command, check=True, capture_output=True)
                times[name].append(time.perf_counter() - start)
                spent[name].append(_cpu_seconds() - before)
    rates = {name: arguments.files / min(samples) for name, samples in times.items()}
    per_cpu = {name: arguments.files / min(samples) for name, samples in spent.items()}
    slower = min(("read", "encode"), key=rates.__getitem__)
    shares = {"wall": rates["whole"] / rates[slower], "cpu": per_cpu["whole"] / per_cpu[slower]}
    print(rates, per_cpu, shares, times)
    width, height = arguments.size
    suffix = f"_{arguments.engine}" if arguments.engine != "torch" else ""
    save(
        f"files{suffix}_{'cuda' if torch.cuda.is_available() else 'cpu'}",
        {
            "setting": f"{arguments.files} JPEG files of {width} x {height} pixels, "
            f"{arguments.model}, engine {arguments.engine}",
            "files_per_s": rates,
            "files_per_cpu_s": per_cpu,
            "whole_over_slower_half": shares["wall"],
            "whole_over_slower_half_by_cpu_time": shares["cpu"],
            "slower_half": slower,
        },
    )


def _cpu_seconds() -> float:
    """The CPU time of all commands so far, with their processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_files(folder: Path, count: int, width: int, height: int) -> None:
    """JPEG files cut from two photographs, no two alike."""
    photographs = [Image.fromarray(each) for each in load_sample_images().images]
    (folder / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        left, top = random.integers(0, 100, 2)
        photograph = photographs[number % 2].crop((left, top, 540 + left, 327 + top))
        path = folder / "images" / f"{number:06d}.jpg"
        photograph.resize((width, height)).save(path, quality=90)


def run_half(half: str, folder: Path, model: str, engine: str) -> None:
    """Read all files and keep the squares, or encode the squares that were kept."""
    stored = folder / "squares.npy"
    if half == "read":
        files = sorted(map(str, (folder / "images").iterdir()))
        read = read_squares(files, 256, workers=reading_workers(len(files)), ahead=96)
        np.save(stored, torch.stack([square for _, square in read]).numpy())
        return
    tokenizer = load(model, engine=engine)
    squares = torch.from_numpy(np.load(stored, mmap_mode="c"))
    if tokenizer.device.type != "cpu":
        tokenizer.encode_batches(squares.split(32), LengthRule())
        return
    torch.set_num_threads(1)
    parts = squares.split(8)
    in_processes(lambda number: tokenizer.encode_batches([parts[number]], LengthRule()), len(parts))


if __name__ == "__main__":
    main()
