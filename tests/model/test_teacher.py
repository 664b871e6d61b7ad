"""Teachers: the right tokens after the right preprocessing for every family, frozen for good."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
import torch.nn.functional as F
import transformers
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.errors import ImageError, StropError, TeacherError
from strop.model.checkpoint import load
from strop.model.teacher import (
    CENTRED,
    HUB_IDS,
    IMAGENET,
    PAPER_STD,
    TeacherConfig,
    describe_teacher,
    load_teacher,
    scale_for,
    teacher_parameters,
)

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
FAMILIES = {  # name: the model, its registers, its patch, and what its family was trained with
    "dinov2": (
        transformers.Dinov2Model,
        transformers.Dinov2Config(**SIZES, patch_size=14, image_size=98),
        0,
        IMAGENET,
    ),
    "dinov2-registers": (
        transformers.Dinov2WithRegistersModel,
        transformers.Dinov2WithRegistersConfig(
            **SIZES, patch_size=14, image_size=98, num_register_tokens=4
        ),
        4,
        IMAGENET,
    ),
    "dinov3": (
        transformers.DINOv3ViTModel,
        transformers.DINOv3ViTConfig(**SIZES, patch_size=16, num_register_tokens=4),
        4,
        IMAGENET,
    ),
    "dinov3-no-registers": (
        transformers.DINOv3ViTModel,
        transformers.DINOv3ViTConfig(**SIZES, patch_size=16, num_register_tokens=0),
        0,
        IMAGENET,
    ),
    "vit": (
        transformers.ViTModel,
        transformers.ViTConfig(**SIZES, patch_size=16, image_size=64),
        0,
        CENTRED,
    ),
}


def save_model(family: str, folder: Path) -> Path:
    kind, config, _, _ = FAMILIES[family]
    torch.manual_seed(0)
    model = kind(config)
    for parameter in model.parameters():
        # Norms and layer scales too, so that leaving one out is seen.
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory) -> Path:
    return save_model(family, tmp_path_factory.mktemp(family))


@pytest.mark.parametrize("place", ["transformers", "folder"])
def test_a_teacher_that_brings_code_is_refused_unread(dinov2, monkeypatch, place):
    """Even where transformers would ask on the terminal whether to run it."""
    config = json.loads((dinov2 / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    if place == "folder":  # a family that transformers does not know itself
        config["model_type"] = "other"
    (dinov2 / "config.json").write_text(json.dumps(config))
    (dinov2 / "code.py").write_text(f"open({str(dinov2 / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")

    def refuse(*_, **__):
        raise AssertionError("transformers was called")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    with pytest.raises(TeacherError, match=r"brings its own code \(auto_map.*never run") as caught:
        load_teacher(str(dinov2))
    assert "Use a model of the families" in caught.value.remedy
    assert not (dinov2 / "ran").exists()


def test_a_pickle_is_not_read(dinov2, monkeypatch):
    (dinov2 / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(2)}, dinov2 / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpickled"))
    with pytest.raises(TeacherError, match=r"model\.safetensors"):
        load_teacher(str(dinov2))


@pytest.mark.parametrize("content", ["3", "[]", "[1, 2]", "[" * 100_000, "9" * 5000, '"auto_map"'])
def test_a_config_that_is_no_table_is_refused(dinov2, content):
    (dinov2 / "config.json").write_text(content)
    with pytest.raises(TeacherError):
        load_teacher(str(dinov2))


@pytest.mark.parametrize("name", ["~nouser/x", "a\0b", f"/{'a' * 5000}"])
def test_impossible_names_are_refused(name):
    with pytest.raises(StropError):
        load_teacher(name)
    with pytest.raises(StropError):
        load(name)


@pytest.fixture
def dinov2(tmp_path) -> Path:
    return save_model("dinov2", tmp_path)


def pixels(size: int = 128, count: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=random)


def by_hand(model, images: Tensor, registers: int, mean, std) -> Tensor:
    """Preprocessing and forward written out, with `transformers` called directly."""
    side = images.shape[-1] // 16 * model.config.patch_size
    x = images.float() / 255
    if side != images.shape[-1]:
        x = F.interpolate(x, (side, side), mode="bicubic", antialias=True)
    x = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    options = {"interpolate_pos_encoding": True} if model.config.model_type == "vit" else {}
    with torch.no_grad():
        tokens = model.eval()(pixel_values=x, **options).last_hidden_state
    return tokens[:, 1 + registers :]


@pytest.mark.parametrize("size", [128, 256])
def test_the_field_is_the_normed_patch_tokens(family, folder, size):
    kind, config, registers, (mean, std) = FAMILIES[family]
    teacher, images = load_teacher(str(folder)), pixels(size)
    field = teacher(images)
    assert field.shape == (2, (size // 16) ** 2, 24)
    expected = by_hand(kind.from_pretrained(folder), images, registers, mean, std)
    torch.testing.assert_close(field, expected, atol=1e-5, rtol=1e-5)
    assert (teacher.patch, teacher.width) == (config.patch_size, 24)


def test_the_field_is_after_the_final_norm(family, folder):
    """With the last norm's weight at 0 and bias at 7, every patch token must be 7."""
    teacher = load_teacher(str(folder))
    norm = teacher.backbone.norm if hasattr(teacher.backbone, "norm") else None
    norm = norm or teacher.backbone.layernorm
    norm.weight.zero_()
    norm.bias.fill_(7)
    assert torch.equal(teacher(pixels()), torch.full((2, 64, 24), 7.0))


def test_locations_are_in_reading_order(family, folder):
    """What changes in the image at row 2, column 5 of the grid changes the field most there."""
    teacher, images = load_teacher(str(folder)), pixels(count=1)
    other = images.clone()
    other[..., 32:48, 80:96] = 255 - other[..., 32:48, 80:96]
    changed = (teacher(images) - teacher(other)).norm(dim=-1)[0]
    assert changed.argmax() == 2 * 8 + 5


def test_a_stated_preprocessing_wins_over_the_familys(dinov2):
    mean, std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    (dinov2 / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": mean, "image_std": std})
    )
    teacher = load_teacher(str(dinov2))
    torch.testing.assert_close(teacher.mean.flatten(), torch.tensor(mean))
    torch.testing.assert_close(teacher.std.flatten(), torch.tensor(std))
    expected = by_hand(transformers.Dinov2Model.from_pretrained(dinov2), pixels(), 0, mean, std)
    torch.testing.assert_close(teacher(pixels()), expected, atol=1e-5, rtol=1e-5)


def test_a_processor_that_states_nothing_leaves_the_familys(dinov2):
    (dinov2 / "preprocessor_config.json").write_text('{"do_resize": true}')
    torch.testing.assert_close(load_teacher(str(dinov2)).mean.flatten(), torch.tensor(IMAGENET[0]))


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", '{"image_mean": [0.5]}', '{"image_std": [0, 1, 1]}', '{"image_mean": 7}'],
)
def test_a_broken_processor_is_named(dinov2, content):
    (dinov2 / "preprocessor_config.json").write_text(content)
    with pytest.raises(TeacherError, match=r"preprocessor_config.json"):
        load_teacher(str(dinov2))


def test_white_and_black_reach_the_backbone_normalised(tiny_teacher):
    for value, pixel in ((0, 0.0), (255, 1.0)):
        images = torch.full((1, 3, 32, 32), value, dtype=torch.uint8)
        expected = (pixel - torch.tensor(IMAGENET[0])) / torch.tensor(IMAGENET[1])
        seen = tiny_teacher.preprocess(images)
        torch.testing.assert_close(seen, expected.view(1, 3, 1, 1).expand(1, 3, 32, 32))


# Frozen means frozen.


def test_frozen_under_train(folder):
    teacher = load_teacher(str(folder))
    before = teacher(pixels())
    assert teacher.train() is teacher
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert torch.equal(teacher(pixels()), before)


def test_no_gradient_flows(tiny_teacher):
    with torch.enable_grad():
        assert not tiny_teacher(pixels(32)).requires_grad


def test_frozen_inside_a_tokenizer(make_tokenizer):
    tokenizer = make_tokenizer().train().requires_grad_(True)
    assert not any(module.training for module in tokenizer.teacher.modules())
    assert not any(parameter.requires_grad for parameter in tokenizer.teacher.parameters())


# Sizes.


@pytest.mark.parametrize("shape", [(100, 100), (64, 120), (8, 8)])
def test_images_that_do_not_fit_the_grid_are_refused(tiny_teacher, shape):
    with pytest.raises(TeacherError, match=r"sides that are multiples of 16"):
        tiny_teacher(torch.zeros(1, 3, *shape, dtype=torch.uint8))


def test_the_field_of_an_oblong_image_has_its_locations_row_by_row(tiny_teacher):
    image = pixels(32).repeat(1, 1, 1, 2)
    image[..., 48:] = 0
    field = tiny_teacher(image)
    assert field.shape[1] == 2 * 4
    changed = image.clone()
    changed[..., :16, 48:] = 255
    moved = (tiny_teacher(changed) - field).abs().sum(dim=(0, 2))
    assert moved.argmax() == 3


def test_known_teachers_are_described_and_counted_without_loading():
    assert describe_teacher("dinov3-s") == TeacherConfig(name="dinov3-s", width=384)
    assert describe_teacher("dinov3-b").width == 768
    assert describe_teacher("dinov3-l").width == 1024
    assert teacher_parameters("random:tiny") < teacher_parameters("dinov3-s") < 22e6


def test_a_folder_is_described_by_its_config(dinov2):
    assert describe_teacher(str(dinov2)).width == 24
    model = transformers.Dinov2Model.from_pretrained(dinov2)
    counted = [each.numel() for name, each in model.named_parameters() if "mask_token" not in name]
    assert teacher_parameters(str(dinov2)) == sum(counted)


def test_a_random_teacher_is_always_the_same_and_leaves_the_seed_alone(tiny_teacher):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again = load_teacher("random:tiny")
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(again(pixels(32)), tiny_teacher(pixels(32)))


def test_measured_scale_brings_the_field_to_the_papers_spread(tiny_teacher):
    field = tiny_teacher(pixels(64, 4))
    assert (field * scale_for(field)).std().item() == pytest.approx(PAPER_STD)


def test_a_teacher_takes_uint8_alone(tiny_teacher):
    with pytest.raises(ImageError, match=r"with torch.float32 .*Give uint8 from 0 to 255"):
        tiny_teacher(pixels(64) / 255)


@pytest.mark.shared
def test_the_shared_teacher_gives_the_field_of_transformers(shared):
    folder = shared / "teachers" / "vits14-focus"
    teacher = load_teacher(str(folder))
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    images = pixels(128, 1)
    expected = by_hand(model, images, getattr(model.config, "num_register_tokens", 0), *IMAGENET)
    torch.testing.assert_close(teacher(images), expected, atol=1e-5, rtol=1e-5)
    assert teacher(images).shape == (1, 64, 384)


# What cannot be a teacher.


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """As HF_HUB_OFFLINE does, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(transformers.utils.hub, "is_offline_mode", lambda: True, raising=False)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["someone/their-vit", "dinov3-b"])
def test_no_network_for_a_hub_id(name):
    with pytest.raises(TeacherError) as caught:
        load_teacher(name)
    assert HUB_IDS.get(name, name) in caught.value.problem
    assert "could not be fetched" in caught.value.problem
    assert "offline, give a folder" in caught.value.remedy


def test_gated_weights_name_the_licence_and_the_way_out(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no access") from GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(TeacherError) as caught:
        load_teacher("dinov3-s")
    assert "gated" in caught.value.problem
    assert f"https://huggingface.co/{HUB_IDS['dinov3-s']}" in caught.value.remedy
    assert "ungated teacher" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dinov9", r"Unknown teacher 'dinov9'. Choose one of "),
        ("random:huge", r"Unknown architecture 'random:huge'. Choose one of random:tiny"),
        ("/no/such/folder", r"no folder /no/such/folder. Give a folder"),
        ("./nowhere", r"no folder ./nowhere"),
        ("a/b/c", r"no folder a/b/c"),
    ],
)
def test_unknown_teachers_are_named(name, message):
    with pytest.raises(TeacherError, match=message):
        load_teacher(name)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(TeacherError, match=r"does not hold a model .* needs config.json"):
        load_teacher(str(tmp_path))


def test_another_family_is_refused(tmp_path):
    config = transformers.BertConfig(**SIZES, vocab_size=10)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=r"'bert' model cannot be a teacher. Use a model of the"):
        load_teacher(str(tmp_path))


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def forget_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def scramble_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not tensors at all" * 20)


def lose_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["layernorm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def bring_other_weights(folder: Path) -> None:
    save_file({"other": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})


def change_a_shape(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "hidden_size": 36}))


@pytest.mark.parametrize(
    "damage",
    [
        break_config,
        forget_weights,
        cut_weights,
        scramble_weights,
        lose_a_tensor,
        bring_other_weights,
        change_a_shape,
    ],
)
def test_a_damaged_folder_is_refused(dinov2, damage):
    """A teacher with a part missing would be random there, and nobody would know."""
    damage(dinov2)
    with pytest.raises(TeacherError) as caught:
        load_teacher(str(dinov2))
    assert caught.value.remedy


# timm.


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_without_timm_the_message_says_what_to_install():
    with pytest.raises(StropError, match=r"needs the package timm .*: pip install timm\.$"):
        load_teacher("timm:vit_tiny_patch16_224")


def test_a_timm_model_gives_its_normed_patch_tokens(monkeypatch):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, dynamic_img_size=True).eval()
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: model)
    teacher = load_teacher("timm:vit_tiny_patch16_224")
    field = teacher(pixels(128))
    expected = model.forward_features(teacher.preprocess(pixels(128)))[:, model.num_prefix_tokens :]
    torch.testing.assert_close(field, expected, atol=1e-5, rtol=1e-5)
