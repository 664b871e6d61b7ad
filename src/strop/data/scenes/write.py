"""Scenes on disk in CLEVR's layout, with masks and depth beside the images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from strop.data.record import Record
from strop.data.scenes.dataset import ScenesDataset
from strop.errors import DataError
from strop.files import PathLike, atomic_path, write_text

_INFO = {"version": "1.0", "license": "Apache-2.0", "source": "strop.data.scenes"}


def write_scenes(
    out: PathLike,
    n: int = 10_000,
    size: int | tuple[int, int] = 128,
    seed: int = 0,
    split: str = "train",
    *,
    start: int = 0,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: bool = True,
) -> Path:
    """Render `n` scenes into the folder `out` and return the path of the scenes file.

    images/<split>/CLEVR_<split>_000000.png   RGB
    masks/<split>/CLEVR_<split>_000000.png    8-bit instance ids, 0 for the background
    depth/<split>/CLEVR_<split>_000000.png    16-bit millimetres, 0 for the backdrop
    scenes/CLEVR_<split>_scenes.json          all descriptions, written last
    scenes/<split>/CLEVR_<split>_000000.json  each description as it is made

    With `workers`, so many processes of one thread each share the work; on CPUs that is faster
    than threads. Called again, it goes on where it was stopped: a scene whose own description
    is there is whole. A folder written with another seed, size or start is refused.
    """
    folder = Path(out)
    height, width = (size, size) if isinstance(size, int) else size
    info = {**_INFO, "split": split, "seed": seed, "start": start, "size": [height, width]}
    _claim(folder, split, info)
    todo = [i for i in range(n) if not _part(folder, "scenes", split, start + i, ".json").exists()]
    chunks = [todo[first : first + batch_size] for first in range(0, len(todo), batch_size)]
    job = partial(
        _write_chunk,
        folder,
        ScenesDataset(n, seed=seed, size=size, start=start, split=split),
        device=device,
    )
    bar = Progress(
        TextColumn("scenes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        disable=not progress,
    )
    with bar:
        task = bar.add_task("scenes", total=n, completed=n - len(todo), rate="")
        for written in _run(job, chunks, workers):
            bar.advance(task, written)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed:.1f} images/s" if speed else "")
    return _collect(folder, split, [start + i for i in range(n)], info)


def _run(
    job: Callable[[list[int]], int], chunks: Sequence[list[int]], workers: int
) -> Iterator[int]:
    """How many scenes each chunk wrote, as they finish."""
    if workers < 1:
        yield from map(job, chunks)
        return
    # Forking a process that has used torch's threads or a GPU is not safe.
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in as_completed([pool.submit(job, chunk) for chunk in chunks]):
            yield done.result()


def _write_chunk(
    folder: Path, dataset: ScenesDataset, indices: list[int], device: torch.device | str
) -> int:
    for record in dataset.records(indices, device):
        _write(folder, dataset.split, record)
    return len(indices)


def _part(folder: Path, kind: str, split: str, number: int, suffix: str = ".png") -> Path:
    return folder / kind / split / f"CLEVR_{split}_{number:06d}{suffix}"


def _claim(folder: Path, split: str, info: dict[str, Any]) -> None:
    """Refuse a folder that holds other scenes; mark an empty one as ours."""
    marker = folder / "scenes" / split / "info.json"
    if marker.exists():
        held = json.loads(marker.read_text(encoding="utf-8"))
        for name in ("seed", "start", "size"):
            if held.get(name) != info[name]:
                raise DataError(
                    f"{folder} holds scenes with {name} {held.get(name)}, not {info[name]}.",
                    "Choose another folder or split, or remove this one.",
                )
    else:
        write_text(marker, json.dumps(info) + "\n")


def _write(folder: Path, split: str, record: Record) -> None:
    """Write one record. Its description comes last: it says that the rest is whole."""
    assert record.scene is not None
    assert record.instance is not None
    assert record.depth is not None
    number = int(record.scene["image_index"])
    _save(record.image.permute(1, 2, 0).cpu().numpy(), _part(folder, "images", split, number))
    _save(record.instance.to(torch.uint8).cpu().numpy(), _part(folder, "masks", split, number))
    millimetres = (record.depth * 1000.0).round().clamp(0, 65535).cpu().numpy()
    _save(millimetres.astype(np.uint16), _part(folder, "depth", split, number))
    write_text(_part(folder, "scenes", split, number, ".json"), json.dumps(record.scene) + "\n")


def _save(pixels: np.ndarray[Any, Any], path: Path) -> None:
    with atomic_path(path) as temporary:
        Image.fromarray(np.ascontiguousarray(pixels)).save(temporary, format="PNG")


def _collect(folder: Path, split: str, numbers: Sequence[int], info: dict[str, Any]) -> Path:
    """Put all descriptions into one file, as CLEVR has them."""
    scenes = [
        json.loads(_part(folder, "scenes", split, number, ".json").read_text(encoding="utf-8"))
        for number in numbers
    ]
    path = folder / "scenes" / f"CLEVR_{split}_scenes.json"
    write_text(path, json.dumps({"info": info, "scenes": scenes}) + "\n")
    return path
