"""Scenes on disk in CLEVR's layout, with masks and depth beside the images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from strop.data.pool import default_context
from strop.data.record import Record
from strop.data.scenes.dataset import ScenesDataset
from strop.data.scenes.render import RENDERER_VERSION
from strop.errors import DataError
from strop.files import PathLike, atomic_path, read_json, write_json, write_text

Progress = Callable[[int, int], None]
"""Called with the number of scenes done and of all."""

_FORMAT = ("scenes", 1)
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
    progress: Progress | None = None,
) -> Path:
    """Render `n` scenes into the folder `out` and return the path of the scenes file.

    images/<split>/CLEVR_<split>_000000.png   RGB
    masks/<split>/CLEVR_<split>_000000.png    8-bit instance ids, 0 for the background
    depth/<split>/CLEVR_<split>_000000.png    16-bit millimetres, 0 for the backdrop
    scenes/CLEVR_<split>_scenes.json          all descriptions, written last
    scenes/<split>/CLEVR_<split>_000000.json  each description as it is made

    With `workers`, so many processes of one thread each share the work; on CPUs that is faster
    than threads. Called again, it goes on where it was stopped: a scene whose own description
    is there is whole. A folder written with another seed, size, start or renderer is refused. The
    scenes file lists every scene that is there, also those past `n` of a longer run.
    """
    folder = Path(out)
    height, width = (size, size) if isinstance(size, int) else size
    dataset = ScenesDataset(n, seed=seed, size=size, start=start, split=split)
    settings = {
        "split": split,
        "seed": seed,
        "start": start,
        "size": [height, width],
        "renderer": RENDERER_VERSION,
    }
    _claim(folder, split, settings)
    todo = [i for i in range(n) if not _part(folder, "scenes", split, start + i, ".json").exists()]
    chunks = [todo[first : first + batch_size] for first in range(0, len(todo), batch_size)]
    job = partial(_write_chunk, folder, dataset, device=device)
    done = n - len(todo)
    if progress is not None:
        progress(done, n)
    for written in _run(job, chunks, workers, device):
        done += written
        if progress is not None:
            progress(done, n)
    return _collect(folder, split, {**_INFO, **settings})


def _run(
    job: Callable[[list[int]], int],
    chunks: Sequence[list[int]],
    workers: int,
    device: torch.device | str,
) -> Iterator[int]:
    """How many scenes each chunk wrote, as they finish."""
    if workers < 1:
        yield from map(job, chunks)
        return
    with ProcessPoolExecutor(
        workers, default_context(device), initializer=torch.set_num_threads, initargs=(1,)
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


def _claim(folder: Path, split: str, settings: dict[str, Any]) -> None:
    """Refuse a folder that holds other scenes; mark an empty one as ours."""
    marker = folder / "scenes" / split / "info.json"
    if marker.exists():
        held = read_json(marker, *_FORMAT)
        for name, value in settings.items():
            if held.get(name) != value:
                raise DataError(
                    f"{folder} holds scenes with {name} {held.get(name)}, not {value}.",
                    "Choose another folder or split, or remove this one.",
                )
    else:
        write_json(marker, *_FORMAT, settings)


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


def _collect(folder: Path, split: str, info: dict[str, Any]) -> Path:
    """Put all descriptions that are there into one file, as CLEVR has them."""
    own = re.compile(rf"CLEVR_{re.escape(split)}_(\d+)\.json")
    found = {
        int(match[1]): path
        for path in (folder / "scenes" / split).iterdir()
        if (match := own.fullmatch(path.name))
    }
    scenes = []
    for _, path in sorted(found.items()):
        try:
            scenes.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(
                f"{path} is not valid JSON ({error}).", "Remove it, and its scene is made again."
            ) from error
    path = folder / "scenes" / f"CLEVR_{split}_scenes.json"
    write_text(path, json.dumps({"info": info, "scenes": scenes}) + "\n")
    return path
