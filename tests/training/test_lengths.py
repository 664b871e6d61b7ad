"""The length head, fitted anew: the mean asked for, and nothing else moves."""

from __future__ import annotations

import pytest
import torch
from tiny_training import K, smooth_pictures, tiny_config

from strop.data import ScenesDataset
from strop.data.subset import subset
from strop.errors import ConfigError, DataError, TrainingError
from strop.model.checkpoint import load_folder
from strop.model.length_head import LengthHeadConfig, whole_lengths
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer
from strop.statistics import pearson
from strop.training.fitted_targets import CurriculumConfig, knot_lengths, outlines_of
from strop.training.lengths import _error_at, _fitted, _Looks, _targets, train_lengths


@pytest.fixture
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    teacher = TeacherConfig(name="random:tiny", width=192, scale=0.4)
    return Tokenizer(tiny_config(teacher=teacher, image_size=64), about={"load": "mine"})


def falling(heights: torch.Tensor, config: CurriculumConfig) -> _Looks:
    """At images with rate curves `height / length` at the knots."""
    curves = heights[:, None] / torch.tensor(knot_lengths(config, K))
    return _Looks(pooled=torch.zeros(len(curves), 1), curves=curves)


@pytest.mark.parametrize("per", ["token", "doubling"])
@pytest.mark.parametrize("mean", [3.0, 6.5])
def test_programs_get_the_mean_length_and_their_codes_stay(tokenizer, mean, per):
    pictures = smooth_pictures(40, 3)
    before = tokenizer.encode(pictures, length="max").codes
    metrics = train_lengths(tokenizer, pictures, mean=mean, per=per, directions=4, batch=16)
    program = tokenizer.encode(pictures)
    assert torch.equal(tokenizer.encode(pictures, length="max").codes, before)
    assert program.lengths.float().mean().item() == pytest.approx(mean, abs=0.3)
    assert metrics["length_mean"] == pytest.approx(program.lengths.float().mean().item())
    assert metrics["target_correlation"] > 0
    assert metrics["error_over_even"] > 0
    assert "load" not in tokenizer.about  # it is another model now
    assert tokenizer.about["lengths"].startswith(f"fitted anew to a mean of {mean:g} tokens")


def test_the_head_travels_with_the_model(tokenizer, tmp_path):
    pictures = smooth_pictures(24, 3)
    train_lengths(tokenizer, pictures, mean=5, directions=3)
    tokenizer.save_pretrained(tmp_path)
    again = load_folder(tmp_path)
    assert again.config.length_head == LengthHeadConfig(hidden=())
    assert torch.equal(again.encode(pictures).lengths, tokenizer.encode(pictures).lengths)


def test_targets_are_longest_where_tokens_buy_most_and_have_the_mean():
    config = CurriculumConfig(oracle="price", oracle_scale=0.5)
    targets = _targets(falling(torch.tensor([0.1, 1.0, 10.0]), config), config, K)
    assert targets.mean().item() == pytest.approx(5.0, abs=0.02)
    assert targets[0] < targets[1] < targets[2]


def test_targets_at_the_price_of_the_mean_by_hand():
    # Errors (log2 L - c)^2 and p * log2 L are least at c - p / 2. For c = 2 and 3 that is 4 and 8
    # tokens times 2^(-p / 2), which must be 3/4 for a mean of 4.5.
    config = CurriculumConfig(oracle="price", oracle_scale=0.45, price_per="doubling")
    doublings = torch.tensor(knot_lengths(config, K)).float().log2()
    curves = (doublings - torch.tensor([[2.0], [3.0]])).square()
    looks = _Looks(torch.zeros(2, 1), curves)
    assert _targets(looks, config, K).tolist() == pytest.approx([3.0, 6.0], rel=1e-4)


def test_targets_in_proportion_to_outlines_by_hand():
    # For a mean of 5 of ten tokens, 1, 2 and 3 get 2.5, 5 and 7.5. No target is below 2, which
    # leaves 8 for the other of two.
    config = CurriculumConfig(oracle="outlines", oracle_scale=0.5)
    curves = torch.zeros(3, 3)
    looks = _Looks(torch.zeros(3, 1), curves, torch.tensor([1.0, 2.0, 3.0]))
    assert _targets(looks, config, K).tolist() == pytest.approx([2.5, 5.0, 7.5], rel=1e-4)
    looks = _Looks(torch.zeros(2, 1), curves, torch.tensor([1.0, 30.0]))
    assert _targets(looks, config, K).tolist() == pytest.approx([2.0, 8.0], rel=1e-4)
    squared = CurriculumConfig(oracle="outlines", oracle_scale=0.5, oracle_contrast=2.0)
    looks = _Looks(torch.zeros(2, 1), curves, torch.tensor([1.0, 2.0]))
    assert _targets(looks, squared, K).tolist() == pytest.approx([2.0, 8.0], rel=1e-4)


def test_lengths_by_outlines_are_longer_where_the_teacher_sees_more(tokenizer):
    pictures = smooth_pictures(40, 3)
    asked = {"oracle": "outlines", "zoom": 2, "contrast": 3.0, "directions": 20}
    metrics = train_lengths(tokenizer, pictures, mean=5, batch=16, **asked)
    assert metrics["length_mean"] == pytest.approx(5, abs=0.3)
    assert "outlines, zoom 2" in tokenizer.about["lengths"]
    program = tokenizer.encode(pictures)
    seen = outlines_of(tokenizer.teacher, pictures, 2)
    assert pearson(program.lengths.numpy(), seen.numpy()) > 0.8


def test_contrast_pushes_targets_apart():
    spreads = []
    for contrast in (1.0, 2.0):
        config = CurriculumConfig(oracle="price", oracle_scale=0.5, oracle_contrast=contrast)
        spreads.append(_targets(falling(torch.tensor([0.5, 1.0, 2.0]), config), config, K).std())
    assert spreads[1] > 1.3 * spreads[0]


def test_errors_are_read_off_the_curves_by_hand():
    curves = torch.tensor([[4.0, 2.0, 1.0], [8.0, 4.0, 0.0]])
    # 3 lies half-way from 2 to 4, and 10 at the end: (3 + 0) / 2.
    assert _error_at(torch.tensor([3, 10]), curves, (2, 4, 10)) == pytest.approx(1.5)


@torch.no_grad()
def test_a_head_that_can_finds_its_targets():
    random = torch.Generator().manual_seed(0)
    pooled = torch.randn(400, 6, generator=random) * torch.tensor([9, 4, 1, 0.1, 0.1, 0.1])
    targets = 10 * torch.sigmoid(0.1 * pooled[:, 0] - 0.2 * pooled[:, 1])
    mean = targets.mean().item()
    head = _fitted(pooled, targets, 2, K, mean)
    found = head(pooled[:, None])
    assert (found - targets).abs().max() < 0.2
    assert whole_lengths(found, K).float().mean().item() == pytest.approx(mean, abs=0.05)


def test_what_cannot_be_fitted_is_reported(tokenizer):
    with pytest.raises(ConfigError, match=r"mean length is 12\. Give one above 2 and below 10"):
        train_lengths(tokenizer, smooth_pictures(24, 3), mean=12)
    with pytest.raises(TrainingError, match="8 images of 192 channels to fit 10 directions"):
        train_lengths(tokenizer, smooth_pictures(8, 3), mean=5)


def test_images_of_another_kind_are_a_named_error(tokenizer):
    pictures = smooth_pictures(24, 3)
    for images in (pictures / 255, pictures[..., :32], pictures[:0]):
        with pytest.raises(DataError, match=r"Give uint8 of shape \(n, 3, 64, 64\)"):
            train_lengths(tokenizer, images, mean=5)


def test_an_empty_dataset_is_a_named_error(tokenizer):
    with pytest.raises(DataError, match="holds no image"):
        train_lengths(tokenizer, subset(ScenesDataset(1, size=64), []), mean=5)
