"""Statistics of tables, against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import one_hot

from strop.structure.association import (
    adjusted_rand,
    cramers_v,
    entropy,
    gini,
    mutual_information,
    overlap,
    purity,
)
from strop.structure.regions import NOBODY, owners, patch_shares, tables

counts = arrays(np.int64, (4, 5), elements=st.integers(1, 30))
partitions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40)


@given(counts)
def test_tables_are_scipys_and_sklearns(table):
    assert entropy(table) == pytest.approx(scipy.stats.entropy(table, axis=1))
    v = scipy.stats.contingency.association(table, method="cramer")
    assert cramers_v(table) == pytest.approx(v, abs=1e-9)
    mi = sklearn.metrics.mutual_info_score(None, None, contingency=table)
    assert mutual_information(table) == pytest.approx(mi, abs=1e-9)


@given(partitions)
def test_partitions_are_sklearns(pairs):
    first, second = torch.tensor(pairs).T
    table = tables(first[None], one_hot(second).double()[None])
    expected = sklearn.metrics.adjusted_rand_score(second, first)
    assert adjusted_rand(table)[0] == pytest.approx(expected, abs=1e-9)
    matrix = sklearn.metrics.cluster.contingency_matrix(first, second)
    assert purity(table[0]) == pytest.approx(matrix.max(axis=1).sum() / len(pairs))


@given(partitions)
def test_the_best_overlap_is_the_best_jaccard_index(pairs):
    first, second = torch.tensor(pairs).T
    best = overlap(tables(first[None], one_hot(second).double()[None]))[0]
    for column, found in enumerate(best):
        here = second == column
        if here.any():
            rows = [first == row for row in first.unique()]
            assert found == pytest.approx(max(((r & here).sum() / (r | here).sum()) for r in rows))
        else:
            assert np.isnan(found)


def test_a_whole_batch_is_each_of_its_images():
    random = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 4, (2, 6, 30), generator=random)
    expected = [
        sklearn.metrics.adjusted_rand_score(a, b) for a, b in zip(first, second, strict=True)
    ]
    assert adjusted_rand(tables(first, one_hot(second).double())) == pytest.approx(expected)


def test_concentration():
    assert gini([3, 3, 3, 3]) == pytest.approx(0)
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)
    values = np.array([1.0, 2, 4, 9])
    expected = np.abs(values[:, None] - values).mean() / (2 * values.mean())
    assert gini(values) == pytest.approx(expected)


def test_what_cannot_be_associated_is_not_a_number():
    assert np.isnan(cramers_v([[1, 0], [3, 0]]))
    assert np.isnan(purity([[0, 0]]))


def test_every_labelled_pixel_of_a_location_counts():
    mask = torch.tensor([[0, 0, 1, 1], [0, 2, 1, 1], [255, 255, 2, 2], [255, 255, 2, 255]])
    shares = patch_shares(mask[None], 2, 3)
    assert (shares * 4).tolist() == [[[3, 0, 1], [0, 4, 0], [0, 0, 0], [0, 0, 3]]]
    regions = torch.tensor([[0, 0, NOBODY, 1]])
    assert (tables(regions, shares) * 4).tolist() == [[[3, 4, 1], [0, 0, 3], [0, 0, 0]]]


def test_what_nobody_changes_has_no_owner():
    maps = torch.zeros(2, 3, 1, 2)
    maps[0, 2, 0, 0] = 0.5
    maps[1, 0] = torch.nan
    assert owners(maps).tolist() == [[2, NOBODY], [NOBODY, NOBODY]]
