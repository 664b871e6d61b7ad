"""A rate head for a finished model: fitted to its errors, calibrated, and nothing else changes."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_training import K, smooth_pictures, tiny_config, tiny_fields, tiny_preset

from strop.data import ScenesDataset
from strop.data.subset import Subset
from strop.errors import ConfigError, DataError, ModelError, TrainingError
from strop.model.checkpoint import load_folder
from strop.model.length_head import CONFIDENCES, QUALITIES, LengthHeadConfig, RateHead
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer
from strop.training.lengths import Errors, calibrate, fit_head, measure, train_lengths
from strop.training.loop import train

WIDTH = 3


@pytest.fixture
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    teacher = TeacherConfig(name="random:tiny", width=192, scale=0.4)
    return Tokenizer(tiny_config(teacher=teacher, image_size=64), about={"load": "mine"})


def planted(images: int, noise: float, seed: int = 0, lengths: int = K) -> Errors:
    """Images whose log error is -1.5 - 0.1 (k - 1), plus half of their first statistic, plus noise.

    Statistics have no mean and unit variance, so that the head's LayerNorm does not change them.
    """
    random = torch.Generator().manual_seed(seed)
    statistics = torch.randn(images, 3 * WIDTH, generator=random)
    statistics = torch.nn.functional.layer_norm(statistics, (3 * WIDTH,))
    drawn = torch.rand(images, K, generator=random).argsort(dim=1)[:, :lengths]
    at = drawn.sort(dim=1).values + 1
    level = 0.5 * statistics[:, :1] + noise * torch.randn(images, 1, generator=random)
    errors = -1.5 - 0.1 * (at - 1) + level
    return Errors(statistics, at, errors[..., None].repeat(1, 1, 2))


def new_head() -> RateHead:
    torch.manual_seed(0)
    return RateHead(LengthHeadConfig(kind="rate", hidden=(32,)), field_width=WIDTH, length=K)


class Exact(RateHead):
    """A head that knows the planted curves, but for the noise."""

    def curves(self, statistics: torch.Tensor) -> torch.Tensor:
        curve = -1.5 - 0.1 * torch.arange(K) + 0.5 * statistics[:, :1]
        return curve[:, None].repeat(1, 2, 1)


def exact_head() -> Exact:
    return Exact(LengthHeadConfig(kind="rate", hidden=(8,)), field_width=WIDTH, length=K)


def test_codes_and_fields_stay_and_lengths_follow_a_quality(tokenizer):
    pictures = smooth_pictures(40, 3)
    before, identity = tokenizer.encode(pictures, length="max"), tokenizer.identity
    metrics = train_lengths(tokenizer, pictures, quality=0.2, steps=30, batch=16)
    after = tokenizer.encode(pictures, length="max")
    assert torch.equal(after.codes, before.codes)
    assert (tokenizer.identity.codes, tokenizer.identity.fields) == (
        identity.codes,
        identity.fields,
    )
    assert tokenizer.identity.lengths != identity.lengths
    assert tokenizer.config.length_head.quality == metrics["quality"] == 0.2
    assert tokenizer.encode(pictures).quality is not None
    assert "load" not in tokenizer.about  # it is another model now
    assert tokenizer.about["lengths"] == (
        "rate head fitted to 30 images and calibrated on 10 others"
    )


def test_the_head_travels_with_the_model_and_a_seed_repeats_it(tokenizer, tmp_path):
    pictures = smooth_pictures(24, 3)
    train_lengths(tokenizer, pictures, steps=5)
    tokenizer.save_pretrained(tmp_path)
    again = load_folder(tmp_path)
    assert torch.equal(again.encode(pictures).lengths, tokenizer.encode(pictures).lengths)
    first = {name: value.clone() for name, value in tokenizer.length_head.state_dict().items()}
    train_lengths(tokenizer, pictures, steps=5)
    second = tokenizer.length_head.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_steps_the_head_stays_and_is_calibrated(tokenizer):
    pictures = smooth_pictures(24, 3)
    with pytest.raises(ModelError, match="no rate head, which steps=0 needs"):
        train_lengths(tokenizer, pictures, steps=0)
    train_lengths(tokenizer, pictures, steps=5, hidden=(8,), quality=0.4)
    weights = {name: value.clone() for name, value in tokenizer.length_head.named_parameters()}
    metrics = train_lengths(tokenizer, smooth_pictures(30, 5), steps=0)
    assert metrics["quality"] == 0.4
    after = dict(tokenizer.length_head.named_parameters())
    assert all(torch.equal(weights[name], after[name]) for name in weights)
    assert tokenizer.about["lengths"] == "rate head calibrated on 30 images"


def test_a_training_run_calibrates_its_rate_head():
    config = LengthHeadConfig(kind="rate", hidden=(8,))
    preset = tiny_preset(model=tiny_config(length_head=config), steps=3)
    trained = train(preset, tiny_fields(64), device="cpu").tokenizer.length_head
    assumed = RateHead(config, field_width=trained.last.in_features, length=K).margins
    assert not torch.equal(trained.margins, assumed)
    assert trained.margins.isfinite().all()


def test_errors_are_those_of_the_interpreted_prefixes(tokenizer):
    pictures = smooth_pictures(6, 3)
    errors = measure(tokenizer, map(tokenizer, pictures.split(4)), 6, 3)
    assert errors.lengths.shape == (6, 3)
    assert (errors.lengths.diff(dim=1) > 0).all()
    field, program = tokenizer.field(pictures), tokenizer.encode(pictures, length="max")
    for column in range(3):
        made = tokenizer.interpret(program.with_lengths(errors.lengths[:, column]))
        cosine = torch.nn.functional.cosine_similarity(made, field, dim=-1).mean(dim=1)
        squared = (made - field).square().mean(dim=(1, 2)) * 0.4**2
        expected = torch.stack([1 - cosine, squared], dim=1)
        torch.testing.assert_close(
            errors.log_errors[:, column].exp(), expected, rtol=1e-3, atol=1e-5
        )


def test_a_head_finds_the_planted_curves():
    head, unseen = new_head(), planted(200, 0.0, seed=1)
    fit_head(head, planted(400, 0.0, lengths=3), steps=300)
    predicted = head.curves(unseen.statistics)[:, 0]
    assert (predicted - unseen.log_errors[..., 0]).square().mean().sqrt() < 0.06


@pytest.mark.parametrize("lengths", [K, 3])
def test_the_stated_share_of_other_images_reaches_a_quality(lengths):
    head = exact_head()
    calibrate(head, planted(20_000, 0.2, lengths=lengths))
    fresh = planted(20_000, 0.2, seed=1)
    for quality in (0.85, 0.9):
        for confidence in (0.6, 0.9, 0.95):
            at = head.shortest(head.curves(fresh.statistics), quality, confidence)
            able = fresh.log_errors[:, -1, 0] <= math.log(1 - quality)
            error = fresh.log_errors[..., 0].gather(1, at[:, None] - 1)[:, 0]
            reached = (error <= math.log(1 - quality))[able].float().mean().item()
            assert confidence - 0.02 < reached < confidence + 0.02


def test_margins_of_a_head_without_errors_are_those_of_whole_lengths():
    head = exact_head()
    calibrate(head, planted(500, 0.0))
    row = QUALITIES.index(0.9)
    assert (head.margins[row].abs() <= 0.1 + 1e-4).all()  # a step of the curves


def test_calibrated_lengths_never_fall_with_quality_or_confidence():
    head = exact_head()
    calibrate(head, planted(30, 1.0))  # few images: rough quantiles
    curves = head.curves(planted(50, 0.0, seed=2).statistics)
    lengths = torch.stack(
        [torch.stack([head.shortest(curves, q, c) for c in CONFIDENCES]) for q in QUALITIES]
    )
    assert (lengths.diff(dim=0) >= 0).all()
    assert (lengths.diff(dim=1) >= 0).all()
    assert head.margins.isfinite().all()
    assert head.expected(curves[:, 0], 0.9).isfinite().all()


def test_too_few_images_and_a_wrong_share_are_refused(tokenizer):
    with pytest.raises(TrainingError, match="There are 8 images to fit a rate head on"):
        train_lengths(tokenizer, smooth_pictures(8, 3))
    with pytest.raises(ConfigError, match=r"held_out is 1\.0"):
        train_lengths(tokenizer, smooth_pictures(24, 3), held_out=1.0)
    with pytest.raises(ConfigError, match=r"length_head\.quality is 1\.5"):
        train_lengths(tokenizer, smooth_pictures(24, 3), quality=1.5)


def test_images_of_another_kind_are_a_named_error(tokenizer):
    pictures = smooth_pictures(24, 3)
    for images in (pictures / 255, pictures[..., :32]):
        with pytest.raises(DataError, match=r"Give uint8 of shape \(n, 3, 64, 64\)"):
            train_lengths(tokenizer, images)


def test_an_empty_dataset_is_a_named_error(tokenizer):
    with pytest.raises(TrainingError, match="There are 0 images"):
        train_lengths(tokenizer, Subset(ScenesDataset(1, size=64), []))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_model_on_a_gpu_keeps_its_head_there(tokenizer):
    metrics = train_lengths(tokenizer.to("cuda"), smooth_pictures(24, 4), steps=5)
    assert math.isfinite(metrics["length_mean"])
    assert tokenizer.length_head.margins.is_cuda
