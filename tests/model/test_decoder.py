"""The decoder: pixels of the right size, and no way back to what made the field."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from strop.errors import ConfigError
from strop.model.decoder import Decoder, DecoderConfig
from strop.model.teacher import TeacherConfig


@pytest.mark.parametrize("side", [4, 8, 16])
def test_makes_sixteen_pixels_a_location(side):
    decoder = Decoder(DecoderConfig(widths=(8, 8, 4, 4)), field_width=12)
    pixels = decoder(torch.randn(2, side**2, 12))
    assert pixels.shape == (2, 3, 16 * side, 16 * side)
    assert pixels.min() >= 0
    assert pixels.max() <= 1


def test_pixels_of_a_patch_14_teacher_have_the_models_size(make_tokenizer, tiny_teacher):
    """16 pixels a location whatever the patch: the model's image size, not the teacher's."""
    tokenizer = make_tokenizer()
    stub = type(tiny_teacher)(
        nn.Identity(),
        lambda _, pixels: torch.zeros(len(pixels), (pixels.shape[-1] // 14) ** 2, 192),
        patch=14,
        width=192,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    tokenizer._adopt(stub)
    field = tokenizer.field(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    assert tokenizer.decode(field).shape == (1, 3, 64, 64)


def test_keeps_the_grid_the_right_way_up():
    """Changing the field at row 5, column 2 changes pixels around there and nowhere else."""
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(widths=(8, 8, 4, 4)), field_width=12).eval()
    field = torch.randn(1, 64, 12)
    other = field.clone()
    other[0, 5 * 8 + 2] += 5
    changed = (decoder(field) != decoder(other)).any(dim=1)[0].nonzero().float()
    middle = torch.tensor([5 * 16 + 7.5, 2 * 16 + 7.5])
    torch.testing.assert_close(changed.mean(dim=0), middle, atol=1, rtol=0)
    assert (changed - middle).abs().max() < 48


def test_its_loss_leaves_every_gradient_outside_it_at_none(make_tokenizer, images):
    tokenizer = make_tokenizer().train()
    field = tokenizer._scaled_field(images)
    quantized = tokenizer.quantizer(tokenizer.generator(field))
    active = torch.ones(quantized.codes.shape, dtype=torch.bool)
    reconstruction = tokenizer.interpreter(quantized.z_q, active)
    assert reconstruction.requires_grad
    tokenizer.decoder(reconstruction).square().mean().backward()
    for name, parameter in tokenizer.named_parameters():
        if name.startswith("decoder."):
            assert parameter.grad is not None, name
        else:
            assert parameter.grad is None, name
    assert all(parameter.grad is None for parameter in tokenizer.teacher.parameters())


def test_decoding_changes_nothing_and_keeps_the_mode(make_tokenizer):
    """Batch norm would learn from what it is shown if it were left in training mode."""
    tokenizer = make_tokenizer().train()
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    field = torch.randn(3, 16, 192)
    pixels = tokenizer.decode(field)
    assert tokenizer.decoder.training
    assert all(torch.equal(before[name], value) for name, value in tokenizer.state_dict().items())
    assert torch.equal(pixels, tokenizer.eval().decode(field))


def test_takes_the_teachers_scale(make_tokenizer):
    """`decode` scales the field as training did before it reaches the decoder."""
    tokenizer = make_tokenizer(teacher=TeacherConfig(name="random:tiny", width=192, scale=0.25))
    field = torch.randn(1, 16, 192)
    assert torch.equal(tokenizer.decode(field), tokenizer.decoder(0.25 * field))


def test_needs_four_widths():
    with pytest.raises(ConfigError, match=r"decoder.widths has 3 entries. Give four"):
        Decoder(DecoderConfig(widths=(8, 8, 8)), field_width=12)
