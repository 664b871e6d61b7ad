"""Synergy: the part of the field that two tokens explain together and neither explains alone.

Section 4, "Program structure"; Appendix D, Figure 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from strop.analysis.counterfactual import Removal, pair_erasure
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import Panel, picture_grid, show_ids
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
from strop.figures import Figure, show_heat, show_image
from strop.program import Program
from strop.statistics import Array, mean_interval, paired_test

_ROWS, _SHOWN = 4, 3  # images in the figure, and pairs beside each


@dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of the synergy analysis.

    pairs  active pairs drawn from each program; 0 for all
    """

    pairs: int = 64


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
    images = len(subject)
    groups = {
        "active pairs against inactive tokens": [
            by_image(each.pairs, np.abs(each.scores), images) for each in (active, inactive)
        ],
        "strongest pair against random active pairs": strongest(active, images),
    }
    masks = subject.records.semantic
    masks = masks if subject.records.instance is None else subject.records.instance
    if masks is not None:
        shares = patch_shares(masks, tokenizer.config.grid)
        segments = main_segments(owners(maps), shares, program.capacity)
        groups["pairs on one segment against pairs on two"] = same_segment(active, segments)
        random = torch.randperm(len(drawn), generator=torch.Generator().manual_seed(options.seed))
        groups["overlap with a segment, strongest against a random pair"] = [
            map_overlap(subject, maps, drawn[first_of_each(order, drawn)], shares, options.edit)
            for order in (torch.from_numpy(np.argsort(-active.scores)), random)
        ]
    comparisons: dict[str, Mapping[str, float | None]] = {
        name: paired_test(*both, **options.sampling) for name, both in groups.items()
    }
    # Without an inactive token nothing changes: zero by construction, so there is no test.
    control = "active pairs against inactive tokens"
    comparisons[control] = {**comparisons[control], "d": None, "p": None}
    return Findings(
        numbers={
            "comparisons": comparisons,
            "pairs": len(active.scores),
            "score": mean_interval(by_image(active.pairs, active.scores, images), draws=500),
            "positive": float((active.scores > 0).mean()),
        },
        tables=[
            Table(
                "Synergy, averaged over each image's pairs",
                ("", "first", "second", "effect size d", "p", "images"),
                comparisons,
            )
        ],
        figures={"pairs": draw_maps(subject, maps, active, masks, options.edit)},
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


def synergy_maps(subject: Subject, maps: Tensor, pairs: Tensor, edit: Removal) -> Iterator[Tensor]:
    """`Syn_ij` of pairs `(P, 3)`, in chunks: `(n, S)` each.

    maps  (B, K, h, w), erasure maps of single tokens
    """
    alone = maps.flatten(2)
    tokenizer, program = subject.tokenizer, subject.program
    for part, together in pair_erasure(tokenizer, program, pairs, edit=edit):
        row, i, j = part.cpu().unbind(dim=1)
        yield together.cpu() - alone[row, i] - alone[row, j]


def measure(subject: Subject, maps: Tensor, pairs: Tensor, options: Options) -> Scored:
    """Scores of pairs; their maps are averaged chunk by chunk and not kept."""
    grid = subject.tokenizer.config.grid
    board = (torch.arange(grid)[:, None] + torch.arange(grid)).flatten() % 2 == 0
    halves: list[Tensor] = []
    done = 0
    for synergy in synergy_maps(subject, maps, pairs, options.edit):
        halves.append(
            torch.stack([synergy[:, board].mean(dim=1), synergy[:, ~board].mean(dim=1)], dim=1)
        )
        done += len(synergy)
        subject.progress("pairs", done, len(pairs))
    both = torch.cat(halves).double().numpy() if halves else np.zeros((0, 2))
    share = board.double().mean().item()
    return Scored(pairs, both @ np.array([share, 1 - share]), both)


def strongest(scored: Scored, images: int) -> tuple[Array, Array]:
    """Each image's best pair on one half, and the mean of its pairs, both on the other half."""
    first, second = scored.halves.T
    best = first_of_each(torch.from_numpy(np.argsort(-first, kind="stable")), scored.pairs)
    return (
        by_image(scored.pairs[best], second[best.numpy()], images),
        by_image(scored.pairs, second, images),
    )


def main_segments(owned: Tensor, shares: Tensor, capacity: int) -> Tensor:
    """The mask segment of which each token owns most: `(B, K)`, `NOBODY` if it owns none."""
    joint = torch.from_numpy(image_tables(owned, shares))[:, :-1]
    most, segment = joint.max(dim=2)
    segments = torch.full((len(owned), capacity), NOBODY)
    segments[:, : joint.shape[1]] = torch.where(most > 0, segment, NOBODY)
    return segments


def same_segment(scored: Scored, segments: Tensor) -> tuple[Array, Array]:
    """Scores by image of pairs whose tokens share a main segment, and of pairs on two."""
    row, i, j = scored.pairs.unbind(dim=1)
    known = (segments[row, i] != NOBODY) & (segments[row, j] != NOBODY)
    same = known & (segments[row, i] == segments[row, j])
    one, two = (
        by_image(scored.pairs[which], scored.scores[which.numpy()], len(segments))
        for which in (same, known & ~same)
    )
    return one, two


def map_overlap(
    subject: Subject, maps: Tensor, pairs: Tensor, shares: Tensor, edit: Removal
) -> Array:
    """Best IoU of the upper half of each pair's synergy map with one mask segment: `(B,)`."""
    synergy = torch.cat(list(synergy_maps(subject, maps, pairs, edit)))
    covered = (synergy >= synergy.amax(dim=1, keepdim=True) / 2).double()
    mine = shares[pairs[:, 0]]
    inside = torch.einsum("ns,nsc->nc", covered, mine)
    union = inside.sum(dim=1, keepdim=True) + mine.sum(dim=1) - inside
    return by_image(pairs, (inside / union.clamp(min=1e-12)).amax(dim=1).numpy(), len(subject))


def first_of_each(order: Tensor, pairs: Tensor) -> Tensor:
    """The place of the first pair `(N,)` of each image, where pairs are taken in an order."""
    rows = pairs[order, 0]
    order = order[rows.argsort(stable=True)]
    rows = pairs[order, 0]
    return order[torch.cat([torch.ones(1, dtype=torch.bool), rows[1:] != rows[:-1]])]


def by_image(pairs: Tensor, scores: Array, images: int) -> Array:
    """The mean score of each image's pairs: `(B,)`, NaN for images without."""
    rows = pairs[:, 0].numpy()
    count = np.bincount(rows, minlength=images)
    total = np.bincount(rows, weights=scores, minlength=images)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def draw_maps(
    subject: Subject, maps: Tensor, scored: Scored, masks: Tensor | None, edit: Removal
) -> Figure:
    """Image, mask, and the synergy maps of the strongest pairs, each on its own scale."""
    lines: list[list[Panel]] = []
    grid, best_first = subject.tokenizer.config.grid, np.argsort(-scored.scores)
    for row in scored.pairs[:, 0].unique()[:_ROWS].tolist():
        image = subject.records.images[row]
        panels: list[Panel] = [partial(show_image, image=image)]
        if masks is not None:
            mask = masks[row].long()
            ids = torch.where(mask == VOID, NOBODY, mask)
            panels.append(partial(show_ids, ids=ids, title="mask"))
        pairs = scored.pairs[best_first]
        pairs = pairs[pairs[:, 0] == row][:_SHOWN]
        synergy = torch.cat(list(synergy_maps(subject, maps, pairs, edit)))
        for (_, i, j), found in zip(pairs.tolist(), synergy, strict=True):
            title = f"#{i} and #{j}\n{found.mean():+.4f}"
            heat = found.view(grid, grid)
            panels.append(partial(show_heat, image=image, heat=heat, title=title, signed=True))
        lines.append(panels)
    return picture_grid(lines)


ANALYSIS = Analysis(run=run, options=Options)
