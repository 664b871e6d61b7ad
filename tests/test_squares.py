"""Files read into squares, in this process and in workers."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from strop.errors import DataError, ImageError
from strop.images import read_square
from strop.pool import Pool
from strop.squares import read_squares, reading_workers


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Twenty images of different sizes; one is damaged and one missing."""
    random = np.random.default_rng(0)
    found = [tmp_path / f"{number:02d}.png" for number in range(20)]
    for number, path in enumerate(found):
        pixels = random.integers(0, 256, (20 + number, 30 + 2 * number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    found[7].write_bytes(b"not an image")
    found[12].unlink()
    return found


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("ahead", [1, 64])
def test_squares_come_in_order_and_errors_with_them(
    paths: list[Path], workers: int, ahead: int
) -> None:
    found = list(read_squares(paths, 32, "crop", workers=workers, ahead=ahead))
    assert [name for name, _ in found] == [str(path) for path in paths]
    for number, (name, square) in enumerate(found):
        if number in (7, 12):
            assert isinstance(square, ImageError)
            assert name in str(square)
        else:
            assert isinstance(square, torch.Tensor)
            assert torch.equal(square, read_square(paths[number], 32, "crop"))


def test_bytes_are_read_too(paths: list[Path]) -> None:
    ((name, square),) = read_squares([paths[0].read_bytes()], 16)
    assert name == "the image"
    assert torch.equal(square, read_square(paths[0], 16))


def test_sources_are_drawn_as_late_as_promised(paths: list[Path]) -> None:
    drawn = itertools.count()
    endless = (paths[0] for _ in drawn)
    reading = read_squares(endless, 16, workers=1, ahead=8)
    for _ in range(5):
        next(reading)
    reading.close()
    assert next(drawn) <= 5 + 8 + 4


def test_warnings_of_workers_are_given_here(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 255)]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    with pytest.warns(UserWarning, match="is animated"):
        list(read_squares([tmp_path / "two.gif"], 16, workers=1))


def test_a_dead_worker_is_reported(paths: list[Path]) -> None:
    before = {process.pid for process in multiprocessing.active_children()}
    reading = read_squares(itertools.repeat(paths[0]), 16, workers=1)
    next(reading)
    (worker,) = (each for each in multiprocessing.active_children() if each.pid not in before)
    worker.kill()
    with pytest.raises(DataError, match="died"):
        list(reading)


def test_a_worker_reads_files_itself() -> None:
    pool = Pool(reading_workers, workers=1)
    assert next(pool.map([10**6], 1)) == 0
    pool.close()


def test_few_files_are_read_without_workers() -> None:
    assert reading_workers(3) == 0
    assert reading_workers(10**6) <= 16
