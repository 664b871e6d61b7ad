"""What `import strop` loads, and what it leaves until it is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import strop

HEAVY = {"transformers", "pyarrow", "matplotlib", "huggingface_hub", "typer", "sklearn", "scipy"}


def loaded_by(code: str) -> set[str]:
    """The modules that a new Python process imports to run `code`."""
    code = f"import json, sys, strop; {code}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(json.loads(run.stdout))


def test_importing_strop_is_cheap():
    assert not loaded_by("pass") & {"torch", "numpy", "PIL", *HEAVY}


def test_models_are_loaded_without_packages_for_other_tasks():
    loaded = loaded_by("strop.load, strop.Tokenizer, strop.Program")
    assert "torch" in loaded
    assert not loaded & {"strop.training.loop", "strop.analysis", *HEAVY}


def test_the_base_install_brings_no_package_of_stores():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    base = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert not base & {"pylance", "duckdb", "datasets", "ray", "lance-ray"}
    assert {"pylance", "duckdb"} <= {
        re.match(r"[\w-]+", line)[0] for line in project["optional-dependencies"]["store"]
    }


def test_stores_load_their_packages_when_they_are_used():
    loaded = loaded_by("import strop.store.encode, strop.store.store, strop.cli.store")
    assert "strop.store.engines" in loaded
    assert not loaded & {"lance", "duckdb", "ray", "datasets"}


def test_every_public_name_is_there():
    for name in strop.__all__:
        assert getattr(strop, name).__name__.lower() == name.lower()
    with pytest.raises(AttributeError, match="no attribute 'encode'"):
        strop.encode  # noqa: B018
