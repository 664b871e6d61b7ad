"""The teacher: a frozen vision transformer that turns images into the field to be reproduced.

The field is the last layer's patch tokens after the final LayerNorm, without class and register
tokens. The teacher owns its preprocessing: it takes the model's uint8 images and does the rest.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from strop.errors import ImageError, StropError, TeacherError, parsing
from strop.identity import of_teacher
from strop.listing import expand
from strop.model.vit import ViT, build_vit, parse_config
from strop.optional import require
from strop.random import seeded

PIXELS_PER_LOCATION = 16
"""One location of the field stands for 16 x 16 pixels of the model's image. A teacher of another
patch size sees the image resized, so that its grid is the same: 256 px are 224 px at patch 14."""

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CENTRED = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

PAPER_STD = 0.38
"""Standard deviation of DINOv3-S's field, which the paper's balance of cosine and MSE assumes."""

BUNDLED = Path(__file__).parents[1] / "weights"

HUB_IDS = {
    "dinov3-s": "facebook/dinov3-vits16-pretrain-lvd1689m",
    "dinov3-b": "facebook/dinov3-vitb16-pretrain-lvd1689m",
    "dinov3-l": "facebook/dinov3-vitl16-pretrain-lvd1689m",
}


def _dinov3(width: int, depth: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_register_tokens": 4,
        "patch_size": 16,
    }


ARCHITECTURES = {
    "tiny": _dinov3(192, 12, 3),
    "dinov3-s": _dinov3(384, 12, 6),
    "dinov3-b": _dinov3(768, 12, 12),
    "dinov3-l": _dinov3(1024, 24, 16),
}
"""Shapes known without a download; `random:NAME` builds one with random weights."""

_DINOV3 = {
    "model_type": "dinov3_vit",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "use_gated_mlp": False,
    "key_bias": False,
    **dict.fromkeys(("query_bias", "value_bias", "proj_bias", "mlp_bias"), True),
}
"""What all `ARCHITECTURES` have in common."""

# model_type: mean and std of the family's own training
FAMILIES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "dinov3_vit": IMAGENET,
    "dinov2": IMAGENET,
    "dinov2_with_registers": IMAGENET,
    "vit": CENTRED,
}


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """Which teacher a model was trained on.

    name   `dinov3-s|b|l`, `tiny`, a hub id, a folder, `timm:NAME` or `random:NAME`
    width  d_enc, the width of its field
    scale  what the field is multiplied by inside the model, so that it has the spread that the
           paper's losses assume; fields go in and come out in the teacher's own scale
    """

    name: str
    width: int
    scale: float = 1.0


class Teacher(nn.Module):
    """A frozen backbone with its preprocessing: "Encoder" in Section 2.1. See `load_teacher`.

    `backbone` maps pixels `(B, 3, side, side)` to tokens; `patch_tokens` picks the patches of
    what it returns, `(B, S, d_enc)`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        patch_tokens: Callable[[nn.Module, Tensor], Tensor],
        *,
        patch: int,
        width: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False)
        self.patch_tokens = patch_tokens
        self.patch = patch
        self.width = width
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self.training = False
        self.resize: Callable[[Tensor, list[int]], Tensor] = bicubic

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the weights and the preprocessing."""
        look = (self.patch, self.mean.flatten().tolist(), self.std.flatten().tolist())
        return of_teacher(self.backbone, look)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """uint8 images `(B, 3, H, W)` to the field `(B, S, d_enc)`, S = H W / 16^2, row by row."""
        return self.patch_tokens(self.backbone, self.preprocess(check_pixels(images)))

    def preprocess(self, images: Tensor) -> Tensor:
        """uint8 `(B, 3, H, W)` to the normalised floats the backbone was trained on."""
        height, width = images.shape[-2:]
        if height % PIXELS_PER_LOCATION or width % PIXELS_PER_LOCATION:
            raise TeacherError(
                f"The teacher was given images of {height} x {width} pixels.",
                f"It takes sides that are multiples of {PIXELS_PER_LOCATION}.",
            )
        size = [side // PIXELS_PER_LOCATION * self.patch for side in (height, width)]
        pixels = images.to(self.mean.dtype) / 255
        if size != [height, width]:
            pixels = self.resize(pixels, size)
        return (pixels - self.mean) / self.std

    def train(self, mode: bool = True) -> Self:
        """The teacher is frozen: this does nothing."""
        return self


def check_pixels(images: object, side: int | None = None) -> Tensor:
    """`images` if they are uint8 `(B, 3, H, W)`, of this side if one is given."""
    given = type(images).__name__
    if isinstance(images, Tensor):
        given, shape = f"{images.dtype} {tuple(images.shape)}", images.shape
        wanted = (3, side or shape[-2], side or shape[-1])
        if images.dtype == torch.uint8 and len(shape) == 4 and shape[1:] == wanted:
            return images
    raise ImageError(
        f"The model was called with {given}.",
        f"Give uint8 from 0 to 255, (B, 3, {side or 'H'}, {side or 'W'}). `encode` takes others.",
    )


def bicubic(pixels: Tensor, size: list[int]) -> Tensor:
    """Resize `(B, 3, H, W)`, with antialiasing."""
    return F.interpolate(pixels, size, mode="bicubic", antialias=True)


def load_teacher(name: str) -> Teacher:
    """Load a teacher by name: see `TeacherConfig.name`."""
    if name.startswith("timm:"):
        return _timm_teacher(name.removeprefix("timm:"))
    if name.startswith("random:"):
        return _backbone_teacher(_random_vit(name.removeprefix("random:")), folder=None)
    folder = teacher_folder(name)
    return _backbone_teacher(_read_backbone(folder), folder)


def describe_teacher(name: str) -> TeacherConfig:
    """The config of a teacher, without its weights where they are not needed to know its width."""
    known = name.removeprefix("random:")
    if known in ARCHITECTURES:
        return TeacherConfig(name=name, width=ARCHITECTURES[known]["hidden_size"])
    return TeacherConfig(name=name, width=load_teacher(name).width)


def scale_for(field: Tensor) -> float:
    """What a teacher's field of any shape is multiplied by to have the paper's spread."""
    return PAPER_STD / field.float().std().item()


def teacher_parameters(name: str) -> int:
    """How many parameters a teacher has; known architectures are counted without loading them.

    Those that no field depends on, such as mask tokens, are not counted where they are known.
    """
    known = name.removeprefix("random:")
    if known in ARCHITECTURES:
        config = parse_config({**_DINOV3, **ARCHITECTURES[known]})
        assert config is not None
        with torch.device("meta"):
            backbone: nn.Module = ViT(config)
    else:
        backbone = load_teacher(name).backbone
    if isinstance(backbone, ViT):
        return sum(weight.numel() for _, weight in backbone.named_weights())
    return sum(parameter.numel() for parameter in backbone.parameters())


def _random_vit(name: str) -> ViT:
    if name not in ARCHITECTURES:
        raise TeacherError(
            f"Unknown architecture 'random:{name}'.",
            f"Choose one of {', '.join(f'random:{known}' for known in ARCHITECTURES)}.",
        )
    import transformers  # as slow to import as torch, and needed here only

    config = transformers.DINOv3ViTConfig(**ARCHITECTURES[name])
    # Random, but always the same: a model names its teacher, so the name must fix the weights.
    with seeded(0):
        vit = build_vit(config.to_dict(), transformers.DINOv3ViTModel(config).state_dict())
    assert vit is not None
    return vit


def _read_backbone(folder: Path) -> nn.Module:
    """The model in a folder of `transformers`, whose weights may be in several files.

    What differs from the standard models of its family is left to the module of `transformers`.
    """
    index = folder / "model.safetensors.index.json"
    remedy = "It needs config.json and model.safetensors of a DINOv2, DINOv3 or ViT. "
    with parsing(TeacherError, f"{folder} does not hold a model", remedy + _REFETCH):
        values = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        family = values.get("model_type")
        if "auto_map" in values:
            what = "brings its own code (auto_map in its config.json), which is never run"
            raise TeacherError(f"The teacher in {folder} {what}.", _OTHERS)
        if family not in FAMILIES:
            raise TeacherError(f"A {family!r} model cannot be a teacher.", _OTHERS)
        files = {"model.safetensors"}
        if index.is_file():
            files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        weights = [load_file(folder / Path(file).name) for file in sorted(files)]
        vit = build_vit(values, {name: each[name] for each in weights for name in each})
    return vit or _module_of_transformers(folder)


def _module_of_transformers(folder: Path) -> nn.Module:
    import transformers

    what = f"{folder} does not hold a model that transformers can load"
    with parsing(TeacherError, what, _REFETCH):
        module, report = transformers.AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,  # the other format is a pickle
        )
    # Transformers fills gaps with random numbers. Only these two are no part of the field.
    unused = ("pooler.", "embeddings.mask")
    if gaps := [key for key in report["missing_keys"] if not key.startswith(unused)]:
        raise TeacherError(f"The weights in {folder} lack {', '.join(gaps[:3])}.", _REFETCH)
    return module


def teacher_folder(name: str) -> Path:
    """The folder of a teacher that has one, fetched if it is a hub id."""
    source = str(BUNDLED / "tiny") if name == "tiny" else HUB_IDS.get(name, name)
    folder = expand(source)
    if not folder.is_dir():
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            raise TeacherError(
                f"There is no folder {source}.", "Give a folder that holds a transformers model."
            )
        if "/" not in source:
            raise TeacherError(
                f"Unknown teacher {name!r}.",
                f"Choose one of tiny, {', '.join(HUB_IDS)}, a hub id such as "
                "facebook/dinov2-small, a folder, timm:NAME, or random:NAME.",
            )
        others = "a folder, or an ungated teacher: tiny, facebook/dinov2-small"
        folder = hub_folder(source, "teacher", others, TeacherError)
    return folder


def hub_folder(name: str, what: str, others: str, error: type[StropError], **options: Any) -> Path:
    """The folder of a repository on the hub, downloaded or from the cache.

    what, others  in errors: what is fetched, and what can be given in its place
    options       of `huggingface_hub.snapshot_download`
    """
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    patterns = ["*.json", "*.safetensors"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, **options))
    except (OSError, ValueError) as failure:  # no network, no such repository, no access
        causes = [failure, failure.__cause__, failure.__context__]
        if any(isinstance(cause, GatedRepoError) for cause in causes) or "gated" in str(failure):
            raise error(
                f"The weights of {name} are gated.",
                f"Accept the licence at https://huggingface.co/{name} and run `hf auth login`; or "
                f"give {others}.",
            ) from failure
        raise error(
            f"The {what} {name} is not in the local cache and could not be fetched "
            f"({str(failure).splitlines()[0]}).",
            f"Check the name and the network; offline, give {others}.",
        ) from failure


def _backbone_teacher(backbone: Any, folder: Path | None) -> Teacher:
    config = backbone.config
    mean, std = preprocessing(folder, *FAMILIES[config.model_type])
    return Teacher(
        backbone,
        _patch_tokens,
        patch=config.patch_size,
        width=config.hidden_size,
        mean=mean,
        std=std,
    )


def _patch_tokens(backbone: Any, pixels: Tensor) -> Tensor:
    if isinstance(backbone, ViT):
        return backbone(pixels)
    config = backbone.config
    # A plain ViT accepts only its own image size unless positions are interpolated.
    options = {"interpolate_pos_encoding": True} if config.model_type == "vit" else {}
    tokens: Tensor = backbone(pixel_values=pixels, **options).last_hidden_state
    return tokens[:, 1 + getattr(config, "num_register_tokens", 0) :]


def preprocessing(
    folder: Path | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std as `preprocessor_config.json` states them; those given where it does not."""
    processor = folder / "preprocessor_config.json" if folder else None
    if processor is None or not processor.is_file():
        return mean, std
    with parsing(TeacherError, f"{processor} cannot be read", _REFETCH):
        stated = json.loads(processor.read_text(encoding="utf-8"))
        mean = tuple(map(float, stated.get("image_mean") or mean))
        std = tuple(map(float, stated.get("image_std") or std))
    if len(mean) != 3 or len(std) != 3 or not all(each > 0 for each in std):
        raise TeacherError(
            f"{processor} gives a mean of {mean} and a std of {std}.",
            "Give three numbers each, one per colour.",
        )
    return mean, std


_REFETCH = "Fetch it again if it is damaged."
_OTHERS = f"Use a model of the families {', '.join(FAMILIES)}, or timm:NAME."


def _timm_teacher(name: str) -> Teacher:
    timm = require("timm", TeacherError)
    remedy = "Give the name of a plain vision transformer that timm knows and can fetch."
    with parsing(TeacherError, f"timm cannot make {name!r} with its weights", remedy):
        backbone = timm.create_model(name, pretrained=True, num_classes=0, dynamic_img_size=True)
    cfg = timm.data.resolve_model_data_config(backbone)

    def patch_tokens(model: Any, pixels: Tensor) -> Tensor:
        (tokens,) = model.forward_intermediates(
            pixels, indices=1, norm=True, output_fmt="NLC", intermediates_only=True
        )
        # Average-pooled models keep their final norm behind the pooling, as `fc_norm`.
        pooled = isinstance(getattr(model, "norm", None), nn.Identity)
        return model.fc_norm(tokens) if pooled else tokens

    return Teacher(
        backbone,
        patch_tokens,
        patch=backbone.patch_embed.patch_size[0],
        width=backbone.num_features,
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
    )
