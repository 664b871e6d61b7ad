"""Erasure: which part of the field each token explains, and whether these parts match masks.

Section 4, "Program structure"; Figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.analysis.counterfactual import Edit
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis, Sampling
from strop.analysis.panels import Panel, bars, lines, picture_grid, show_program
from strop.analysis.regions import REMOVALS, erasure_maps, image_tables, owners, patch_shares
from strop.analysis.subject import Subject
from strop.figures import HEAT, MUTED, PALETTE, Axes, Figure, new_figure, show_heat, show_image
from strop.statistics import (
    Array,
    Interval,
    adjusted_rand,
    best_iou,
    entropy,
    mean_interval,
    null_p,
)

EDITS: tuple[Edit, ...] = ("erase", "delete", "replace")
CONTROLS = {"": "erasure", "_other_image": "another image's", "_shuffled": "shuffled"}
PARTS = ("", ", low", ", high", ", another image's", ", shuffled")
_ROWS, _PANELS = 4, 4  # programs in the figure, and heat maps beside each
_POSITIONS = 16  # whose mean maps are drawn

mean = partial(mean_interval, draws=200)


@dataclass(frozen=True, kw_only=True)
class Options(Sampling):
    """Options of the erasure analysis.

    edit  how a token is removed: erase (leaves a hole), delete (closes the gap) or replace
          (by a random code); the other two are compared with it
    """

    edit: Edit = "erase"
    draws: int = field(default=200, metadata={"min": 1})


def run(subject: Subject, options: Options) -> Findings:
    """Compare maps by all three edits, regions with masks, and positions with each other."""
    by_edit: dict[str, Tensor] = {
        edit: erasure_maps(subject, edit=edit, seed=options.seed) for edit in EDITS
    }
    maps = by_edit.pop(options.edit)
    tokens = localisation(maps)
    profile = position_profile(tokens)
    localised = {name: mean(values) for name, values in tokens.items()}
    edits = {edit: compare_maps(maps, other) for edit, other in by_edit.items()}
    grid, regions = subject.tokenizer.config.grid, owners(maps)
    agreement = {
        kind: mask_agreement(
            regions, patch_shares(mask, grid), kind == "instance", options.draws, options.seed
        )
        for kind in ("instance", "semantic")
        if (mask := getattr(subject.records, kind)) is not None
    }
    scores = [f"{score}{part}" for score in ("IoU", "ARI") for part in PARTS]
    return Findings(
        numbers={
            "profile": profile,
            "localisation": localised,
            "edits": edits,
            "agreement": agreement,
        },
        tables=[
            Table("Localisation of a token", ("", "mean", "low", "high"), localised),
            Table(
                f"Maps by other edits, beside {options.edit}",
                ("edit", "correlation of maps", "same owner"),
                edits,
            ),
            Table("Regions against masks", ("mask", *scores, "p"), agreement),
        ],
        figures={
            "teaser": draw_teaser(subject, maps),
            "profile": draw_profile(profile),
            "positions": draw_positions(maps, subject.program.active),
            **({"agreement": draw_agreement(agreement)} if agreement else {}),
        },
        notes=(
            "A region is the set of locations that depend most on one token. Best-overlap IoU "
            "takes the best region for each mask segment; in instance masks only objects count. "
            "The regions of another image keep their shapes but do not fit the image; p is the "
            "share of permutations of the images whose agreement (ARI) is at least as high.",
            REMOVALS[options.edit],
        ),
    )


def localisation(maps: Tensor) -> dict[str, Array]:
    """Per token `(B, K)`: mean of its map, its entropy (1 for uniform), area above half its peak.

    NaN for tokens that are not active or cannot be removed.
    """
    flat = maps.flatten(2).double()
    acts = (flat > 0).any(dim=2)
    peak = flat.amax(dim=2, keepdim=True)
    found = {
        "mean": flat.mean(dim=2).numpy(),
        "entropy": entropy(flat.clamp(min=0).numpy()) / np.log(flat.shape[2]),
        "area": (flat >= peak / 2).double().mean(dim=2).numpy(),
    }
    return {name: np.where(acts.numpy(), values, np.nan) for name, values in found.items()}


def compare_maps(maps: Tensor, others: Tensor) -> dict[str, float]:
    """Mean correlation of the tokens' maps by two edits, and the share of equal owners."""
    both = (maps > 0).flatten(2).any(dim=2) & (others > 0).flatten(2).any(dim=2)
    a, b = (each[both].flatten(1).double() for each in (maps, others))
    a, b = a - a.mean(dim=1, keepdim=True), b - b.mean(dim=1, keepdim=True)
    correlation = (a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))
    same = owners(maps) == owners(others)
    return {
        "correlation": float(correlation.nanmean()),
        "same_owner": float(same.double().mean()),
    }


def mask_agreement(
    regions: Tensor, shares: Tensor, objects_only: bool, draws: int, seed: int
) -> dict[str, Any]:
    """Agreement of regions with a mask: as found, shuffled, and of another image.

    regions       (B, S), from `owners`
    shares        (B, S, C), from `patch_shares`
    objects_only  leave out id 0, which is the background of instance masks
    """

    def scores(owned: Tensor) -> tuple[Array, Array]:
        joint = image_tables(owned, shares)
        best = best_iou(joint)[:, int(objects_only) :]
        counted = np.isfinite(best).any(axis=1)
        iou = np.full(len(best), np.nan)
        iou[counted] = np.nanmean(best[counted], axis=1)
        return iou, adjusted_rand(joint)

    random = torch.Generator().manual_seed(seed)
    iou, ari = scores(regions)
    order = torch.stack([torch.randperm(regions.shape[1], generator=random) for _ in regions])
    shuffled_iou, shuffled_ari = scores(regions.gather(1, order))
    others = [scores(regions[torch.randperm(len(regions), generator=random)]) for _ in range(draws)]
    other_ari = [other.mean() for _, other in others]
    return {
        "iou": mean(iou),
        "iou_other_image": float(np.nanmean([other for other, _ in others])),
        "iou_shuffled": float(np.nanmean(shuffled_iou)),
        "ari": mean(ari),
        "ari_other_image": float(np.mean(other_ari)),
        "ari_shuffled": float(shuffled_ari.mean()),
        "p": null_p(float(ari.mean()), other_ari),
    }


def position_profile(tokens: Mapping[str, Array]) -> list[dict[str, Any]]:
    """For each prefix position: the number of tokens there and their mean localisation."""
    count = np.isfinite(tokens["mean"]).sum(axis=0)
    return [
        {"position": k, "n": int(n)} | {name: mean(values[:, k]) for name, values in tokens.items()}
        for k, n in enumerate(count)
        if n
    ]


def draw_teaser(subject: Subject, maps: Tensor) -> Figure:
    """Image, program, and heat maps of its strongest tokens, each on its own scale."""
    rows: list[list[Panel]] = []
    for row in range(min(_ROWS, len(subject))):
        image, program = subject.records.images[row], subject.program[row]
        scores = maps[row, : len(program)].mean(dim=(1, 2)).nan_to_num()
        strongest = scores.argsort(descending=True)[:_PANELS].tolist()
        colours = dict(zip(strongest, PALETTE, strict=False))
        panels = [
            partial(
                show_heat,
                image=image,
                heat=maps[row, token],
                title=f"#{token}, code {int(program.codes[token])}\n{scores[token]:.3f}",
                colour=colours[token],
            )
            for token in strongest
        ]
        program_panel = partial(show_program, program=program, colours=colours)
        rows.append([partial(show_image, image=image), program_panel, *panels])
    return picture_grid(rows, [1, 1.6, *[1] * _PANELS])


def draw_profile(profile: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean, entropy and area of the maps, and the number of programs, by prefix position."""
    names = {
        "mean": "mean of the map",
        "entropy": "entropy (1: uniform)",
        "area": "area",
        "n": "programs that reach it",
    }
    figure = new_figure(11, 2.6)
    cells = figure.add_gridspec(1, len(names))
    at = [entry["position"] for entry in profile]
    for number, (name, label) in enumerate(names.items()):
        values = {name: [entry[name] for entry in profile]}
        lines(figure, "position in the program", label, at, values, cells[number]).set_ylim(
            bottom=0
        )
    return figure


def draw_positions(maps: Tensor, active: Tensor) -> Figure:
    """The mean map of each of the first positions, each on its own scale."""

    def panel(axes: Axes, k: int) -> None:
        axes.imshow(maps[active[:, k], k].nanmean(dim=0).numpy(), cmap=HEAT)
        axes.set_axis_off()
        axes.set_title(f"#{k}", size=8)

    shown = range(min(_POSITIONS, int(active.any(dim=0).sum())))
    panels = [partial(panel, k=k) for k in shown]
    return picture_grid([panels[:8], *([panels[8:]] if panels[8:] else [])], height=2)


def draw_agreement(agreement: Mapping[str, Mapping[str, Interval | float]]) -> Figure:
    """Agreement of regions with each kind of mask, beside the controls."""
    figure = new_figure(8, 0.8 + 1.2 * len(agreement))
    labels = [f"{kind}, {label}" for kind in agreement for label in CONTROLS.values()]
    colours = [PALETTE[0], MUTED, MUTED] * len(agreement)
    cells = figure.add_gridspec(1, 2)
    for number, (score, name) in enumerate({"iou": "best-overlap IoU", "ari": "ARI"}.items()):
        values = [found[score + control] for found in agreement.values() for control in CONTROLS]
        axes = bars(figure, labels, values, name, cells[number], colours)
        if number:
            axes.set_yticklabels([])
    return figure


ANALYSIS = Analysis(run=run, options=Options)
