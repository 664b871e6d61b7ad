"""The three suites on rendered scenes, end to end, with a tiny model."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from strop.data import ScenesDataset
from strop.data.spec import open_dataset
from strop.data.subset import subset
from strop.errors import ConfigError, DataError
from strop.evaluation.context import Context
from strop.evaluation.measures import MEASURES
from strop.evaluation.probes import protocol as protocols
from strop.evaluation.probes import suites
from strop.evaluation.probes.checks import check_apart, check_datasets
from strop.evaluation.probes.protocol import DINOV3, PAPER
from strop.evaluation.probes.representations import NAMES

SCENES = ScenesDataset(n=20, seed=1, size=64)
BY_COLOR = ScenesDataset(n=8, seed=2, size=64, by="color")
FIGURES = {
    suites.segmentation: {"miou", "pixel_accuracy", "class_accuracy"},
    suites.multilabel: {"map", "map_11"},
    suites.depth: {"depth_rmse", "abs_rel", "delta1", "delta2", "delta3"},
}


def shortened(protocol, steps: int, **crops):
    def task(name: str):
        whole = getattr(protocol, name)
        if whole is None:
            return None
        schedule = replace(whole.schedule, steps=steps, batch=4, warmup=1)
        changes = {"crops": replace(whole.crops, **crops[name])} if name in crops else {}
        return replace(whole, schedule=schedule, **changes)

    return replace(
        protocol, **{name: task(name) for name in ("segmentation", "multilabel", "depth")}
    )


@pytest.fixture(scope="module", autouse=True)
def short_protocols():
    room = {"size": (64, 96), "border": (2, 62, 2, 94), "crop": (48, 64), "scored": (4, 60, 4, 90)}
    square = {"short_side": 64, "crop": 64, "stride": 43}
    short = {
        "paper": shortened(PAPER, 12),
        "dinov3": shortened(DINOV3, 2, segmentation=square, depth=room),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocols, "PROTOCOLS", short)
        yield


@pytest.fixture(scope="module")
def context(tokenizer, scenes, tmp_path_factory):
    train, val = scenes
    return Context(
        tokenizer=tokenizer,
        data=val,
        train_data=train,
        folder=tmp_path_factory.mktemp("probes"),
        probe_lengths=(2, 12),
    )


@pytest.fixture(scope="module")
def result_of(context, short_protocols):
    """A suite's result, which it is run for once."""
    return functools.cache(lambda suite: suite(context))


def digest(tokenizer) -> str:
    content = b"".join(value.numpy().tobytes() for value in tokenizer.state_dict().values())
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("suite", FIGURES, ids=lambda suite: suite.__name__)
def test_every_representation_gets_every_figure_and_the_model_stays_as_it_was(
    context, result_of, suite
):
    before = digest(context.tokenizer)
    result = result_of(suite)
    assert digest(context.tokenizer) == before
    assert all(p.grad is None for p in context.tokenizer.parameters())
    assert all(p.grad is None for p in context.tokenizer.teacher.parameters())

    json.dumps(result, allow_nan=False)
    assert (result["train_images"], result["images"]) == (20, 8)
    assert set(result["representations"]) == set(NAMES)
    for scores in result["representations"].values():
        assert set(scores["values"]) == FIGURES[suite] == set(scores["intervals"])
        assert set(scores["values"]) <= set(MEASURES)
        for name, (low, high) in scores["intervals"].items():
            assert low <= high, name
    assert result["hyperparameters"]["schedule"]["steps"] == 12


def test_a_seed_decides_a_suite(context, result_of):
    again = suites.multilabel(context)
    assert again == result_of(suites.multilabel)


def test_segmentation_gives_weights_r2_and_a_picture(context, result_of):
    result = result_of(suites.segmentation)
    assert result["class_names"][0] == "background"
    assert len(result["class_names"]) == 7
    assert set(result["values"]) == {"r2_probe"}
    weights = load_file(context.folder / "segmentation.safetensors")["weights"]
    assert weights.shape == (7, 192)
    for file in ("segmentation.png", "segmentation_lengths.png"):
        assert (context.folder / file).stat().st_size > 1000


def test_depth_draws_and_lengths_are_forced(context, result_of):
    result = result_of(suites.depth)
    for file in ("depth.png", "depth_lengths.png"):
        assert (context.folder / file).stat().st_size > 1000
    assert [row["length"] for row in result["lengths"]] == [2, 12]
    assert set(result["lengths"][0]) == {"length", "latent", "program"}
    assert result["lengths"][0]["latent"]["values"] != result["lengths"][1]["latent"]["values"]


def test_what_a_probe_trains_on_carries_no_gradient(context):
    for side in context.representations:
        for name, representation in side.items():
            vectors = getattr(representation, "vectors", representation)
            assert not vectors.requires_grad, name
            assert vectors.grad_fn is None, name


def test_dinov3_from_images(tokenizer, scenes, tmp_path):
    train, val = scenes
    context = Context(
        tokenizer=tokenizer,
        data=subset(val, range(2)),
        train_data=train,
        folder=tmp_path,
        protocol="dinov3",
    )
    before = digest(tokenizer)
    for suite in (suites.segmentation, suites.depth):
        result = suite(context)
        assert set(result["representations"]) == set(NAMES)
        for scores in result["representations"].values():
            assert set(scores["values"]) == FIGURES[suite]
        json.dumps(result)
    assert digest(tokenizer) == before
    with pytest.raises(ConfigError, match="no multi-label probe"):
        suites.multilabel(context)
    with pytest.raises(DataError, match="also trained on"):
        suites.segmentation(replace(context, train_data=val))


# Refusals.


def test_data_without_what_is_asked_for_is_refused_by_name(tmp_path):
    from PIL import Image

    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    folder = open_dataset(str(tmp_path))
    for part, word in (("semantic", "masks"), ("depth", "depth")):
        with pytest.raises(DataError, match=f"has no {word}"):
            check_datasets(SCENES, folder, part)


def test_other_classes_and_too_few_images_are_refused():
    with pytest.raises(DataError, match="different classes"):
        check_datasets(SCENES, BY_COLOR, "semantic")
    with pytest.raises(DataError, match="at least 10"):
        check_datasets(ScenesDataset(n=9, seed=1, size=64), BY_COLOR, "depth")
    check_datasets(SCENES, ScenesDataset(n=8, seed=2, size=64), "semantic")
    check_datasets(SCENES, BY_COLOR, "depth")


def test_an_image_on_both_sides_is_refused_whatever_its_name(images):
    names = tuple("abcdef")
    check_apart(images[:3], names[:3], images[3:], names[3:])
    with pytest.raises(DataError, match="image x to be scored is also trained on, as c"):
        check_apart(images[:3], names[:3], images[2:3], ("x",))


def test_features_with_a_shared_image_are_refused(tokenizer, scenes, tmp_path):
    train, _ = scenes
    context = Context(
        tokenizer=tokenizer, data=subset(train, [3, 5]), train_data=train, folder=tmp_path
    )
    with pytest.raises(DataError, match="also trained on"):
        suites.segmentation(context)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("train", "val", "parts"),
    [
        ("voc:{}/voc2012?split=trainaug", "voc:{}/voc2012?split=val", ("semantic", "labels")),
        (
            "cityscapes:{}/cityscapes?split=train",
            "cityscapes:{}/cityscapes?split=val",
            ["semantic"],
        ),
        ("nyuv2:{}/nyuv2?split=train", "nyuv2:{}/nyuv2?split=test", ["depth"]),
    ],
    ids=["voc", "cityscapes", "nyuv2"],
)
def test_on_real_samples(tokenizer, shared, tmp_path, train, val, parts):
    suite = {"semantic": suites.segmentation, "labels": suites.multilabel, "depth": suites.depth}
    data = shared / "data"
    context = Context(
        tokenizer=tokenizer,
        data=open_dataset(f"{val.format(data)}&limit=6"),
        train_data=open_dataset(f"{train.format(data)}&limit=12"),
        folder=tmp_path,
    )
    for part in parts:
        check_datasets(context.train_data, context.data, part)
        values = suite[part](context)["representations"]["teacher"]["values"]
        assert all(math.isfinite(value) for value in values.values())
