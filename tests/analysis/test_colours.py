"""Fields as colours and as clusters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from strop.analysis.colours import Basis, clusters


def planted(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A field (64, 16) of four distant groups, and the group of each location."""
    random = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(4, 16, generator=random), dim=-1)
    group = torch.arange(64) % 4
    return centres[group] + 0.02 * torch.randn(64, 16, generator=random), group


def test_fields_in_one_basis_are_comparable():
    field, _ = planted()
    basis = Basis.of(field)
    colours = basis.colours(field)
    assert colours.shape == (3, 8, 8)
    assert colours.dtype == torch.uint8
    nearby = basis.colours(field + 1e-4)
    assert (colours.int() - nearby.int()).abs().max() <= 2
    # Its own basis would stretch it to full colours.
    dull = field.mean(dim=0) + 0.1 * (field - field.mean(dim=0))
    assert basis.colours(dull).float().std() < 0.3 * colours.float().std()


def test_colours_do_not_depend_on_the_order_of_locations():
    field, _ = planted()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    shuffled = Basis.of(field[order]).colours(field)
    assert (shuffled.int() - Basis.of(field).colours(field).int()).abs().max() <= 2


def test_colours_separate_groups():
    field, group = planted()
    colours = Basis.of(field).colours(field).flatten(1).T.float()
    means = torch.stack([colours[group == each].mean(dim=0) for each in range(4)])
    within = max(colours[group == each].std(dim=0).max().item() for each in range(4))
    assert torch.pdist(means).min() > 3 * within


def test_a_constant_field_has_colours():
    assert Basis.of(torch.ones(16, 8)).colours(torch.ones(16, 8)).shape == (3, 4, 4)


def test_clusters_find_planted_groups_in_both_fields():
    field, group = planted()
    found, carried = clusters(field, 1.7 * field.flip(0), k=4)
    for each in range(4):
        assert len(found[group == each].unique()) == 1
    assert len(found.unique()) == 4
    assert torch.equal(carried, found.flip(0))
