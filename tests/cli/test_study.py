"""`strop study`."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from strop.analysis.frame import Analysis, describe_options, find_analysis
from strop.analysis.registry import STUDIES, Entry
from strop.cli import study


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
    ("arguments", "status", "complaint"),
    [
        (("nonsense",), 1, "There is no study 'nonsense'"),
        (("grammar",), 1, "It is a script now: research/structure/grammar.py. "),
        (("codes", "--pags", "3"), 2, "No such option: --pags"),
        (("codes", "--pages", "many"), 2, "Invalid value for '--pages'"),
        (("codes", "--pages", "-1"), 1, "--pages is -1. Give a number that is at least 1."),
        (("codes", "loose"), 2, "unexpected extra argument"),
        (("codes", "--edit", "remove"), 2, "Invalid value for '--edit'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(run, model, tmp_path, arguments, status, complaint):
    name, *rest = arguments
    out = tmp_path / "out"
    found, _, err = run("study", model, name, "--data", "scenes:?n=2", "--out", out, *rest)
    assert found == status
    assert complaint in err
    assert not out.exists()


def test_help_names_every_study(run):
    status, out, _ = run("study", "--help")
    assert status == 0
    assert all(f"{name}:" in out for name in STUDIES)


@pytest.mark.parametrize("arguments", [("erasure", "--help"), ("scenes", "erasure", "--help")])
def test_help_of_a_study_has_its_options(run, arguments):
    status, out, _ = run("study", *arguments)
    assert status == 0
    assert "Options of erasure" in out
    assert "--draws" in out
    assert "permutations for the p-values" in out


def test_every_option_of_every_study_is_described():
    for name in STUDIES:
        texts = describe_options(find_analysis(name).options)
        assert all(texts.values()), name


def test_options_are_converted_and_lists_are_split(run, model, tmp_path, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Options.

        sizes  some sizes
        words  some words
        think  whether to think
        draws  how many
        """

        sizes: tuple[int, ...] = (1, 2)
        words: tuple[str, ...] = ()
        think: bool = False
        draws: int = 1

    given = {}
    monkeypatch.setitem(STUDIES, "own", Entry("none", "a study of this test"))
    monkeypatch.setattr(study, "find_analysis", lambda *_: Analysis(run=run, options=Options))
    monkeypatch.setattr(
        study,
        "run_study",
        lambda *arguments, **_: given.update(arguments[4]) or {"tables": [], "figures": []},
    )
    options = ("--sizes", "3,-4", "--words", "a,b", "--think", "--draws=-2")
    status, _, err = run("study", model, "own", "-d", "scenes:?n=2", "-o", tmp_path, *options)
    assert status == 0, err
    assert given == {"sizes": [3, -4], "words": ["a", "b"], "think": True, "draws": -2}
    assert run("study", model, "own", "-d", "scenes:?n=2", "-o", tmp_path)[0] == 0
    assert given == {"sizes": [1, 2], "words": [], "think": False, "draws": 1}
