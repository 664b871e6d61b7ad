"""Mistakes of a newcomer: each ends with one message that names the mistake and the remedy."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from strop.cli import console
from strop.images import save_image

Run = Callable[..., tuple[int, str, str]]

MISTAKES = [
    # Paths.
    ("encode photo.jpg", "There is no file photo.jpg. Check the path."),
    ("encode photoz", "There is no file or folder photoz. Did you mean photos?"),
    ("encode 'photos/*.gif'", "No file matches photos/*.gif."),
    ("encode photos/0.png nope.png photos/1.png", "skipped There is no file nope.png."),
    ("encode notes.txt", "notes.txt is not an image in a format that strop reads"),
    ("encode empty", "The folder empty holds no images."),
    ("train strop-xs --data photoz", "There is no folder photoz. Did you mean photos?"),
    ("train strop-xs --data notes.txt", "notes.txt is a file, not a folder of images."),
    ("data check empty", "The folder empty holds no images."),
    ("data check tars/a.tar", "Write shards:tars/a.tar."),
    ("eval photos --data photoz", "There is no folder photoz. Did you mean photos?"),
    ("inspect photos --no-browser --gallery photoz", "There is no file or folder photoz."),
    ("decode nope.parquet -o out", "There is no file nope.parquet."),
    ("decode photos/0.png -o out", "Files of programs end in .parquet or .jsonl."),
    ("store info nope.lance", "There is no store at nope.lance."),
    ("report nope -o out", "nope holds no finished result of an evaluation."),
    # Kinds of data.
    ("encode vco:/data", "There is no kind of data 'vco'. Did you mean 'voc'?"),
    ("encode voc:/none", "/none does not exist. A VOC dataset is a folder with"),
    ("encode 'scenes:?sed=3'", "'scenes' has no parameter 'sed'. Did you mean 'seed'?"),
    ("train strop-xs", "No data was given."),
    # Models and presets.
    ("encode photos -m photo", "There is no model 'photo'", "Did you mean 'photos'?"),
    ("encode photos -m tiny", "'tiny' is a bundled teacher, not a model."),
    ("encode photos -m photos/", "photos holds no config.json."),
    ("info strop-xss", "Did you mean 'strop-xs'?"),
    ("train strop-xss --data photos", "There is no preset 'strop-xss'. Did you mean 'strop-xs'?"),
    ("train strop-xs --data photos --teacher tine", "Unknown teacher 'tine'. Choose one of tiny"),
    ("interpret programs.jsonl -m photos -o f.safetensors", "codebook has 256 codes, this model's"),
    ("encode photos --quality 0.9 -m plain", "This model has no rate head"),
    # Ranges.
    ("encode photos --length 65", "A length of 65 is outside [1, 64]."),
    ("encode photos --length long", "length is 'long'. Give a number, \"max\" for all K, or"),
    ("encode photos --quality 2", "A quality of 2.0 is outside (0, 1)."),
    ("encode photos --batch 0", "'--batch': Input should be greater than or equal to 1"),
    ("encode photos --mean-length 4 --length 3", "at most one"),
    ("encode photos --as other", "--as is for a store. Name a store with -o STORE.lance."),
    # Devices.
    ("encode photos --device gpu", "There is no device 'gpu'. Give cpu or cuda."),
    ("encode photos --device cuda", "There is no GPU that torch can use here."),
    # Settings and options.
    ("train strop-xs --data photos --set training.lr=1", "Did you mean 'training.learning_rate'?"),
    (
        "train strop-xs --data photos --steps 3 --set training.steps=2",
        "--steps and --set training.steps differ.",
    ),
    ("data scenes -o notes.txt --n 1", "notes.txt is a file. Name a folder."),
    ("train strop-xs --data photos --set lr=1", "Did you mean 'training.learning_rate'?"),
    ("train strop-xs --data photos --set training.steps=x", "--set training.steps is 'x'. Give a"),
    ("train strop-xs --data photos --log tensorbord", "--log is 'tensorbord'. Did you mean"),
    (
        "eval photos --data photos --suite segmentation",
        "semantic, which photos does not have",
    ),
    ("eval photos --data photos --suite algnment", "Did you mean 'alignment'?"),
    ("eval photos --data photos --protocol stron", "There is no probe protocol 'stron'. Did you"),
    ("study photos erasur --data photos -o out", "There is no study 'erasur'. Did you mean"),
    ("study photos erasure --data photos -o out --drawz 3", "No such option: --drawz"),
    ("enocde photos", "No such command 'enocde'. Did you mean 'encode'?"),
    ("decode programs.jsonl", "Missing option '--out' / '-o'."),
    # Outputs.
    (
        "encode photos -o programs.csv",
        "programs.csv has an unsupported suffix. Name it .parquet or .jsonl",
    ),
    ("decode tars -o out", "write it to such a file with `strop store export`"),
    ("encode photos -o empty/../tars", "is not a store. Name a file ending in .parquet or .jsonl"),
    ("interpret programs.jsonl -o f.npy", "Name it .safetensors."),
    ("encode photos -o locked/programs.parquet", "locked is not writable."),
    ("train strop-xs --data photos -o notes.txt", "notes.txt is a file. Name a folder."),
    ("train-decoder photos --data photos", "photos is a bundled model. Name a folder to write to"),
    ("train-decoder none/model --data photos", "There is no folder none/model. Name a folder to"),
    ("train-lengths photos --data photos", "photos is a bundled model. Name a folder to write to"),
    ("train-decoder phots --data photos", "There is no model 'phots'"),
    ("inspect photos --no-browser --host 0.0.0.0", "Give --token with a secret"),
    # Missing packages.
    ("inspect photos --no-browser", "pip install 'strop[inspect]'", "fastapi"),
    ("train strop-xs --data photos --log wandb", "Install it with: pip install wandb.", "wandb"),
    ("encode photos -o programs.lance", "pip install 'strop[store]'", "lance"),
    (
        "train strop-xs --data photos --teacher timm:vit_tiny",
        "Install it with: pip install timm.",
        "timm",
    ),
]
"""A command line, what the message says, and the name of a package that is missing."""
PACKAGES = {"fastapi", "wandb", "lance", "timm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a newcomer works: photographs, programs of `scenes`, and other files."""
    folder = tmp_path_factory.mktemp("newcomer")
    torch.manual_seed(0)
    for number in range(3):
        save_image(folder / "photos" / f"{number}.png", torch.rand(3, 40, 60))
    for name in ("empty", "locked", "tars"):
        (folder / name).mkdir()
    (folder / "tars" / "a.tar").write_bytes(b"")
    (folder / "notes.txt").write_text("Holiday.")
    (folder / "programs.jsonl").write_text(
        '{"format": "strop.program/1", "codebook_size": 256, "model": "", "name": "a", '
        '"length": 1, "codes": [3], "rest": [], "erased": []}\n'
    )
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_named(
    mistake: tuple[str, ...], folder: Path, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    line, message, *more = mistake
    # Patched, because root may write to every folder.
    monkeypatch.setattr(console.os, "access", lambda path, mode: Path(path).name != "locked")
    for package in PACKAGES.intersection(more):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, "strop.inspector.server", raising=False)
    before = sorted(folder.rglob("*"))
    words = [str(model) if word == "plain" else word for word in shlex.split(line)]
    status, _, err = run(*words)
    said = " ".join(err.replace("│", " ").split())
    assert status in (1, 2)
    assert message in said
    assert all(text in said for text in more if text not in PACKAGES)
    assert "Traceback" not in err
    assert sorted(folder.rglob("*")) == before


def test_there_are_many() -> None:
    assert len(MISTAKES) >= 37
