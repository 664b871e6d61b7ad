"""The study of readouts: regions and classes found without supervision, against masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.figures import new_figure, show_image
from strop.model.tokenizer import Tokenizer
from strop.statistics import Interval, bootstrap
from strop.structure.association import adjusted_rand
from strop.structure.codes import joint, owned_codes
from strop.structure.counterfactual import erasure_maps
from strop.structure.panels import legend, show_ids
from strop.structure.regions import NOBODY, owners, patch_shares, tables
from strop.structure.study import Encoded, Findings, Job, Study, Table, teacher_fields

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Names = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of readouts lets a user choose.

    clusters  of k-means; 0 for as many as there are classes
    examples  images in the figure
    seed      of k-means and of the control
    """

    clusters: int = 0
    examples: int = 4
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """k-means on three kinds of patch vectors, and codes, each named by class and scored."""
    assert encoded.records.semantic is not None  # the study's needs say so
    program, grid = encoded.program, tokenizer.config.grid
    maps = erasure_maps(tokenizer, program, job.watch)
    shares = patch_shares(encoded.records.semantic, grid, len(encoded.classes))
    clusters = options.clusters or len(encoded.classes)
    vectors = {
        "teacher's patches": teacher_fields(tokenizer, encoded, job.watch),
        "interpreted patches": tokenizer.interpret(program).cpu(),
        "erasure vectors": maps.nan_to_num().flatten(2).transpose(1, 2),
    }
    # Clusters and names are found on every other image and scored on the rest.
    fitted = torch.arange(len(encoded)) % 2 == 0
    readouts = {
        what: cluster(values, fitted, clusters, options.seed) for what, values in vectors.items()
    }
    owned = owned_codes(program, owners(maps))
    readouts["codes"] = owned
    order = torch.randperm(len(owned), generator=torch.Generator().manual_seed(options.seed))
    readouts["codes of another image"] = owned[order]
    found = {what: score(ids, shares, fitted) for what, ids in readouts.items()}
    found["most frequent class"] = score(torch.zeros_like(owned), shares, fitted)
    columns = {
        "miou_majority": "mIoU, majority",
        "miou_hungarian": "mIoU, Hungarian",
        "accuracy_majority": "accuracy, majority",
        "accuracy_hungarian": "accuracy, Hungarian",
        "ari": "ARI in an image",
    }
    return Findings(
        numbers={"clusters": clusters, "readouts": found},
        tables=[
            Table(
                f"Readouts on {int((~fitted).sum())} images, named on the other half",
                ("", *columns.values()),
                [
                    [what, *(_value(scores[name]) for name in columns)]
                    for what, scores in found.items()
                ],
            )
        ],
        figures={"regions": draw(encoded, readouts, shares, fitted, grid, options.examples)},
        notes=(
            "Majority names every cluster or code by its most frequent class, many to one, and "
            "one it has not seen by the most frequent of all; "
            "Hungarian gives each class at most one of them and leaves the rest unnamed, which "
            "counts as wrong. Every pixel with a label counts; a readout has one answer for each "
            "location of the field. These test structure; they are no segmentation method.",
        ),
    )


def cluster(vectors: Tensor, fitted: Tensor, count: int, seed: int) -> Tensor:
    """k-means on the vectors `(B, S, d)` of the `fitted` images: the nearest centre, `(B, S)`."""
    scale = vectors[fitted].flatten(0, 1).std(dim=0).mean().clamp(min=1e-12)
    flat = vectors.flatten(0, 1).float() / scale
    centres = k_means(flat[fitted.repeat_interleave(vectors.shape[1])], count, seed)
    nearest = torch.cat([torch.cdist(part, centres).argmin(dim=1) for part in flat.split(65536)])
    return nearest.view(vectors.shape[:2])


def k_means(points: Tensor, count: int, seed: int = 0, *, steps: int = 50) -> Tensor:
    """Centres `(count, d)` of points `(N, d)` by Lloyd's steps, seeded far apart (k-means++)."""
    random = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=random)]
    away = torch.full((len(points),), torch.inf)
    for _ in range(count - 1):
        away = torch.minimum(away, (points - centres[-1]).square().sum(dim=1))
        weights = away if away.sum() > 0 else torch.ones_like(away)
        # Not torch.multinomial, which draws from at most 2^24 points.
        share = weights.double().cumsum(0)
        drawn = torch.rand(1, generator=random, dtype=torch.double) * share[-1]
        chosen = torch.searchsorted(share, drawn, right=True).clamp(max=len(points) - 1)
        centres = torch.cat([centres, points[chosen]])
    for _ in range(steps):
        nearest = torch.cat([torch.cdist(p, centres).argmin(dim=1) for p in points.split(65536)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        size = torch.bincount(nearest, minlength=count)[:, None]
        moved = torch.where(size > 0, sums / size.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def majority(counts: Array) -> Names:
    """Each row's most frequent column: `(R,)`; that of all rows where a row has no counts."""
    everywhere = counts.sum(axis=0).argmax()
    return np.where(counts.sum(axis=1) > 0, counts.argmax(axis=1), everywhere)


def hungarian(counts: Array) -> Names:
    """Rows matched to columns one to one for the most counts: `(R,)`, `NOBODY` if unmatched."""
    from scipy.optimize import linear_sum_assignment

    row, column = linear_sum_assignment(counts, maximize=True)
    names = np.full(len(counts), NOBODY)
    names[row] = column
    return names


def score(ids: Tensor, shares: Tensor, fitted: Tensor) -> dict[str, Any]:
    """Name the ids on the fitted images; mIoU and accuracy of the names on the others."""
    ids = _own_row(ids)
    learned = joint(ids[fitted], shares[fitted], int(ids.max()) + 1)
    scores: dict[str, Any] = {}
    for name, mapping in (("majority", majority(learned)), ("hungarian", hungarian(learned))):
        named = torch.from_numpy(mapping)[ids[~fitted]]
        scores[f"miou_{name}"], scores[f"accuracy_{name}"] = _miou(named, shares[~fitted])
    alike = adjusted_rand(tables(ids[~fitted], shares[~fitted]))
    scores["ari"] = bootstrap(np.mean, alike, draws=200)
    return scores


def _own_row(ids: Tensor) -> Tensor:
    """The ids with locations that nobody owns as an id of their own."""
    return torch.where(ids == NOBODY, int(ids.max()) + 1, ids)


def _miou(named: Tensor, shares: Tensor) -> tuple[float, float]:
    """mIoU over the classes there are, and accuracy, over all labelled pixels."""
    counts = joint(named, shares, shares.shape[2])
    hits, there = np.diag(counts), shares.sum(dim=(0, 1)).numpy()
    union = counts.sum(axis=1) + there - hits
    iou = hits[there > 0] / union[there > 0]
    return float(iou.mean()), float(hits.sum() / max(there.sum(), 1e-12))


def draw(
    encoded: Encoded,
    readouts: dict[str, Tensor],
    shares: Tensor,
    fitted: Tensor,
    grid: int,
    examples: int,
) -> Figure:
    """Images that named nothing, their masks, clusters of three kinds, and codes by class."""
    assert encoded.records.semantic is not None
    rows = (~fitted).nonzero()[:examples, 0].tolist()
    shown = [what for what in readouts if not what.startswith("codes")]
    codes = _own_row(readouts["codes"])
    learned = joint(codes[fitted], shares[fitted], int(codes.max()) + 1)
    classes = torch.from_numpy(majority(learned))[codes]
    figure = new_figure(1.75 * (len(shown) + 3), 2.0 * max(len(rows), 1) + 0.5)
    axes = figure.subplots(max(len(rows), 1), len(shown) + 3, squeeze=False)
    present: set[int] = set()
    for line, row in zip(axes, rows, strict=False):
        mask = encoded.records.semantic[row]
        mask = torch.where(mask < len(encoded.classes), mask, NOBODY)
        named = classes[row].view(grid, grid)
        show_image(line[0], encoded.records.images[row])
        show_ids(line[1], mask, "mask")
        for place, what in zip(line[2:], shown, strict=False):
            show_ids(place, readouts[what][row].view(grid, grid), what, arbitrary=True)
        show_ids(line[-1], named, "codes by class")
        present |= set(mask.unique().tolist()) | set(named.unique().tolist())
    legend(figure, encoded.classes, sorted(present - {NOBODY}))
    return figure


def _value(score: Interval | float) -> float:
    return score.value if isinstance(score, Interval) else score


STUDY = Study(run=run, options=Options, needs=("semantic",))
