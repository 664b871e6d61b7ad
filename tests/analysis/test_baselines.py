"""Baselines: bits are counted honestly, layouts are chosen well, and each is what its name says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.agreement import agree
from strop.analysis.baselines import fit_baselines
from strop.analysis.baselines.kmeans import cluster, from_blocks, kmeans, to_blocks
from strop.analysis.baselines.pca import normal_error, normal_levels, pca
from strop.errors import DataError


def draw_fields(count: int, seed: int = 0, locations: int = 16, width: int = 192):
    """Smooth fields of a few latent causes, with a mean field and noise."""
    random = torch.Generator().manual_seed(0)
    causes = torch.randn(6, locations, width, generator=random)
    mean = 2 * torch.randn(locations, width, generator=random)
    random = torch.Generator().manual_seed(1 + seed)
    weights = torch.randn(count, 6, generator=random) * torch.tensor([4.0, 3, 2, 1, 1, 1])
    noise = 0.3 * torch.randn(count, locations, width, generator=random)
    return mean + torch.einsum("nk,ksd->nsd", weights, causes) + noise


@pytest.fixture(scope="module")
def fitted():
    return draw_fields(256)


def scores(code, fields):
    return agree(code.pairs(fields)).scores()


@pytest.mark.parametrize("bits", [6.0, 36.0, 72.0])
def test_all_stay_within_the_budget_and_beat_the_mean_field(bits, fitted, tokenizer):
    codes = fit_baselines(fitted, bits, config=tokenizer.config)
    assert [code.name.split("-")[0] for code in codes] == ["mean", "kmeans", "pca", "random"]
    held_out = draw_fields(64, seed=9)
    floor = scores(codes[0], held_out)
    assert codes[0].bits == 0
    for code in codes[1:]:
        assert 0 < code.bits <= bits + 1e-6
        assert scores(code, held_out)["r2"] > floor["r2"]


def test_more_bits_are_never_much_worse(fitted, tokenizer):
    held_out = draw_fields(64, seed=9)
    few, many = (
        {code.name.split("-")[0]: scores(code, held_out)["r2"] for code in codes}
        for codes in (fit_baselines(fitted, bits, config=tokenizer.config) for bits in (8, 64))
    )
    assert many["pca"] > few["pca"]
    assert many["kmeans"] > few["kmeans"] - 0.01


def test_the_mean_field_is_that_of_the_fitted_images(fitted, tokenizer):
    mean = fit_baselines(fitted, 6.0, config=tokenizer.config)[0]
    made = mean.interpret(draw_fields(3, seed=5))
    torch.testing.assert_close(made, fitted.mean(0).expand(3, -1, -1))


def test_below_one_token_there_is_no_random_tokenizer(fitted, tokenizer):
    names = [code.name for code in fit_baselines(fitted, 5.0, config=tokenizer.config)]
    assert "random" not in names
    assert "kmeans" in names


def test_fitting_is_deterministic(fitted, tokenizer):
    first, second = (fit_baselines(fitted, 36.0, config=tokenizer.config) for _ in range(2))
    fields = draw_fields(4, seed=3)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.interpret(fields), b.interpret(fields))


def test_too_few_images_are_refused(fitted, tokenizer):
    with pytest.raises(DataError, match="15 images"):
        fit_baselines(fitted[:15], 36.0, config=tokenizer.config)


def test_kmeans_finds_fields_that_are_codes():
    """Fields of 2 x 2 blocks drawn from eight patterns: three bits a block are enough."""
    random = torch.Generator().manual_seed(0)
    patterns = 5 * torch.randn(8, 4 * 3, generator=random)
    chosen = torch.randint(8, (200 * 4,), generator=random)
    fields = from_blocks(patterns[chosen], 2, torch.empty(200, 16, 3))
    best = {code.setting: code for code in kmeans(fields, 12.0, seed=0)}
    code = next(code for setting, code in best.items() if "2 x 2" in setting)
    assert code.bits == 12.0
    assert scores(code, fields)["r2"] > 0.8  # Lloyd may leave a pattern or two together


def test_a_block_with_more_bits_than_a_codebook_has_several():
    random = torch.Generator().manual_seed(0)
    fields = torch.randn(64, 4, 3, generator=random)
    (whole,) = [code for code in kmeans(fields, 9.0, seed=0) if code.setting.startswith("1 ")]
    assert "3 of 8 codes" in whole.setting  # eight samples a code allow eight codes: three bits
    assert whole.bits == 9.0


@given(st.integers(1, 3), st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]))
def test_blocks_are_put_back_where_they_were(count, layout):
    grid, side = layout
    fields = torch.arange(count * grid**2 * 2.0).reshape(count, grid**2, 2)
    blocks = to_blocks(fields, side)
    assert blocks.shape == (count * (grid // side) ** 2, side**2 * 2)
    assert torch.equal(from_blocks(blocks, side, fields), fields)
    corner = fields[0].reshape(grid, grid, 2)[:side, :side].flatten()
    assert torch.equal(blocks[0], corner)


def test_clusters_of_separate_points_are_found():
    points = torch.tensor([[0.0, 0], [0, 1], [10, 0], [10, 1]])
    found = [cluster(points, 2, torch.Generator().manual_seed(seed)) for seed in range(8)]
    means = {tuple(row) for centres in found for row in centres.tolist()}
    assert {(0.0, 0.5), (10.0, 0.5)} <= means


@pytest.mark.parametrize(("bits", "error"), [(0, 1.0), (1, 0.3634), (2, 0.1175), (3, 0.03454)])
def test_normal_quantizers_match_max_1960(bits, error):
    assert normal_error(bits) == pytest.approx(error, rel=2e-3)
    assert len(normal_levels(bits)) == 2**bits
    if bits == 1:
        assert normal_levels(1)[1] == pytest.approx(math.sqrt(2 / math.pi), rel=1e-3)


def test_pca_keeps_what_lies_in_few_directions():
    """Two causes, many bits: almost nothing is lost. The same bits for noise: much is."""
    random = torch.Generator().manual_seed(0)
    causes = torch.randn(2, 16 * 8, generator=random)
    planted = (torch.randn(300, 2, generator=random) @ causes).view(300, 16, 8)
    noise = torch.randn(300, 16, 8, generator=random)
    for fields, low, high in ((planted, 0.99, 1.0), (noise, 0.0, 0.2)):
        codes = pca(fields[:200], fields[200:250], 14.0)
        best = max(scores(code, fields[250:])["r2"] for code in codes)
        assert low <= best <= high
        assert all(code.bits <= 14 for code in codes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_finds_codes_as_good(fitted, tokenizer):
    held_out = draw_fields(64, seed=9)
    here, there = (
        {code.name.split("-")[0]: scores(code, held_out)["r2"] for code in codes}
        for codes in (
            fit_baselines(fitted, 36.0, config=tokenizer.config, device=device)
            for device in ("cpu", "cuda")
        )
    )
    assert there == pytest.approx(here, abs=0.02)
