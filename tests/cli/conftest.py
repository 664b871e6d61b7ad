"""A small model, a few images, and a fixture that runs the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from strop import Tokenizer, cli
from strop.images import save_image
from strop.training.preset import load_preset

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call the command line: exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["strop", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    Tokenizer(load_preset("strop-nano").model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="package")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(1)
    for number in range(3):
        save_image(folder / "inner" / f"{number}.png", torch.rand(3, 40, 60))
    return folder
