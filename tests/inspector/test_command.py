"""`strop inspect`, and where its dependencies may be."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from typer.testing import CliRunner

import strop
from strop.cli import app
from strop.errors import ConfigError
from strop.inspector.engine import Engine
from strop.inspector.gallery import Gallery

SOURCE = Path(strop.__file__).parent


def test_it_serves_until_interrupted(tokenizer, gallery, tmp_path):
    tokenizer.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "strop", "inspect", str(tmp_path / "model")]
    options = ["--port", "0", "--no-browser", "--device", "cpu", "--gallery", str(gallery)]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", line).group()
            for _ in range(100):
                try:
                    facts = httpx.get(f"{address}api/model").json()
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            assert facts["name"] == "model", "a path of this machine is nobody's business"
            assert facts["fingerprint"] == tokenizer.identity.codes
        finally:
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=20)
        assert "Traceback" not in complaints


def test_a_gallery_that_is_closed_encodes_no_more(tokenizer):
    gallery = Gallery(Engine(tokenizer))
    gallery.close()
    assert not gallery._filling.is_alive()
    assert len(gallery.pictures) < gallery.total


def test_it_may_be_interrupted_while_the_gallery_fills(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "strop", "inspect", str(tmp_path / "model")]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-browser", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "The inspector is at" in process.stdout.readline()
            time.sleep(0.5)  # scenes are being rendered
        finally:
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=30)
    assert process.returncode in (0, 130), complaints
    assert "Traceback" not in complaints


def test_beyond_loopback_it_demands_a_token_before_any_work():
    done = CliRunner().invoke(app, ["inspect", "no-such-model", "--host", "0.0.0.0"])
    assert isinstance(done.exception, ConfigError)
    assert "everyone who can reach this machine" in str(done.exception)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "strop.inspector.server", None)
    done = CliRunner().invoke(app, ["inspect", "no-such-model"])
    assert isinstance(done.exception, ConfigError)
    assert "strop[inspect]" in done.exception.remedy


def test_an_empty_gallery_is_told(tokenizer, tmp_path):
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


def test_the_web_stays_inside_the_inspector():
    web = {"pydantic", "fastapi", "starlette", "uvicorn"}
    users = {path for path in SOURCE.rglob("*.py") if imported(path) & web}
    assert users
    assert {path.parent.name for path in users} == {"inspector"}
