"""Muon against torch's own, and what the trainer asks of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from strop.training.muon import SPREAD, Muon, orthogonal


def gradients(*shapes: tuple[int, int], seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in shapes]


@pytest.mark.parametrize("shape", [(3, 40, 40), (1, 64, 16), (2, 16, 64)])
def test_singular_values_become_nearly_equal(shape):
    matrices = torch.stack(gradients(*[shape[1:]] * shape[0]))
    values = torch.linalg.svdvals(orthogonal(matrices)).flatten()
    assert values.max() < 1.3
    assert (values > 0.6).float().mean() > 0.95  # all but those that were almost zero


def test_orthogonal_keeps_directions():
    u, _, v = torch.linalg.svd(torch.randn(24, 24, generator=torch.Generator().manual_seed(1)))
    found = orthogonal((u @ torch.diag(torch.linspace(5, 0.5, 24)) @ v)[None])[0]
    inside = u.T @ found @ v.T
    assert inside.diagonal().min() > 0.3
    assert (inside - torch.diag(inside.diagonal())).abs().max() < 1e-4


def test_steps_are_those_of_torch():
    shapes = ((48, 16), (16, 48), (32, 32))
    ours = [nn.Parameter(value) for value in gradients(*shapes, seed=1)]
    theirs = [nn.Parameter(value.detach().clone()) for value in ours]
    rate = torch.tensor(0.01)
    optimizer = Muon(dict.fromkeys(ours, 1), rate, weight_decay=0.1)
    # torch's factor for a spread of 0.2, in bf16.
    oracle = torch.optim.Muon(
        theirs,
        lr=SPREAD / 0.2 * 0.01,
        weight_decay=0.1 / (SPREAD / 0.2),
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(4):
        for group in (ours, theirs):
            for parameter, gradient in zip(group, gradients(*shapes, seed=2 + step), strict=True):
                parameter.grad = gradient
        before = [parameter.detach().clone() for parameter in ours]
        optimizer.step()
        oracle.step()
        for mine, other, start in zip(ours, theirs, before, strict=True):
            change = torch.linalg.matrix_norm(mine - start)
            assert torch.linalg.matrix_norm(mine - other) < 0.05 * change


def test_the_blocks_of_a_parameter_are_matrices_of_their_own():
    joined = nn.Parameter(torch.zeros(32, 16))
    parts = [nn.Parameter(torch.zeros(16, 16)) for _ in range(2)]
    (gradient,) = gradients((32, 16))
    joined.grad = gradient.clone()
    for part, rows in zip(parts, gradient.chunk(2), strict=True):
        part.grad = rows.clone()
    rate = torch.tensor(0.1)
    Muon({joined: 2}, rate, 0.0).step()
    Muon(dict.fromkeys(parts, 1), rate, 0.0).step()
    torch.testing.assert_close(joined, torch.cat(parts), rtol=0, atol=1e-6)


def test_a_spoilt_step_changes_nothing():
    matrix = nn.Parameter(torch.eye(8))
    optimizer = Muon({matrix: 1}, torch.tensor(0.1), 0.1)
    matrix.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    weight = matrix.detach().clone()
    momentum = optimizer.state[matrix]["momentum"].clone()
    matrix.grad = torch.full((8, 8), torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(matrix, weight)
    assert torch.equal(optimizer.state[matrix]["momentum"], momentum)
