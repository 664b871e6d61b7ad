"""Readouts of the planted model, and their parts against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.cluster
import sklearn.metrics
import torch

from strop.analysis import readouts
from strop.analysis.regions import NOBODY


@pytest.fixture(scope="module")
def found(planted):
    return readouts.run(planted, readouts.Options())


def test_codes_name_every_class(found):
    codes = found.numbers["readouts"]["codes"]
    assert codes["miou_majority"] == 1
    assert codes["accuracy_majority"] == 1
    assert codes["miou_hungarian"] < 0.7, "twelve codes for four classes"


def test_another_image_and_one_class_are_worse(found):
    scores = found.numbers["readouts"]
    assert scores["codes of another image"]["miou_majority"] < 0.4
    assert scores["most frequent class"]["ari"].value == 0
    assert scores["most frequent class"]["accuracy_majority"] < 0.5


def test_as_many_clusters_as_directions_find_the_classes(planted):
    options = readouts.Options(clusters=14)
    scores = readouts.run(planted, options).numbers["readouts"]
    assert scores["teacher's patches"]["miou_majority"] > 0.9
    assert scores["interpreted patches"] == scores["teacher's patches"], "it encodes without error"


def test_k_means_is_as_tight_as_sklearns():
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(5, 6, generator=random) * 4
    points = centres.repeat(80, 1) + torch.randn(400, 6, generator=random)
    ours = readouts.k_means(points, 5, seed=0)
    inertia = torch.cdist(points, ours).amin(dim=1).square().sum().item()
    theirs = sklearn.cluster.KMeans(5, n_init=5, random_state=0).fit(points.numpy())
    assert inertia == pytest.approx(theirs.inertia_, rel=0.01)
    assert torch.equal(ours, readouts.k_means(points, 5, seed=0)), "seeded"


def test_k_means_with_fewer_points_than_clusters():
    points = torch.zeros(10, 3)
    assert torch.equal(readouts.k_means(points, 4), torch.zeros(4, 3))


def test_scores_are_sklearns():
    random = torch.Generator().manual_seed(0)
    named = torch.randint(0, 3, (4, 16), generator=random)
    truth = torch.randint(0, 3, (4, 16), generator=random)
    shares = torch.nn.functional.one_hot(truth, 3).double()
    miou, accuracy = readouts.miou_and_accuracy(named, shares)
    flat = named.flatten(), truth.flatten()
    assert accuracy == pytest.approx(sklearn.metrics.accuracy_score(*flat))
    expected = sklearn.metrics.jaccard_score(*flat, average="macro")
    assert miou == pytest.approx(expected)


def test_names():
    counts = np.array([[5.0, 1], [4, 2], [0, 0]])
    assert readouts.majority(counts).tolist() == [0, 0, 0]
    assert readouts.hungarian(counts).tolist() == [0, 1, NOBODY]
