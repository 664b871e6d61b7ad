"""`strop index` and `strop search`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(run: Run, model: Path, pictures: Path, tmp_path: Path) -> Path:
    target = tmp_path / "pictures.lance"
    assert run("encode", pictures, "-m", model, "-o", target, "--workers", 0)[0] == 0
    return target


def test_index_and_search(run: Run, store: Path, pictures: Path, tmp_path: Path) -> None:
    status, _, err = run("index", store)
    assert (status, "Indexed 3 of 3 programs" in err) == (0, True)
    assert json.loads(run("index", store, "--json")[1])["indexed"] == 0
    assert json.loads(run("store", "info", store, "--json")[1])["indexed"] == 3
    query, name = pictures / "inner" / "0.png", "inner/0.png"
    status, out, err = run("search", store, query, "-k", 2, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert len(found["hits"]) == 2
    assert found["hits"][0]["key"] == name
    status, out, _ = run("search", store, query)
    assert status == 0
    assert name in out
    sheet = tmp_path / "sheet.html"
    status, out, err = run("search", store, query, "--region", "0,0,20,20", "-o", sheet)
    assert (status, f"Wrote {sheet}" in err) == (0, True)
    assert name in sheet.read_text(encoding="utf-8")
    key = found["hits"][1]["key"]
    near = json.loads(run("search", store, "--like", key, "--without", "0", "--json")[1])
    assert key not in [hit["key"] for hit in near["hits"]]
    code = found["query"][0]
    with_code = json.loads(run("search", store, "--codes", f"{code}", "--json")[1])
    assert name in [hit["key"] for hit in with_code["hits"]]
    assert "0 programs fit" in run("search", store, "--codes", f"{code} and not {code}")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "nothing.lance", "a.jpg"), "There is no store at nothing.lance"),
        (("index", "nothing.lance"), "There is no store at nothing.lance"),
        (("search", "{store}"), "Nothing is searched for"),
        (("search", "{store}", "nothing.jpg"), "nothing.jpg"),
        (("search", "{store}", "--like", "nobody"), "no key 'nobody'"),
        (("search", "{store}", "--codes", "a"), "'a' is not an expression of codes"),
        (("search", "{store}", "--like", "a", "--without", "x"), "--without is 'x'"),
        (("search", "{store}", "--like", "a", "--region", "1,2"), "not four numbers"),
        (("search", "{store}", "--like", "a", "-o", "a.png"), "Name it .html"),
    ],
)
def test_mistakes_are_named(
    run: Run, store: Path, tmp_path: Path, monkeypatch, arguments, message
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*(each.format(store=store) for each in arguments))
    assert status == 1
    assert message in err
