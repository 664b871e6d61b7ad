"""The interpreter: what is masked, cut off or erased leaves no trace, and positions stay put."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strop.model.interpreter import Interpreter, prefix_mask
from strop.model.layers import TransformerConfig

S, K, CODE, FIELD = 9, 8, 4, 10


@pytest.fixture
def interpreter() -> Interpreter:
    torch.manual_seed(0)
    config = TransformerConfig(width=32, depth=3, heads=4, feedforward=64)
    interpreter = Interpreter(config, code_width=CODE, field_width=FIELD, locations=S, length=K)
    for parameter in interpreter.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return interpreter


@pytest.fixture
def z_q() -> Tensor:
    return torch.randn(3, K, CODE, generator=torch.Generator().manual_seed(1))


def far(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > 1e-3)


@pytest.mark.parametrize("length", range(1, K + 1))
def test_truncated_equals_masked(interpreter, z_q, length):
    masked = interpreter(z_q, prefix_mask(torch.full((3,), length), K))
    cut = interpreter(z_q[:, :length], torch.ones(3, length, dtype=torch.bool))
    torch.testing.assert_close(masked, cut, atol=1e-5, rtol=0)


def test_rows_of_different_lengths_equal_each_alone(interpreter, z_q):
    lengths = torch.tensor([2, K, 5])
    together = interpreter(z_q, prefix_mask(lengths, K))
    for row, length in enumerate(lengths.tolist()):
        alone = interpreter(z_q[row : row + 1, :length], torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=0)


def test_what_is_not_active_leaves_no_trace(interpreter, z_q):
    active = torch.rand(3, K, generator=torch.Generator().manual_seed(2)) > 0.4
    active[:, 3] = True
    other = torch.where(active[..., None], z_q, 100 * torch.randn_like(z_q))
    assert torch.equal(interpreter(z_q, active), interpreter(other, active))


def test_no_gradient_reaches_what_is_not_active(interpreter, z_q):
    active = prefix_mask(torch.tensor([2, K, 5]), K)
    z_q.requires_grad_()
    interpreter(z_q, active).square().sum().backward()
    assert torch.equal(z_q.grad.abs().sum(dim=-1) > 0, active)


def test_a_hole_leaves_the_others_at_their_positions(interpreter, z_q):
    """Erasing token 2 is the same as never having had one there, and not as moving up."""
    everything = torch.ones(3, K, dtype=torch.bool)
    hole = everything.clone()
    hole[:, 2] = False
    erased = interpreter(z_q, hole)
    kept = [k for k in range(K) if k != 2]
    moved_up = interpreter(z_q[:, kept], everything[:, 1:])
    assert far(erased, interpreter(z_q, everything))
    assert far(erased, moved_up)

    positions = interpreter.prefix_positions.data
    interpreter.prefix_positions.data = positions[[*kept, 2]]
    torch.testing.assert_close(
        interpreter(z_q[:, kept], everything[:, 1:]), erased, atol=1e-5, rtol=0
    )


def test_the_order_of_codes_matters(interpreter, z_q):
    everything = torch.ones(3, K, dtype=torch.bool)
    assert far(interpreter(z_q, everything), interpreter(z_q.flip(1), everything))


def test_each_location_reads_the_program_by_itself(z_q):
    """Moving one grid query moves that location and no other."""
    torch.manual_seed(0)
    config = TransformerConfig(width=32, depth=2, heads=4, feedforward=64)
    interpreter = Interpreter(config, code_width=CODE, field_width=FIELD, locations=S, length=K)
    active = torch.ones(3, K, dtype=torch.bool)
    before = interpreter(z_q, active)
    interpreter.grid.data[4] += torch.randn(32)
    after = interpreter(z_q, active)
    moved = (before != after).any(dim=-1)
    assert moved[:, 4].all()
    assert not moved[:, [p for p in range(S) if p != 4]].any()


def test_prefix_mask_is_true_up_to_each_length():
    assert prefix_mask(torch.tensor([1, 3]), 3).tolist() == [[True, False, False], [True] * 3]
