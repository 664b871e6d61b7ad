"""Compare strop's renderer with Blender on CLEVR scenes, rendered from their JSON.

Reports PSNR and colour differences of the images and the overlap of instance masks. CLEVR's JSON
does not contain the jittered light positions, so images are compared twice: with lights at their
positions without jitter, and with lights fitted to each image within the range of the jitter.
`--picture` writes both renderings side by side to a file outside the repository. The script also
draws `docs/images/scenes.png`, which shows strop's scenes only.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

from clevr_scenes import read_scenes
from common import save
from strop.files import atomic_path
from strop.scenes import Scenes, render, sample_scenes, truth
from strop.scenes import vocabulary as words
from strop.scenes.render import camera_rays, radiance, world

SIZE = (240, 320)
COARSE = (60, 80)
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scenes.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("STROP_SHARED", Path(__file__).parents[2] / "shared")
    parser.add_argument("--clevr", type=Path, default=Path(default) / "data" / "clevr")
    parser.add_argument("--split", default="val")
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--picture", type=Path, help="file for both renderings")
    arguments = parser.parse_args()
    if arguments.picture and Path(__file__).parents[1] in arguments.picture.resolve().parents:
        parser.error("--picture must be outside the repository: it contains images of CLEVR")

    folder, split = arguments.clevr, arguments.split
    scenes, described = read_scenes(folder / "scenes" / f"CLEVR_{split}_scenes.json", SIZE)
    scenes, described = scenes[: arguments.scenes], described[: arguments.scenes]
    names = [scene["image_filename"] for scene in described]
    theirs = torch.stack([_read(folder / "images" / split / name) for name in names])
    masks = torch.stack(
        [
            torch.from_numpy(np.array(Image.open(folder / "masks" / split / name))).long()
            for name in names
        ]
    )
    fitted = fit_lights(scenes, theirs)
    result = {
        "scenes": len(scenes),
        "size": list(SIZE),
        "lights_unjittered": compare(render(scenes, SIZE), theirs),
        "lights_fitted": compare(render(fitted, SIZE), theirs),
        "mean_image": compare(theirs.float().mean(0).round().expand(theirs.shape), theirs),
        "mask_iou": overlap(scenes, masks),
    }
    save("render_match", result)
    _print(result)
    _draw(PICTURE)
    if arguments.picture:
        chosen = list(range(0, len(scenes), max(1, len(scenes) // 8)))[:8]
        ours = render(fitted[chosen], SIZE)
        pairs = [torch.cat([theirs[i], ours[k]], dim=2) for k, i in enumerate(chosen)]
        rows = [torch.cat(pairs[i : i + 2], dim=2) for i in range(0, len(pairs) - 1, 2)]
        Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy()).save(arguments.picture)


def _read(path: Path) -> Tensor:
    """(3, H, W) uint8."""
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def compare(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """PSNR and differences (0 to 255) of two batches of images (B, 3, H, W)."""
    difference = ours.float() - theirs.float()
    psnr = 10 * torch.log10(255**2 / difference.square().mean(dim=(1, 2, 3)).clamp(min=1e-9))
    image_mean = difference.mean(dim=(2, 3))
    return {
        "psnr_mean": psnr.mean().item(),
        "psnr_min": psnr.min().item(),
        "absolute_difference": difference.abs().mean().item(),
        "mean_colour_difference": image_mean.abs().mean().item(),
        "mean_colour_bias": image_mean.mean().item(),
    }


def overlap(scenes: Scenes, masks: Tensor) -> float:
    """Mean IoU of the masks of all objects."""
    ours, _ = truth(scenes, SIZE)
    scores = []
    for row in range(len(scenes)):
        for number in range(1, int(scenes.present[row].sum()) + 1):
            a, b = masks[row] == number, ours[row] == number
            scores.append(((a & b).sum() / (a | b).sum()).item())
    return float(np.mean(scores))


def fit_lights(scenes: Scenes, images: Tensor, steps: int = 60) -> Scenes:
    """The scenes with light positions fitted to the images, within CLEVR's jitter."""
    scenes = scenes.to("cpu", torch.float32)
    target = F.avg_pool2d(_linear(images.float() / 255), SIZE[0] // COARSE[0])
    target = _srgb(target).flatten(2).transpose(1, 2)
    rays = camera_rays(*COARSE, "cpu", samples=1)
    home = torch.tensor(words.LIGHT_POSITIONS)
    found = []
    for row in range(len(scenes)):
        free = torch.zeros(1, 3, 3, requires_grad=True)
        optimizer = torch.optim.Adam([free], lr=0.1)
        for _ in range(steps):
            lights = home + words.LIGHT_JITTER * torch.tanh(free)
            scene = world(dataclasses.replace(scenes[row : row + 1], lights=lights))
            error = _srgb(radiance(scene, rays, COARSE, False, samples=1)) - target[row]
            # Highlights and edges are outliers: limit their weight.
            loss = (error.square() / (error.detach().abs() + 0.05)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append((home + words.LIGHT_JITTER * torch.tanh(free)).detach())
    return dataclasses.replace(scenes, lights=torch.cat(found))


def _linear(value: Tensor) -> Tensor:
    return torch.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _srgb(value: Tensor) -> Tensor:
    value = value.clamp(1e-5, 1)
    return torch.where(value <= 0.0031308, 12.92 * value, 1.055 * value ** (1 / 2.4) - 0.055)


ROWS = {
    "lights_fitted": "lights fitted to each image",
    "lights_unjittered": "lights without jitter",
    "mean_image": "for scale: the mean of the images",
}
COLUMNS = {
    "psnr_mean": ("PSNR, dB", ".1f"),
    "psnr_min": ("worst", ".1f"),
    "absolute_difference": ("difference per pixel", ".2f"),
    "mean_colour_difference": ("difference of mean colour", ".2f"),
}


def _print(result: dict) -> None:
    table = Table(title=f"{result['scenes']} CLEVR scenes; differences in steps of 0 to 255")
    table.add_column("")
    for title, _ in COLUMNS.values():
        table.add_column(title, justify="right")
    for key, title in ROWS.items():
        table.add_row(title, *(format(result[key][k], f) for k, (_, f) in COLUMNS.items()))
    Console().print(table)
    Console().print(f"masks: mean IoU {result['mask_iou']:.3f}")


def _draw(path: Path) -> None:
    """Twelve scenes of strop, in two rows."""
    images = render(sample_scenes(7, range(12)), 160)
    rows = [torch.cat(list(images[i : i + 6]), dim=2) for i in (0, 6)]
    pixels = torch.cat(rows, dim=1).permute(1, 2, 0).contiguous().numpy()
    with atomic_path(path) as temporary:
        Image.fromarray(pixels).save(temporary, optimize=True)


if __name__ == "__main__":
    main()
