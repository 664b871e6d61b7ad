"""The compact forward: equal to `transformers`, for every family and spelling of the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.errors import TeacherError
from strop.model.teacher import ARCHITECTURES, BUNDLED, FAMILIES, Teacher, load_teacher
from strop.model.vit import ViT
from strop.random import seeded

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
DINOV2 = {**SIZES, "patch_size": 14, "image_size": 98}
PLAIN = dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"), False)
MODELS = {
    "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**DINOV2)),
    "dinov2, swiglu": lambda: transformers.Dinov2Model(
        transformers.Dinov2Config(**DINOV2, use_swiglu_ffn=True)
    ),
    "dinov2, no biases": lambda: transformers.Dinov2Model(
        transformers.Dinov2Config(**DINOV2, qkv_bias=False)
    ),
    "dinov2, registers": lambda: transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**DINOV2, num_register_tokens=3)
    ),
    "dinov3": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**SIZES, num_register_tokens=4)
    ),
    "dinov3, no registers": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**SIZES, num_register_tokens=0, rope_theta=50.0)
    ),
    "dinov3, gated": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**SIZES, use_gated_mlp=True, hidden_act="silu")
    ),
    "dinov3, key bias": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**SIZES, key_bias=True, value_bias=False)
    ),
    "dinov3, no biases": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**SIZES, **PLAIN)
    ),
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**SIZES, image_size=64)),
    "vit, no biases": lambda: transformers.ViTModel(
        transformers.ViTConfig(**SIZES, image_size=64, qkv_bias=False)
    ),
    "vit, a classifier": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SIZES, image_size=64)
    ),
}


def saved(name: str, folder: Path) -> Path:
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():  # so that leaving any out is seen
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory) -> Path:
    return saved(request.param, tmp_path_factory.mktemp("model"))


def images(height: int, width: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=random)


def both(folder: Path) -> tuple[Teacher, Teacher]:
    """The teacher in a folder, and the same with the module of `transformers` as its backbone."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    return of_both(load_teacher(str(folder)), model)


def of_both(compact: Teacher, model: torch.nn.Module) -> tuple[Teacher, Teacher]:
    assert isinstance(compact.backbone, ViT)
    prefix = 1 + getattr(model.config, "num_register_tokens", 0)
    options = {"interpolate_pos_encoding": True} if model.config.model_type == "vit" else {}
    theirs = Teacher(
        model,
        lambda model, pixels: model(pixel_values=pixels, **options).last_hidden_state[:, prefix:],
        patch=model.config.patch_size,
        width=model.config.hidden_size,
        mean=FAMILIES[model.config.model_type][0],
        std=FAMILIES[model.config.model_type][1],
    )
    return compact, theirs


@pytest.mark.parametrize("shape", [(64, 64), (112, 112), (48, 80), (16, 144), (128, 32)])
def test_the_field_is_that_of_transformers(folder, shape):
    compact, theirs = both(folder)
    for _ in range(2):  # the second time with the positions kept
        field = compact(images(*shape))
        torch.testing.assert_close(field, theirs(images(*shape)), atol=1e-5, rtol=1e-5)


def test_the_digest_is_that_of_transformers(folder):
    compact, theirs = both(folder)
    assert compact.digest == theirs.digest


def test_the_digest_follows_every_weight(folder):
    teacher = load_teacher(str(folder))
    seen = {teacher.digest}
    weights = [weight for _, weight in teacher.backbone.named_weights() if weight.numel()]
    for weight in weights:
        weight.view(-1)[0].add_(1)
        teacher.__dict__.pop("digest")
        seen.add(teacher.digest)
    assert len(seen) == 1 + len(weights)


def test_gradients_reach_the_pixels(folder):
    """The pixel decoder's loss is on the fields of its pictures."""
    compact, theirs = both(folder)
    found = []
    for teacher in (compact, theirs):
        pixels = teacher.preprocess(images(64, 64)).requires_grad_(True)
        with torch.inference_mode():
            teacher(images(64, 64))
        teacher.patch_tokens(teacher.backbone, pixels).square().sum().backward()
        found.append(pixels.grad)
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def test_the_weights_may_be_in_half_precision(tmp_path):
    saved("dinov3", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    halves = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(halves, tmp_path / "model.safetensors", metadata={"format": "pt"})
    compact, theirs = both(tmp_path)
    torch.testing.assert_close(compact(images(64, 64)), theirs(images(64, 64)))
    assert compact.backbone.norm.weight.dtype == torch.float32


def test_known_teachers_are_bit_equal_on_a_cpu():
    with seeded(0):
        random = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**ARCHITECTURES["tiny"]))
    for teachers in (both(BUNDLED / "tiny"), of_both(load_teacher("random:tiny"), random)):
        assert torch.equal(*(teacher(images(64, 96)) for teacher in teachers))


def test_the_weights_may_be_in_several_files(tmp_path):
    torch.manual_seed(0)
    MODELS["dinov2"]().save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    compact, theirs = both(tmp_path)
    torch.testing.assert_close(compact(images(64, 64)), theirs(images(64, 64)))


@pytest.mark.parametrize("shape", [(128, 128), (96, 160)])
@pytest.mark.shared
def test_a_real_teacher_is_equal(shared, shape):
    compact, theirs = both(shared / "teachers" / "vits14-focus")
    torch.testing.assert_close(
        compact(images(*shape)), theirs(images(*shape)), atol=1e-5, rtol=1e-5
    )
    assert compact.digest == theirs.digest


def changed(folder: Path, change: dict[str, object]) -> str:
    """A DINOv2 in `folder` whose config states something else."""
    saved("dinov2", folder)
    assert isinstance(load_teacher(str(folder)).backbone, ViT)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))
    return str(folder)


@pytest.mark.parametrize("change", [{"hidden_act": "quick_gelu"}, {"qkv_bias": False}])
def test_what_it_does_not_know_is_left_to_transformers(tmp_path, change):
    teacher = load_teacher(changed(tmp_path, change))
    assert not isinstance(teacher.backbone, ViT)
    theirs = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = theirs(pixel_values=teacher.preprocess(images(64, 64))).last_hidden_state
    torch.testing.assert_close(teacher(images(64, 64)), tokens[:, 1:])


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "beit"},
        {"patch_size": [14, 14, 14]},
        {"num_hidden_layers": 3},
        {"mlp_ratio": 2},
        {"hidden_size": None},
    ],
)
def test_what_transformers_cannot_load_is_refused(tmp_path, change):
    with pytest.raises(TeacherError, match=r"cannot be a teacher|can load|weights in .* lack"):
        load_teacher(changed(tmp_path, change))


def test_transformers_is_not_imported():
    code = (
        "import sys, torch; from strop.model.teacher import load_teacher;"
        f"load_teacher({str(BUNDLED / 'tiny')!r})(torch.zeros(1, 3, 32, 32, dtype=torch.uint8));"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_a_gpu_gives_nearly_the_same(folder):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    compact, theirs = both(folder)
    field, expected = compact.cuda()(images(64, 96).cuda()), theirs(images(64, 96))
    torch.testing.assert_close(field.cpu(), expected, atol=1e-3, rtol=1e-3)
