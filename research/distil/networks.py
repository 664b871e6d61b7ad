"""Networks to distil from: every teacher, and convolutional networks with a teacher's interface.

The last feature map of a convolutional network is resampled to one location per 16 x 16 pixels.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from strop.errors import TeacherError, parsing
from strop.model.teacher import (
    IMAGENET,
    PIXELS_PER_LOCATION,
    Teacher,
    load_teacher,
    preprocessing,
    teacher_folder,
)

CONVOLUTIONAL = ("convnext", "convnextv2", "mobilenet_v1", "mobilenet_v2", "regnet", "resnet")
"""Families of `transformers` whose last hidden state is a map `(B, d, h, w)`."""


def load_network(name: str) -> Teacher:
    """A frozen network by name: any name of `load_teacher`, or a convolutional network.

    Convolutional networks are hub ids or folders of one of the families `CONVOLUTIONAL`, and a
    folder with torchvision's MobileNetV2 weights as `model.safetensors` and no config.
    """
    folder = Path(name).expanduser()
    weights = folder / "model.safetensors"
    if weights.is_file() and not (folder / "config.json").exists():
        return _convolutional(_torchvision_mobilenet(weights), *IMAGENET)
    if name.startswith(("timm:", "random:")):
        return load_teacher(name)
    found = teacher_folder(name)
    if _family(found) in CONVOLUTIONAL:
        return _convolutional(_backbone(found), *preprocessing(found, *IMAGENET))
    # The forward of `load_teacher` has no layers by the names of `transformers`, which inheritance
    # reads. Loading it also refuses what is no teacher.
    return transformer(_backbone(found), load_teacher(name))


def transformer(backbone: Any, teacher: Teacher) -> Teacher:
    """`teacher`, computed by the module of `transformers` with the same weights."""
    prefix = 1 + getattr(backbone.config, "num_register_tokens", 0)
    # A plain ViT accepts only its own image size unless positions are interpolated.
    options = {"interpolate_pos_encoding": True} if backbone.config.model_type == "vit" else {}

    def patch_tokens(model: nn.Module, pixels: Tensor) -> Tensor:
        tokens: Tensor = model(pixel_values=pixels, **options).last_hidden_state
        return tokens[:, prefix:]

    return Teacher(
        backbone,
        patch_tokens,
        patch=teacher.patch,
        width=teacher.width,
        mean=tuple(teacher.mean.flatten().tolist()),
        std=tuple(teacher.std.flatten().tolist()),
    )


def _backbone(folder: Path) -> nn.Module:
    import transformers

    problem = f"transformers cannot load {folder}"
    with parsing(TeacherError, problem, "Fetch the model again, or give another."):
        backbone: nn.Module = transformers.AutoModel.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    return backbone


def _family(folder: Path) -> str | None:
    """The `model_type` of a folder; None if it has none."""
    import transformers

    try:
        family: str = transformers.AutoConfig.from_pretrained(folder).model_type
    except (OSError, ValueError, KeyError):  # `load_teacher` reports the error
        return None
    return family


def _convolutional(backbone: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> Teacher:
    """A teacher from a convolutional backbone; its maps are resampled to the grid of a field."""
    backbone = backbone.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]

    def patch_tokens(model: nn.Module, pixels: Tensor) -> Tensor:
        features: Tensor = model(pixel_values=pixels).last_hidden_state
        grid = pixels.shape[-1] // PIXELS_PER_LOCATION
        if features.shape[-1] != grid:
            features = F.interpolate(features, (grid, grid), mode="bilinear", antialias=True)
        return features.flatten(2).transpose(1, 2)

    with torch.no_grad():
        width = patch_tokens(backbone, torch.zeros(1, 3, 64, 64)).shape[-1]
    return Teacher(
        backbone, patch_tokens, patch=PIXELS_PER_LOCATION, width=width, mean=mean, std=std
    )


def _torchvision_mobilenet(weights: Path) -> nn.Module:
    """torchvision's MobileNetV2 weights in the class of `transformers`, without the classifier.

    Both have the same layers in the same order. The last stage is dilated instead of strided, so
    there are features at every location of the field; every second one, in both directions, equals
    the original's.
    """
    import transformers

    config = transformers.MobileNetV2Config(
        tf_padding=False, layer_norm_eps=1e-5, output_stride=PIXELS_PER_LOCATION
    )
    backbone: nn.Module = transformers.MobileNetV2Model(config)
    try:
        with safe_open(weights, "pt") as file:
            stored = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118
        theirs = sorted({_layer(key) for key in stored if key.startswith("features.")}, key=_place)
        ours = dict.fromkeys(_layer(key) for key in backbone.state_dict())
        state: dict[str, Any] = {
            f"{mine}.{key.rpartition('.')[2]}": value
            for mine, layer in zip(ours, theirs, strict=True)
            for key, value in stored.items()
            if _layer(key) == layer
        }
        backbone.load_state_dict(state)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise TeacherError(
            f"{weights} has no config.json beside it and does not hold torchvision's MobileNetV2 "
            f"({str(error).splitlines()[0]}).",
            "Give a folder that `transformers` can load.",
        ) from error
    return backbone


def _layer(key: str) -> str:
    return key.rpartition(".")[0]


def _place(layer: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", layer)]
