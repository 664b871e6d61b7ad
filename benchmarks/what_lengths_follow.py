"""What lengths follow: the number of objects, how much of the image they cover, or their outlines.

    python benchmarks/what_lengths_follow.py tiny /nets/vits14-focus

For the rows of the CLEVR study, from the lengths in their results; for each teacher that is named,
what its fields alone would say, with no model at all; and how far the number of objects is itself
told by what they cover and by their outlines, alone and together: shapes of one kind that touch
nowhere have outlines in proportion to the root of their number times what they cover.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from common import RESULTS, device, save
from strop.data.scenes import ScenesDataset, truth
from strop.data.spec import open_dataset
from strop.files import read_json
from strop.model.teacher import Teacher, load_teacher
from strop.statistics import bootstrap, pearson
from strop.structure.complexity import covered, outlines
from strop.training.features import outlines_of

HELD_OUT = "scenes:?n=2000&seed=2000&size=128"
"""What the rows of the study are judged on."""

RATED, BATCH = 256, 64
"""Scenes whose lengths a row keeps, and scenes at a time."""

LEAST_VARIANCE = 1e-6
"""That a direction without any is taken to have, in fields whose variance is one."""

ZOOMS = (1, 2, 4)
"""How close the teacher looks; the last is what the oracle `outlines` has of itself."""

Told = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("teachers", nargs="*", default=["tiny"], help="as in `train --teacher`")
    parser.add_argument("--images", type=int, default=2000, help="the first of the held-out scenes")
    arguments = parser.parse_args()
    if arguments.images < RATED:
        parser.error(f"--images {arguments.images}: rows have lengths of {RATED} scenes")
    scenes = open_dataset(HELD_OUT)
    assert isinstance(scenes, ScenesDataset)
    there = what_is_there(scenes, arguments.images)
    images = torch.cat(
        [scenes.images(part, device()) for part in parts(arguments.images, "images")]
    )
    found = {
        "data": HELD_OUT,
        "images": arguments.images,
        "objects": follows(there["objects"], there),
        "isoperimetric": follows(there["outlines"] ** 2 / there["covered"], there),
        "rows": rows(there),
        "fields": {Path(name).name: of_fields(name, images, there) for name in arguments.teachers},
    }
    Console().print(found)
    save("what_lengths_follow", found)


def what_is_there(scenes: ScenesDataset, images: int) -> Told:
    """(n,) each: objects, the share of the image they cover, the length of what bounds them."""
    instance = torch.cat(
        [truth(scenes.scenes(part), scenes.size)[0] for part in parts(images, "masks")]
    )
    return {
        "objects": scenes.object_counts()[:images].numpy(),
        "covered": covered(instance).numpy(),
        "outlines": outlines(instance).numpy(),
    }


def rows(there: Told) -> dict[str, Any]:
    """The rows of the study that choose lengths, on those scenes whose lengths are kept."""
    found = {}
    for path in sorted((RESULTS / "clevr").glob("*/scenes-*/rate.json")):
        rate = read_json(path, "evaluation", 1)
        lengths = np.array(rate["lengths"]["chosen"])
        if rate["data"] == HELD_OUT and lengths.std() > 0:
            found[path.parents[1].name] = {"images": len(lengths), **follows(lengths, there)}
    return found


def of_fields(teacher: str, images: Tensor, there: Told) -> dict[str, dict[str, Any]]:
    """What fields say without a model, and a linear map that was taught the number of objects.

    spread       variance over the locations of an image
    volume       log determinant of the covariance of an image's locations
    variation_n  what the oracle `outlines` goes by, n times as close
    together     a linear map of spread, volume and variation_1, with logarithms, that was taught
                 the number of objects
    taught       such a map of the pooled field
    learnt       one that was taught variation_4 instead, as a length head would be

    What is taught is fitted to every second image and measured on the others.
    """
    network = load_teacher(teacher).to(device()).eval()
    field = fields(network, images)
    centred = field - field.mean(dim=1, keepdim=True)
    covariance = centred @ centred.mT / field.shape[2]
    raised = covariance + LEAST_VARIANCE * torch.eye(field.shape[1], dtype=field.dtype)
    spread = centred.square().mean((1, 2))
    volume = torch.linalg.slogdet(raised).logabsdet
    closer = {f"variation_{zoom}": variation(network, images, zoom) for zoom in ZOOMS}
    steps, closest = closer["variation_1"], closer[f"variation_{ZOOMS[-1]}"]
    said = {"spread": spread, "volume": volume, **closer}
    measures = torch.stack([spread, spread.log(), steps, steps.log(), volume], dim=1)
    objects, pooled = torch.from_numpy(there["objects"]), field.mean(dim=1)
    return {
        **{name: follows(values.numpy(), there) for name, values in said.items()},
        "together": taught(measures, objects, there),
        "taught": taught(pooled, objects, there),
        "learnt": taught(pooled, closest, there),
    }


def taught(seen: Tensor, wanted: Tensor, there: Told) -> dict[str, Any]:
    """What a linear map of (n, d) follows that was fitted to (n,) values."""
    with_one = torch.cat([seen, torch.ones(len(seen), 1, dtype=seen.dtype)], dim=1)
    wanted = wanted.to(seen.dtype)
    weight = torch.linalg.lstsq(with_one[::2], wanted[::2, None], driver="gelsd").solution
    others = {name: values[1::2] for name, values in there.items()}
    return follows((with_one[1::2] @ weight)[:, 0].numpy(), others)


def variation(teacher: Teacher, images: Tensor, zoom: int) -> Tensor:
    """(n,) float64 on the CPU: what the oracle `outlines` goes by at this zoom."""
    batches = track(images.split(BATCH // zoom), f"{zoom} times as close")
    return torch.cat([outlines_of(teacher, part, zoom).cpu() for part in batches]).double()


@torch.no_grad()
def fields(teacher: Teacher, images: Tensor) -> Tensor:
    """(n, S, d_enc) float64 on the CPU, with a variance of one."""
    field = torch.cat([teacher(part).cpu() for part in images.split(BATCH)]).double()
    return field / field.std()


def parts(images: int, told: str) -> Iterable[range]:
    """The scenes in batches, behind a progress bar."""
    starts = range(0, images, BATCH)
    return track([range(at, min(at + BATCH, images)) for at in starts], told)


def follows(values: np.ndarray, there: Told) -> dict[str, Any]:
    """Pearson correlations, with intervals, of (m,) values with what is in the first m scenes."""
    return {
        name: bootstrap(pearson, values, each[: len(values)])._asdict()
        for name, each in there.items()
    }


if __name__ == "__main__":
    main()
