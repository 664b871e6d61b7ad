"""Shared options of the commands, and how the command line ends."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError

from strop import Program
from strop.cli import console
from strop.device import check_device, choose_device
from strop.errors import ConfigError, DataError
from strop.listing import find_images

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device", "a.jsonl"), SafetensorError("No space left")],
)
def test_a_full_disk_is_reported(
    error: Exception, run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Program, "save", fail)
    status, out, err = run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl")
    assert (status, out) == (1, "")
    assert "No space left" in err
    assert "Traceback" not in err


def test_an_interrupt_ends_quietly(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "save", interrupt)
    status, out, err = run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl")
    assert (status, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        (0, "cuda", "no GPU"),
        (1, "cuda:1", "1 GPU here"),
        (2, "cuda:2", "2 GPUs here"),
        (2, "meta", "cpu or cuda"),
        (2, "mps", "cpu or cuda"),
        (2, "gpu", "cpu or cuda"),
    ],
)
def test_missing_devices_are_refused(gpus: int, device: str, message: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ConfigError, match=message):
        check_device(device)


def test_available_devices_are_accepted(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name) for name in (None, "cpu", "cuda", "cuda:1")] == [
        None,
        "cpu",
        "cuda",
        "cuda:1",
    ]
    for there, chosen in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(None) == chosen
        assert choose_device("cpu") == "cpu"


def test_progress_bars_draw_one_bar_for_each_task(monkeypatch) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(console, "err", shown)
    with console.progress_bars() as progress:
        progress("fields", 3, 7)
        progress("training: loss 0.50", 1, 20)
        progress("training: loss 0.25", 20, 20)
    text = shown.file.getvalue()
    assert "fields" in text
    assert "3/7" in text
    assert "loss 0.25" in text
    assert "20/20" in text
    assert "loss 0.50" not in text.rsplit("fields", 1)[1]


def test_without_a_report_nothing_is_drawn(monkeypatch) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(console, "err", shown)
    with console.progress_bars():
        pass
    assert not shown.file.getvalue()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("~no-such-user/x.png", "home directory"), ("a\0*.png", "NUL"), (" ", "A path is empty")],
)
def test_impossible_paths_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_images([pattern])
