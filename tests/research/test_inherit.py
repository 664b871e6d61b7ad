"""Inheritance: a student's initial weights from a wider network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from tiny_training import smooth_pictures

from distil import DistilConfig, distil
from inherit import _Activations, _balanced, _Fit, inherit
from networks import load_network
from strop.errors import ConfigError
from strop.model.teacher import ARCHITECTURES
from strop.training.callbacks import read_metrics
from student import Student

LAYERS = {"num_hidden_layers": 2, "num_register_tokens": 4, "patch_size": 16}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, **LAYERS}
CONFIG = DistilConfig(
    student="small", sizes=(32, 64), steps=4, batch=16, held_out=16, validate_every=4
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "small", SMALL)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """uint8 (160, 3, 64, 64): coloured blocks, smoothed."""
    return smooth_pictures(160, 6)


def saved(model: torch.nn.Module, folder) -> str:
    """Save a network with larger weights: the library's initial ones hardly change the stream."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "token" not in name:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        if "norm1.bias" in name:  # keys with a mean, which positions rotate
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def same(tmp_path_factory) -> str:
    """A DINOv3 of the student's own shape."""
    config = transformers.DINOv3ViTConfig(**SMALL, image_size=64)
    return saved(transformers.DINOv3ViTModel(config), tmp_path_factory.mktemp("same"))


@pytest.fixture(scope="module")
def wider(tmp_path_factory) -> str:
    """A DINOv2 of patch 14 with twice the channels, heads and neurons."""
    config = transformers.Dinov2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, patch_size=14, image_size=56
    )
    return saved(transformers.Dinov2Model(config), tmp_path_factory.mktemp("wider"))


def inherited(name: str, pictures: torch.Tensor) -> float:
    torch.manual_seed(0)
    teacher = load_network(name)
    student = Student("small", [teacher.width], size=64)
    *images, held_out = pictures.float().split(32)
    return inherit(student, teacher, images, held_out)


def test_a_network_of_the_same_shape_is_reproduced(same, pictures):
    assert inherited(same, pictures) > 0.95


def test_a_wider_network_is_approximated_on_held_out_images(wider, pictures):
    assert inherited(wider, pictures) > 0.5


def test_a_fit_recovers_the_map():
    torch.manual_seed(0)
    weight, bias, x = torch.randn(3, 5), torch.randn(3), torch.randn(4, 50, 5)
    fit = _Fit()
    for batch in x:
        fit.add(batch, F.linear(batch, weight, bias))
    found, shift = fit.solve(ridge=1e-9)
    torch.testing.assert_close(found, weight, atol=1e-4, rtol=0)
    torch.testing.assert_close(shift, bias, atol=1e-4, rtol=0)
    # Inputs that determine the output explain more than others.
    fit = _Fit()
    fit.add(x, x[..., 1:2])
    assert fit.explained(torch.tensor([1])) > 10 * fit.explained(torch.tensor([0, 2, 3, 4]))


def test_the_new_basis_preserves_attention():
    """And the channels that positions rotate least carry most of it."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 40, 16) * torch.linspace(0.1, 3, 16), torch.randn(2, 40, 16) + 1
    recorded = _Activations(query, key, *[torch.empty(0)] * 7)
    for_queries, for_keys = _balanced([recorded], 1, 8)
    queries, keys = query[..., 8:].flatten(0, 1), key[..., 8:].flatten(0, 1)
    new_queries, new_keys = queries @ for_queries, (keys - keys.mean(0)) @ for_keys
    torch.testing.assert_close(
        new_queries @ new_keys.T, queries @ (keys - keys.mean(0)).T, atol=1e-4, rtol=1e-4
    )
    # Of 8 channels, 0, 2, 4 and 6 rotate fast; the others slowly.
    strength = new_queries.square().mean(0) * new_keys.square().mean(0)
    assert strength[1::2].min() > strength[::2].max()


@pytest.mark.slow
def test_an_inheriting_distillation_starts_better_and_is_repeatable(wider, pictures, tmp_path):
    def run(name: str, **changes) -> dict[str, float]:
        config = replace(CONFIG, **changes)
        return distil([wider], [pictures], out=tmp_path / name, config=config, device="cpu")

    metric = f"{wider.rsplit('/', 1)[-1]}, 64 px, patches, r2_centred"
    from_noise, from_it = run("noise"), run("inherited", inherit=True)
    assert from_it[metric] > from_noise[metric] + 0.2
    assert from_it == run("again", inherit=True)
    first, *_ = read_metrics(tmp_path / "inherited" / "metrics.jsonl")
    assert first["kind"] == "inherited"
    assert first["share of the stream"] > 0.3


@pytest.mark.slow
def test_a_resumed_run_does_not_inherit_again(wider, pictures, tmp_path):
    config = replace(CONFIG, inherit=True, views=2, validate_every=2)
    options = {"config": config, "device": "cpu", "dtype": "fp32"}
    for name in ("whole", "killed"):
        distil([wider], [pictures], out=tmp_path / name, **options)
    (tmp_path / "killed" / "checkpoints" / "step-00000004.safetensors").unlink()
    distil([wider], [pictures], out=tmp_path / "killed", resume=True, **options)
    whole, killed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")
    )
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    kinds = [line["kind"] for line in read_metrics(tmp_path / "killed" / "metrics.jsonl")]
    assert kinds.count("inherited") == 1


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"num_hidden_layers": 3}, r"it has 3 layers, and the student 2"),
        ({"num_attention_heads": 2}, r"its heads are not 16 channels wide"),
        ({"hidden_size": 16, "num_attention_heads": 1}, r"it is 16 channels wide, and the .* 32"),
        ({"intermediate_size": 48}, r"its MLPs have 48 neurons, and the student's 64"),
        ({"use_gated_mlp": True}, r"not a DINOv2 or DINOv3 of transformers with a plain MLP"),
    ],
)
def test_incompatible_networks_are_refused(shape, why, pictures, tmp_path):
    config = transformers.DINOv3ViTConfig(
        **{**SMALL, "hidden_size": 64, "num_attention_heads": 4, **shape}, image_size=64
    )
    name = saved(transformers.DINOv3ViTModel(config), tmp_path / "other")
    with pytest.raises(ConfigError, match=why):
        inherited(name, pictures)


def test_a_convolutional_network_is_refused(pictures, tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    transformers.ResNetModel(config).save_pretrained(tmp_path / "resnet")
    with pytest.raises(ConfigError, match=r"not a DINOv2 or DINOv3 .* leave out --inherit"):
        distil(
            [str(tmp_path / "resnet")],
            [pictures],
            out=tmp_path / "out",
            config=replace(CONFIG, inherit=True),
            device="cpu",
        )
