"""Attributes and codes: planted attributes are found, a random one is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import sklearn.kernel_ridge
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import PlantedDataset, altered, subject_of

import contingency

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(planted):
    subject = subject_of(planted.tokenizer, PlantedDataset(160))
    return contingency.run(subject, contingency.Options(draws=49)).numbers


def test_attributes_that_follow_from_codes_are_found(found):
    for attribute in ("shape", "color", "size"):
        bound = found["association"]["on the same object"][attribute]
        assert bound["v"] == pytest.approx(1)
        assert bound["v_p"] == bound["mi_p"] == pytest.approx(0.02)
        assert found["association"]["in the same image"][attribute]["v_p"] == pytest.approx(0.02)
        assert found["probes"][attribute]["bag of codes"].low > 0.8


def test_random_attributes_and_shuffled_programs_are_at_chance(found):
    for kind in ("in the same image", "on the same object"):
        assert found["association"][kind]["material"]["v_p"] > 0.02
    for probe in ("single code", "bag of codes", "codes and pairs"):
        assert abs(found["probes"]["material"][probe].value - 0.5) < 0.12
    for attribute in ("shape", "color", "size"):
        assert abs(found["probes"][attribute]["shuffled"] - 0.5) < 0.12


def test_p_is_uniform_for_unrelated_words_and_codes():
    generator = np.random.default_rng(0)
    ps = []
    for trial in range(120):
        words, codes = generator.poisson(1, (20, 3)), generator.poisson(1, (20, 4))
        options = contingency.Options(draws=29, seed=trial)
        ps.append(contingency.associate(words, codes, options)["v_p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_cramers_v_is_scipys():
    table = np.random.default_rng(0).integers(1, 30, (4, 5))
    v = scipy.stats.contingency.association(table, method="cramer")
    assert contingency.cramers_v(table) == pytest.approx(v, abs=1e-9)
    assert np.isnan(contingency.cramers_v(np.array([[1, 0], [3, 0]])))


def test_an_exclusive_or_of_codes_is_found_by_pairs_alone():
    generator = np.random.default_rng(0)
    bags = generator.integers(0, 2, (400, 6)).astype(float)
    either = bags[:, 0] != bags[:, 1]
    words = np.stack([either, ~either], axis=1).astype(float)
    found = contingency.probe(words, bags, seed=0)
    assert found["codes and pairs"].value > 0.95
    assert found["bag of codes"].value < 0.65
    assert found["single code"].value < 0.65


def test_labels_replace_missing_scenes(planted):
    labelled = altered(planted, records=replace(planted.records, scenes=None))
    found = contingency.run(labelled, contingency.Options(draws=49)).numbers
    assert found["association"]["in the same image"]["class"]["v_p"] == pytest.approx(0.02)
    assert found["association"]["on the same object"] == {}


def test_the_kernel_ridge_is_sklearns():
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
    assert rests.mean() < 1, "the error must select the regularization"


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_is_sklearns(pairs):
    scores, truth = np.array(pairs, float).T
    if len(set(truth)) == 2:
        expected = sklearn.metrics.roc_auc_score(truth, scores)
        assert contingency.auc(scores, truth) == pytest.approx(expected)
    else:
        assert np.isnan(contingency.auc(scores, truth))
