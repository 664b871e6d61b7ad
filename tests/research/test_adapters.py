"""Other tokenizers: the calls, ranges and shapes of their public interfaces, as recorded.

The stand-ins do nothing but keep to the interface: names, shapes and what they refuse.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from adapters import ADAPTERS, evaluate_adapter, flextok, one_d_piece
from strop.analysis.evaluation_report import compare, read_runs
from strop.analysis.paper import OTHERS
from strop.analysis.probes.protocol import PAPER
from strop.errors import ConfigError, DataError, ModelError

pytestmark = pytest.mark.slow


class RecordedFlexTok(nn.Module):
    """FlexTok's `encode`: a dict of lists of single images in [-1, 1], the same dict out."""

    quants_write_key = "quants"

    def __init__(self) -> None:
        super().__init__()
        self.vae = SimpleNamespace(images_read_key="rgb", sample_posterior=True)
        self.given: list[torch.Tensor] = []

    def encode(self, data):
        images = data["rgb"]
        assert all(image.shape == (1, 3, 256, 256) for image in images)
        self.given += images
        patches = [image[:, :, ::16, ::16].repeat(1, 256, 1, 1).movedim(1, -1) for image in images]
        registers = [image.reshape(1, 256, -1)[..., :6] for image in images]
        return {**data, "enc_vae_latents_patched": patches, "quants": registers}


class RecordedOneDPiece(nn.Module):
    """One-D-Piece's `encode` and decoder: images in [0, 1] to (B, 12, 1, 256), then a field."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = RecordedDecoder()
        self.given: list[torch.Tensor] = []

    def encode(self, images):
        self.given.append(images)
        tokens = images.reshape(len(images), 256, -1)[..., :12]
        return tokens.transpose(1, 2)[:, :, None], {"min_encoding_indices": None}


class RecordedDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ffn = nn.Conv2d(512, 4, 1)

    def forward(self, z_q):
        assert z_q.shape[1:] == (12, 1, 256)
        return self.ffn(z_q[:, :1].reshape(-1, 1, 16, 16).repeat(1, 512, 1, 1))


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, 256, 256), dtype=torch.uint8, generator=generator)


def test_flextok_is_called_as_its_package_says(images):
    model = RecordedFlexTok()
    adapter = flextok(model)
    latent, program = adapter.encode(images)
    assert (latent.shape, program.shape) == ((2, 256, 768), (2, 256, 6))
    assert model.vae.sample_posterior is False
    pixels = torch.cat(model.given)
    assert (pixels.min(), pixels.max()) == (-1, 1)
    # The first patch stays the first location, the last the last.
    torch.testing.assert_close(latent[:, 0, :3], pixels[:, :, 0, 0])
    torch.testing.assert_close(latent[:, -1, :3], pixels[:, :, 240, 240])
    assert round(adapter.bits) == 4087


def test_one_d_piece_is_called_as_its_package_says(images):
    model = RecordedOneDPiece()
    adapter = one_d_piece(model)
    latent, program = adapter.encode(images)
    assert (latent.shape, program.shape) == ((2, 256, 512), (2, 256, 12))
    assert (model.given[0].min(), model.given[0].max()) == (0, 1)
    torch.testing.assert_close(latent[..., 0], program[..., 0])
    assert not model.decoder.ffn._forward_pre_hooks
    assert adapter.bits == 3072


def test_without_the_packages_the_remedy_is_reported():
    for name, where in (("flextok-d12-d12-in1k", "ml-flextok"), ("one-d-piece-s-256", "One-D")):
        with pytest.raises(ModelError, match=where):
            ADAPTERS[name]()
    assert tuple(ADAPTERS) == OTHERS


@pytest.fixture
def quick(monkeypatch):
    """The protocol with a few steps: what is learned does not matter here."""
    short = replace(PAPER, steps=4, weight_decays=PAPER.weight_decays[:1])
    monkeypatch.setattr("adapters.PAPER", short)


def test_probes_run_and_are_kept(tmp_path, quick):
    adapter = one_d_piece(RecordedOneDPiece())
    specs = {"train": ["scenes:?n=10&seed=1&size=32"], "suites": ["multilabel"]}
    (part,) = evaluate_adapter(adapter, ["scenes:?n=6&seed=2&size=32"], tmp_path, **specs)
    assert set(part["representations"]) == {"latent", "program"}
    assert part["images"] == 6
    assert part["model"]["about"]["bits"] == 3072
    assert all(math.isfinite(each["values"]["map"]) for each in part["representations"].values())
    broken = one_d_piece(RecordedOneDPiece())
    object.__setattr__(broken, "encode", None)
    again = evaluate_adapter(broken, ["scenes:?n=6&seed=2&size=32"], tmp_path, **specs)
    assert again == [part]
    assert compare(read_runs([tmp_path])) == []


def test_suites_that_are_not_probes_are_refused(tmp_path):
    adapter = one_d_piece(RecordedOneDPiece())
    with pytest.raises(ConfigError, match="alignment is not for other tokenizers"):
        evaluate_adapter(adapter, ["scenes:?n=2"], tmp_path, suites=["alignment"])
    with pytest.raises(DataError, match="--train"):
        evaluate_adapter(adapter, ["scenes:?n=2"], tmp_path, suites=["depth"])
