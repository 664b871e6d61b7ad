"""Agreement of fields: locations outside of the picture do not count."""

from __future__ import annotations

import pytest
import torch

from strop.agreement import agree
from strop.analysis.subject import Subject
from strop.data.record import Record


def fields() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    made, target = torch.randn(2, 5, 4, 3, generator=random)
    return made, target


def test_locations_that_are_left_out_could_as_well_be_missing():
    made, target = fields()
    inside = torch.tensor([True, True, False, True]).expand(5, -1)
    found = agree([(made, target)], inside)
    kept = [0, 1, 3]
    expected = agree([(made[:, kept], target[:, kept])])
    assert found.scores() == pytest.approx(expected.scores())


def test_r2_of_images_with_different_numbers_of_locations_by_hand():
    made, target = fields()
    inside = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.6
    inside[:, 0] = True
    pairs = [(made[:2], target[:2]), (made[2:], target[2:])]
    found = agree(pairs, inside).scores()
    a, b = made[inside].double(), target[inside].double()
    error = (a - b).square().sum()
    for name, middle in (("r2_centred", b.mean(0)), ("r2", b.mean())):
        total = (b - middle).square().sum()
        assert found[name] == pytest.approx((1 - error / total).item())
    assert found["rmse"] == pytest.approx((error / b.numel()).sqrt().item())


class Wide:
    """Two grey pictures, twice as wide as high."""

    name, classes, label_names, fit = "wide", (), (), None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Record:
        return Record(image=torch.full((3, 32, 64), 90 + index, dtype=torch.uint8), name=f"{index}")


def test_padding_is_not_inside(make_tokenizer, tmp_path):
    padded = make_tokenizer(fit="pad")
    subject = Subject(tokenizer=padded, dataset=Wide(), data="wide", folder=tmp_path)
    inside = subject.inside
    assert inside is not None
    assert inside.view(2, 4, 4).sum(dim=(1, 2)).tolist() == [8, 8]
    assert inside.view(2, 4, 4)[:, 1:3].all()
    assert (
        Subject(tokenizer=make_tokenizer(), dataset=Wide(), data="wide", folder=tmp_path).inside
        is None
    )
