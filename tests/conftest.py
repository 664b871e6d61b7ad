"""Fixtures shared by the whole suite."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from strop.model.decoder import DecoderConfig
from strop.model.layers import TransformerConfig
from strop.model.length_head import LengthHead, LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import Teacher, TeacherConfig, load_teacher
from strop.model.tokenizer import Tokenizer, TokenizerConfig

# A busy machine is no reason to fail.
settings.register_profile("strop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strop")

if "OMP_NUM_THREADS" not in os.environ:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // workers))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real samples, or a skip with the reason."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("STROP_SHARED", default))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real samples at {folder}; set STROP_SHARED to use some")
    return folder


@pytest.fixture(scope="session")
def tiny_teacher() -> Teacher:
    """`random:tiny`, built once: a DINOv3 of width 192 with random weights."""
    return load_teacher("random:tiny")


@pytest.fixture(scope="session")
def make_tokenizer(tiny_teacher: Teacher) -> Callable[..., Tokenizer]:
    """Builds tiny tokenizers at 64 px with K = 12, as different from each other as their seeds.

    Weights are large and the codebook lies on real tokens, so that, as in a trained model, codes
    and lengths differ from image to image.
    """

    @functools.cache
    def seen(size: int) -> Tensor:
        return tiny_teacher(draw_images(seed=99, count=8, size=size))

    def make(seed: int = 0, **changes: object) -> Tokenizer:
        sizes = {"width": 32, "depth": 2, "heads": 4, "feedforward": 64}
        values = {
            "teacher": TeacherConfig(name="random:tiny", width=192, scale=0.4),
            "image_size": 64,
            "max_length": 12,
            "generator": TransformerConfig(**sizes),
            "quantizer": QuantizerConfig(codes=64, code_width=8),
            "length_head": LengthHeadConfig(hidden=(32, 16)),
            "interpreter": TransformerConfig(**sizes),
            "decoder": DecoderConfig(widths=(16, 8, 8, 8)),
        }
        # A test on a GPU moves the teacher too; other tests must not notice.
        teacher = copy.deepcopy(tiny_teacher) if torch.cuda.is_available() else tiny_teacher
        with torch.random.fork_rng():
            torch.manual_seed(0)
            tokenizer = Tokenizer(TokenizerConfig(**{**values, **changes}), teacher=teacher)
            torch.manual_seed(seed)
            enliven(tokenizer, seen(tokenizer.config.image_size))
        return tokenizer.eval()

    return make


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer: Callable[..., Tokenizer]) -> Tokenizer:
    """A tiny tokenizer for tests that only look."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def images() -> Tensor:
    """uint8 `(6, 3, 64, 64)`: blocky colours, no two alike."""
    return draw_images()


def draw_images(seed: int = 0, count: int = 6, size: int = 64) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8, generator=random)
    return blocks.repeat_interleave(size // 4, dim=-1).repeat_interleave(size // 4, dim=-2)


@torch.no_grad()
def enliven(tokenizer: Tokenizer, field: Tensor) -> None:
    """Give random weights the reach of trained ones; the caller seeds the global generator."""
    for parameter in tokenizer.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    field = field * tokenizer.config.teacher.scale
    if isinstance(tokenizer.length_head, LengthHead):
        # Centred and stretched: a random teacher's pooled fields are all nearly the same.
        first = tokenizer.length_head.mlp[0]
        first.weight.mul_(20)
        first.bias.copy_(-first.weight @ field.mean(dim=(0, 1)))
    uniform = torch.rand(tokenizer.config.quantizer.codes)
    tokenizer.quantizer.begin(tokenizer.generator(field), uniform)
