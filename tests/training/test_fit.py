"""Training of small modules against torch's optimizer driven by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from strop.training.fit import fit, rate_factor


def regression(seed: int = 0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 4, generator=generator)
    layer = nn.Linear(4, 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer, x, x.sum(1, keepdim=True)


def test_rate_warms_up_linearly_and_follows_a_cosine_to_zero():
    assert [rate_factor(step, 4) for step in range(4)] == pytest.approx(
        [1.0, 0.5 * (1 + math.sqrt(0.5)), 0.5, 0.5 * (1 - math.sqrt(0.5))]
    )
    assert [rate_factor(step, 10, 3) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert rate_factor(10, 10, 3) == pytest.approx(0.0)
    assert rate_factor(3, 3, 3) == 1.0  # no step is left for the cosine


def test_fit_takes_the_steps_of_adamw():
    layer, x, y = regression()
    taken = []
    fit(
        layer.parameters(),
        lambda step: (layer(x) - y).square().mean() * (step + 1),
        steps=6,
        learning_rate=0.1,
        weight_decay=0.05,
        betas=(0.8, 0.9),
        warmup=2,
        clip=0.5,
        progress=lambda done, total: taken.append((done, total)),
    )
    other, *_ = regression()
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.05)
    for step in range(6):
        optimizer.zero_grad()
        ((other(x) - y).square().mean() * (step + 1)).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = 0.1 * rate_factor(step, 6, 2)
        optimizer.step()
    assert torch.equal(layer.weight, other.weight)
    assert torch.equal(layer.bias, other.bias)
    assert taken == [(step, 6) for step in range(1, 7)]


def test_groups_keep_their_own_rate_and_decay():
    layer, x, y = regression()
    weight, bias = (each.detach().clone() for each in (layer.weight, layer.bias))
    fit(
        [{"params": [layer.weight], "weight_decay": 0.5}, {"params": [layer.bias], "lr": 0.0}],
        lambda step: (layer(x) - y).square().mean() * 0,
        steps=1,
        learning_rate=0.1,
    )
    assert torch.equal(layer.bias, bias)
    assert torch.allclose(layer.weight, weight * (1 - 0.1 * 0.5))


def test_a_seed_fixes_the_random_numbers_of_the_steps_and_restores_the_callers():
    drawn = []
    for _ in range(2):
        layer, x, _ = regression()
        torch.manual_seed(7)

        def noisy(step, layer=layer, x=x):
            drawn.append(torch.rand(3))
            return layer(x).square().mean()

        fit(layer.parameters(), noisy, steps=2, learning_rate=0.1, seed=3)
        assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(7)))
    assert torch.equal(torch.stack(drawn[:2]), torch.stack(drawn[2:]))
    assert not torch.equal(drawn[0], drawn[1])


def test_fit_enables_gradients():
    layer, x, y = regression()
    with torch.no_grad():
        fit(
            layer.parameters(),
            lambda step: (layer(x) - y).square().mean(),
            steps=3,
            learning_rate=0.1,
        )
