"""The command line as a whole: commands, their help, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from strop.cli import COMMANDS, app

HEAVY = ("torch", "transformers", "huggingface_hub", "pyarrow", "matplotlib", "numpy", "PIL")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    runner = CliRunner()
    done = runner.invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "Usage" in done.stdout
    overview = runner.invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    assert COMMANDS[name][2] in overview


def test_an_unknown_command_gets_a_suggestion() -> None:
    done = CliRunner().invoke(app, ["encod"])
    assert done.exit_code == 2
    assert "encode" in done.output


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strop", "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("strop ")


@pytest.mark.parametrize(("option", "shown"), [("--help", "encode"), ("--version", "strop")])
def test_help_imports_nothing_heavy(option: str, shown: str) -> None:
    code = (
        "import sys; from strop.cli import app; app(sys.argv[1:], standalone_mode=False); "
        f"assert not [name for name in {HEAVY} if name in sys.modules], sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
