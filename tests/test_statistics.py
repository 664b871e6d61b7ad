from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strop.statistics import (
    bootstrap,
    cohens_d,
    entropy,
    gini,
    mean_interval,
    mutual_information,
    null_p,
    paired_test,
    pearson,
    permutation_p,
    purity,
    ranks,
    sign_flip_p,
    spearman,
)

samples = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=3, max_size=40
).filter(lambda pairs: len({x for x, _ in pairs}) > 1 and len({y for _, y in pairs}) > 1)


@given(samples)
def test_correlations_are_scipys(pairs):
    x, y = np.array(pairs, float).T
    assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-9)
    assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-9)
    assert ranks(x) == pytest.approx(scipy.stats.rankdata(x))


def test_a_constant_correlates_with_nothing():
    assert np.isnan(pearson([1, 1, 1], [1, 2, 3]))


def test_the_interval_holds_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        interval = bootstrap(np.mean, generator.normal(size=60), draws=200, seed=trial)
        inside += interval.low <= 0 <= interval.high
    assert 0.88 <= inside / 200 <= 0.99


def test_rows_are_drawn_together():
    x = np.arange(30.0)
    assert bootstrap(pearson, x, 2 * x + 1, draws=50) == pytest.approx((1, 1, 1))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_seeded(seed):
    x = np.arange(10.0)
    assert bootstrap(np.mean, x, draws=20, seed=seed) == bootstrap(np.mean, x, draws=20, seed=seed)


def test_p_values_are_uniform_when_nothing_is_there():
    generator = np.random.default_rng(1)
    found = [
        permutation_p(pearson, *generator.normal(size=(2, 12)), draws=99, seed=trial)
        for trial in range(300)
    ]
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01


def test_p_is_small_when_something_is_there():
    x = np.arange(20.0)
    assert permutation_p(pearson, x, x + 1, draws=199) == pytest.approx(1 / 200)


def test_sign_flips_are_scipys_paired_permutations():
    generator = np.random.default_rng(2)
    found = generator.normal(0.3, size=9)
    exact = scipy.stats.permutation_test(
        (found, np.zeros(9)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flip_p(found, draws=20_000) == pytest.approx(exact.pvalue, abs=0.01)


def test_sign_flips_are_uniform_when_nothing_is_there():
    generator = np.random.default_rng(3)
    found = [sign_flip_p(generator.normal(size=15), draws=99, seed=s) for s in range(300)]
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01
    assert sign_flip_p(np.zeros(5)) == 1


def test_effect_size_is_the_t_statistic_over_the_root_of_n():
    found = np.random.default_rng(4).normal(0.5, size=25)
    t = scipy.stats.ttest_1samp(found, 0).statistic
    assert cohens_d(found) == pytest.approx(t / 5)
    assert np.isnan(cohens_d([0.2, 0.2]))


def test_means_of_rows_leave_out_what_is_not_finite():
    nan = np.nan
    assert mean_interval([1.0, nan, 3.0], draws=50).value == 2
    assert mean_interval([[1.0, nan], [nan, nan], [4.0, 6.0]], draws=50).value == 3
    assert mean_interval([2.0, 2.0], draws=50) == (2, 2, 2)
    assert np.isnan(mean_interval([nan, nan])).all()
    assert np.isnan(mean_interval([])).all()


def test_the_observed_value_is_one_of_the_draws_under_the_null():
    assert null_p(1.0, np.zeros(9)) == pytest.approx(0.1)
    assert null_p(1.0, [0.0, 1.0, 1.0 - 1e-14]) == pytest.approx(0.75)


def test_a_paired_test_is_that_of_the_differences():
    first, second = np.array([3.0, 4, 6]), np.array([1.0, 3, 3])
    found = paired_test(first, second, draws=200, seed=3)
    assert found["d"] == cohens_d(first - second)
    assert found["p"] == sign_flip_p(first - second, draws=200, seed=3)
    assert (found["first"], found["second"], found["images"]) == (13 / 3, 7 / 3, 3)
    with_gaps = paired_test([*first, np.nan, 9], [*second, 9, np.nan], draws=200, seed=3)
    assert with_gaps == pytest.approx(found)
    nothing = paired_test([], [])
    assert nothing.pop("images") == 0
    assert np.isnan(list(nothing.values())).all()


@given(arrays(np.int64, (4, 5), elements=st.integers(1, 30)))
def test_statistics_of_tables_are_scipys_and_sklearns(table):
    assert entropy(table) == pytest.approx(scipy.stats.entropy(table, axis=1))
    mi = sklearn.metrics.mutual_info_score(None, None, contingency=table)
    assert mutual_information(table) == pytest.approx(mi, abs=1e-9)


def test_entropy_with_empty_cells_is_scipys():
    counts = [5, 0, 3, 1]
    assert entropy(counts) == pytest.approx(scipy.stats.entropy(counts))
    assert entropy([0, 0]) == 0


def test_gini_coefficients():
    assert gini([3, 3, 3, 3]) == pytest.approx(0)
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)
    values = np.array([1.0, 2, 4, 9])
    expected = np.abs(values[:, None] - values).mean() / (2 * values.mean())
    assert gini(values) == pytest.approx(expected)


def test_association_of_degenerate_tables_is_nan():
    assert np.isnan(purity([[0, 0]]))
