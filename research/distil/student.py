"""The student of a distillation, its targets and its losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.errors import ConfigError, did_you_mean
from strop.model.teacher import ARCHITECTURES, IMAGENET

_LEAST_SPREAD = 0.05
"""Floor of a channel's standard deviation, relative to the mean over channels."""


class Student(nn.Module):
    """A vision transformer in DINOv3's architecture with linear heads that are not saved.

    Each network has a head on the patch tokens and one on the class token, both after the final
    LayerNorm.
    """

    def __init__(self, architecture: str, widths: Sequence[int], *, size: int) -> None:
        super().__init__()
        if architecture not in ARCHITECTURES:
            raise ConfigError(
                f"There is no architecture {architecture!r}.",
                f"{did_you_mean(architecture, ARCHITECTURES)}Choose one of "
                f"{', '.join(ARCHITECTURES)}.",
            )
        import transformers

        config = transformers.DINOv3ViTConfig(**ARCHITECTURES[architecture], image_size=size)
        self.backbone: Any = transformers.DINOv3ViTModel(config)
        # In training mode the library jitters positions, which only helps at unseen sizes.
        self.backbone.eval()
        self.backbone.embeddings.mask_token.requires_grad_(False)  # unused: no image is masked
        self.prefix = 1 + config.num_register_tokens
        self.patch_heads = nn.ModuleList(nn.Linear(config.hidden_size, width) for width in widths)
        self.class_heads = nn.ModuleList(nn.Linear(config.hidden_size, width) for width in widths)
        for name, value in zip(("mean", "std"), IMAGENET, strict=True):
            self.register_buffer(name, 255 * torch.tensor(value).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Images (B, 3, H, H) from 0 to 255 to the class token (B, d) and the field (B, S, d)."""
        tokens: Tensor = self.backbone(pixel_values=self.pixels(view)).last_hidden_state
        return tokens[:, 0], tokens[:, self.prefix :]

    def pixels(self, view: Tensor) -> Tensor:
        """Images from 0 to 255, normalised for the backbone."""
        return (view - self.mean) / self.std


class Target(nn.Module):
    """Standardises a network's field: each channel has mean 0 and standard deviation 1.

    label  the network's name in logs
    """

    def __init__(self, label: str, fields: Sequence[Tensor]) -> None:
        """Measure mean and standard deviation on a sample of fields (B, S, d)."""
        super().__init__()
        self.label = label
        for name, sample in (
            ("patch", torch.cat([field.flatten(0, 1) for field in fields])),
            ("pooled", torch.cat([field.mean(1) for field in fields])),
        ):
            spread = sample.std(dim=0)
            self.register_buffer(f"{name}_mean", sample.mean(dim=0))
            self.register_buffer(
                f"{name}_spread", spread.clamp(min=_LEAST_SPREAD * spread.mean().item())
            )
        self.patch_mean: Tensor
        self.patch_spread: Tensor
        self.pooled_mean: Tensor
        self.pooled_spread: Tensor

    def patches(self, field: Tensor) -> Tensor:
        """A field (B, S, d), standardised."""
        return (field - self.patch_mean) / self.patch_spread

    def pooled(self, field: Tensor) -> Tensor:
        """The mean of a field over locations (B, d), standardised."""
        return (field.mean(1) - self.pooled_mean) / self.pooled_spread


def term_names(targets: Sequence[Target]) -> list[str]:
    """The names of what `terms` returns."""
    return [f"{each.label} {part}" for each in targets for part in ("patches", "class")] + [
        "geometry"
    ]


def terms(
    student: Student, targets: Sequence[Target], view: Tensor, fields: Sequence[Tensor]
) -> Tensor:
    """The losses on one batch of views, (2 n + 1,) float32, in the order of `term_names`.

    view    (B, 3, H, H) from 0 to 255, at the student's size
    fields  of each network, possibly of the view at a larger size: (B, S, d)

    For each network, the losses of its patches and of its pooled features. Last, the geometry:
    how well the student's cosines between patches follow the first network's. The heads could undo
    any distortion of the feature space, but users of patch features have no heads.
    """
    token, own = student(view)
    off = []
    for number, (target, field) in enumerate(zip(targets, fields, strict=True)):
        field = field.float()
        off += [
            distance(student.patch_heads[number](own), target.patches(coarser(field, own))),
            distance(student.class_heads[number](token), target.pooled(field)),
        ]
    off.append(distortion(own, coarser(fields[0].float(), own)))
    return torch.stack(off)


def distance(predicted: Tensor, target: Tensor) -> Tensor:
    """One minus the cosine plus a smooth L1 of standardised features (..., d), averaged."""
    predicted = predicted.float()
    cosine = F.cosine_similarity(predicted, target, dim=-1).mean()
    return 1 - cosine + F.smooth_l1_loss(predicted, target)


def distortion(field: Tensor, target: Tensor) -> Tensor:
    """The unexplained share of the variance of the target's cosines between patches.

    Both have shape (B, S, .), of any width.
    """
    wanted = _cosines(target)
    return (_cosines(field) - wanted).square().mean() / wanted.var().clamp(min=1e-6)


def _cosines(field: Tensor) -> Tensor:
    unit = F.normalize(field.float(), dim=-1)
    return (unit @ unit.transpose(1, 2)).float()


def grouped(field: Tensor, by: Tensor, temperature: float) -> Tensor:
    """A field (B, S, d), averaged at each location over locations that are similar in `by`.

    The weights are a softmax of the cosines of `by` (B, S, .) over `temperature`.
    """
    return torch.softmax(_cosines(by) / temperature, dim=-1) @ field.float()


def coarser(field: Tensor, like: Tensor) -> Tensor:
    """A field (B, S, d) averaged to the locations of `like` (B, S', .)."""
    if field.shape[1] == like.shape[1]:
        return field
    old, new = (round(each.shape[1] ** 0.5) for each in (field, like))
    grid = field.transpose(1, 2).unflatten(2, (old, old))
    return F.adaptive_avg_pool2d(grid, new).flatten(2).transpose(1, 2)
