"""Synergy: the part of the field that two tokens explain together and neither explains alone.

Section 4, "Program structure"; Appendix D, Figure 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.analysis.counterfactual import Removal, pair_erasure, rows_within
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import show_ids
from strop.analysis.regions import (
    NOBODY,
    REMOVALS,
    RemovalOptions,
    erasure_maps,
    image_tables,
    owners,
    patch_shares,
)
from strop.analysis.subject import Subject
from strop.data.record import VOID
from strop.errors import ProgramError
from strop.figures import MUTED, PALETTE, Figure, new_figure, plain_axes, show_heat, show_image
from strop.program import Program
from strop.statistics import Array, mean_interval, paired_test

_SHOWN = 3  # pairs beside each image


@dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of the synergy analysis.

    pairs     active pairs drawn from each program; 0 for all
    examples  images in the figure
    draws     sign flips for the p-values
    memory    GiB that the interpretation of pairs may take
    seed      random seed
    """

    pairs: int = 64
    examples: int = field(default=4, metadata={"min": 1})
    draws: int = field(default=1000, metadata={"min": 1})
    memory: float = field(default=1.0, metadata={"above": 0})
    seed: int = 0


@dataclass(frozen=True)
class Scored:
    """Pairs of tokens and their synergy.

    pairs   (P, 3) row, i, j, ordered by row
    scores  (P,) mean of the synergy map
    halves  (P, 2) mean over each colour of a checkerboard of locations
    """

    pairs: Tensor
    scores: Array
    halves: Array


ImageScores = tuple[Array, Array]
"""Images `(N,)` and the score of each `(N,)`."""


def run(subject: Subject, options: Options) -> Findings:
    """Measure the synergy of active pairs, of the strongest ones, and of pairs without any."""
    tokenizer, program = subject.tokenizer, subject.program
    drawn = draw_pairs(program, options.pairs, options.seed)
    if not len(drawn):
        raise ProgramError(
            "No program of these images has three tokens, so no pair can be erased.",
            "Use a model that writes longer programs, or images with more content.",
        )
    maps = erasure_maps(subject, edit=options.edit)
    active = measure(subject, maps, drawn, options)
    controls = draw_pairs(program, options.pairs, options.seed, inactive=True)
    inactive = measure(subject, maps, controls, options)
    comparisons: dict[str, Mapping[str, float | None]] = {
        # Without an inactive token nothing changes: zero by construction, so there is no test.
        "active pairs against inactive tokens": {
            **_compare(
                _by_image(active.pairs, np.abs(active.scores)),
                _by_image(inactive.pairs, np.abs(inactive.scores)),
                options,
            ),
            "d": None,
            "p": None,
        },
        "strongest pair against random active pairs": _compare(*strongest(active), options),
    }
    masks = subject.records.semantic
    masks = masks if subject.records.instance is None else subject.records.instance
    if masks is not None:
        shares = patch_shares(masks, tokenizer.config.grid)
        segments = main_segments(owners(maps), shares, program.capacity)
        comparisons["pairs on one segment against pairs on two"] = _compare(
            *same_segment(active, segments), options
        )
        comparisons["overlap with a segment, strongest against a random pair"] = _compare(
            map_overlap(subject, maps, strongest_of_each(active), shares, options.edit),
            map_overlap(subject, maps, random_of_each(active, options.seed), shares, options.edit),
            options,
        )
    return Findings(
        numbers={
            "pairs": len(active.scores),
            "score": mean_interval(_by_image(active.pairs, active.scores)[1], draws=500),
            "positive": float((active.scores > 0).mean()),
            "comparisons": comparisons,
            "by_distance": by_distance(active),
        },
        tables=[
            Table.of(
                "Synergy, averaged over each image's pairs",
                ("", "first", "second", "effect size d", "p", "images"),
                comparisons,
            )
        ],
        figures={
            "pairs": draw_maps(subject, maps, active, masks, options),
            "scores": draw_scores(active, inactive),
        },
        notes=(
            "Syn = D_ij - D_i - D_j. It is positive where either token suffices to keep the field "
            "and negative where losing one token has the effect of losing both. Comparisons with "
            "inactive tokens use the absolute value of the mean synergy; that control is zero by "
            "construction and has no p. The strongest pair is "
            "chosen on one half of the locations and measured on the other half, so that the "
            "choice alone gains nothing. p: one-sided, by random signs of the images' differences.",
            REMOVALS[options.edit],
        ),
    )


def draw_pairs(program: Program, count: int, seed: int, *, inactive: bool = False) -> Tensor:
    """At most `count` pairs (all, if 0) of each program that has three active tokens: `(P, 3)`.

    Pairs of two active tokens, or, if `inactive`, of an active and an inactive one.
    """
    random = torch.Generator().manual_seed(seed)
    drawn = [torch.zeros(0, 3, dtype=torch.int64)]
    for row, active in enumerate(program.active):
        tokens, others = active.nonzero()[:, 0], (~active).nonzero()[:, 0]
        if len(tokens) < 3:
            continue
        pairs = torch.cartesian_prod(tokens, others) if inactive else torch.combinations(tokens)
        if inactive or 0 < count < len(pairs):
            chosen = torch.randperm(len(pairs), generator=random)[: count or None]
            pairs = pairs[chosen.sort().values]
        drawn.append(torch.cat([torch.full((len(pairs), 1), row), pairs], dim=1))
    return torch.cat(drawn)


def synergy_maps(
    subject: Subject, maps: Tensor, pairs: Tensor, edit: Removal, batch: int = 256
) -> Iterator[Tensor]:
    """`Syn_ij` of pairs `(P, 3)`, in chunks of at most `batch`: `(n, S)` each.

    maps  (B, K, h, w), erasure maps of single tokens
    """
    alone = maps.flatten(2)
    tokenizer, program = subject.tokenizer, subject.program
    for part, together in pair_erasure(tokenizer, program, pairs, edit=edit, batch=batch):
        row, i, j = part.cpu().unbind(dim=1)
        yield together.cpu() - alone[row, i] - alone[row, j]


def measure(subject: Subject, maps: Tensor, pairs: Tensor, options: Options) -> Scored:
    """Scores of pairs; their maps are averaged chunk by chunk and not kept."""
    grid = subject.tokenizer.config.grid
    board = (torch.arange(grid)[:, None] + torch.arange(grid)).flatten() % 2 == 0
    halves: list[Tensor] = []
    done = 0
    batch = rows_within(subject.tokenizer, options.memory)
    for synergy in synergy_maps(subject, maps, pairs, options.edit, batch):
        halves.append(
            torch.stack([synergy[:, board].mean(dim=1), synergy[:, ~board].mean(dim=1)], dim=1)
        )
        done += len(synergy)
        subject.progress("pairs", done, len(pairs))
    both = torch.cat(halves).double().numpy() if halves else np.zeros((0, 2))
    share = board.double().mean().item()
    return Scored(pairs, both @ np.array([share, 1 - share]), both)


def strongest(scored: Scored) -> tuple[ImageScores, ImageScores]:
    """Each image's best pair on one half, and the mean of its pairs, both on the other half."""
    rows = scored.pairs[:, 0].numpy()
    images = np.unique(rows)
    best, average = [], []
    for image in images:
        first, second = scored.halves[rows == image].T
        best.append(second[first.argmax()])
        average.append(second.mean())
    return (images, np.array(best)), (images, np.array(average))


def main_segments(owned: Tensor, shares: Tensor, capacity: int) -> Tensor:
    """The mask segment of which each token owns most: `(B, K)`, `NOBODY` if it owns none."""
    joint = torch.from_numpy(image_tables(owned, shares))[:, :-1]
    most, segment = joint.max(dim=2)
    segments = torch.full((len(owned), capacity), NOBODY)
    segments[:, : joint.shape[1]] = torch.where(most > 0, segment, NOBODY)
    return segments


def same_segment(scored: Scored, segments: Tensor) -> tuple[ImageScores, ImageScores]:
    """Scores by image of pairs whose tokens share a main segment, and of pairs on two."""
    row, i, j = scored.pairs.unbind(dim=1)
    known = (segments[row, i] != NOBODY) & (segments[row, j] != NOBODY)
    same = known & (segments[row, i] == segments[row, j])
    first, second = (
        _by_image(scored.pairs[chosen], scored.scores[chosen.numpy()])
        for chosen in (same, known & ~same)
    )
    return first, second


def strongest_of_each(scored: Scored) -> Tensor:
    """The pair with the highest score of each image: `(N, 3)`."""
    order = torch.from_numpy(np.lexsort([-scored.scores, scored.pairs[:, 0].numpy()]))
    return _first_of_each(scored.pairs[order])


def random_of_each(scored: Scored, seed: int) -> Tensor:
    """A random pair of each image: `(N, 3)`."""
    order = torch.randperm(len(scored.pairs), generator=torch.Generator().manual_seed(seed))
    mixed = scored.pairs[order]
    return _first_of_each(mixed[mixed[:, 0].argsort(stable=True)])


def map_overlap(
    subject: Subject, maps: Tensor, pairs: Tensor, shares: Tensor, edit: Removal
) -> ImageScores:
    """Best IoU of the upper half of each pair's synergy map with one mask segment."""
    row = pairs[:, 0]
    synergy = torch.cat(list(synergy_maps(subject, maps, pairs, edit)))
    covered = (synergy >= synergy.amax(dim=1, keepdim=True) / 2).double()
    inside = torch.einsum("ns,nsc->nc", covered, shares[row])
    union = inside.sum(dim=1, keepdim=True) + shares[row].sum(dim=1) - inside
    return row.numpy(), (inside / union.clamp(min=1e-12)).amax(dim=1).numpy()


def by_distance(scored: Scored) -> list[dict[str, Any]]:
    """Mean score of pairs by the distance of their positions in the program."""
    apart = (scored.pairs[:, 2] - scored.pairs[:, 1]).numpy()
    return [
        {
            "distance": int(distance),
            "n": int((apart == distance).sum()),
            "score": float(scored.scores[apart == distance].mean()),
        }
        for distance in np.unique(apart)
    ]


def draw_maps(
    subject: Subject, maps: Tensor, scored: Scored, masks: Tensor | None, options: Options
) -> Figure:
    """Image, mask, and the synergy maps of the strongest pairs, each on its own scale."""
    rows = scored.pairs[:, 0].unique().tolist()[: options.examples]
    columns = _SHOWN + 1 + (masks is not None)
    figure = new_figure(1.9 * columns, 2.2 * max(len(rows), 1))
    cells = figure.add_gridspec(max(len(rows), 1), columns)
    grid = subject.tokenizer.config.grid
    for line, row in enumerate(rows):
        image = subject.records.images[row]
        show_image(figure.add_subplot(cells[line, 0]), image)
        if masks is not None:
            mask = masks[row].long()
            show_ids(
                figure.add_subplot(cells[line, 1]), torch.where(mask == VOID, NOBODY, mask), "mask"
            )
        mine = (scored.pairs[:, 0] == row).nonzero()[:, 0]
        best = mine[torch.from_numpy(scored.scores)[mine].argsort(descending=True)][:_SHOWN]
        pairs = scored.pairs[best]
        synergy = torch.cat(list(synergy_maps(subject, maps, pairs, options.edit)))
        for column, ((_, i, j), found) in enumerate(zip(pairs.tolist(), synergy, strict=True)):
            axes = figure.add_subplot(cells[line, columns - _SHOWN + column])
            title = f"#{i} and #{j}\n{found.mean():+.4f}"
            show_heat(axes, image, found.view(grid, grid), title, signed=True)
    return figure


def draw_scores(active: Scored, inactive: Scored) -> Figure:
    """Scores of active pairs and of the control, and the mean by distance in the program."""
    figure = new_figure(8, 3)
    cells = figure.add_gridspec(1, 2)
    axes = plain_axes(figure, "mean synergy of a pair", "share of pairs", cells[0])
    everything = np.concatenate([active.scores, inactive.scores, [-1e-6, 1e-6]])
    low, high = (float(np.nanquantile(everything, share)) for share in (0.005, 0.995))
    edges = np.linspace(low, high, 40).tolist()
    groups = {"active pairs": (active, PALETTE[0]), "with an inactive token": (inactive, MUTED)}
    for name, (scored, colour) in groups.items():
        if len(scored.scores):
            weights = np.full(len(scored.scores), 1 / len(scored.scores))
            clipped = np.clip(scored.scores, edges[0], edges[-1])
            axes.hist(clipped, edges, weights=weights, label=name, color=colour, alpha=0.8)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    distance = plain_axes(figure, "distance in the program", "mean synergy", cells[1])
    found = by_distance(active)
    distance.axhline(0, color=MUTED, lw=1)
    distance.plot([f["distance"] for f in found], [f["score"] for f in found], marker=".")
    return figure


def _first_of_each(pairs: Tensor) -> Tensor:
    """The first pair of each image, of pairs ordered by row."""
    row = pairs[:, 0]
    return pairs[torch.cat([torch.ones(1, dtype=torch.bool), row[1:] != row[:-1]])]


def _by_image(pairs: Tensor, scores: Array) -> ImageScores:
    """The mean score of each image that has pairs."""
    images, which = np.unique(pairs[:, 0].numpy(), return_inverse=True)
    total = np.bincount(which, weights=scores, minlength=len(images))
    return images, total / np.maximum(np.bincount(which, minlength=len(images)), 1)


def _compare(first: ImageScores, second: ImageScores, options: Options) -> dict[str, float]:
    """Two groups of scores, paired by image."""
    _, a, b = np.intersect1d(first[0], second[0], return_indices=True)
    one, two = first[1][a], second[1][b]
    return {
        "first": float(one.mean()) if len(one) else float("nan"),
        "second": float(two.mean()) if len(two) else float("nan"),
        **paired_test(one, two, draws=options.draws, seed=options.seed),
        "images": len(one),
    }


ANALYSIS = Analysis(run=run, options=Options)
