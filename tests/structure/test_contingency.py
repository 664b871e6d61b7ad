"""Attributes and codes: planted ones are found, the one that nothing knows is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import sklearn.kernel_ridge
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import PlantedDataset

from strop.structure import contingency
from strop.structure.study import encode_dataset


@pytest.fixture(scope="module")
def found(planted, tmp_path_factory):
    encoded = encode_dataset(planted, PlantedDataset(160), "planted:")
    job = contingency.Job(tmp_path_factory.mktemp("contingency"))
    return contingency.run(planted, encoded, contingency.Options(draws=49), job).numbers


def test_attributes_that_codes_decide_are_found(found):
    for attribute in ("shape", "color", "size"):
        bound = found["association"]["on the same object"][attribute]
        assert bound["v"] == pytest.approx(1)
        assert bound["v_p"] == bound["mi_p"] == pytest.approx(0.02)
        assert found["association"]["in the same image"][attribute]["v_p"] == pytest.approx(0.02)
        assert found["probes"][attribute]["bag of codes"].low > 0.8


def test_what_nothing_knows_is_at_chance(found):
    for kind in ("in the same image", "on the same object"):
        assert found["association"][kind]["material"]["v_p"] > 0.02
    for probe in ("single code", "bag of codes", "codes and pairs"):
        assert abs(found["probes"]["material"][probe].value - 0.5) < 0.12
    for attribute in ("shape", "color", "size"):
        assert abs(found["probes"][attribute]["shuffled"] - 0.5) < 0.12


def test_p_is_uniform_when_words_and_codes_are_strangers():
    generator = np.random.default_rng(0)
    ps = []
    for trial in range(120):
        words, codes = generator.poisson(1, (20, 3)), generator.poisson(1, (20, 4))
        options = contingency.Options(draws=29, seed=trial)
        ps.append(contingency.associate(words, codes, options)["v_p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_what_lives_in_pairs_is_found_in_pairs_alone():
    generator = np.random.default_rng(0)
    bags = generator.integers(0, 2, (400, 6)).astype(float)
    either = bags[:, 0] != bags[:, 1]
    words = np.stack([either, ~either], axis=1).astype(float)
    found = contingency.probe(words, bags, seed=0)
    assert found["codes and pairs"].value > 0.95
    assert found["bag of codes"].value < 0.65
    assert found["single code"].value < 0.65


def test_labels_will_do_where_there_are_no_scenes(planted, planted_encoded, job):
    records = replace(planted_encoded.records, scenes=None)
    labelled = replace(planted_encoded, records=records)
    found = contingency.run(planted, labelled, contingency.Options(draws=49), job).numbers
    assert found["association"]["in the same image"]["class"]["v_p"] == pytest.approx(0.02)
    assert found["association"]["on the same object"] == {}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_is_sklearns(pairs):
    scores, truth = np.array(pairs, float).T
    if len(set(truth)) == 2:
        expected = sklearn.metrics.roc_auc_score(truth, scores)
        assert contingency.auc(scores, truth) == pytest.approx(expected)
    else:
        assert np.isnan(contingency.auc(scores, truth))


def test_the_ridge_is_sklearns_at_its_strength():
    generator = np.random.default_rng(0)
    x, new = generator.normal(size=(30, 5)), generator.normal(size=(8, 5))
    target = x @ generator.normal(size=(5, 1)) + generator.normal(size=(30, 1)) + 3
    ours = contingency.kernel_ridge(x @ x.T, new @ x.T, target)
    scale = np.trace(x @ x.T) / 30
    theirs = [
        sklearn.kernel_ridge.KernelRidge(alpha=strength, kernel="precomputed")
        .fit(x @ x.T / scale + 1, target - target.mean())
        .predict(new @ x.T / scale + 1)
        + target.mean()
        for strength in np.logspace(-3, 3, 13)
    ]
    assert any(np.allclose(ours, each) for each in theirs)
    rests = (ours - theirs[0]) ** 2
    assert rests.mean() < 1, "and not the strongest of them"
