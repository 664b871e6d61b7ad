"""A compact forward of the vision transformers that are teachers: DINOv2 with and without
registers, DINOv3 and ViT. It reads the files of `transformers` and does not import it.

On a CPU, fields equal those of `transformers` bit by bit: every sum has its order. Where fewer
kernels need another order, only GPUs use them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.linear_gelu import linear_gelu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "silu": F.silu}

KEPT_SIZES = 16
"""For how many sizes of an image the positions are kept."""

_DINOV3_BIASES = {"q": "query", "k": "key", "v": "value", "o": "proj", "mlp": "mlp"}


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The shape of a model; names are those of `transformers` where it has one.

    gated       the MLP has a gate (SwiGLU)
    biases      which of q, k, v, o and mlp have a bias
    scaled      branches are multiplied by layer scales
    positions   side of the grid of learned positions; None if positions are rotary
    antialias   learned positions are interpolated with antialiasing
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_register_tokens: int
    patch_size: int
    layer_norm_eps: float
    hidden_act: str
    gated: bool
    biases: frozenset[str]
    scaled: bool
    positions: int | None
    antialias: bool
    rope_theta: float

    @property
    def activation(self) -> str:
        """The MLP's function. A gated DINOv2 does not use the one that its config states."""
        return "silu" if self.gated and self.positions is not None else self.hidden_act


def parse_config(values: Mapping[str, Any]) -> ViTConfig | None:
    """The shape that a `config.json` of `transformers` states; None for any other model."""
    family = values.get("model_type")
    rotary = family == "dinov3_vit"
    if not rotary and family not in {"dinov2", "dinov2_with_registers", "vit"}:
        return None
    try:
        width, heads, patch = (
            int(values[key]) for key in ("hidden_size", "num_attention_heads", "patch_size")
        )
        gated = bool(values["use_gated_mlp"] if rotary else values.get("use_swiglu_ffn"))
        hidden = values["intermediate_size"] if rotary or family == "vit" else None
        if hidden is None:
            hidden = int(width * values["mlp_ratio"])
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden
        if rotary:
            biases = {key for key, name in _DINOV3_BIASES.items() if values[f"{name}_bias"]}
        else:
            biases = {"o", "mlp", *("qkv" if values["qkv_bias"] else "")}
        config = ViTConfig(
            model_type=str(family),
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=values["num_hidden_layers"],
            num_attention_heads=heads,
            num_register_tokens=0 if family in {"dinov2", "vit"} else values["num_register_tokens"],
            patch_size=patch,
            layer_norm_eps=values["layer_norm_eps"],
            hidden_act=values["hidden_act"],
            gated=gated,
            biases=frozenset(biases),
            scaled=family != "vit",
            positions=None if rotary else values["image_size"] // patch,
            antialias=family == "dinov2_with_registers",
            rope_theta=values["rope_theta"] if rotary else 0.0,
        )
    except (KeyError, TypeError, ValueError):
        return None
    head = values.get("head_dim", width // heads)
    plain = head * heads == width and head % 4 == 0 and values.get("num_channels", 3) == 3
    return config if plain and config.activation in ACTIVATIONS else None


class ViT(nn.Module):
    """Pixels `(B, 3, H, W)` to the patch tokens after the final norm, `(B, S, d)`."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width, patch = config.hidden_size, config.patch_size
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.register_tokens = nn.Parameter(torch.empty(1, config.num_register_tokens, width))
        self.position_embeddings: nn.Parameter | None = None
        if config.positions is not None:
            grid = torch.empty(1, 1 + config.positions**2, width)
            self.position_embeddings = nn.Parameter(grid)
        self.patch_embeddings = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self._known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels `(B, 3, H, W)`, normalised, to the field `(B, S, d)`, row by row."""
        patch = self.config.patch_size
        rows, columns = pixels.shape[-2] // patch, pixels.shape[-1] // patch
        prefix, positions = self._positions(rows, columns)
        x = self._embed(pixels, rows, columns)
        rotary = self.position_embeddings is None
        if not rotary:
            x = x + positions
        x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)
        for layer in self.layers:
            x = layer(x, positions if rotary else None)
        return self.norm(x[:, prefix.shape[1] :])

    def _embed(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """Patches `(B, S, d)`. A product is faster than a convolution on a GPU only."""
        weight, bias = self.patch_embeddings.weight, self.patch_embeddings.bias
        patch = self.config.patch_size
        if not pixels.is_cuda:
            return F.conv2d(pixels, weight, bias, stride=patch).flatten(2).transpose(1, 2)
        cut = pixels[..., : rows * patch, : columns * patch]
        grid = cut.unflatten(-1, (columns, patch)).unflatten(-3, (rows, patch))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(patches, weight.flatten(1), bias)

    # Positions.

    def _positions(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Prefix tokens `(1, P, d)`, and either learned positions of patches `(1, S, d)` or the
        rotation of all tokens `(2, P + S, 1, 1, d_head / 2)`. Those of the first sizes are kept for
        good: a CUDA graph reads them where they are. Compiled code should find them here, because
        it would otherwise compute the angles again for every image, head and layer."""
        known = self._known.get((rows, columns))
        if known is None and torch.compiler.is_dynamo_compiling():
            return self._compute_positions(rows, columns)
        if known is None:
            # Kept tensors must be usable in a backward pass.
            with torch.inference_mode(False), torch.no_grad():
                known = self._compute_positions(rows, columns)
            if len(self._known) < KEPT_SIZES:
                self._known[rows, columns] = known
        return known

    def _compute_positions(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        if self.position_embeddings is None:
            prefix = torch.cat((self.cls_token, self.register_tokens), dim=1)
            return prefix, self._rotation(rows, columns, prefix.shape[1])
        first, grid = self.position_embeddings.split((1, self.position_embeddings.shape[1] - 1), 1)
        prefix = torch.cat((self.cls_token + first, self.register_tokens), dim=1)
        side = math.isqrt(grid.shape[1])
        if (rows, columns) != (side, side):
            square = grid.unflatten(1, (side, side)).permute(0, 3, 1, 2)
            resized = F.interpolate(
                square, (rows, columns), mode="bicubic", antialias=self.config.antialias
            )
            grid = resized.flatten(2).transpose(1, 2)
        return prefix, grid

    def _rotation(self, rows: int, columns: int, prefix: int) -> Tensor:
        """Cosines and sines; the prefix is not rotated."""
        head = self.config.hidden_size // self.config.num_attention_heads
        device = self.cls_token.device
        frequencies = 1 / self.config.rope_theta ** torch.arange(0, 1, 4 / head, device=device)
        centres = [torch.arange(0.5, n, device=device) / n for n in (rows, columns)]
        places = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1).flatten(0, 1)
        angles = 2 * math.pi * (2.0 * places - 1.0)[:, :, None] * frequencies
        rotation = torch.stack((angles.cos(), angles.sin())).flatten(2)
        still = torch.tensor([1.0, 0.0], device=device)[:, None, None]
        still = still.expand(2, prefix, rotation.shape[-1])
        return torch.cat((still, rotation), dim=1)[:, :, None, None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._known = {}
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as `transformers` names, orders and divides them: views, which can be set.

        A teacher's digest is of these, so that it does not depend on what loaded them.
        """
        family, patches = self.config.model_type, "embeddings.patch_embeddings"
        rotary = self.position_embeddings is None
        yield "embeddings.cls_token", self.cls_token
        if self.position_embeddings is not None:
            yield "embeddings.position_embeddings", self.position_embeddings
        if family in {"dinov2_with_registers", "dinov3_vit"}:
            yield "embeddings.register_tokens", self.register_tokens
        yield from _named(patches if rotary else f"{patches}.projection", self.patch_embeddings)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            for name, weight in layer.named_weights():
                yield f"layer.{number}.{name}", weight
        yield from _named("norm" if rotary else "layernorm", self.norm)


class Layer(nn.Module):
    """A pre-norm layer: attention and MLP, each added to the stream by its layer scale."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width, hidden, biases = config.hidden_size, config.intermediate_size, config.biases
        self.norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.qkv = nn.Linear(width, 3 * width, bias=not biases.isdisjoint("qkv"))
        self.out = nn.Linear(width, width, bias="o" in biases)
        self.norm2 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.up = nn.Linear(width, (1 + config.gated) * hidden, bias="mlp" in biases)
        self.down = nn.Linear(hidden, width, bias="mlp" in biases)
        self.scale1 = nn.Parameter(torch.empty(width)) if config.scaled else None
        self.scale2 = nn.Parameter(torch.empty(width)) if config.scaled else None

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """The stream `(B, T, d)` after the layer; `rotation` is `(2, T, 1, 1, d_head / 2)`."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.config.num_attention_heads, -1))
        query, key, value = _query_key_value(parts, rotation)
        heads = F.scaled_dot_product_attention(query, key, value)
        x = _add(x, self.out(heads.transpose(1, 2).flatten(2)), self.scale1)
        normed, activation = self.norm2(x), self.config.activation
        if self.config.gated:
            gate, inner = self.up(normed).chunk(2, dim=-1)
            inner = ACTIVATIONS[activation](gate) * inner
        elif activation == "gelu":
            inner = linear_gelu(normed, self.up)
        else:
            inner = ACTIVATIONS[activation](self.up(normed))
        return _add(x, self.down(inner), self.scale2)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `ViT.named_weights`."""
        config, rotary = self.config, self.config.positions is None
        attention = [
            (f"attention.{part}_proj.{name}", weight.chunk(3)["qkv".index(part)])
            for part in ("kvq" if rotary else "qkv")
            for name, weight in self.qkv.named_parameters()
            if name == "weight" or part in config.biases
        ]
        attention += _named("attention.o_proj", self.out)
        up, down = ("up_proj", "down_proj") if rotary or config.gated else ("fc1", "fc2")
        mlp = [
            (f"mlp.{part}.{name}", weight.chunk(1 + config.gated)[number])
            for number, part in enumerate(("gate_proj", up) if config.gated else (up,))
            for name, weight in self.up.named_parameters()
        ]
        mlp += _named(f"mlp.{down}", self.down)
        if self.scale1 is None or self.scale2 is None:  # a plain ViT
            yield from attention
            yield from _named("layernorm_before", self.norm1)
            yield from _named("layernorm_after", self.norm2)
            yield from mlp
            return
        yield from _named("norm1", self.norm1)
        yield from attention
        yield "layer_scale1.lambda1", self.scale1
        yield from _named("norm2", self.norm2)
        yield from mlp
        yield "layer_scale2.lambda1", self.scale2


def _named(prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((f"{prefix}.{name}", weight) for name, weight in module.named_parameters())


def _query_key_value(parts: Tensor, rotation: Tensor | None) -> tuple[Tensor, ...]:
    """`(B, T, 3, heads, d_head)` to three of `(B, heads, T, d_head)`, the first two rotated."""
    if rotation is None:
        return parts.transpose(1, 3).unbind(2)
    query_key, value = parts.split((2, 1), dim=2)
    rotated = _rotate(query_key, *rotation.unbind())
    heads = *rotated.transpose(1, 3).unbind(2), value.squeeze(2).transpose(1, 2)
    # On a GPU they are written once as attention reads them; it would copy each otherwise.
    return torch.stack(heads).unbind() if parts.is_cuda else heads


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Queries and keys `(B, T, 2, heads, d_head)`, rotated by tables `(T, 1, 1, d_head / 2)`."""
    first, second = x.chunk(2, dim=-1)
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(parts, dim=-1).to(x.dtype)


def _add(x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    if scale is None:
        return branch + x
    return torch.addcmul(x, branch, scale) if x.is_cuda else branch * scale + x


# Files.


@torch.no_grad()
def build_vit(values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ViT | None:
    """The model of a config and weights of `transformers`; None if they do not match one another
    or are of another kind."""
    config = parse_config(values)
    if config is None:
        return None
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        name = _current_name(name)
        if "weights_in" in name:  # gate and up in one
            for part, rows in zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True):
                found[name.replace("weights_in", part)] = rows
        elif not _UNUSED.match(name):
            found[name] = weight
    with torch.device("meta"):  # without random numbers
        model = ViT(config)
    model.to_empty(device="cpu")
    for parameter in model.parameters():  # the parts of a fused bias may not all be stored
        parameter.zero_()
    for name, weight in model.named_weights():
        stored = found.pop(name, None)
        if stored is None or stored.shape != weight.shape or not stored.is_floating_point():
            return None
        weight.copy_(stored)
    return None if found else model


_UNUSED = re.compile(r"embeddings\.mask_token$|pooler\.|classifier\.")
_RENAMED = [  # versions of transformers differ in names
    (r"^(dinov2|dinov2_with_registers|vit)\.", ""),
    (r"^(encoder\.layer|model\.layer|layers)\.", "layer."),
    (r"attention\.attention\.([qkv])(uery|ey|alue)\.", r"attention.\1_proj."),
    (r"attention\.output\.dense\.", "attention.o_proj."),
    (r"^(layer\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"^(layer\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"mlp\.weights_out\.", "mlp.down_proj."),
]


def _current_name(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
