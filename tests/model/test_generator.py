"""The generator: causal order, and the two attention calls against one big masked one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.generator import Generator, query_visibility
from strop.model.layers import TransformerConfig

S, K, FIELD = 9, 7, 12
CONFIG = TransformerConfig(width=32, depth=3, heads=4, feedforward=64)


@pytest.fixture
def generator() -> Generator:
    torch.manual_seed(0)
    generator = Generator(CONFIG, field_width=FIELD, locations=S, length=K)
    for parameter in generator.parameters():
        # Away from their starting values, or norms and biases would go untested.
        parameter.data += 0.2 * torch.randn_like(parameter)
    return generator


@pytest.fixture
def field() -> Tensor:
    return torch.randn(2, S, FIELD, generator=torch.Generator().manual_seed(1))


def masked_reference(generator: Generator, field: Tensor) -> Tensor:
    """The generator written plainly: one sequence, one `(S + K) x (S + K)` mask, no shortcuts."""
    x = F.layer_norm(field, [FIELD], generator.norm_in.weight, generator.norm_in.bias)
    x = x @ generator.project.weight.T + generator.project.bias + generator.source_positions
    queries = generator.queries + generator.prefix_positions
    x = torch.cat([x, queries.expand(len(field), K, CONFIG.width)], dim=1)

    mask = torch.zeros(S + K, S + K, dtype=torch.bool)
    mask[:, :S] = True
    for k in range(K):
        mask[S + k, S : S + k + 1] = True

    for layer in generator.layers:
        normed = layer.norm_attention(x)
        q, (k, v) = layer.q(normed), layer.kv(normed).split(CONFIG.width, dim=-1)
        size = CONFIG.width // CONFIG.heads
        heads = []
        for h in range(CONFIG.heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
            heads.append(scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ v[..., part])
        x = x + layer.out(torch.cat(heads, dim=-1))
        x = x + layer.feedforward(layer.norm_feedforward(x))
    return generator.norm_out(x)[:, S:]


def test_two_attention_calls_equal_one_masked_call(generator, field):
    torch.testing.assert_close(
        generator(field), masked_reference(generator, field), atol=1e-5, rtol=0
    )


def test_queries_only_equals_forward(generator, field):
    x = torch.randn(2, S + K, CONFIG.width)
    for layer in generator.layers:
        torch.testing.assert_close(
            layer.queries_only(x, generator.visible),
            layer(x, generator.visible)[:, S:],
            atol=1e-6,
            rtol=0,
        )


@pytest.mark.parametrize("table", ["queries", "prefix_positions"])
@pytest.mark.parametrize("k", [0, 3, K - 1])
def test_changing_a_query_or_its_position_changes_nothing_before_it(generator, field, table, k):
    before = generator(field)
    getattr(generator, table).data[k] += torch.randn(CONFIG.width)
    after = generator(field)
    assert torch.equal(before[:, :k], after[:, :k])
    changed = (before[:, k:] - after[:, k:]).abs().amax(dim=(0, 2))
    assert (changed > 1e-3).all(), "it and every later query must notice"


def test_each_query_depends_on_itself_and_its_past_alone(generator, field):
    tokens = generator(field)
    for k in range(K):
        generator.zero_grad()
        tokens[:, k].sum().backward(retain_graph=True)
        reached = generator.queries.grad.abs().sum(dim=1) > 0
        assert reached.tolist() == [j <= k for j in range(K)]


def test_sources_never_see_queries(generator, field):
    x = torch.randn(2, S + K, CONFIG.width, requires_grad=True)
    out = x
    for layer in generator.layers:
        out = layer(out, generator.visible)
    out[:, :S].square().sum().backward()
    assert torch.count_nonzero(x.grad[:, S:]) == 0
    assert (x.grad[:, :S].abs().sum(dim=-1) > 0).all()


def test_every_query_sees_every_source(generator, field):
    field.requires_grad_()
    tokens = generator(field)
    for k in range(K):
        (gradient,) = torch.autograd.grad(tokens[:, k].square().sum(), field, retain_graph=True)
        assert (gradient.abs().sum(dim=-1) > 0).all()


def test_query_visibility_is_all_sources_and_a_triangle():
    assert query_visibility(2, 3).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]


def test_the_mask_is_no_part_of_the_weights(generator):
    assert "visible" not in generator.state_dict()
    assert all(isinstance(value, nn.Parameter) for value in generator.parameters())


def test_images_of_a_batch_do_not_mix(generator, field):
    alone = torch.cat([generator(row[None]) for row in field])
    torch.testing.assert_close(generator(field), alone, atol=1e-5, rtol=0)
