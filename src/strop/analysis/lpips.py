"""LPIPS of Zhang et al. 2018, version 0.1 on AlexNet, with weights from a file.

The file is a safetensors file of the state dict of `lpips.LPIPS(net="alex")`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from strop.errors import FormatError
from strop.files import PathLike

_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
# Name in the state dict, channels in and out, kernel, stride, padding.
_CONVOLUTIONS = (
    ("net.slice1.0", 3, 64, 11, 4, 2),
    ("net.slice2.3", 64, 192, 5, 1, 2),
    ("net.slice3.6", 192, 384, 3, 1, 1),
    ("net.slice4.8", 384, 256, 3, 1, 1),
    ("net.slice5.10", 256, 256, 3, 1, 1),
)
_POOLED = (1, 2)  # layers after a pooling


class LPIPS(nn.Module):
    """Distance of images: weighted squared differences of normalised AlexNet features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, kernel, stride, padding)
            for _, before, after, kernel, stride, padding in _CONVOLUTIONS
        )
        self.weights = nn.ParameterList(
            nn.Parameter(torch.ones(1, layer[2], 1, 1)) for layer in _CONVOLUTIONS
        )
        self.register_buffer("shift", torch.tensor(_SHIFT).view(3, 1, 1))
        self.register_buffer("scale", torch.tensor(_SCALE).view(3, 1, 1))
        self.shift: Tensor
        self.scale: Tensor
        self.requires_grad_(False)

    @classmethod
    def load(cls, path: PathLike) -> LPIPS:
        """Read the weights from a safetensors file."""
        remedy = 'Save the state dict of lpips.LPIPS(net="alex") as safetensors; see the docs.'
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise FormatError(
                f"The LPIPS weights {path} cannot be read ({error}).", remedy
            ) from error
        model = cls()
        try:
            for number, (name, *_) in enumerate(_CONVOLUTIONS):
                model.layers[number].load_state_dict(
                    {part: tensors[f"{name}.{part}"] for part in ("weight", "bias")}
                )
                model.weights[number].copy_(tensors[f"lin{number}.model.1.weight"])
        except (KeyError, RuntimeError) as error:
            raise FormatError(f"{path} does not hold LPIPS weights ({error}).", remedy) from error
        return model.eval()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] to distances (B,)."""
        distance = torch.zeros(len(x), device=x.device)
        for a, b, weight in zip(self._features(x), self._features(y), self.weights, strict=True):
            difference = (_unit(a) - _unit(b)).square()
            distance = distance + (difference * weight).sum(dim=1).mean(dim=(1, 2))
        return distance

    def _features(self, images: Tensor) -> list[Tensor]:
        maps = (2 * images - 1 - self.shift) / self.scale
        found = []
        for number, layer in enumerate(self.layers):
            if number in _POOLED:
                maps = F.max_pool2d(maps, 3, 2)
            maps = F.relu(layer(maps))
            found.append(maps)
        return found


def _unit(maps: Tensor) -> Tensor:
    """Maps (B, C, h, w), normalised over channels."""
    return maps / (maps.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)
