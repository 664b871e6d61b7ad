"""Small models and fields that train in milliseconds."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from strop.curriculum import CurriculumConfig
from strop.model.layers import TransformerConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.objective import ObjectiveConfig
from strop.training.preset import Preset, TrainingConfig

GRID, WIDTH, K = 2, 12, 10


def tiny_config(**changes) -> TokenizerConfig:
    sizes = {"width": 16, "depth": 2, "heads": 2, "feedforward": 32}
    values = {
        "teacher": TeacherConfig(name="random:tiny", width=WIDTH, scale=0.5),
        "image_size": 16 * GRID,
        "max_length": K,
        "generator": TransformerConfig(**sizes),
        "quantizer": QuantizerConfig(codes=32, code_width=4),
        "length_head": LengthHeadConfig(hidden=(16,)),
        "interpreter": TransformerConfig(**sizes),
    }
    return TokenizerConfig(**{**values, **changes})


def tiny_centred_config() -> TokenizerConfig:
    return tiny_config(quantizer=QuantizerConfig(codes=32, code_width=4, centred=True))


def tiny_tokenizer(seed: int = 0, **changes) -> Tokenizer:
    torch.manual_seed(seed)
    return Tokenizer(tiny_config(**changes))


def tiny_fields(images: int = 64, seed: int = 0) -> torch.Tensor:
    """(images, 2, S, d) bf16: each with its mirror image, of low rank so that it can be learned."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(6, GRID * GRID, WIDTH, generator=generator)
    weight = torch.randn(images, 6, generator=generator)
    fields = torch.einsum("nb,bsd->nsd", weight, basis)
    mirrored = fields.unflatten(1, (GRID, GRID)).flip(2).flatten(1, 2)
    return torch.stack([fields, mirrored], dim=1).bfloat16()


def smooth_pictures(count: int, blocks: int) -> torch.Tensor:
    """uint8 (count, 3, 64, 64): `blocks` by `blocks` random colours, smoothed."""
    random = torch.Generator().manual_seed(0)
    colours = torch.rand(count, 3, blocks, blocks, generator=random) * 255
    return F.interpolate(colours, (64, 64), mode="bicubic").clamp(0, 255).to(torch.uint8)


def tiny_preset(*, model=None, curriculum=None, objective=None, **training) -> Preset:
    """A run of seconds that goes through all phases."""
    settings = {
        "steps": 60,
        "batch": 8,
        "learning_rate": 3e-3,
        "final_learning_rate": 3e-4,
        "reseed_every": 7,
        "held_out": 6,
        "log_every": 5,
        "validate_every": 250_000,
        "checkpoint_every": 100_000,
        **training,
    }
    lengths = {"truncation_minimum": 3, "oracle_minimum": 1, **(curriculum or {})}
    return Preset(
        model=model or tiny_config(),
        objective=ObjectiveConfig(**(objective or {})),
        curriculum=CurriculumConfig(**lengths),
        training=TrainingConfig(**settings),
    )
