"""Owners of locations, shares of mask ids, and contingency tables of both."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from strop.analysis.regions import NOBODY, image_tables, owners, patch_shares, pooled_table
from strop.statistics import adjusted_rand, best_iou, purity

partitions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40)


@given(partitions)
def test_partitions_are_sklearns(pairs):
    first, second = torch.tensor(pairs).T
    table = image_tables(first[None], one_hot(second).double()[None])
    expected = sklearn.metrics.adjusted_rand_score(second, first)
    assert adjusted_rand(table)[0] == pytest.approx(expected, abs=1e-9)
    matrix = sklearn.metrics.cluster.contingency_matrix(first, second)
    assert purity(table[0]) == pytest.approx(matrix.max(axis=1).sum() / len(pairs))


@given(partitions)
def test_the_best_overlap_is_the_best_jaccard_index(pairs):
    first, second = torch.tensor(pairs).T
    best = best_iou(image_tables(first[None], one_hot(second).double()[None]))[0]
    for column, found in enumerate(best):
        here = second == column
        if here.any():
            rows = [first == row for row in first.unique()]
            assert found == pytest.approx(max(((r & here).sum() / (r | here).sum()) for r in rows))
        else:
            assert np.isnan(found)


def test_tables_of_a_batch_are_those_of_its_images():
    random = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 4, (2, 6, 30), generator=random)
    expected = [
        sklearn.metrics.adjusted_rand_score(a, b) for a, b in zip(first, second, strict=True)
    ]
    assert adjusted_rand(image_tables(first, one_hot(second).double())) == pytest.approx(expected)


def test_every_labelled_pixel_of_a_location_counts():
    mask = torch.tensor([[0, 0, 1, 1], [0, 2, 1, 1], [255, 255, 2, 2], [255, 255, 2, 255]])
    shares = patch_shares(mask[None], 2, 3)
    assert (shares * 4).tolist() == [[[3, 0, 1], [0, 4, 0], [0, 0, 0], [0, 0, 3]]]
    regions = torch.tensor([[0, 0, NOBODY, 1]])
    assert (image_tables(regions, shares) * 4).tolist() == [[[3, 4, 1], [0, 0, 3], [0, 0, 0]]]


def test_locations_that_no_token_changes_have_no_owner():
    maps = torch.zeros(2, 3, 1, 2)
    maps[0, 2, 0, 0] = 0.5
    maps[1, 0] = torch.nan
    assert owners(maps).tolist() == [[2, NOBODY], [NOBODY, NOBODY]]


def test_pooled_tables_leave_out_what_nobody_owns():
    random = torch.Generator().manual_seed(0)
    regions = torch.randint(NOBODY, 3, (5, 20), generator=random)
    shares = torch.rand(5, 20, 4, generator=random, dtype=torch.double)
    expected = image_tables(regions, shares).sum(axis=0)[:3]
    assert pooled_table(regions, shares, 3) == pytest.approx(expected)
