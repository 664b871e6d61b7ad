"""The three probes on rendered scenes, end to end, with a tiny model."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import replace

import pytest

from strop.analysis.frame import check_subject
from strop.analysis.metric_info import METRICS
from strop.analysis.probes import depth, multilabel, segmentation
from strop.analysis.probes import protocol as protocols
from strop.analysis.probes.protocol import PAPER, STRONG
from strop.analysis.probes.representations import DIFFERENCES, NAMES, representations
from strop.analysis.subject import Subject, check_disjoint
from strop.data import ScenesDataset
from strop.data.spec import open_dataset
from strop.data.subset import Subset
from strop.errors import DataError

SCENES = ScenesDataset(n=20, seed=1, size=64)
BY_COLOR = ScenesDataset(n=8, seed=2, size=64, by="color")
FIGURES = {
    segmentation: {"miou", "pixel_accuracy", "class_accuracy"},
    multilabel: {"map", "map_11"},
    depth: {"depth_rmse", "abs_rel", "delta1", "delta2", "delta3"},
}


def subject_of(tokenizer, train, val, **options):
    train = Subject(tokenizer=tokenizer, dataset=train, data="train")
    return Subject(tokenizer=tokenizer, dataset=val, data="val", train=train, **options)


def run(module, subject, **options):
    """A probe's findings, as they are stored."""
    findings = module.ANALYSIS.run(subject, module.ANALYSIS.options(**options))
    return findings, findings.content()


def check(module, train, val):
    analysis = module.ANALYSIS
    check_subject(analysis, subject_of(None, train, val), analysis.options())


@pytest.fixture(scope="module", autouse=True)
def short_protocols():
    short = {each.name: replace(each, steps=12, batch=4, warmup=1) for each in (PAPER, STRONG)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocols, "PROTOCOLS", short)
        yield


@pytest.fixture(scope="module")
def subject(tokenizer, scenes):
    return subject_of(tokenizer, *scenes)


@pytest.fixture(scope="module")
def result_of(subject, short_protocols):
    """The findings of a probe, which is run once."""
    lengths = {segmentation: {"probe_lengths": (2, 12)}, depth: {"probe_lengths": (2, 12)}}
    return functools.cache(lambda module: run(module, subject, **lengths.get(module, {})))


def digest(tokenizer) -> str:
    content = b"".join(value.numpy().tobytes() for value in tokenizer.state_dict().values())
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("module", FIGURES, ids=lambda module: module.__name__)
def test_every_representation_gets_every_metric_and_the_model_is_unchanged(
    tokenizer, result_of, module
):
    before = digest(tokenizer)
    _, result = result_of(module)
    assert digest(tokenizer) == before
    assert all(p.grad is None for p in tokenizer.parameters())
    assert all(p.grad is None for p in tokenizer.teacher.parameters())

    json.dumps(result, allow_nan=False)
    assert (result["train_images"], result["images"]) == (20, 8)
    assert set(result["representations"]) == set(NAMES)
    for scores in result["representations"].values():
        assert set(scores["values"]) == FIGURES[module] == set(scores["intervals"])
        assert set(scores["values"]) <= set(METRICS)
        for name, (low, high) in scores["intervals"].items():
            assert low <= high, name
    assert result["hyperparameters"]["steps"] == 12
    scores = result["representations"]
    assert list(result["differences"]) == [f"{a} minus {b}" for a, b in DIFFERENCES]
    for (a, b), found in zip(DIFFERENCES, result["differences"].values(), strict=True):
        for name, value in found["values"].items():
            expected = scores[a]["values"][name] - scores[b]["values"][name]
            assert value == pytest.approx(expected)
            low, high = found["intervals"][name]
            assert low <= high


def test_the_floor_of_a_probe_is_the_most_frequent_class(subject, result_of):
    _, result = result_of(segmentation)
    truth = subject.records.semantic
    share = (truth == 0).double().mean()
    constant = result["representations"]["constant"]
    assert constant["values"]["pixel_accuracy"] == pytest.approx(100 * float(share))
    assert not any(constant["iou"][1:])


def test_the_strong_protocol_trains_interpreters(subject):
    _, result = run(segmentation, subject, protocol="strong")
    assert result["hyperparameters"]["balance"] == 0.5
    assert set(result["representations"]) == set(NAMES)


def test_probes_are_reproducible(subject, result_of):
    assert run(multilabel, subject)[1] == result_of(multilabel)[1]


def test_segmentation_has_class_names_and_figures(result_of):
    findings, result = result_of(segmentation)
    assert result["class_names"][0] == "background"
    assert len(result["class_names"]) == 7
    assert set(findings.figures) == {"predictions", "lengths"}
    assert all(figure.axes for figure in findings.figures.values())


def test_depth_has_figures_and_forced_lengths(result_of):
    findings, result = result_of(depth)
    assert set(findings.figures) == {"predictions", "lengths"}
    assert all(figure.axes for figure in findings.figures.values())
    assert [row["length"] for row in result["lengths"]] == [2, 12]
    assert set(result["lengths"][0]) == {"length", "latent", "program"}
    assert result["lengths"][0]["latent"]["values"] != result["lengths"][1]["latent"]["values"]


def test_representations_have_no_gradient(subject):
    for side in (subject.fitted_on(), subject):
        for name, representation in representations(side, 0).items():
            vectors = getattr(representation, "vectors", representation)
            assert not vectors.requires_grad, name
            assert vectors.grad_fn is None, name


# Refusals.


def test_data_without_the_annotations_is_refused_by_name(tmp_path):
    from PIL import Image

    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    folder = open_dataset(str(tmp_path))
    for module, part in ((segmentation, "semantic"), (depth, "depth")):
        for pair in ((SCENES, folder), (folder, SCENES)):
            with pytest.raises(DataError, match=f"needs {part}"):
                check(module, *pair)


def test_other_classes_and_too_few_images_are_refused():
    with pytest.raises(DataError, match="different classes"):
        check(segmentation, SCENES, BY_COLOR)
    with pytest.raises(DataError, match="at least 10"):
        check(depth, ScenesDataset(n=9, seed=1, size=64), BY_COLOR)
    check(segmentation, SCENES, ScenesDataset(n=8, seed=2, size=64))
    check(depth, SCENES, BY_COLOR)


def test_an_image_in_both_sets_is_refused_whatever_its_name(images):
    named = list(zip(images, "abcdef", strict=True))
    check_disjoint(iter(named[:3]), iter(named[3:]))
    with pytest.raises(DataError, match="image x to be scored is also trained on, as c"):
        check_disjoint(iter(named[:3]), iter([(images[2], "x")]))


def test_probes_on_a_shared_image_are_refused(tokenizer, scenes):
    train, _ = scenes
    with pytest.raises(DataError, match="also trained on"):
        run(segmentation, subject_of(tokenizer, train, Subset(train, [3, 5])))


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
def test_on_real_samples(tokenizer, shared, train, val, parts):
    modules = {"semantic": segmentation, "labels": multilabel, "depth": depth}
    data = shared / "data"
    splits = [
        open_dataset(f"{each.format(data)}") for each in (f"{train}&limit=12", f"{val}&limit=6")
    ]
    for part in parts:
        check(modules[part], *splits)
        _, result = run(modules[part], subject_of(tokenizer, *splits))
        values = result["representations"]["teacher"]["values"]
        assert all(math.isfinite(value) for value in values.values())
