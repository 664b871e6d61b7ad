"""Length against complexity: planted, absent, and against scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from strop.data.record import VOID
from strop.structure import complexity
from strop.structure.complexity import CLASSES, COVERED, OBJECTS, OUTLINES, VARIANCE


def test_one_code_an_object_is_found(planted, planted_encoded, job):
    found = complexity.run(planted, planted_encoded, complexity.Options(draws=99), job)
    objects = found.numbers["correlations"][OBJECTS]
    assert objects["pearson"] == pytest.approx((1, 1, 1))
    assert objects["p"] == pytest.approx(0.01)
    assert [b["mean"] for b in found.numbers["bins"][OBJECTS]] == [3, 4, 5, 6, 7]
    assert sum(b["n"] for b in found.numbers["bins"][OBJECTS]) == 48
    assert found.numbers["correlations"][VARIANCE]["pearson"].low > 0


def test_measures_are_counted_from_what_there_is(planted, planted_encoded, job):
    records = planted_encoded.records
    measured = complexity.complexity(planted, planted_encoded, job)
    no_scenes = replace(planted_encoded, records=replace(records, scenes=None))
    by_mask = complexity.complexity(planted, no_scenes, job)
    assert (by_mask[OBJECTS] == measured[OBJECTS]).all()
    no_masks = replace(records, semantic=None, instance=None, scenes=None)
    by_label = complexity.complexity(planted, replace(planted_encoded, records=no_masks), job)
    assert (by_label[CLASSES] == measured[CLASSES]).all()
    assert set(by_label) == {CLASSES, VARIANCE}


def test_masks_tell_what_objects_cover_and_how_long_their_outlines_are():
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


def test_instances_are_measured_before_classes(planted, planted_encoded, job):
    records = planted_encoded.records
    measured = complexity.complexity(planted, planted_encoded, job)
    assert measured[COVERED] == pytest.approx((records.instance > 0).double().mean((1, 2)).numpy())
    no_instances = replace(planted_encoded, records=replace(records, instance=None))
    by_class = complexity.complexity(planted, no_instances, job)
    assert (by_class[OUTLINES] <= measured[OUTLINES]).all()  # two cubes that touch are one
    # Without a background every pixel belongs to something: cover would say nothing.
    nameless = replace(no_instances, classes=("sky", *no_instances.classes[1:]))
    assert COVERED not in complexity.complexity(planted, nameless, job)


def test_the_variance_is_that_over_locations(planted, planted_encoded, job):
    measured = complexity.complexity(planted, planted_encoded, job)
    field = planted.field(planted_encoded.records.images).double().numpy()
    assert measured[VARIANCE] == pytest.approx(field.var(axis=1, ddof=1).mean(axis=1))


def test_rare_counts_with_longer_programs_are_found():
    generator = np.random.default_rng(0)
    counts = generator.binomial(6, 0.5, 300).astype(float)
    lengths = np.round(10 + 3 * complexity.rarity(counts) + generator.normal(size=300))
    claim = complexity.rarity_claim(counts, lengths, complexity.Options(draws=99))
    assert claim["p"] == claim["partial_p"] == pytest.approx(0.01)


def test_growth_alone_is_not_taken_for_rarity():
    """Counts that get rarer as they grow: length grows with the count and knows nothing else."""
    generator = np.random.default_rng(0)
    ps = []
    for trial in range(100):
        counts = generator.geometric(0.5, 60).astype(float)
        lengths = 5 + 2 * counts + generator.normal(size=60)
        claim = complexity.rarity_claim(counts, lengths, complexity.Options(draws=19, seed=trial))
        ps.append(claim["partial_p"])
        assert claim["p"] == pytest.approx(0.05), "which is why the count is held fixed"
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_one_length_for_all_correlates_with_nothing(planted, planted_encoded, job):
    fixed = replace(planted_encoded, program=planted_encoded.program.truncate(3))
    found = complexity.run(planted, fixed, complexity.Options(draws=9), job)
    assert np.isnan(found.numbers["correlations"][OBJECTS]["pearson"].value)
    assert np.isnan(found.numbers["correlations"][OBJECTS]["p"])
    assert torch.equal(fixed.program.lengths, torch.full((48,), 3))
