"""What travels: the sizes of weights and wheel, and that both work with the network cut."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from strop import Tokenizer
from strop.images import save_image
from strop.model.teacher import BUNDLED

REPOSITORY = Path(__file__).parents[2]
MODELS = ("photos", "scenes", "tiny")
WEIGHTS_AT_MOST, WHEEL_AT_MOST = 45e6, 40e6
"""Bytes: bf16 weights pack by a fifth."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from a copy: an old `build` folder has no part in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY / "src", source / "src", ignore=unwanted)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(source), *options, "--wheel-dir", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files(package: Path) -> set[Path]:
    """Files of a package, relative to it, without what running it leaves."""
    found = (path for path in package.rglob("*") if path.is_file())
    return {path.relative_to(package) for path in found if path.parent.name != "__pycache__"}


def test_sizes(wheel: Path) -> None:
    weights = sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file())
    assert weights <= WEIGHTS_AT_MOST
    assert wheel.stat().st_size <= WHEEL_AT_MOST


def test_the_wheel_holds_the_whole_package(unpacked: Path) -> None:
    assert files(unpacked / "strop") == files(REPOSITORY / "src" / "strop")
    for name in MODELS:
        assert (unpacked / "strop" / "weights" / name / "model.safetensors").is_file()


def test_links_of_the_readme_are_absolute(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    (repository,) = re.findall(r"^Project-URL: Repository, (\S+)$", text, re.M)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert f"{repository}/raw/main/docs/images/program.png" in links
    assert f"{repository}/blob/main/docs/quickstart.md" in links
    assert all(link.startswith(("https://", "#")) for link in links)
    for page in ("mkdocs.yml", "CITATION.cff"):
        assert repository in (REPOSITORY / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_bf16_and_the_codebook_fp32(
    name: str, bundled: Callable[[str], Tokenizer]
) -> None:
    tensors = load_file(BUNDLED / name / "model.safetensors")
    halves = {key for key, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    if name == "tiny":
        assert halves == set(tensors)
    else:
        assert halves == {key for key, _ in bundled(name).named_parameters()}
        assert tensors["quantizer.codebook"].dtype == torch.float32


# The wheel holds the files of the checkout; see `test_the_wheel_holds_the_whole_package`.
@pytest.mark.parametrize("origin", [pytest.param("checkout", marks=pytest.mark.slow), "wheel"])
def test_models_work_with_the_network_cut(
    origin: str,
    request: pytest.FixtureRequest,
    bundled: Callable[[str], Tokenizer],
    tmp_path: Path,
) -> None:
    root = REPOSITORY / "src" if origin == "checkout" else request.getfixturevalue("unpacked")
    picture = tmp_path / "picture.png"
    torch.manual_seed(0)
    save_image(picture, torch.rand(3, 6, 8).repeat_interleave(30, 1).repeat_interleave(30, 2))
    # Nothing says beforehand that there is no network, and no cache is there to help.
    hub = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hub)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("offline.py")), str(picture)],
        env={**environment, "PYTHONPATH": str(root), "HF_HOME": str(tmp_path / "hub")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert Path(report["found"]) == root / "strop" / "__init__.py"
    assert report["tried"] == []
    for name, sides in {"photos": (16, 256), "scenes": (8, 128)}.items():
        made = report["made"][name]
        assert made["codes"] == bundled(name).encode(picture)[0].codes.tolist()
        assert made["field"] == [1, sides[0] ** 2, 192]
        assert made["pixels"] == [1, 3, sides[1], sides[1]]
