"""What the commands share, and how the command line ends."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from strop import Program
from strop.device import check_device, choose_device
from strop.errors import ConfigError

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device", "a.jsonl"), SafetensorError("No space left")],
)
def test_a_full_disk_is_told_in_a_sentence(
    error: Exception, run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Program, "save", fail)
    status, out, err = run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl")
    assert (status, out) == (1, "")
    assert "No space left" in err
    assert "Traceback" not in err


def test_an_interrupt_ends_quietly(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "save", interrupt)
    status, out, err = run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl")
    assert (status, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("gpus", "device", "told"),
    [
        (0, "cuda", "no GPU"),
        (1, "cuda:1", "1 GPU here"),
        (2, "cuda:2", "2 GPUs here"),
        (2, "meta", "cpu or cuda"),
        (2, "mps", "cpu or cuda"),
        (2, "gpu", "cpu or cuda"),
    ],
)
def test_devices_that_are_not_here(gpus: int, device: str, told: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ConfigError, match=told):
        check_device(device)


def test_devices_that_are_here(monkeypatch) -> None:
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
