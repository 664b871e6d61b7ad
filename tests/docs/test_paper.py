"""`docs/paper.md`: everything it names exists, and the code cites the place in the paper."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from strop.config import flatten, to_dict
from strop.training.preset import load_preset

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
sys.path.append(str(ROOT / "docs"))
import hooks  # noqa: E402  docs/hooks.py

QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
TESTS = [name for name in QUOTED if "::" in name]
COMMANDS = [name for name in QUOTED if re.match(r"(strop|python|recipes/\S+)(?: |$)", name)]
FILES = [name for name in QUOTED if re.fullmatch(r"(presets|recipes|research)/\S+", name)]
DOTTED = [name for name in QUOTED if re.fullmatch(r"[a-z_0-9]+(\.[A-Za-z_0-9]+)+", name)]
PLACE = re.compile(r"Sections? \d|Appendix [A-G]|Eq\. \d|Tables? \d|Figures? \d")


@cache
def settings() -> dict[str, Any]:
    return flatten(to_dict(load_preset("strop-s-dinov3-s")))


def named(name: str) -> Any:
    """The object of a dotted name; None if it is a setting."""
    return None if name in settings() else pkgutil.resolve_name(f"strop.{name}")


def test_the_page_names_enough() -> None:
    assert len(TESTS) > 35
    assert len(COMMANDS) > 10
    assert len(DOTTED) > 50


@pytest.mark.parametrize("name", TESTS)
def test_tests_exist(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("name", DOTTED)
def test_functions_and_settings_exist(name: str) -> None:
    assert name in settings() or named(name) is not None


@pytest.mark.parametrize("name", FILES)
def test_files_exist(name: str) -> None:
    assert (ROOT / "src" / "strop" / name).is_file() or (ROOT / name).is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "strop":
        known = dict(hooks.commands())
        options = {option for each in known[" ".join(words[:2])].params for option in each.opts}
        assert {word for word in words if word.startswith("-")} <= options


def test_functions_cite_their_place_in_the_paper() -> None:
    """The function of every row of a formula or protocol cites an equation, section or table."""
    rows = re.findall(r"^\| [^|]+ \| `([\w.]+)` \| `\S+::\S+` \|", PAGE, re.M)
    assert len(rows) > 35
    silent = []
    for name in rows:
        module = inspect.getmodule(named(name))
        texts = [inspect.getdoc(named(name)) or "", (module and module.__doc__) or ""]
        if not any(map(PLACE.search, texts)):
            silent.append(name)
    assert not silent


@pytest.mark.parametrize(("kind", "count"), [("Eq.", 7), ("Table", 17), ("Figure", 9)])
def test_nothing_in_the_paper_is_left_out(kind: str, count: int) -> None:
    found: set[int] = set()
    for text in re.findall(rf"{re.escape(kind)}s? ((?:\d+(?:, | and | to )?)+)", PAGE):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
            found |= set(range(int(first), int(last or first) + 1))
    assert found == set(range(1, count + 1))


def test_what_is_open_is_marked_in_the_preset() -> None:
    """The preset with the paper's numbers marks those that the page lists as open."""
    text = (ROOT / "src/strop/presets/strop-s-dinov3-s.toml").read_text(encoding="utf-8")
    marked = set(re.findall(r"^(\w+) = [^#\n]*#.*open in the paper", text, re.M))
    _, _, rest = PAGE.partition("## What the paper leaves open")
    listed = {
        name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", rest) if name in settings()
    }
    assert {"fit", "hidden", "alpha_start", "diversity_temperature", "betas"} <= marked & listed
    assert re.search(r"^reseed_every = .*our choice, not in the paper", text, re.M)
    assert {"reseed_below", "reseed_every"} <= listed
