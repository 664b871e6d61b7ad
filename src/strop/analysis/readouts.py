"""Readouts: regions and classes without supervision, from fields, erasure maps and codes.

Section 4, "Code reuse and unsupervised readouts"; Figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.analysis.baselines.kmeans import lloyd, nearest_centre
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import Panel, legend, picture_grid, show_ids
from strop.analysis.regions import (
    NOBODY,
    REMOVALS,
    RemovalOptions,
    erasure_maps,
    image_tables,
    owned_codes,
    owners,
    patch_shares,
    pooled_table,
)
from strop.analysis.subject import Subject
from strop.figures import Figure, show_image
from strop.statistics import Array, adjusted_rand, mean_interval

_ROWS = 4  # images in the figure
COLUMNS = {
    "miou_majority": "mIoU, majority",
    "miou_hungarian": "mIoU, Hungarian",
    "accuracy_majority": "accuracy, majority",
    "accuracy_hungarian": "accuracy, Hungarian",
    "ari": "ARI in an image",
}


@dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of the analysis of readouts.

    clusters  of k-means; 0 for as many as there are classes
    """

    clusters: int = 0


def run(subject: Subject, options: Options) -> Findings:
    """k-means on three kinds of patch vectors, and codes: all named by class and scored."""
    assert subject.records.semantic is not None  # checked through `needs`
    fields = subject.fields  # first: one pass over the images gives fields and programs
    maps = erasure_maps(subject, edit=options.edit)
    classes = len(subject.classes)
    shares = patch_shares(subject.records.semantic, subject.tokenizer.config.grid, classes)
    clusters = options.clusters or classes
    vectors = {
        "teacher's patches": fields,
        "interpreted patches": subject.tokenizer.interpret(subject.program).cpu(),
        "erasure vectors": maps.nan_to_num().flatten(2).transpose(1, 2),
    }
    # Clusters and names are fitted on every other image and scored on the rest.
    fitted = torch.arange(len(subject)) % 2 == 0
    ids = {
        name: cluster(values, fitted, clusters, options.seed) for name, values in vectors.items()
    }
    owned = owned_codes(subject.program, owners(maps))
    order = torch.randperm(len(owned), generator=torch.Generator().manual_seed(options.seed))
    ids |= {"codes": owned, "codes of another image": owned[order]}
    scores = {name: score(each, shares, fitted) for name, each in ids.items()}
    scores["most frequent class"] = score(torch.zeros_like(owned), shares, fitted)
    rows = {
        name: [getattr(found[key], "value", found[key]) for key in COLUMNS]
        for name, found in scores.items()
    }
    title = f"Readouts on {int((~fitted).sum())} images, named on the other half"
    return Findings(
        numbers={"clusters": clusters, "readouts": scores},
        tables=[
            Table(title, ("", *COLUMNS.values()), rows),
        ],
        figures={"regions": draw(subject, ids, shares, fitted)},
        notes=(
            "Majority names every cluster or code by its most frequent class, many to one; one "
            "that was not seen gets the most frequent class of all. Hungarian gives each class at "
            "most one cluster or code; the others stay without a name, which counts as wrong. "
            "Every labelled pixel counts; a readout has one answer for each location of the "
            "field. These readouts test structure and are not meant as a segmentation method.",
            REMOVALS[options.edit],
        ),
    )


def cluster(vectors: Tensor, fitted: Tensor, count: int, seed: int) -> Tensor:
    """Nearest k-means centre `(B, S)` of vectors `(B, S, d)`; `fitted` images give the centres."""
    scale = vectors[fitted].flatten(0, 1).std(dim=0).mean().clamp(min=1e-12)
    flat = vectors.flatten(0, 1).float() / scale
    centres = k_means(flat[fitted.repeat_interleave(vectors.shape[1])], count, seed)
    return nearest_centre(flat, centres).view(vectors.shape[:2])


def k_means(points: Tensor, count: int, seed: int = 0) -> Tensor:
    """Centres `(count, d)` of points `(N, d)` by Lloyd's algorithm from a k-means++ start."""
    random = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=random)]
    distances = torch.full((len(points),), torch.inf)
    for _ in range(count - 1):
        distances = torch.minimum(distances, (points - centres[-1]).square().sum(dim=1))
        weights = distances if distances.sum() > 0 else torch.ones_like(distances)
        # Not torch.multinomial, which draws from at most 2^24 points.
        share = weights.double().cumsum(0)
        drawn = torch.rand(1, generator=random, dtype=torch.double) * share[-1]
        chosen = torch.searchsorted(share, drawn, right=True).clamp(max=len(points) - 1)
        centres = torch.cat([centres, points[chosen]])
    return lloyd(points, centres, steps=50)


def majority(counts: Array) -> NDArray[np.int64]:
    """Each row's most frequent column `(R,)`; the most frequent of all for rows without counts."""
    everywhere = counts.sum(axis=0).argmax()
    return np.where(counts.sum(axis=1) > 0, counts.argmax(axis=1), everywhere)


def hungarian(counts: Array) -> NDArray[np.int64]:
    """Rows matched to columns one to one for the most counts: `(R,)`, `NOBODY` if unmatched."""
    from scipy.optimize import linear_sum_assignment

    row, column = linear_sum_assignment(counts, maximize=True)
    names = np.full(len(counts), NOBODY)
    names[row] = column
    return names


def score(ids: Tensor, shares: Tensor, fitted: Tensor) -> dict[str, Any]:
    """Name the ids on the fitted images; mIoU and accuracy of the names on the others."""
    ids = _with_nobody(ids)
    table = pooled_table(ids[fitted], shares[fitted], int(ids.max()) + 1)
    scores: dict[str, Any] = {}
    for name, names in (("majority", majority(table)), ("hungarian", hungarian(table))):
        named = torch.from_numpy(names)[ids[~fitted]]
        scores[f"miou_{name}"], scores[f"accuracy_{name}"] = miou_and_accuracy(
            named, shares[~fitted]
        )
    ari = adjusted_rand(image_tables(ids[~fitted], shares[~fitted]))
    return scores | {"ari": mean_interval(ari, draws=200)}


def miou_and_accuracy(named: Tensor, shares: Tensor) -> tuple[float, float]:
    """mIoU over the classes that occur, and accuracy, over all labelled pixels."""
    counts = pooled_table(named, shares, shares.shape[2])
    hits, truth = np.diag(counts), shares.sum(dim=(0, 1)).numpy()
    union = counts.sum(axis=1) + truth - hits
    iou = hits[truth > 0] / union[truth > 0]
    return float(iou.mean()), float(hits.sum() / max(truth.sum(), 1e-12))


def _with_nobody(ids: Tensor) -> Tensor:
    """The ids, with locations of `NOBODY` as an id of their own."""
    return torch.where(ids == NOBODY, int(ids.max()) + 1, ids)


def draw(subject: Subject, ids: Mapping[str, Tensor], shares: Tensor, fitted: Tensor) -> Figure:
    """Images that were not fitted on: masks, clusters of three kinds, and codes by class."""
    assert subject.records.semantic is not None
    grid = (subject.tokenizer.config.grid,) * 2
    codes = _with_nobody(ids["codes"])
    names = majority(pooled_table(codes[fitted], shares[fitted], int(codes.max()) + 1))
    classes = torch.from_numpy(names)[codes]
    rows: list[list[Panel]] = []
    present: set[int] = set()
    for row in (~fitted).nonzero()[:_ROWS, 0].tolist():
        mask = subject.records.semantic[row].long()
        mask = torch.where(mask < len(subject.classes), mask, NOBODY)
        named = classes[row].view(grid)
        clusters = [
            partial(show_ids, ids=each[row].view(grid), title=name, arbitrary=True)
            for name, each in ids.items()
            if not name.startswith("codes")
        ]
        by_class = partial(show_ids, ids=named, title="codes by class")
        image = partial(show_image, image=subject.records.images[row])
        rows.append([image, partial(show_ids, ids=mask, title="mask"), *clusters, by_class])
        present |= set(mask.unique().tolist()) | set(named.unique().tolist())
    figure = picture_grid(rows)
    legend(figure, subject.classes, sorted(present - {NOBODY}))
    return figure


ANALYSIS = Analysis(run=run, options=Options, needs=("semantic",), least=2)
