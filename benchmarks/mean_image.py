"""SSIM and PSNR of the mean image, a floor for those of previews."""

from __future__ import annotations

import argparse
import math

import torch
from rich.console import Console

from common import device, save
from strop.analysis.pixels import ssim_of_mean
from strop.data.loader import image_batches
from strop.data.spec import open_dataset
from strop.pool import cores

SETS = {
    "scenes": ("scenes:?n=2000&seed=2000&size=128", 128),
    "clevr": ("clevr:{shared}/data/clevr", 128),
    "photos": ("shards:{shared}/data/coco-shards/*-val-*.tar", 256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", default="../shared", help="folder with real datasets")
    arguments = parser.parse_args()
    found = {}
    for name, (pattern, size) in SETS.items():
        dataset = open_dataset(pattern.format(shared=arguments.shared))
        batches = image_batches(
            dataset,
            size=size,
            fit="squash",
            batch=32,
            device=device(),
            workers=min(cores(), 8),
        )
        images = torch.cat([batch.cpu() for batch in batches])
        squared = (images / 255).var(dim=0, correction=0).mean().item()
        found[name] = {
            "images": len(images),
            "ssim": ssim_of_mean(images.split(32)),
            "psnr": -10 * math.log10(squared),
        }
        Console().print(name, found[name])
    save("mean_image", {"sets": found})


if __name__ == "__main__":
    main()
