"""`strop study`."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from strop.cli.study import parse_options
from strop.errors import ConfigError


def test_json_markdown_and_figures_are_written(run, model, tmp_path):
    status, out, err = run(
        "study", model, "codes", "--data", "scenes:?n=3", "--out", tmp_path, "--draws", 3
    )
    assert status == 0, err
    assert "active_codes" in out
    found = json.loads((tmp_path / "codes.json").read_text())
    assert found["options"]["draws"] == 3
    assert found["images"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {
        "codes.json",
        "codes.md",
        "codes-usage.png",
        "codes-dictionary.png",
        "dictionary",
    }


def test_json_on_stdout_is_what_was_written(run, model, tmp_path):
    arguments = ("--data", "scenes:?n=3", "--out", tmp_path, "--draws=3", "--json")
    status, out, err = run("study", model, "complexity", *arguments)
    assert status == 0, err
    assert json.loads(out) == json.loads((tmp_path / "complexity.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nonsense",), "There is no study 'nonsense'"),
        (("codes", "--pags", "3"), "Unknown key codes.pags"),
        (("codes", "--pages", "many"), "codes.pages is 'many'"),
        (("codes", "loose"), "'loose' is not an option"),
    ],
)
def test_mistakes_are_told_in_a_sentence(run, model, tmp_path, arguments, complaint):
    name, *rest = arguments
    out = tmp_path / "out"
    status, _, err = run("study", model, name, "--data", "scenes:?n=2", "--out", out, *rest)
    assert status == 1
    assert complaint in err
    assert not out.exists()


def test_help_names_every_study(run):
    status, out, _ = run("study", "--help")
    assert status == 0
    assert all(f"{name}:" in out for name in ("erasure", "synergy", "controls"))


@dataclass
class Some:
    base_url: str = ""
    sizes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    think: bool = False
    draws: int = 1


def test_options_are_parsed_by_their_type():
    words = "--base-url 80 --think --sizes 32,64 --names a,7 --draws=-2"
    assert parse_options(Some, words.split()) == {
        "base_url": "80",
        "think": True,
        "sizes": [32, 64],
        "names": ["a", "7"],
        "draws": -2,
    }
    with pytest.raises(ConfigError):
        parse_options(Some, ["stray"])
