"""Pixels: SSIM against torchmetrics, LPIPS against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from strop.analysis.lpips import _CONVOLUTIONS, LPIPS
from strop.analysis.pixels import ssim_of_mean
from strop.errors import FormatError
from strop.training.decoder_training import ssim


def pictures(seed, count=3, size=64):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def weights(tmp_path):
    """Random weights under the names that the lpips package gives them."""
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for number, (name, before, after, kernel, _, _) in enumerate(_CONVOLUTIONS):
        tensors[f"{name}.weight"] = 0.1 * torch.randn(
            after, before, kernel, kernel, generator=random
        )
        tensors[f"{name}.bias"] = 0.1 * torch.randn(after, generator=random)
        tensors[f"lin{number}.model.1.weight"] = torch.rand(1, after, 1, 1, generator=random)
    path = tmp_path / "lpips.safetensors"
    save_file(tensors, path)
    return path, tensors


def test_ssim_matches_torchmetrics():
    image = pytest.importorskip("torchmetrics.functional.image")
    x, y = pictures(0), pictures(1)
    mixed = 0.7 * x + 0.3 * y
    expected = image.structural_similarity_index_measure(mixed, x, data_range=1.0, reduction="none")
    torch.testing.assert_close(ssim(mixed, x), expected, atol=1e-4, rtol=1e-3)


def test_the_mean_image_is_the_floor():
    flat = torch.full((5, 3, 16, 16), 90, dtype=torch.uint8)
    assert ssim_of_mean(flat.split(2)) == pytest.approx(1.0)
    # Of 0 and 200 the mean is 100, and without texture only brightness is compared.
    two = torch.stack([torch.zeros(3, 16, 16), torch.full((3, 16, 16), 200)]).to(torch.uint8)
    low, mean, high = 0.0, 100 / 255, 200 / 255
    c = 0.01**2
    expected = [(2 * mean * x + c) / (mean**2 + x**2 + c) for x in (low, high)]
    assert ssim_of_mean([two]) == pytest.approx(sum(expected) / 2, rel=1e-4)


def test_equal_images_have_no_distance(weights):
    lpips = LPIPS.load(weights[0])
    assert lpips(pictures(0), pictures(0)).abs().max() == 0
    assert (lpips(pictures(0), pictures(1)) > 0).all()


def test_lpips_is_its_definition(weights):
    """The published network written out: AlexNet's layers in order, the taps after each ReLU."""
    path, tensors = weights
    x, y = pictures(0), pictures(1)

    def taps(images):
        shift = torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
        scale = torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
        maps = ((images * 2 - 1) - shift) / scale
        found = []
        for name, stride, padding, pool in (
            ("slice1.0", 4, 2, True),
            ("slice2.3", 1, 2, True),
            ("slice3.6", 1, 1, False),
            ("slice4.8", 1, 1, False),
            ("slice5.10", 1, 1, False),
        ):
            weight, bias = (tensors[f"net.{name}.{part}"] for part in ("weight", "bias"))
            maps = F.conv2d(maps, weight, bias, stride=stride, padding=padding).relu()
            found.append(maps)
            maps = F.max_pool2d(maps, 3, stride=2) if pool else maps
        return found

    expected = 0
    for number, (a, b) in enumerate(zip(taps(x), taps(y), strict=True)):
        difference = (F.normalize(a, dim=1) - F.normalize(b, dim=1)) ** 2
        weighted = F.conv2d(difference, tensors[f"lin{number}.model.1.weight"])
        expected = expected + weighted.mean(dim=(1, 2, 3))
    torch.testing.assert_close(LPIPS.load(path)(x, y), expected, rtol=1e-4, atol=1e-6)


def test_files_that_are_no_lpips_weights_are_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match="does not hold"):
        LPIPS.load(tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(FormatError, match="cannot be read"):
        LPIPS.load(tmp_path / "text.safetensors")
