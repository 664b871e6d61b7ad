"""The study of single tokens: what each holds up, where, and whether masks agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.figures import (
    HEAT,
    MUTED,
    PALETTE,
    new_figure,
    plain_axes,
    show_heat,
    show_image,
)
from strop.model.tokenizer import Tokenizer
from strop.statistics import Interval, bootstrap
from strop.structure.association import adjusted_rand, entropy, overlap
from strop.structure.counterfactual import Edit, erasure_maps
from strop.structure.panels import bars, show_program
from strop.structure.regions import mask_ids, owners, patch_shares, tables
from strop.structure.study import Encoded, Findings, Job, Study, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDITS: tuple[Edit, ...] = ("erase", "delete", "replace")
_PANELS = 4  # heat maps beside each program


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of erasure lets a user choose.

    edit      how a token is taken out: erase (a hole), delete (close the gap) or replace (by a
              random code); the other two are compared with it
    examples  images in the figure
    draws     arrangements for the p-values
    seed      of everything random
    """

    edit: Edit = "erase"
    examples: int = 4
    draws: int = 200
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Maps by all three edits; regions against masks; where, and how widely, tokens act."""
    program, grid = encoded.program, tokenizer.config.grid
    by_edit = {
        edit: erasure_maps(tokenizer, program, job.watch, edit=edit, seed=options.seed)
        for edit in EDITS
    }
    maps = by_edit[options.edit]
    regions = owners(maps)
    places = localisation(maps)
    compared: dict[str, dict[str, float]] = {
        edit: agreement_of_edits(maps, other)
        for edit, other in by_edit.items()
        if edit != options.edit
    }
    masks = {
        kind: patch_shares(mask, grid, mask_ids(mask))
        for kind in ("instance", "semantic")
        if (mask := getattr(encoded.records, kind)) is not None
    }
    agreement = {
        kind: mask_agreement(regions, shares, kind == "instance", options.draws, options.seed)
        for kind, shares in masks.items()
    }
    profile = position_profile(places)
    per_token = {name: _mean(values) for name, values in places.items()}
    figures = {
        "teaser": draw_teaser(encoded, maps, options.examples),
        "profile": draw_profile(profile),
        "positions": draw_positions(maps, program.active),
    }
    if agreement:
        figures["agreement"] = draw_agreement(agreement)
    return Findings(
        numbers={
            "localisation": per_token,
            "edits": compared,
            "agreement": agreement,
            "profile": profile,
        },
        tables=_tables(options.edit, per_token, compared, agreement),
        figures=figures,
        notes=(
            "Regions are the locations that depend most on the same token. Best-overlap IoU takes "
            "for each mask segment the best region; for instance masks only objects count. "
            "Another image's regions keep the shapes and lose the image; p is how often they agree "
            "as well with the mask (ARI) when images are shuffled.",
        ),
    )


def localisation(maps: Tensor) -> dict[str, NDArray[np.float64]]:
    """Per token `(B, K)`: mean of its map, entropy (1 is everywhere alike) and area at half peak.

    NaN for tokens that are not active or cannot be taken out.
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


def agreement_of_edits(maps: Tensor, others: Tensor) -> dict[str, float]:
    """How alike the maps of two edits are: correlation of each token's, share of equal owners."""
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
    """Regions `(B, S)` against a mask: as they are, shuffled, and those of another image.

    shares `(B, S, C)` counts the mask's ids at each location; objects have ids from 1.
    """

    def scores(owned: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        joint = tables(owned, shares)
        best = overlap(joint)[:, 1 if objects_only else 0 :]
        counted = np.isfinite(best).any(axis=1)
        iou = np.full(len(best), np.nan)
        iou[counted] = np.nanmean(best[counted], axis=1)
        return iou, adjusted_rand(joint)

    random = torch.Generator().manual_seed(seed)
    iou, ari = scores(regions)
    order = torch.stack([torch.randperm(regions.shape[1], generator=random) for _ in regions])
    shuffled_iou, shuffled_ari = scores(regions.gather(1, order))
    others = [scores(regions[torch.randperm(len(regions), generator=random)]) for _ in range(draws)]
    reached = sum(other.mean() >= ari.mean() for _, other in others)
    return {
        "iou": _mean(iou),
        "ari": _mean(ari),
        "iou_shuffled": float(np.nanmean(shuffled_iou)),
        "ari_shuffled": float(shuffled_ari.mean()),
        "iou_other_image": float(np.nanmean([other for other, _ in others])),
        "ari_other_image": float(np.mean([other for _, other in others])),
        "p": (1 + reached) / (1 + draws),
    }


def position_profile(places: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """For each prefix position: how many tokens stood there, and what they were like."""
    count = np.isfinite(places["mean"]).sum(axis=0)
    return [
        {"position": k, "n": int(n)}
        | {name: _mean(values[:, k]) for name, values in places.items()}
        for k, n in enumerate(count)
        if n
    ]


def draw_teaser(encoded: Encoded, maps: Tensor, examples: int) -> Figure:
    """Image, program, and heat maps of its strongest tokens, each on its own scale."""
    rows = min(examples, len(encoded))
    figure = new_figure(1.75 * (_PANELS + 3), 2.15 * rows)
    grid = figure.add_gridspec(rows, _PANELS + 2, width_ratios=[1, 1.6, *[1] * _PANELS])
    for row in range(rows):
        image, program = encoded.records.images[row], encoded.program[row]
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


def draw_profile(profile: list[dict[str, Any]]) -> Figure:
    """Mean, entropy and area of the maps by prefix position, with n."""
    figure = new_figure(9, 2.8)
    names = {"mean": "mean of the map", "entropy": "entropy (1: everywhere)", "area": "area"}
    where = [entry["position"] for entry in profile]
    cells = figure.add_gridspec(1, 3)
    for number, (name, label) in enumerate(names.items()):
        axes = plain_axes(figure, "position in the program", label, cells[number])
        low, high = ([entry[name][bound] for entry in profile] for bound in (1, 2))
        axes.fill_between(where, low, high, alpha=0.25, lw=0)
        axes.plot(where, [entry[name][0] for entry in profile], marker=".", ms=4)
        axes.set_ylim(bottom=0)
        if number == 0:
            beside = axes.twinx()
            beside.plot(where, [entry["n"] for entry in profile], color=MUTED, ls=":", lw=1.2)
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


def draw_agreement(agreement: dict[str, Any]) -> Figure:
    """Regions against each kind of mask, beside the controls."""
    figure = new_figure(8, 0.8 + 1.2 * len(agreement))
    controls = {"": "erasure", "_other_image": "another image's", "_shuffled": "shuffled"}
    labels = [f"{kind}, {label}" for kind in agreement for label in controls.values()]
    colours = [PALETTE[0], MUTED, MUTED] * len(agreement)
    cells = figure.add_gridspec(1, 2)
    for number, (score, name) in enumerate({"iou": "best-overlap IoU", "ari": "ARI"}.items()):
        values = [found[score + control] for found in agreement.values() for control in controls]
        axes = bars(figure, labels, values, name, cells[number], colours)
        if number:
            axes.set_yticklabels([])
    return figure


def _tables(
    edit: str,
    per_token: dict[str, Interval],
    compared: dict[str, dict[str, float]],
    agreement: dict[str, Any],
) -> list[Table]:
    found = [
        Table(
            "Localisation of a token",
            ("", "mean", "low", "high"),
            [[name, *interval] for name, interval in per_token.items()],
        ),
        Table(
            f"Maps by other edits, beside {edit}",
            ("edit", "correlation of maps", "same owner"),
            [[other, *values.values()] for other, values in compared.items()],
        ),
    ]
    if agreement:
        rows = [
            [
                kind,
                score,
                *each[score],
                each[f"{score}_other_image"],
                each[f"{score}_shuffled"],
                each["p"] if score == "ari" else None,
            ]
            for kind, each in agreement.items()
            for score in ("iou", "ari")
        ]
        header = ("mask", "", "regions", "low", "high", "another image's", "shuffled", "p")
        found.append(Table("Regions against masks", header, rows))
    return found


def _mean(values: NDArray[np.float64]) -> Interval:
    """Mean over images (rows), whose tokens, if any, are averaged first."""
    rows = values.reshape(len(values), -1)
    rows = rows[np.isfinite(rows).any(axis=1)]
    per_image = np.nanmean(rows, axis=1)
    return bootstrap(np.mean, per_image, draws=200) if len(rows) else Interval(*[np.nan] * 3)


STUDY = Study(run=run, options=Options)
