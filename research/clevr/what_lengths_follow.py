"""What lengths follow: the number of objects, the area they cover, or their outlines.

    python research/clevr/what_lengths_follow.py tiny --rows runs/clevr/results/*

Correlates three measures of the held-out scenes with the lengths in the results of the study's
rows, and with statistics of each teacher's fields, without any model. Shapes of one kind that do
not touch have outlines in proportion to the root of their number times the area they cover, so the
number of objects is also compared with `outlines ** 2 / covered`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor

from strop.analysis.complexity import covered, outlines
from strop.data import ScenesDataset
from strop.data.spec import open_dataset
from strop.device import choose_device, describe_machine
from strop.files import read_json, write_json
from strop.model.teacher import Teacher, load_teacher
from strop.scenes.render import truth
from strop.statistics import bootstrap, pearson

OUT = Path(__file__).parents[2] / "benchmarks" / "results" / "what_lengths_follow.json"

HELD_OUT = "scenes:?n=2000&seed=2000&size=128"
"""The scenes that rows of the study are measured on."""

RATED, BATCH = 256, 64
"""Scenes whose lengths are in a row's results, and scenes per batch."""

LEAST_VARIANCE = 1e-6
"""Floor of the variance in each direction, in fields of unit variance."""

ZOOMS = (1, 2, 4)
"""Factors by which images are enlarged before the teacher."""

Measures = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("teachers", nargs="*", default=["tiny"], help="as in `train --teacher`")
    parser.add_argument("--rows", nargs="*", default=[], help="result folders of rows")
    parser.add_argument("--images", type=int, default=2000, help="number of held-out scenes")
    arguments = parser.parse_args()
    if arguments.images < RATED:
        parser.error(f"--images {arguments.images}: rows have lengths of {RATED} scenes")
    device = torch.device(choose_device(None))
    scenes = open_dataset(HELD_OUT)
    assert isinstance(scenes, ScenesDataset)
    batches = [part.tolist() for part in torch.arange(arguments.images).split(BATCH)]
    measures = measure_scenes(scenes, batches)
    images = torch.cat([scenes.images(part, device) for part in track(batches, "images")])
    found = {
        "machine": describe_machine(device),
        "data": HELD_OUT,
        "images": arguments.images,
        "objects": correlate(measures["objects"], measures),
        "isoperimetric": correlate(measures["outlines"] ** 2 / measures["covered"], measures),
        "rows": correlate_rows(map(Path, arguments.rows), measures),
        "fields": {
            Path(name).name: correlate_fields(
                load_teacher(name).to(device).eval(), images, measures
            )
            for name in arguments.teachers
        },
    }
    Console().print(found)
    write_json(OUT, "benchmark", 1, found)


def measure_scenes(scenes: ScenesDataset, batches: list[list[int]]) -> Measures:
    """(n,) each: objects, the share of the image they cover, the length of their outlines."""
    instance = torch.cat(
        [truth(scenes.scenes(part), scenes.size)[0] for part in track(batches, "masks")]
    )
    return {
        "objects": scenes.object_counts()[: len(instance)].numpy(),
        "covered": covered(instance).numpy(),
        "outlines": outlines(instance).numpy(),
    }


def correlate_rows(runs: Iterable[Path], measures: Measures) -> dict[str, Any]:
    """The rows that choose lengths, on the scenes whose lengths are in their results."""
    found = {}
    for path in (path for run in runs for path in sorted(run.glob("scenes-*/rate.json"))):
        rate = read_json(path, "evaluation", 1)
        lengths = np.array(rate["lengths"]["chosen"])
        if rate["data"] == HELD_OUT and lengths.std() > 0:
            found[path.parents[1].name] = {"images": len(lengths), **correlate(lengths, measures)}
    return found


def correlate_fields(
    teacher: Teacher, images: Tensor, measures: Measures
) -> dict[str, dict[str, Any]]:
    """Statistics of fields, without a model.

    spread       variance over the locations of an image
    volume       log determinant of the covariance of an image's locations
    variation_n  total variation of the field of the image enlarged n times
    together     a linear map of spread, volume and variation_1, and of their logarithms, fitted to
                 the number of objects
    taught       a linear map of the pooled field, fitted to the number of objects
    learnt       a linear map of the pooled field, fitted to variation_4

    Linear maps are fitted to every second image and measured on the others.
    """
    field = fields(teacher, images)
    centred = field - field.mean(dim=1, keepdim=True)
    covariance = centred @ centred.mT / field.shape[2]
    raised = covariance + LEAST_VARIANCE * torch.eye(field.shape[1], dtype=field.dtype)
    spread = centred.square().mean((1, 2))
    volume = torch.linalg.slogdet(raised).logabsdet
    closer = {f"variation_{zoom}": variation(teacher, images, zoom) for zoom in ZOOMS}
    steps, closest = closer["variation_1"], closer[f"variation_{ZOOMS[-1]}"]
    statistics = {"spread": spread, "volume": volume, **closer}
    inputs = torch.stack([spread, spread.log(), steps, steps.log(), volume], dim=1)
    objects, pooled = torch.from_numpy(measures["objects"]), field.mean(dim=1)
    return {
        **{name: correlate(values.numpy(), measures) for name, values in statistics.items()},
        "together": correlate_fit(inputs, objects, measures),
        "taught": correlate_fit(pooled, objects, measures),
        "learnt": correlate_fit(pooled, closest, measures),
    }


def correlate_fit(inputs: Tensor, target: Tensor, measures: Measures) -> dict[str, Any]:
    """Correlations of a linear map of (n, d) inputs that is fitted to a target (n,)."""
    with_one = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
    target = target.to(inputs.dtype)
    weight = torch.linalg.lstsq(with_one[::2], target[::2, None], driver="gelsd").solution
    others = {name: values[1::2] for name, values in measures.items()}
    return correlate((with_one[1::2] @ weight)[:, 0].numpy(), others)


@torch.no_grad()
def variation(teacher: Teacher, images: Tensor, zoom: int) -> Tensor:
    """(n,) float64 on the CPU: mean distance of neighbouring locations of the enlarged image."""
    found = []
    for part in track(images.split(max(BATCH // zoom**2, 1)), f"enlarged {zoom} times"):
        large = F.interpolate(part.float(), scale_factor=zoom, mode="bicubic", antialias=True)
        field = teacher(large.round().clamp(0, 255).to(torch.uint8)).float()
        side = round(field.shape[1] ** 0.5)
        grid = field.unflatten(1, (side, side))
        steps = [grid.diff(dim=axis).square().mean(-1).sqrt().flatten(1) for axis in (1, 2)]
        found.append(torch.cat(steps, dim=1).mean(1).double().cpu())
    return torch.cat(found)


@torch.no_grad()
def fields(teacher: Teacher, images: Tensor) -> Tensor:
    """(n, S, d_enc) float64 on the CPU, of unit variance."""
    field = torch.cat([teacher(part).cpu() for part in images.split(BATCH)]).double()
    return field / field.std()


def correlate(values: np.ndarray, measures: Measures) -> dict[str, Any]:
    """Pearson correlations, with intervals, of (m,) values with measures of the first m scenes."""
    return {
        name: bootstrap(pearson, values, each[: len(values)])._asdict()
        for name, each in measures.items()
    }


if __name__ == "__main__":
    main()
