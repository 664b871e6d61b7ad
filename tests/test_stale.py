"""Stale results: whatever a result was computed from may change, and then it is not used again.

Each scenario computes something, changes one of its sources in place, and asks for it again. The
answer is an error that says what has changed, or a new result.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.analysis.evaluate import evaluate
from strop.analysis.frame import run_study
from strop.analysis.subject import Subject
from strop.data.pack import pack_dataset
from strop.data.packed import PackedDataset
from strop.data.spec import open_dataset
from strop.errors import StropError
from strop.images import save_image
from strop.model.checkpoint import load_folder
from strop.model.teacher import BUNDLED, TeacherConfig
from strop.model.tokenizer import Tokenizer
from strop.training.loop import train
from strop.training.preset import Preset, TrainingConfig
from strop.training.sweep import sweep


class World:
    """A folder of images, a teacher's folder, and a model; each can be changed in place."""

    def __init__(self, root: Path, make: Callable[..., Tokenizer], images: Tensor) -> None:
        self.root, self.make, self.images = root, make, images
        self.pictures = root / "pictures"
        for number in range(5):
            save_image(self.pictures / f"{number}.png", images[number])
        self.teacher = root / "teacher"
        shutil.copytree(BUNDLED / "tiny", self.teacher)

    @property
    def data(self) -> str:
        return f"folder:{self.pictures}"

    def tokenizer(self) -> Tokenizer:
        """The model in `root/model`, made at first."""
        folder = self.root / "model"
        if not folder.is_dir():
            self.make().save_pretrained(folder)
        return load_folder(folder)

    def preset(self) -> Preset:
        teacher = TeacherConfig(name=str(self.teacher), width=192, scale=0.4)
        config = self.make(decoder=None).config
        config = type(config)(**{**vars(config), "teacher": teacher})
        training = TrainingConfig(
            steps=2, batch=2, held_out=1, log_every=1, validate_every=500_000, compile="off"
        )
        return Preset(model=config, training=training)

    def train(self, folder: str = "run", **options: object) -> dict[str, float]:
        return train(self.preset(), self.data, out=self.root / folder, **options).metrics

    # What changes.

    def other_images(self) -> None:
        save_image(self.pictures / "1.png", self.images[5])

    def more_images(self) -> None:
        save_image(self.pictures / "9.png", self.images[5])

    def other_folder(self) -> None:
        """Other images in another folder with the same name."""
        self.pictures.rename(self.root / "before")
        self.pictures = self.root / "elsewhere" / "pictures"
        for number in range(5):
            save_image(self.pictures / f"{number}.png", self.images[5 - number])

    def other_teacher(self) -> None:
        path = self.teacher / "model.safetensors"
        tensors = load_file(path)
        name = next(name for name in sorted(tensors) if name.endswith("layer_norm.weight")
                    or name == "norm.weight")  # fmt: skip
        tensors[name] = tensors[name] * 1.5
        save_file(tensors, path, metadata={"format": "pt"})

    def other_lengths(self) -> None:
        """What `train-lengths` does."""
        self._retrained("length_head")

    def other_decoder(self) -> None:
        """What `train-decoder` does."""
        self._retrained("decoder")

    def other_codebook(self) -> None:
        self._retrained("quantizer")

    def _retrained(self, part: str) -> None:
        model = self.tokenizer()
        with torch.no_grad():
            for parameter in getattr(model, part).parameters():
                parameter += 0.3
            if part == "quantizer":
                model.quantizer.codebook.copy_(model.quantizer.codebook.roll(1, 0))
        model.save_pretrained(self.root / "model")


def evaluation(world: World) -> object:
    """The `alignment` of eval, with the lengths that the model predicts."""
    tokenizer = world.tokenizer()
    out = world.root / "eval"
    (result,) = evaluate(tokenizer, [world.data], out, suites=["alignment"])
    return result["identities"], result["finished"]


def study(world: World) -> object:
    result = run_study(world.tokenizer(), "codes", world.data, world.root / "study")
    return result["identities"]


def scene_pairs() -> ModuleType:
    """The module of the studies of scenes that caches pairs."""
    folder = str(Path(__file__).parents[1] / "research" / "reading")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("scene_pairs")


def pairs(world: World) -> object:
    folder = world.root / "pairs"
    folder.mkdir(exist_ok=True)
    dataset = open_dataset(world.data)
    subject = Subject(tokenizer=world.tokenizer(), dataset=dataset, data="", folder=folder)
    found = scene_pairs().encode_pairs(subject, SCENES if world.pictures.exists() else world.data)
    kept = sorted(path.name for path in folder.glob("pairs-*"))
    return kept, found.program.codes.tolist(), found.program.lengths.tolist()


SCENES = "scenes:?n=4&size=64"


def cache(world: World) -> object:
    return world.train("cached", cache=world.root / "fields.safetensors", resume=False)


def fresh_cache(world: World) -> object:
    """Another run on the cache of the first one."""
    shutil.rmtree(world.root / "cached", ignore_errors=True)
    return cache(world)


def resumed(world: World) -> object:
    return world.train(resume=True)


def swept(world: World) -> object:
    axes, out = {"training.seed": [0]}, world.root / "sweep"
    runs = sweep(world.preset(), world.data, axes, out=out, validation=SCENES)
    return [{key: run[key] for key in ("r2", "loss") if key in run} for run in runs]


def packed(world: World) -> object:
    """A packing that was interrupted after its first record."""
    out = world.root / "packed"
    if not (world.root / "packed.partial").is_dir():
        pack_dataset(world.data, out, size=16)
        work = out.rename(world.root / "packed.partial")
        meta = json.loads((work / "meta.json").read_text())
        kept = ("spec", "size", "fit", "records", "files")
        sizes = {"image.bin": 768, "records.jsonl": len((work / "records.jsonl").read_bytes()) // 5}
        progress = {"settings": {key: meta[key] for key in kept}, "position": 1,
                    "parts": ["image"], "sizes": sizes, "broken": {}}  # fmt: skip
        (work / "progress.json").write_text(json.dumps({"format": "strop.packing/1", **progress}))
        for name in ("meta.json", "records.i64"):
            (work / name).unlink()
        return None
    pack_dataset(world.data, out, size=16)
    return PackedDataset(out).batch([0, 1]).images.tolist()


SCENARIOS = [
    (evaluation, World.other_lengths),
    (evaluation, World.other_codebook),
    (evaluation, World.other_images),
    (evaluation, World.more_images),
    (evaluation, World.other_folder),
    (study, World.other_codebook),
    (study, World.other_images),
    (pairs, World.other_lengths),
    (pairs, World.other_codebook),
    (fresh_cache, World.other_images),
    (fresh_cache, World.more_images),
    (fresh_cache, World.other_teacher),
    (fresh_cache, World.other_folder),
    (resumed, World.other_images),
    (resumed, World.more_images),
    (resumed, World.other_teacher),
    (resumed, World.other_folder),
    (swept, World.other_images),
    (swept, World.more_images),
    (swept, World.other_teacher),
    (swept, World.other_folder),
    (packed, World.other_images),
    (packed, World.more_images),
]


@pytest.mark.parametrize(
    ("ask", "change"), SCENARIOS, ids=[f"{a.__name__}-{c.__name__}" for a, c in SCENARIOS]
)
def test_nothing_stale_is_used(ask, change, make_tokenizer, images, tmp_path):
    world = World(tmp_path, make_tokenizer, images)
    first = ask(world)
    change(world)
    assert is_new(lambda: ask(world), first)


def is_new(ask: Callable[[], object], first: object) -> bool:
    """Whether the answer is not the first one: another, or a refusal."""
    try:
        return ask() != first
    except StropError as error:
        return bool(error.remedy)


def test_what_is_not_stale_is_used_again(make_tokenizer, images, tmp_path):
    """Otherwise the test above would pass without any store of results."""
    world = World(tmp_path, make_tokenizer, images)
    assert evaluation(world) == evaluation(world), "a new one would have finished later"


def test_the_teacher_of_a_model_is_checked(make_tokenizer, images, tmp_path):
    world = World(tmp_path, make_tokenizer, images)
    world.train()
    world.other_teacher()
    model = load_folder(tmp_path / "run" / "model")
    with pytest.raises(StropError, match=r"are not those that the model"):
        model.encode(images[0])


def test_a_decoder_that_was_trained_again_is_another(make_tokenizer, images, tmp_path):
    world = World(tmp_path, make_tokenizer, images)
    before = world.tokenizer().identity
    world.other_decoder()
    after = world.tokenizer().identity
    assert (before.codes, before.fields) == (after.codes, after.fields)
    assert before.pictures != after.pictures


def test_a_file_that_was_touched_is_another(make_tokenizer, images, tmp_path):
    world = World(tmp_path, make_tokenizer, images)
    first = evaluation(world)
    os.utime(world.pictures / "0.png", (1, 1))
    assert is_new(lambda: evaluation(world), first)
