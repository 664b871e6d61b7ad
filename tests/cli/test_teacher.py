"""`strop teacher distill`, from the command line to a folder that loads."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from strop.cli import teacher
from strop.errors import ConfigError
from strop.model.teacher import ARCHITECTURES, load_teacher

app = typer.Typer()
app.add_typer(teacher.app, name="teacher")


@pytest.fixture(autouse=True)
def _mini(monkeypatch):
    monkeypatch.setitem(
        ARCHITECTURES,
        "mini",
        {**ARCHITECTURES["tiny"], "hidden_size": 24, "intermediate_size": 24}
        | {"num_hidden_layers": 1, "num_attention_heads": 1},
    )


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["teacher", "distill", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_distil_a_teacher(tmp_path):
    out = tmp_path / "mine[1]"
    arguments = ["--from", "random:tiny=0.5", "--data", "scenes:?n=10&size=32"]
    arguments += ["--data", "scenes:?n=12&size=32&seed=1", "--share", 3, "--share", 1, "--out", out]
    arguments += ["--student", "mini", "--sizes", "16,32", "--steps", 2, "--batch", 4]
    arguments += ["--val", "scenes:?n=4&size=32&seed=2", "--workers", 0, "--device", "cpu"]
    metrics = json.loads(run(*arguments, "--note", "random numbers: nobody's", "--json"))
    assert "random:tiny, 32 px, patches, r2_centred" in metrics
    assert load_teacher(str(out)).width == 24
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "`random:tiny`, with weight 0.5" in card
    assert "nobody's" in card
    assert "22, and 4 held out" in card
    shown = run(*arguments, "--resume")
    assert f"The teacher is in {out}" in shown.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dinov3-s", ("dinov3-s", 1.0)),
        ("/a/b=2.5", ("/a/b", 2.5)),
        ("/run/lr=x/model", ("/run/lr=x/model", 1.0)),
        ("timm:net=1e-1", ("timm:net", 0.1)),
    ],
)
def test_a_source_may_carry_a_weight(text, expected):
    assert teacher._weighted(text) == expected


def test_sizes_that_are_no_numbers_are_named(tmp_path):
    with pytest.raises(ConfigError, match="--sizes is 'big'"):
        run("--from", "random:tiny", "--data", "x", "--out", tmp_path / "x", "--sizes", "big")
