"""The length head: a number in (0, K) from the pooled field, and its rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strop.model.length_head import LengthHead, LengthHeadConfig, whole_lengths
from strop.model.tokenizer import Tokenizer
from strop.training.preset import load_preset


@pytest.fixture
def head() -> LengthHead:
    torch.manual_seed(0)
    return LengthHead(LengthHeadConfig(hidden=(8, 4)), field_width=6, length=64)


def test_is_k_times_a_sigmoid_of_an_mlp_on_the_mean(head):
    field = torch.randn(3, 5, 6)
    first, second, last = head.mlp[0], head.mlp[2], head.mlp[4]
    hidden = torch.nn.functional.gelu(first(field.mean(dim=1)))
    hidden = torch.nn.functional.gelu(second(hidden))
    torch.testing.assert_close(head(field), 64 * torch.sigmoid(last(hidden))[:, 0])


def test_does_not_care_where_things_are(head):
    field = torch.randn(2, 5, 6)
    torch.testing.assert_close(head(field), head(field[:, torch.randperm(5)]))


@pytest.mark.parametrize(("logit", "expected"), [(-200.0, 0.0), (0.0, 32.0), (200.0, 64.0)])
def test_stays_within_zero_and_k(head, logit, expected):
    torch.nn.init.zeros_(head.mlp[4].weight)
    torch.nn.init.constant_(head.mlp[4].bias, logit)
    assert head(torch.randn(1, 5, 6)).item() == expected


def test_predicts_in_fp32_also_from_a_bf16_logit(head):
    class Rounded(torch.nn.Module):
        def forward(self, pooled):
            return pooled[:, :1].bfloat16()

    head.mlp = Rounded()
    assert head(torch.randn(2, 5, 6)).dtype == torch.float32


def test_whole_lengths_are_rounded_and_clipped_to_one_and_k():
    predicted = torch.tensor([0.0, 0.4, 1.4, 1.6, 11.6, 12.0])
    assert whole_lengths(predicted, 12).tolist() == [1, 1, 1, 2, 12, 12]
    assert whole_lengths(predicted, 12).dtype == torch.int64


def test_a_fixed_length_has_no_parameters_and_is_the_same_for_all(tokenizer, tiny_teacher, images):
    config = replace(tokenizer.config, length_head=LengthHeadConfig(fixed=7))
    tokenizer = Tokenizer(config, teacher=tiny_teacher).eval()
    assert not list(tokenizer.length_head.parameters())
    assert tokenizer.encode(images).lengths.tolist() == [7] * len(images)


@pytest.mark.parametrize("name", ["clevr-64-fixed", "clevr-128-fixed"])
def test_the_fixed_twins_have_all_codes_and_no_head(name):
    twin, model = load_preset(name), load_preset(name.removesuffix("-fixed"))
    assert twin.model.length_head.fixed == twin.model.max_length
    assert replace(twin.model, length_head=model.model.length_head) == model.model
