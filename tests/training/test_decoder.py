"""The pixel decoder: trained afterwards, and nothing else moves."""

from __future__ import annotations

import pytest
import torch
from tiny_training import tiny_config

from strop.data import ScenesDataset
from strop.data.subset import Subset
from strop.errors import DataError, TrainingError
from strop.model.decoder import DecoderConfig
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer
from strop.training.decoder_training import ABOUT_WIDTHS, ssim, train_decoder

WIDTHS = (16, 16, 8, 8)


def painted(count: int = 40) -> torch.Tensor:
    """uint8 (count, 3, 32, 32): one colour above, another below."""
    colours = torch.rand(count, 2, 3, generator=torch.Generator().manual_seed(0))
    halves = colours.permute(0, 2, 1).repeat_interleave(16, dim=2)[..., None].expand(-1, -1, -1, 32)
    return (halves * 255).to(torch.uint8)


@pytest.fixture
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(
        tiny_config(teacher=TeacherConfig(name="random:tiny", width=192, scale=0.4)),
        about={ABOUT_WIDTHS: list(WIDTHS)},
    )


def test_training_a_decoder_changes_nothing_else_and_lowers_the_loss(tokenizer):
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    fingerprint = tokenizer.identity.codes
    seen: list[tuple[str, int, int]] = []
    metrics = train_decoder(
        tokenizer,
        painted(),
        steps=30,
        batch=8,
        learning_rate=1e-2,
        progress=lambda *report: seen.append(report),
        report_every=10,
    )
    after = tokenizer.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert tokenizer.identity.codes == fingerprint
    assert tokenizer.config.decoder == DecoderConfig(widths=WIDTHS)
    assert tokenizer.about == {"decoder": "trained afterwards, 30 steps of 8 images"}
    assert [(step, steps) for _, step, steps in seen] == [(10, 30), (20, 30), (30, 30)]
    first, last = (float(text.split()[2]) for text in (seen[0][0], seen[-1][0]))
    assert last < first  # L1
    assert set(metrics) == {"psnr", "ssim", "l1"}
    pixels = tokenizer.decode(tokenizer.interpret(tokenizer.encode(painted(2))))
    assert pixels.shape == (2, 3, 32, 32)


def test_too_few_images_are_a_named_error(tokenizer):
    with pytest.raises(TrainingError, match="fewer than one batch of 32"):
        train_decoder(tokenizer, painted(10), steps=1)


def test_a_loss_that_is_not_finite_stops_the_training(tokenizer):
    with pytest.raises(TrainingError, match=r"failed by step 2.*Lower its learning rate"):
        train_decoder(
            tokenizer,
            painted(),
            steps=4,
            batch=8,
            learning_rate=float("inf"),
            report_every=2,
        )
    assert tokenizer.decoder is None


def test_images_of_another_kind_are_a_named_error(tokenizer):
    for images in (painted() / 255, painted()[:, :1], painted()[..., :16]):
        with pytest.raises(DataError, match=r"Give uint8 of shape \(n, 3, 32, 32\)"):
            train_decoder(tokenizer, images, steps=1)


def test_an_empty_dataset_is_a_named_error(tokenizer):
    with pytest.raises(DataError, match="holds no image"):
        train_decoder(tokenizer, Subset(ScenesDataset(1, size=32), []), steps=1)


def test_ssim_knows_equal_images_from_noise():
    images = painted(3).float() / 255
    assert torch.allclose(ssim(images, images), torch.ones(3), atol=1e-5)
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(1))
    assert (ssim(images, noise) < 0.3).all()
    # two constant images of x and y: (2xy + c1) / (x^2 + y^2 + c1)
    flat = torch.full((1, 3, 16, 16), 0.5), torch.full((1, 3, 16, 16), 0.25)
    assert ssim(*flat).item() == pytest.approx((0.25 + 1e-4) / (0.3125 + 1e-4), rel=1e-3)
