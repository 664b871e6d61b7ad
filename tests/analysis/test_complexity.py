"""Length against complexity: planted and absent relations, and scipy as the reference."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
from planted import altered

from strop.analysis import complexity
from strop.analysis.complexity import CLASSES, COVERED, OBJECTS, OUTLINES, VARIANCE
from strop.analysis.frame import Sampling
from strop.data.record import VOID


def test_one_code_for_each_object_is_found(planted):
    found = complexity.run(planted, Sampling(draws=99))
    objects = found.numbers["correlations"][OBJECTS]
    assert objects["pearson"] == pytest.approx((1, 1, 1))
    assert objects["p"] == pytest.approx(0.01)
    assert [b["mean"] for b in found.numbers["bins"][OBJECTS]] == [3, 4, 5, 6, 7]
    assert sum(b["n"] for b in found.numbers["bins"][OBJECTS]) == 48
    assert found.numbers["correlations"][VARIANCE]["pearson"].low > 0


def test_measures_use_the_parts_that_records_have(planted):
    records = planted.records
    measured = complexity.complexity(planted)
    no_scenes = altered(planted, records=replace(records, scenes=None))
    by_mask = complexity.complexity(no_scenes)
    assert (by_mask[OBJECTS] == measured[OBJECTS]).all()
    no_masks = replace(records, semantic=None, instance=None, scenes=None)
    by_label = complexity.complexity(altered(planted, records=no_masks))
    assert (by_label[CLASSES] == measured[CLASSES]).all()
    assert set(by_label) == {CLASSES, VARIANCE}


def test_cover_and_outlines_of_masks():
    masks = torch.tensor(
        [
            [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [VOID, VOID, VOID, 1]],
        ]
    )
    assert complexity.covered(masks).tolist() == [4 / 16, 1 / 16]
    # Of 12 neighbours each way: 2 steps across in the second row, 3 in the third, as many down. In
    # the other, one step across from nothing to the object, and four down.
    assert complexity.outlines(masks).tolist() == pytest.approx([5 / 12, 2.5 / 12])


def test_instances_are_measured_before_classes(planted):
    records = planted.records
    measured = complexity.complexity(planted)
    assert measured[COVERED] == pytest.approx((records.instance > 0).double().mean((1, 2)).numpy())
    no_instances = altered(planted, records=replace(records, instance=None))
    by_class = complexity.complexity(no_instances)
    assert (by_class[OUTLINES] <= measured[OUTLINES]).all()  # two cubes that touch are one
    # Without a background class every pixel belongs to an object.
    classes = ("sky", *planted.classes[1:])
    no_instances.dataset = SimpleNamespace(classes=classes, label_names=())
    assert COVERED not in complexity.complexity(no_instances)


def test_the_variance_is_over_locations(planted):
    measured = complexity.complexity(planted)
    field = planted.tokenizer.field(planted.records.images).double().numpy()
    assert measured[VARIANCE] == pytest.approx(field.var(axis=1, ddof=1).mean(axis=1))


def test_rare_counts_with_longer_programs_are_found():
    generator = np.random.default_rng(0)
    counts = generator.binomial(6, 0.5, 300).astype(float)
    lengths = np.round(10 + 3 * complexity.rarity(counts) + generator.normal(size=300))
    claim = complexity.rarity_claim(counts, lengths, Sampling(draws=99))
    assert claim["p"] == claim["partial_p"] == pytest.approx(0.01)


def test_growth_alone_is_not_mistaken_for_rarity():
    """Larger counts are rarer, and length depends on the count alone."""
    generator = np.random.default_rng(0)
    ps = []
    for trial in range(100):
        counts = generator.geometric(0.5, 60).astype(float)
        lengths = 5 + 2 * counts + generator.normal(size=60)
        claim = complexity.rarity_claim(counts, lengths, Sampling(draws=19, seed=trial))
        ps.append(claim["partial_p"])
        assert claim["p"] == pytest.approx(0.05), "which is why the count is held fixed"
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_constant_lengths_correlate_with_nothing(planted):
    fixed = altered(planted, program=planted.program.truncate(3))
    found = complexity.run(fixed, Sampling(draws=9))
    assert np.isnan(found.numbers["correlations"][OBJECTS]["pearson"].value)
    assert np.isnan(found.numbers["correlations"][OBJECTS]["p"])
    assert torch.equal(fixed.program.lengths, torch.full((48,), 3))
