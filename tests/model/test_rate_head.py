"""The rate head: falling curves, monotone lengths, and the model around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.config import from_dict, to_dict
from strop.errors import ConfigError, ModelError, ProgramError
from strop.model.checkpoint import load_folder
from strop.model.length_head import (
    CONFIDENCES,
    QUALITIES,
    FixedLength,
    LengthHead,
    LengthHeadConfig,
    RateHead,
    pooled,
)
from strop.model.tokenizer import Tokenizer

K, WIDTH = 12, 6
QUALITY = st.floats(0.01, 0.999)
CONFIDENCE = st.floats(CONFIDENCES[0], CONFIDENCES[-1])


def rate_head(seed: int = 0) -> RateHead:
    torch.manual_seed(seed)
    config = LengthHeadConfig(kind="rate", hidden=(8,))
    head = RateHead(config, field_width=WIDTH, length=K)
    with torch.no_grad():
        head.last.weight.normal_()
    return head.eval()


@torch.no_grad()
def curves(seed: int, count: int = 5) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return rate_head(seed)(torch.randn(count, 4, WIDTH, generator=random))


@given(st.integers(0, 50), st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
def test_curves_are_finite_float32_and_never_rise(seed, scale):
    field = scale * torch.randn(3, 4, WIDTH, generator=torch.Generator().manual_seed(seed))
    predicted = rate_head(seed)(field.bfloat16())
    assert predicted.dtype == torch.float32
    assert predicted.shape == (3, 2, K)
    assert predicted.isfinite().all()
    assert (predicted.diff(dim=-1) <= 0).all()


def test_mirrored_and_turned_fields_have_the_same_curves():
    head, grid = rate_head(), torch.randn(2, 3, 3, WIDTH)
    for other in (grid.flip(1), grid.flip(2), grid.transpose(1, 2)):
        torch.testing.assert_close(head(grid.flatten(1, 2)), head(other.flatten(1, 2)))


def test_pooled_statistics_by_hand():
    field = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 1.0], [3.0, 1.0]])[None]  # 2 by 2 locations
    # Both rows are 1, 3: half of the steps, those along rows, are 2.
    expected = torch.tensor([[2.0, 1.0, 1.0, 0.0, 2**0.5, 0.0]])
    torch.testing.assert_close(pooled(field), expected)


def test_autocast_does_not_change_the_curves():
    head, field = rate_head(), torch.randn(2, 4, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(field), head(field))
        inside = head(field)
    assert torch.equal(inside, head(field))


def test_an_untrained_head_starts_from_an_error_of_a_tenth_that_grows_as_one_over_sqrt_k():
    head = RateHead(LengthHeadConfig(kind="rate"), field_width=WIDTH, length=K)
    with torch.no_grad():
        head.last.weight.zero_()
    error = head(torch.randn(1, 4, WIDTH)).exp()
    expected = 0.1 * (K / torch.arange(1, K + 1)) ** 0.5
    torch.testing.assert_close(error, expected.expand(1, 2, K))


@given(st.integers(0, 20), QUALITY, QUALITY, CONFIDENCE, CONFIDENCE)
def test_more_quality_or_confidence_never_gives_a_shorter_program(seed, a, b, c, d):
    head, log_errors = rate_head(), curves(seed)
    (low, high), (less, more) = sorted((a, b)), sorted((c, d))
    short = head.shortest(log_errors, low, less)
    assert short.dtype == torch.int64
    assert (short <= head.shortest(log_errors, high, less)).all()
    assert (short <= head.shortest(log_errors, low, more)).all()
    assert ((short >= 1) & (short <= K)).all()


@given(st.integers(0, 20), QUALITY, CONFIDENCE)
def test_the_expected_quality_reaches_the_requested_one_or_the_length_is_k(seed, quality, share):
    head, log_errors = rate_head(), curves(seed)
    lengths = head.shortest(log_errors, quality, share)
    at = log_errors[:, 0].gather(1, lengths[:, None] - 1)[:, 0]
    reached = head.expected(at, share) >= quality - 1e-5
    assert (reached | (lengths == K)).all()
    before = log_errors[:, 0].gather(1, (lengths[:, None] - 2).clamp(min=0))[:, 0]
    assert ((head.expected(before, share) < quality + 1e-5) | (lengths == 1)).all()


def test_the_margin_is_the_tabulated_one_at_the_points_of_the_table():
    head = rate_head()
    head.margins.copy_(torch.rand(head.margins.shape) * 0.01)
    for row, quality in enumerate(QUALITIES):
        for column, share in enumerate(CONFIDENCES):
            expected = torch.tensor(1 - quality).log() - head.margins[row, column]
            torch.testing.assert_close(head.threshold(quality, share), expected)


@pytest.mark.parametrize("confidence", [0, 0.49, 0.999, 1, float("nan")])
def test_a_confidence_outside_the_table_is_refused(confidence):
    with pytest.raises(ProgramError, match=r"confidence of .* Give a share of images from 0\.5"):
        rate_head().threshold(0.9, confidence)


def test_the_head_of_a_small_model_has_few_parameters():
    head = RateHead(LengthHeadConfig(kind="rate"), field_width=384, length=64)
    assert sum(parameter.numel() for parameter in head.parameters()) < 350_000


@pytest.mark.parametrize(
    ("values", "kind", "widths", "head"),
    [
        ({}, "paper", (1024, 128), LengthHead),
        ({"hidden": [32], "fixed": None}, "paper", (32,), LengthHead),
        ({"hidden": [32], "fixed": 5}, "fixed", (32,), FixedLength),
        ({"kind": "fixed", "fixed": 5}, "fixed", (1024, 128), FixedLength),
        ({"kind": "rate"}, "rate", (256,), RateHead),
    ],
)
def test_configs_name_their_head_also_without_a_kind(tokenizer, values, kind, widths, head):
    config = from_dict(LengthHeadConfig, values)
    assert (config.kind, config.widths) == (kind, widths)
    assert from_dict(LengthHeadConfig, to_dict(config)) == config
    built = Tokenizer(replace(tokenizer.config, length_head=config)).length_head
    assert type(built) is head


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"kind": "rate", "fixed": 3}, "fixed"),
        ({"kind": "fixed"}, "fixed"),
        ({"quality": 1.0}, "quality"),
        ({"quality": -0.5}, "quality"),
    ],
)
def test_a_contradictory_config_is_refused_by_name(values, name):
    with pytest.raises(ConfigError, match=f"length_head.{name} is"):
        LengthHeadConfig(**values)


@pytest.fixture
def rated(make_tokenizer: Callable[..., Tokenizer]) -> Tokenizer:
    """A tiny tokenizer with a rate head, whose lengths differ between images."""
    return make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,), quality=0.7))


def test_lengths_of_the_default_quality_are_used_everywhere(rated, images):
    lengths = rated.encode(images).lengths
    assert len(set(lengths.tolist())) > 1
    encoding = rated.analyse(images)
    assert torch.equal(encoding.lengths, lengths)
    assert torch.equal(encoding.predicted, lengths.float())
    assert torch.equal(rated(images).predicted, lengths.float())
    field = rated.field(images) * rated.config.teacher.scale
    head = rated.length_head
    assert torch.equal(head.shortest(head(field), head.quality, 0.9), lengths)


def test_margins_travel_with_the_model(rated, images, tmp_path):
    rated.length_head.margins.add_(0.05)
    rated.save_pretrained(tmp_path)
    again = load_folder(tmp_path)
    assert torch.equal(again.length_head.margins, rated.length_head.margins)
    assert torch.equal(again.encode(images).lengths, rated.encode(images).lengths)
    assert again.identity == rated.identity


def test_thresholds_of_the_assumed_margins_fall_along_the_table():
    head = rate_head()
    for share in CONFIDENCES:
        thresholds = [head.threshold(quality, share) for quality in QUALITIES]
        assert all(left > right for left, right in pairwise(thresholds))


# What a user asks for.


@pytest.fixture
def sure(rated: Tokenizer) -> Tokenizer:
    """`rated`, with curves near those of its programs, so that lengths spread over 1 to K."""
    with torch.no_grad():
        rated.length_head.last.bias[-1:] = 0.0
    return rated


def reached(tokenizer: Tokenizer, images: torch.Tensor) -> torch.Tensor:
    """(B, K): the cosine similarity at every length."""
    target, full = tokenizer.field(images), tokenizer.encode(images, length="max")
    return torch.stack(
        [
            torch.nn.functional.cosine_similarity(
                tokenizer.interpret(full.truncate(k)), target, dim=-1
            ).mean(dim=1)
            for k in range(1, K + 1)
        ],
        dim=1,
    )


def test_a_quality_gives_its_length_and_what_is_expected_of_it(rated, images):
    head, encoding = rated.length_head, rated.analyse(images)
    before = None
    for quality in (0.3, 0.6, 0.7, 0.8, 0.9):
        program = rated.encode(images, quality=quality, confidence=0.8)
        expected = head.shortest(encoding.log_error, quality, 0.8)
        assert torch.equal(program.lengths, expected)
        assert torch.equal(program.codes, encoding.codes)
        assert ((program.quality >= quality - 1e-5) | (program.lengths == K)).all()
        assert before is None or (before <= program.lengths).all()
        before = program.lengths
    default = rated.encode(images)
    assert torch.equal(default.lengths, rated.encode(images, quality=0.7).lengths)
    assert torch.equal(default.quality, rated.to_program(encoding).quality)


def test_lengths_and_quality_do_not_depend_on_the_batch(rated, images):
    images = torch.cat([images, torch.zeros_like(images[:1])])  # one is all black
    for options in ({"quality": 0.8}, {"quality": 0.8, "verify": True}, {}):
        together = rated.encode(images, **options)
        for row in range(len(images)):
            alone = rated.encode(images[row], **options)
            assert torch.equal(alone.lengths, together.lengths[row : row + 1])
            assert torch.equal(alone.quality, together.quality[row : row + 1])


def test_a_verified_program_reaches_what_it_can(sure, images):
    truth = reached(sure, images)
    levels = truth.flatten().sort().values[:: 6 * K // 9].tolist()
    before = None
    for quality in [level for level in levels if level > 0]:
        program = sure.encode(images, quality=quality, verify=True)
        at = truth.gather(1, program.lengths[:, None] - 1)[:, 0]
        torch.testing.assert_close(program.quality, at)
        possible = truth[:, -1] >= quality + 1e-6
        assert (program.quality[possible] >= quality).all()
        assert (program.lengths[program.quality < quality] == K).all()
        assert before is None or (before <= program.lengths).all()
        before = program.lengths
    assert (sure.encode(images, quality=0.9999, verify=True).lengths == K).all()


def test_a_mean_length_is_allocated_by_the_curves(rated, images):
    for mean in (1, 4.5, 8, K):
        program = rated.encode(images, mean_length=mean)
        assert int(program.lengths.sum()) == round(len(images) * mean)
        assert program.quality is not None


def test_the_rate_curve_is_what_the_head_predicts(rated, images):
    curve = rated.rate_curve(images)
    assert curve.cosine.shape == curve.squared_error.shape == (len(images), K)
    assert (curve.cosine.diff(dim=1) >= 0).all()
    assert (curve.squared_error.diff(dim=1) <= 0).all()
    cautious = rated.rate_curve(images, confidence=0.9).cosine
    assert (cautious < curve.cosine).all()
    program = rated.encode(images, quality=0.8)
    at = cautious.gather(1, program.lengths[:, None] - 1)[:, 0]
    torch.testing.assert_close(program.quality, at)
    assert len(curve.plot().axes[0].lines) == len(images)


@pytest.mark.parametrize("options", [{"quality": 0.9}, {"verify": True}, {"confidence": 0.8}])
def test_a_model_without_a_rate_head_says_how_to_add_one(tokenizer, options):
    with pytest.raises(ModelError, match=r"no rate head, which .* needs\. .*strop train-lengths"):
        tokenizer.encode("never opened.png", **options)


def test_a_rate_curve_needs_a_rate_head(tokenizer, images):
    with pytest.raises(ModelError, match=r"no rate head, which a rate curve needs"):
        tokenizer.rate_curve(images)


def test_forced_and_searched_lengths_have_a_quality_too(rated, tokenizer, images):
    assert rated.encode(images, length=3).quality.shape == (len(images),)
    searched = tokenizer.encode(images[:2], length="search", tolerance=0.02)
    at = reached(tokenizer, images[:2]).gather(1, searched.lengths[:, None] - 1)[:, 0]
    torch.testing.assert_close(searched.quality, at)
    assert tokenizer.encode(images, length=3).quality is None
    with pytest.raises(ProgramError, match="one length per program"):
        rated.encode(images, length=torch.tensor([1, 2]))
