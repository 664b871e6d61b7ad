"""Loading speed from a folder, tar shards and a packed file, on two cores.

The reference is a single-process Pillow loop over the same files that does the same work: open,
decode, convert to RGB, resize to 256 by 256, convert to an array. A second reference only decodes.
Every round runs all of them, and the best round of each counts, because other load only makes them
slower. Results are ratios; images per second depend on the machine.

    python benchmarks/loading.py
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from common import save
from strop.data import Loader, open_dataset, pack_dataset

SIZE = 256
BARS = {"folder, 2 workers": 1.7, "packed": 20.0}


def make_images(folder: Path, count: int) -> None:
    """JPEGs of 500 x 375 with the file size of photographs."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noise = rng.integers(-12, 13, (375, 500, 3))
        pixels = (np.asarray(smooth).astype(np.int16) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05d}.jpg", quality=90)


def make_shards(folder: Path, images: Path, per_shard: int = 200) -> None:
    """The same files in tar archives."""
    folder.mkdir()
    paths = sorted(images.iterdir())
    for start in range(0, len(paths), per_shard):
        with tarfile.open(folder / f"{start:05d}.tar", "w") as tar:
            for path in paths[start : start + per_shard]:
                info = tarfile.TarInfo(path.name)
                content = path.read_bytes()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def pillow_loop(paths: list[Path], resize: bool) -> Callable[[], int]:
    """A plain Pillow loop."""

    def run() -> int:
        for path in paths:
            with Image.open(path) as image:
                picture = image.convert("RGB")
                if resize:
                    picture = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
                np.asarray(picture)
        return len(paths)

    return run


def epochs(spec: str, workers: int, loops: int = 1) -> Callable[[], int]:
    """Epochs of a loader whose workers are already running."""
    loader = Loader(open_dataset(spec), batch_size=64, size=SIZE, workers=workers, shuffle=True)

    def run() -> int:
        count = sum(len(batch) for _ in range(loops) for batch in loader)
        assert not loader.broken
        return count

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_images(root / "images", options.images)
        make_shards(root / "shards", root / "images")
        pack_dataset(f"folder:{root}/images", root / "packed", size=SIZE, workers=2)
        paths = sorted((root / "images").iterdir())
        kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1024
        runs = {
            "Pillow loop": pillow_loop(paths, resize=True),
            "Pillow loop, decode only": pillow_loop(paths, resize=False),
            "folder, in process": epochs(f"folder:{root}/images", 0),
            "folder, 2 workers": epochs(f"folder:{root}/images", 2),
            "tar shards, 2 workers": epochs(f"shards:{root}/shards", 2),
            "packed": epochs(f"packed:{root}/packed", 0, loops=20),
        }
        best = dict.fromkeys(runs, 0.0)
        for run in runs.values():
            run()  # fill the page cache and start the workers
        for _ in range(options.rounds):
            for name, run in runs.items():
                began = time.perf_counter()
                count = run()
                best[name] = max(best[name], count / (time.perf_counter() - began))
    plain, decode = best["Pillow loop"], best["Pillow loop, decode only"]
    table = Table("source", "times Pillow loop", "bar", "times decode only", "images/s")
    for name, rate in best.items():
        bar = f"{BARS[name]:g}" if name in BARS else ""
        table.add_row(name, f"{rate / plain:.2f}", bar, f"{rate / decode:.2f}", f"{rate:,.0f}")
    Console().print(table)
    save(
        "loading",
        {
            "setting": f"{options.images} JPEGs of 500 x 375 ({kilobytes:.0f} KB) to {SIZE} px",
            "times_pillow_loop": {name: round(rate / plain, 2) for name, rate in best.items()},
            "times_decode_only": {name: round(rate / decode, 2) for name, rate in best.items()},
            "images_per_s": {name: round(rate) for name, rate in best.items()},
            "bars": BARS,
            "bars_hold": {name: best[name] / plain >= bar for name, bar in BARS.items()},
        },
    )


if __name__ == "__main__":
    main()
