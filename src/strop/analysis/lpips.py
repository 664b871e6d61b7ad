"""LPIPS of Zhang et al. 2018, version 0.1 on AlexNet, with weights from a file.

The file is a safetensors file of the state dict of `lpips.LPIPS(net="alex")`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

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


class LPIPS:
    """Distance of images: weighted squared differences of normalised AlexNet features."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    @classmethod
    def load(cls, path: PathLike, device: torch.device | str = "cpu") -> LPIPS:
        """Read the weights from a safetensors file."""
        remedy = 'Save the state dict of lpips.LPIPS(net="alex") as safetensors; see the docs.'
        try:
            tensors = load_file(path, device=str(device))
        except (SafetensorError, OSError) as error:
            raise FormatError(
                f"The LPIPS weights {path} cannot be read ({error}).", remedy
            ) from error
        for number, (name, before, after, kernel, *_) in enumerate(_CONVOLUTIONS):
            for key, shape in (
                (f"{name}.weight", (after, before, kernel, kernel)),
                (f"{name}.bias", (after,)),
                (f"lin{number}.model.1.weight", (1, after, 1, 1)),
            ):
                if key not in tensors or tensors[key].shape != shape:
                    raise FormatError(f"{path} does not hold LPIPS weights ({key}).", remedy)
        return cls(tensors)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] to distances (B,)."""
        distance = torch.zeros(len(x), device=x.device)
        for number, (a, b) in enumerate(zip(self._features(x), self._features(y), strict=True)):
            difference = (F.normalize(a, dim=1) - F.normalize(b, dim=1)).square()
            weighted = F.conv2d(difference, self.tensors[f"lin{number}.model.1.weight"])
            distance = distance + weighted.mean(dim=(1, 2, 3))
        return distance

    def _features(self, images: Tensor) -> list[Tensor]:
        shift, scale = (images.new_tensor(each).view(1, 3, 1, 1) for each in (_SHIFT, _SCALE))
        maps, found = (2 * images - 1 - shift) / scale, []
        for number, (name, *_, stride, padding) in enumerate(_CONVOLUTIONS):
            if number in _POOLED:
                maps = F.max_pool2d(maps, 3, 2)
            weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
            maps = F.relu(F.conv2d(maps, weight, bias, stride, padding))
            found.append(maps)
        return found
