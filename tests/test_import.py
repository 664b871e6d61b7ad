"""What `import strop` loads, and what it leaves until it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import strop

LATER = {"transformers", "pyarrow", "matplotlib", "huggingface_hub", "typer", "sklearn", "scipy"}


def test_importing_strop_loads_no_package_that_takes_long():
    code = "import json, sys, strop; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(json.loads(run.stdout))
    assert "torch" in loaded
    assert not LATER & loaded
    assert not {"strop.training.loop", "strop.structure"} & loaded


def test_every_public_name_is_there():
    for name in strop.__all__:
        assert getattr(strop, name).__name__.lower() == name.lower()
    with pytest.raises(AttributeError, match="no attribute 'encode'"):
        strop.encode  # noqa: B018
