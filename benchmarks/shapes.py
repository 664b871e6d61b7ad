"""Encoders of other tokenizers at their published shapes, from stock layers with random weights.

Only the time of these shapes means anything. Images are normalised, patches embedded, and tokens
quantized by one product with the codebook. Sources:

TiTok-S-128         bytedance/1d-tokenizer, modeling/modules/blocks.py (`TiTokEncoder`, "small":
                    width 512, 8 layers, 8 heads); 128 tokens, 4,096 codes of 12 dimensions
One-D-Piece-S-256   turingmotors/One-D-Piece, configs/one-d-piece_s256.yaml: the same, 256 tokens
FlexTok d12         apple/ml-flextok and its paper: width 64 x 12, 12 layers, 12 heads, patches of
                    2 x 2 latents, 256 registers, 64,000 codes of 6 dimensions; behind the encoder
                    of an f8 c16 VAE: channels 128, 256, 512, 512 with two residual blocks each and
                    attention at the end, as in CompVis/stable-diffusion
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LatentEncoder(nn.Module):
    """A transformer over patches and latent tokens; the latter become codes."""

    def __init__(
        self, *, width: int, depth: int, heads: int, tokens: int, codes: int, code_width: int,
        channels: int = 3, patch: int = 16, patches: int = 256,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(patches + tokens, width))
        self.latents = nn.Parameter(torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, code_width)
        self.codebook = nn.Parameter(torch.randn(codes, code_width))

    def forward(self, pixels: Tensor) -> Tensor:
        """`(B, channels, H, W)` to codes `(B, tokens)`."""
        patches = self.embed(pixels).flatten(2).transpose(1, 2)
        latents = self.latents.expand(len(pixels), -1, -1).to(patches.dtype)
        x = self.layers(torch.cat([patches, latents], dim=1) + self.positions)
        z = F.normalize(self.out(self.norm(x[:, patches.shape[1] :])).float(), dim=-1)
        return (z @ self.codebook.T).argmax(-1)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`(B, before, H, W)` to `(B, after, H, W)`."""
        return self.shortcut(x) + self.body(x)


class Attention(nn.Module):
    """Attention of all places of an image, one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, width, H, W)` to the same."""
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)[:, None].chunk(3, dim=-1)
        heads = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2)
        return x + self.out(heads.unflatten(2, x.shape[2:]))


def vae_encoder(channels: int = 16) -> nn.Sequential:
    """`(B, 3, H, W)` to the mean and variance of latents, `(B, 2 channels, H / 8, W / 8)`."""
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1)]
    before = 128
    for number, after in enumerate((128, 256, 512, 512)):
        layers += [Residual(before, after), Residual(after, after)]
        if number < 3:
            layers.append(nn.Conv2d(after, after, 3, stride=2, padding=1))
        before = after
    layers += [Residual(512, 512), Attention(512), Residual(512, 512)]
    layers += [nn.GroupNorm(32, 512), nn.SiLU(), nn.Conv2d(512, 2 * channels, 3, padding=1)]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """uint8 images to codes: normalise, the VAE if there is one, the transformer."""

    def __init__(self, transformer: nn.Module, vae: nn.Module | None = None) -> None:
        super().__init__()
        self.transformer, self.vae = transformer, vae

    def forward(self, images: Tensor) -> Tensor:
        """uint8 `(B, 3, 256, 256)` to codes `(B, tokens)`."""
        pixels = images.float() / 127.5 - 1
        if self.vae is not None:
            pixels = self.vae(pixels).chunk(2, dim=1)[0]
        return self.transformer(pixels)


def others() -> dict[str, nn.Module]:
    """Encoders by name, for images of 256 x 256 pixels."""
    small = {"width": 512, "depth": 8, "heads": 8, "codes": 4096, "code_width": 12}
    flextok = LatentEncoder(
        width=768, depth=12, heads=12, tokens=256, codes=64_000, code_width=6, channels=16, patch=2
    )
    return {
        "TiTok-S-128": Encoder(LatentEncoder(**small, tokens=128)),
        "One-D-Piece-S-256": Encoder(LatentEncoder(**small, tokens=256)),
        "FlexTok d12 with its VAE": Encoder(flextok, vae_encoder()),
    }
