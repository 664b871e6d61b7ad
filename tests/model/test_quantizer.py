"""The quantizer: nearest code on the sphere, EMA arithmetic, and what must leave no trace."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model.quantizer import Quantizer, QuantizerConfig

N, WIDTH, CODE, LENGTH = 16, 12, 4, 5


def make(codes: int = N, code_width: int = CODE, **settings) -> Quantizer:
    torch.manual_seed(0)
    config = QuantizerConfig(codes=codes, code_width=code_width, **settings)
    return Quantizer(config, width=WIDTH, length=LENGTH)


def with_codebook(vectors: list[list[float]], **settings) -> Quantizer:
    quantizer = make(len(vectors), len(vectors[0]), **settings)
    quantizer.codebook.copy_(torch.tensor(vectors))
    quantizer.sums.copy_(quantizer.codebook)
    return quantizer


def tokens(count: int = 32, seed: int = 1) -> Tensor:
    """Unit vectors `(2, count, d_c)`."""
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(2, count, CODE, generator=random), dim=-1)


def nearest(quantizer: Quantizer, z: Tensor) -> Tensor:
    return (z @ quantizer.codebook.T).argmax(dim=-1)


def snapshot(quantizer: Quantizer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in quantizer.state_dict().items()}


def same(quantizer: Quantizer, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(before[name], value) for name, value in quantizer.state_dict().items())


def everywhere(z: Tensor) -> Tensor:
    return torch.ones(z.shape[:2], dtype=torch.bool)


# Lookup.


def test_picks_the_nearest_code_on_the_sphere():
    quantizer, raw = make(), torch.randn(2, 5, WIDTH)
    out = quantizer(raw)
    projected = raw @ quantizer.project.weight.T + quantizer.project.bias
    torch.testing.assert_close(out.z, projected / projected.norm(dim=-1, keepdim=True))
    distances = torch.cdist(out.z, quantizer.codebook.expand(2, N, CODE))
    assert torch.equal(out.codes, distances.argmin(dim=-1))
    torch.testing.assert_close(out.similarity, 1 - distances.square() / 2, atol=1e-5, rtol=0)


def test_returned_vectors_are_rows_of_the_codebook():
    quantizer = make()
    out = quantizer(torch.randn(2, 5, WIDTH))
    torch.testing.assert_close(out.z_q, quantizer.codebook[out.codes], atol=1e-6, rtol=0)
    assert torch.equal(quantizer.vectors(out.codes), quantizer.codebook[out.codes])
    torch.testing.assert_close(quantizer.codebook.norm(dim=-1), torch.ones(N))


def test_scale_of_the_raw_tokens_does_not_matter():
    quantizer, raw = make(), torch.randn(2, 5, WIDTH)
    assert torch.equal(quantizer(raw).codes, quantizer(1000 * raw).codes)


def test_gradient_passes_straight_through():
    quantizer, raw = make(), torch.randn(2, 5, WIDTH)
    out = quantizer(raw)
    weight = torch.randn_like(out.z)
    through = torch.autograd.grad((out.z_q * weight).sum(), out.z)[0]
    assert torch.equal(through, weight)
    assert not quantizer.codebook.requires_grad


# EMA.


def test_ema_by_hand():
    """Decay 0.95; code 0 gets (0.6, 0.8) and (1, 0), code 1 gets nothing, then it gets (0, -1)."""
    quantizer = with_codebook([[1.0, 0.0], [0.0, 1.0]])
    z, codes = torch.tensor([[[0.6, 0.8], [1.0, 0.0]]]), torch.tensor([[0, 0]])
    quantizer.update(z, codes, everywhere(z))
    torch.testing.assert_close(quantizer.counts, torch.tensor([1.05, 0.95]))
    torch.testing.assert_close(quantizer.sums, torch.tensor([[1.03, 0.04], [0.0, 0.95]]))
    norm = math.sqrt(1.03**2 + 0.04**2)
    torch.testing.assert_close(
        quantizer.codebook, torch.tensor([[1.03 / norm, 0.04 / norm], [0.0, 1.0]])
    )
    z, codes = torch.tensor([[[0.0, -1.0]]]), torch.tensor([[1]])
    quantizer.update(z, codes, everywhere(z))
    torch.testing.assert_close(quantizer.counts, torch.tensor([0.9975, 0.9525]))
    torch.testing.assert_close(quantizer.sums, torch.tensor([[0.9785, 0.038], [0.0, 0.8525]]))
    torch.testing.assert_close(quantizer.codebook[1], torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("decay", [0.5, 0.95])
def test_ema_against_vector_quantize_pytorch(decay):
    oracle_module = pytest.importorskip("vector_quantize_pytorch")
    oracle = oracle_module.VectorQuantize(
        dim=CODE,
        codebook_size=N,
        use_cosine_sim=True,
        decay=decay,
        kmeans_init=False,
        threshold_ema_dead_code=0,
        sync_codebook=False,
        rotation_trick=False,
    ).train()
    quantizer = make(decay=decay)
    theirs = oracle._codebook
    for mine, other in (
        (quantizer.codebook, theirs.embed),
        (quantizer.sums, theirs.embed_avg),
        (quantizer.counts, theirs.cluster_size),
    ):
        mine.copy_(other[0])
    seen = set()
    for step in range(6):
        z = tokens(seed=step)
        codes = nearest(quantizer, z)
        _, their_codes, _ = oracle(z)
        assert torch.equal(codes, their_codes)
        quantizer.update(z, codes, everywhere(z))
        torch.testing.assert_close(quantizer.codebook, theirs.embed[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(quantizer.sums, theirs.embed_avg[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(quantizer.counts, theirs.cluster_size[0], atol=1e-6, rtol=0)
        seen |= set(codes.flatten().tolist())
    assert len(seen) > N // 2


def test_masked_tokens_leave_no_trace():
    active = torch.rand(2, 32, generator=torch.Generator().manual_seed(3)) > 0.5
    states = []
    for fill in (tokens(seed=1), tokens(seed=2)):
        quantizer = make()
        z = torch.where(active[..., None], tokens(), fill)
        # Only codes of active tokens may count, so the others get arbitrary ones.
        codes = torch.where(active, nearest(quantizer, z), nearest(quantizer, fill))
        quantizer.update(z, codes, active)
        states.append(snapshot(quantizer))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

    compact = make()
    z = tokens()[active][None]
    compact.update(z, nearest(compact, z), everywhere(z))
    assert same(compact, states[0])


def test_an_unused_code_stays_where_it_is_forever():
    """Its count and sum fade to nothing; its direction must not fade with them."""
    quantizer = with_codebook([[1.0, 0.0], [0.6, 0.8]])
    z, codes = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[0]])
    for _ in range(3000):
        quantizer.update(z, codes, everywhere(z))
    torch.testing.assert_close(quantizer.codebook, torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    assert quantizer.counts[1] < 1e-12


def test_opposite_tokens_do_not_make_a_nan():
    quantizer = with_codebook([[1.0, 0.0], [0.0, 1.0]], decay=0.0)
    z, codes = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.tensor([[0, 0]])
    quantizer.update(z, codes, everywhere(z))
    assert quantizer.codebook.isfinite().all()


# Centring.


def off_centre(count: int = 64) -> Tensor:
    """Raw tokens `(count, K, d)` whose positions lie far apart, each within a small ball."""
    random = torch.Generator().manual_seed(6)
    places = 3 * torch.randn(LENGTH, WIDTH, generator=random)
    return places + 0.5 * torch.randn(count, LENGTH, WIDTH, generator=random)


def test_recentring_by_hand():
    """Decay 0.95. Position 0 has (2, 0) and (4, 2), the others (1, 1) twice."""
    quantizer = make(code_width=2, centred=True)
    quantizer.centre[1:] = torch.tensor([7.0, -7.0])
    projected = torch.ones(2, LENGTH, 2)
    projected[:, 0] = torch.tensor([[2.0, 0.0], [4.0, 2.0]])
    quantizer.recentre(projected)
    expected = [[0.15, 0.05], *[[6.7, -6.6]] * 4]
    torch.testing.assert_close(quantizer.centre, torch.tensor(expected))
    quantizer.recentre(projected, decay=0.5)
    expected = [[1.575, 0.525], *[[3.85, -2.8]] * 4]
    torch.testing.assert_close(quantizer.centre, torch.tensor(expected))


def test_tokens_of_every_position_are_moved_to_one_mean():
    quantizer, raw = make(centred=True), off_centre()
    before = quantizer(raw)
    quantizer.recentre(before.projected, decay=0.0)
    after = quantizer(raw)
    assert torch.equal(after.projected, before.projected)
    means = after.projected.mean(dim=0)
    moved = after.projected - means + means.mean(dim=0)
    torch.testing.assert_close(after.z, F.normalize(moved, dim=-1))
    apart = [torch.pdist(each.z.mean(dim=0)).max() for each in (before, after)]
    assert apart[1] < 0.2 * apart[0]


def test_gradients_cannot_move_the_tokens_of_one_position_together():
    """Only all positions together: else they would run away from the means that are stored."""
    quantizer, raw = make(centred=True), off_centre()
    quantizer.begin(raw, torch.linspace(0, 0.999, N))
    out = quantizer(raw)
    weight = torch.randn(out.z.shape, generator=torch.Generator().manual_seed(2))
    gradient = torch.autograd.grad((out.z_q * weight).sum(), out.projected)[0].sum(dim=0)
    torch.testing.assert_close(gradient, gradient.mean(dim=0).expand_as(gradient))
    assert gradient.abs().max() > 1e-3


def test_beginning_centres_before_it_places_codes():
    raw, uniform = off_centre(), torch.linspace(0, 0.999, N)
    quantizer, plain = make(centred=True), make()
    for each in (quantizer, plain):
        each.begin(raw, uniform)
    torch.testing.assert_close(quantizer.centre, quantizer(raw).projected.mean(dim=0))
    for each in (quantizer, plain):
        z = each(raw).z.flatten(0, 1)
        assert torch.cdist(each.codebook, z).amin(dim=1).max() < 1e-3
        assert torch.equal(each.counts, torch.ones(N))
    used = [
        sum(len(position.unique()) for position in each(raw).codes.T) for each in (quantizer, plain)
    ]
    assert used[0] > 2 * used[1], "positions share the codes that otherwise they divide"


def test_without_centring_there_is_nothing_to_recentre():
    quantizer, raw = make(), off_centre()
    before = snapshot(quantizer)
    quantizer.recentre(quantizer(raw).projected)
    assert same(quantizer, before)


# What forward may not do.


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_forward_changes_nothing(training, centred):
    quantizer = make(centred=centred).train(training)
    before = snapshot(quantizer)
    quantizer(torch.randn(4, LENGTH, WIDTH))
    assert same(quantizer, before)


def test_the_codebook_is_saved_and_not_trained():
    plain, centred = make(), make(centred=True)
    trained, kept = {"project.weight", "project.bias"}, {"codebook", "counts", "sums"}
    assert plain.state_dict().keys() == trained | kept
    assert centred.state_dict().keys() == trained | kept | {"centre"}
    for quantizer in (plain, centred):
        assert {name for name, _ in quantizer.named_parameters()} == trained


def test_is_fp32_under_autocast():
    quantizer, raw = make(codes=512), torch.randn(8, 64, WIDTH)
    expected = quantizer(raw)
    with torch.autocast("cpu", torch.bfloat16):
        under = quantizer(raw)
    # Rounded by hand: some processors cannot multiply in bf16.
    similarity = expected.z.bfloat16().float() @ quantizer.codebook.bfloat16().float().T
    bf16 = similarity.bfloat16().argmax(dim=-1)
    for name in ("z", "z_q", "similarity"):
        assert getattr(under, name).dtype == torch.float32
    assert torch.equal(under.codes, expected.codes)
    assert torch.equal(under.z_q, expected.z_q)
    assert not torch.equal(bf16, expected.codes), "the input must be one on which bf16 goes wrong"


def test_takes_bf16_tokens():
    raw = torch.randn(2, 5, WIDTH).bfloat16()
    quantizer = make()
    assert torch.equal(quantizer(raw).codes, quantizer(raw.float()).codes)


def test_updates_are_fp32_under_autocast():
    results = []
    for enabled in (False, True):
        quantizer, z = make(centred=True), tokens()
        codes = nearest(quantizer, z)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            quantizer.recentre(z[:, :LENGTH])
            quantizer.update(z, codes, everywhere(z))
            quantizer.reseed(z, everywhere(z), torch.linspace(0, 0.99, N), below=0.96)
        results.append(snapshot(quantizer))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert all(value.dtype == torch.float32 for value in results[1].values())


# Reseeding.


@pytest.fixture
def reseeded() -> SimpleNamespace:
    """Codes 3 and 5 died and were put on tokens of a batch of which half is active."""
    quantizer = make()
    quantizer.counts[[3, 5]] = 0.05
    z = tokens()
    active = torch.arange(32).expand(2, -1) < 16
    before = snapshot(quantizer)
    uniform = torch.rand(N, generator=torch.Generator().manual_seed(4))
    quantizer.reseed(z, active, uniform, below=0.1)
    return SimpleNamespace(quantizer=quantizer, z=z, active=active, before=before)


def test_reseed_moves_dead_codes_alone(reseeded):
    moved = (reseeded.quantizer.codebook != reseeded.before["codebook"]).any(dim=-1)
    assert moved.nonzero().flatten().tolist() == [3, 5]
    assert reseeded.quantizer.counts[[3, 5]].tolist() == [1, 1]
    alive = [code for code in range(N) if code not in (3, 5)]
    for name in ("counts", "sums"):
        assert torch.equal(getattr(reseeded.quantizer, name)[alive], reseeded.before[name][alive])


def test_reseeded_codes_lie_on_active_tokens(reseeded):
    distance = torch.cdist(reseeded.quantizer.codebook[[3, 5]], reseeded.z[reseeded.active])
    assert (distance.amin(dim=1) < 1e-3).all()


def test_reseeded_codes_keep_their_new_place(reseeded):
    """The trap: with the old sum left in, the next update pulls the code back."""
    quantizer, place = reseeded.quantizer, reseeded.quantizer.codebook[[3, 5]].clone()
    z = tokens(seed=7)
    elsewhere = torch.zeros(z.shape[:2], dtype=torch.int64)
    for _ in range(3):
        quantizer.update(z, elsewhere, everywhere(z))
    torch.testing.assert_close(quantizer.codebook[[3, 5]], place)


def test_reseed_draws_from_every_active_token_and_no_other():
    z = tokens(count=8)
    active = torch.zeros(2, 8, dtype=torch.bool)
    active[0, 2] = active[0, 7] = active[1, 0] = True
    quantizer = make(codes=3000)
    quantizer.initialise(z, active, torch.rand(3000, generator=torch.Generator().manual_seed(5)))
    drawn = torch.cdist(quantizer.codebook, z.flatten(0, 1)).argmin(dim=1).bincount(minlength=16)
    assert drawn.nonzero().flatten().tolist() == [2, 7, 8]
    assert drawn.max() < 1.2 * drawn[drawn > 0].min(), "each as likely as the others"


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-24])
def test_reseed_stays_on_active_tokens_at_the_ends_of_the_draw(edge):
    z = tokens(count=8)
    active = torch.zeros(2, 8, dtype=torch.bool)
    active[0, 3] = active[1, 4] = True
    quantizer = make()
    quantizer.initialise(z, active, torch.full((N,), edge))
    expected = z[0, 3] if edge == 0 else z[1, 4]
    torch.testing.assert_close(quantizer.codebook, expected.expand(N, CODE))


def test_the_first_batch_initialises_every_code():
    quantizer, z = make(), tokens()
    quantizer.initialise(z, everywhere(z), torch.linspace(0, 0.999, N))
    assert torch.cdist(quantizer.codebook, z.flatten(0, 1)).amin(dim=1).max() < 1e-3
    torch.testing.assert_close(quantizer.codebook.norm(dim=-1), torch.ones(N))
    assert torch.equal(quantizer.counts, torch.ones(N))
