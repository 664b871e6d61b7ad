"""Options of `strop inspect`, and where its dependencies may be imported."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from typer.testing import CliRunner

import strop
from strop.cli import app
from strop.errors import ConfigError
from strop.inspector.engine import Engine
from strop.inspector.gallery import Gallery

SOURCE = Path(strop.__file__).parent


def test_a_closed_gallery_stops_encoding(tokenizer):
    gallery = Gallery(Engine(tokenizer))
    gallery.close()
    assert not gallery._filling.is_alive()
    assert len(gallery.images) < gallery.total


def test_other_hosts_need_a_token_before_the_model_is_loaded():
    done = CliRunner().invoke(app, ["inspect", "no-such-model", "--host", "0.0.0.0"])
    assert isinstance(done.exception, ConfigError)
    assert "everyone who can reach this machine" in str(done.exception)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "strop.inspector.server", None)
    done = CliRunner().invoke(app, ["inspect", "no-such-model"])
    assert isinstance(done.exception, ConfigError)
    assert "strop[inspect]" in done.exception.remedy


def test_an_empty_gallery_is_refused(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(
        app,
        ["inspect", str(tmp_path / "model"), "--port", "0", "--gallery", str(tmp_path / "empty")],
    )
    assert "holds no images" in str(done.exception)


def imported(path: Path) -> set[str]:
    """The packages a module imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.split(".")[0] for name in names}


def test_only_the_inspector_imports_web_frameworks():
    web = {"pydantic", "fastapi", "starlette", "uvicorn"}
    users = {path for path in SOURCE.rglob("*.py") if imported(path) & web}
    assert users
    assert {path.parent.name for path in users} == {"inspector"}
