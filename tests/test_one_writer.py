"""Everything that writes a folder refuses one that another process is writing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import strop.data
from strop.analysis.evaluate import evaluate
from strop.analysis.frame import run_study
from strop.cli import app
from strop.data.pack import pack_dataset
from strop.errors import BusyError
from strop.files import exclusive
from strop.images import save_image
from strop.model.tokenizer import Tokenizer
from strop.training.loop import train
from strop.training.sweep import sweep


@pytest.fixture
def lock() -> Iterator[Callable[[Path], None]]:
    """Locks folders like another process would: by another thread."""
    stop = threading.Event()
    threads = []

    def hold(folder: Path) -> None:
        locked = threading.Event()

        def wait() -> None:
            with exclusive(folder):
                locked.set()
                stop.wait()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        assert locked.wait(10)

    yield hold
    stop.set()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(images, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, image in enumerate(images):
        save_image(folder / f"{number}.png", image.float() / 255)
    return folder


WRITERS = {
    "save": lambda tokenizer, folder, data: tokenizer.save_pretrained(folder),
    "train": lambda tokenizer, folder, data: train("strop-nano", data, out=folder),
    "sweep": lambda tokenizer, folder, data: sweep(
        "strop-nano", data, {"training.seed": [0]}, out=folder, validation="scenes:?n=4"
    ),
    "study": lambda tokenizer, folder, data: run_study(tokenizer, "codes", data, folder),
    "eval": lambda tokenizer, folder, data: evaluate(tokenizer, [data], folder, suites=["rate"]),
    "scenes": lambda tokenizer, folder, data: strop.data.write_scenes(
        folder.parents[1], 1, 16, split=folder.name
    ),
    "pack": lambda tokenizer, folder, data: pack_dataset(data, folder.with_suffix(""), size=16),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_second_writer_is_refused_before_it_writes(
    writer: str, tokenizer: Tokenizer, pictures: Path, tmp_path: Path, lock: Callable
) -> None:
    folder = tmp_path / "scenes" / "out.partial"
    lock(folder)
    with pytest.raises(BusyError, match=f"{folder} is being written by process"):
        WRITERS[writer](tokenizer, folder, f"folder:{pictures}")
    assert [each.name for each in folder.iterdir()] == [".strop-lock"]


@pytest.mark.parametrize("command", [["train-decoder"], ["train-lengths"]])
def test_a_model_that_is_being_written_is_not_trained(
    command: list[str], model: Path, pictures: Path, lock: Callable
) -> None:
    lock(model)
    result = CliRunner().invoke(app, [*command, str(model), "--data", str(pictures)])
    assert isinstance(result.exception, BusyError)
