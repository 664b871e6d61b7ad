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
from strop.analysis.frame import Analysis
from strop.analysis.panels import bars, show_program
from strop.analysis.regions import REMOVALS, erasure_maps, image_tables, owners, patch_shares
from strop.analysis.subject import Subject
from strop.figures import (
    HEAT,
    MUTED,
    PALETTE,
    Figure,
    new_figure,
    plain_axes,
    show_heat,
    show_image,
)
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
_PANELS = 4  # heat maps beside each program

mean = partial(mean_interval, draws=200)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the erasure analysis.

    edit      how a token is removed: erase (leaves a hole), delete (closes the gap) or replace
              (by a random code); the other two are compared with it
    examples  images in the figure
    draws     permutations for the p-values
    seed      random seed
    """

    edit: Edit = "erase"
    examples: int = field(default=4, metadata={"min": 1})
    draws: int = field(default=200, metadata={"min": 1})
    seed: int = 0


def run(subject: Subject, options: Options) -> Findings:
    """Compare maps by all three edits, regions with masks, and positions with each other."""
    by_edit: dict[str, Tensor] = {
        edit: erasure_maps(subject, edit=edit, seed=options.seed) for edit in EDITS
    }
    maps = by_edit[options.edit]
    tokens = localisation(maps)
    profile = position_profile(tokens)
    localised = {name: mean(values) for name, values in tokens.items()}
    edits = {
        edit: compare_maps(maps, other) for edit, other in by_edit.items() if edit != options.edit
    }
    agreement = {}
    for kind in ("instance", "semantic"):
        if (mask := getattr(subject.records, kind)) is not None:
            shares = patch_shares(mask, subject.tokenizer.config.grid)
            agreement[kind] = mask_agreement(
                owners(maps), shares, kind == "instance", options.draws, options.seed
            )
    figures = {
        "teaser": draw_teaser(subject, maps, options.examples),
        "profile": draw_profile(profile),
        "positions": draw_positions(maps, subject.program.active),
    }
    tables = [
        Table.of("Localisation of a token", ("", "mean", "low", "high"), localised),
        Table.of(
            f"Maps by other edits, beside {options.edit}",
            ("edit", "correlation of maps", "same owner"),
            edits,
        ),
    ]
    if agreement:
        figures["agreement"] = draw_agreement(agreement)
        tables.append(agreement_table(agreement))
    return Findings(
        numbers={
            "localisation": localised,
            "edits": edits,
            "agreement": agreement,
            "profile": profile,
        },
        tables=tables,
        figures=figures,
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
    a, b = maps.flatten(2).double(), others.flatten(2).double()
    both = (a > 0).any(dim=2) & (b > 0).any(dim=2)
    a, b = a[both] - a[both].mean(dim=1, keepdim=True), b[both] - b[both].mean(dim=1, keepdim=True)
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
        "ari": mean(ari),
        "iou_shuffled": float(np.nanmean(shuffled_iou)),
        "ari_shuffled": float(shuffled_ari.mean()),
        "iou_other_image": float(np.nanmean([other for other, _ in others])),
        "ari_other_image": float(np.mean(other_ari)),
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


def agreement_table(agreement: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each kind of mask and score."""
    rows = []
    for kind, found in agreement.items():
        for score in ("iou", "ari"):
            controls = found[f"{score}_other_image"], found[f"{score}_shuffled"]
            rows.append([kind, score, *found[score], *controls, found["p"]])
        rows[-2][-1] = None  # the test is on ARI alone
    header = ("mask", "", "regions", "low", "high", "another image's", "shuffled", "p")
    return Table("Regions against masks", header, rows)


def draw_teaser(subject: Subject, maps: Tensor, examples: int) -> Figure:
    """Image, program, and heat maps of its strongest tokens, each on its own scale."""
    rows = min(examples, len(subject))
    figure = new_figure(1.75 * (_PANELS + 3), 2.15 * rows)
    grid = figure.add_gridspec(rows, _PANELS + 2, width_ratios=[1, 1.6, *[1] * _PANELS])
    for row in range(rows):
        image, program = subject.records.images[row], subject.program[row]
        scores = maps[row, : len(program)].mean(dim=(1, 2)).nan_to_num()
        strongest = scores.argsort(descending=True)[:_PANELS].tolist()
        colours = dict(zip(strongest, PALETTE, strict=False))
        show_image(figure.add_subplot(grid[row, 0]), image)
        show_program(figure.add_subplot(grid[row, 1]), program, colours)
        for column, token in enumerate(strongest):
            axes = figure.add_subplot(grid[row, 2 + column])
            show_heat(axes, image, maps[row, token])
            title = f"#{token}, code {int(program.codes[token])}\n{scores[token]:.3f}"
            axes.set_title(title, size=8.5, color=colours[token], weight="bold")
    return figure


def draw_profile(profile: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean, entropy and area of the maps by prefix position, with n."""
    figure = new_figure(9, 2.8)
    names = {"mean": "mean of the map", "entropy": "entropy (1: uniform)", "area": "area"}
    positions = [entry["position"] for entry in profile]
    cells = figure.add_gridspec(1, 3)
    for number, (name, label) in enumerate(names.items()):
        axes = plain_axes(figure, "position in the program", label, cells[number])
        low, high = ([entry[name][bound] for entry in profile] for bound in (1, 2))
        axes.fill_between(positions, low, high, alpha=0.25, lw=0)
        axes.plot(positions, [entry[name][0] for entry in profile], marker=".", ms=4)
        axes.set_ylim(bottom=0)
        if number == 0:
            beside = axes.twinx()
            beside.plot(positions, [entry["n"] for entry in profile], color=MUTED, ls=":", lw=1.2)
            beside.set_ylabel("programs that reach it", color="0.4", size=8)
            beside.set_ylim(bottom=0)
            beside.spines[["top"]].set_visible(False)
    return figure


def draw_positions(maps: Tensor, active: Tensor) -> Figure:
    """The mean map of each of the first positions, each on its own scale."""
    shown = min(16, int(active.any(dim=0).sum()))
    lines = -(-shown // 8)
    figure = new_figure(9, 1.45 * lines)
    for k in range(shown):
        axes = figure.add_subplot(lines, min(8, shown), k + 1)
        axes.imshow(maps[active[:, k], k].nanmean(dim=0).numpy(), cmap=HEAT)
        axes.set_axis_off()
        axes.set_title(f"#{k}", size=8)
    return figure


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
