"""Codes: how the codebook is used, what single codes stand for, and at which positions.

Section 4, "Code reuse and unsupervised readouts".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from strop.analysis.dictionary import CodeEntry, dictionary_page, strengths, strip
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import picture_grid
from strop.analysis.regions import (
    REMOVALS,
    RemovalOptions,
    erasure_maps,
    owned_codes,
    owners,
    patch_shares,
    pooled_table,
)
from strop.analysis.subject import Subject
from strop.analysis.usage import code_counts
from strop.figures import HEAT, MUTED, PALETTE, Axes, Figure, new_figure, plain_axes
from strop.program import Program
from strop.statistics import Array, entropy, gini, mutual_information, null_p, purity

Counts = NDArray[np.int64]
TESTS = {
    "position": "mutual information of code and position, nats",
    "purity": "purity of codes by class",
    "classes": "mutual information of code and class, nats",
}
_SHOWN = 24  # codes in the figure of usage
_PICTURED = 8  # codes in the figure of the dictionary
_LISTED = 12  # rows of the tables
_SELDOM = 5  # the least co-occurrences for which PMI is not noise


@dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of the analysis of codes.

    pages  codes in the dictionary, the most used first
    """

    draws: int = field(default=200, metadata={"min": 1})
    pages: int = field(default=256, metadata={"min": 1})


def run(subject: Subject, options: Options) -> Findings:
    """Usage, purity, positions and co-occurrence of the codes, and the dictionary."""
    program, classes = subject.program, subject.classes
    maps = erasure_maps(subject, edit=options.edit)
    codes, at = program.codes[program.active].numpy(), program.active.nonzero()[:, 1].numpy()
    shape = (program.codebook_size, program.capacity)
    usage, places = code_counts(program).numpy(), position_table(codes, at, shape)
    numbers: dict[str, Any] = {
        "usage": concentration(usage),
        "position": against_null(
            mutual_information,
            places,
            lambda random: position_table(random.permutation(codes), at, shape),
            options,
        ),
        "pairs": associated_pairs(cooccurrence(program), len(program)),
    }
    by_class = None
    if subject.records.semantic is not None:
        shares = patch_shares(subject.records.semantic, subject.tokenizer.config.grid, len(classes))
        owned = owned_codes(program, owners(maps))
        by_class = pooled_table(owned, shares, program.codebook_size)

        def other_images(random: np.random.Generator) -> Array:
            permuted = shares[torch.from_numpy(random.permutation(len(shares)))]
            return pooled_table(owned, permuted, program.codebook_size)

        numbers["purity"] = against_null(purity, by_class, other_images, options)
        numbers["classes"] = against_null(mutual_information, by_class, other_images, options)
    entries = describe(usage, places, by_class, classes)
    tests = {label: numbers[name] for name, label in TESTS.items() if name in numbers}
    shown = ("code", "count", "position", "best_class", "purity", "class_entropy")
    header = ("code", "tokens", "mean position", "class", "purity", "class entropy, nats")
    return Findings(
        numbers={**numbers, "codes": entries},
        tables=[
            Table("Usage", ("", ""), numbers["usage"]),
            Table("Codes against positions and classes", ("", "value", "shuffled", "p"), tests),
            Table(
                "The most used codes",
                header,
                [[entry[name] for name in shown] for entry in entries[:_LISTED]],
            ),
            Table(
                "Associated codes",
                ("codes", "images", "expected", "normalised PMI"),
                [
                    ["{} {}".format(*pair["codes"]), *list(pair.values())[1:]]
                    for pair in numbers["pairs"]
                ],
            ),
        ],
        figures={
            "usage": draw_usage(usage, places),
            "dictionary": draw_dictionary(subject, maps, entries),
        },
        files=dictionary_page(subject, maps, entries[: options.pages]),
        notes=(
            "The effective vocabulary is the exponential of the entropy of usage. Purity is the "
            "share of the pixels owned by a code that belong to their most frequent class. The "
            "shuffled value is that of the same regions with the mask of another image; it is far "
            "from zero where one class covers most pixels.",
            REMOVALS[options.edit],
        ),
    )


def concentration(usage: Counts) -> dict[str, float]:
    """How much of the codebook is used, and how evenly."""
    ranked = np.sort(usage)[::-1] / max(usage.sum(), 1)
    return {
        "tokens": int(usage.sum()),
        "active_codes": int((usage > 0).sum()),
        "active_share": float((usage > 0).mean()),
        "effective_vocabulary": float(np.exp(entropy(usage))),
        "gini": gini(usage),
        "top_1_share": float(ranked[0]),
        "top_10_share": float(ranked[:10].sum()),
    }


def position_table(codes: Counts, at: Counts, shape: tuple[int, int]) -> Counts:
    """How often each code is at each prefix position, `(N, K)`: of codes and positions `(T,)`."""
    return np.bincount(codes * shape[1] + at, minlength=math.prod(shape)).reshape(shape)


def cooccurrence(program: Program) -> Counts:
    """Number of images with both of two codes: `(N, N)`; the diagonal holds those with one."""
    held = np.zeros((len(program), program.codebook_size), np.int64)
    row = program.active.nonzero()[:, 0]
    held[row.numpy(), program.codes[program.active].numpy()] = 1
    return held.T @ held


def associated_pairs(together: Counts, images: int) -> list[dict[str, Any]]:
    """The pairs of codes with the highest normalised pointwise mutual information (NPMI)."""
    first, second = np.nonzero(np.triu(together, 1) >= _SELDOM)
    both = together[first, second] / images
    expected = together[first, first] * together[second, second] / images**2
    with np.errstate(divide="ignore", invalid="ignore"):
        npmi = np.where(both < 1, np.log(both / expected) / -np.log(both), 0)
    best = np.argsort(-npmi, kind="stable")[:_LISTED]
    return [
        {
            "codes": [int(first[k]), int(second[k])],
            "images": int(together[first[k], second[k]]),
            "expected": float(expected[k] * images),
            "npmi": float(npmi[k]),
        }
        for k in best
    ]


def describe(
    usage: Counts, places: Counts, by_class: Array | None, classes: tuple[str, ...]
) -> list[CodeEntry]:
    """An entry for every code in use, the most used first."""
    mean = places @ np.arange(places.shape[1]) / np.maximum(usage, 1)
    entries: list[CodeEntry] = []
    for code in np.argsort(-usage, kind="stable")[: int((usage > 0).sum())].tolist():
        row = by_class[code] if by_class is not None else np.zeros(0)
        known = row.sum() > 0
        entries.append(
            {
                "code": code,
                "count": int(usage[code]),
                "position": float(mean[code]),
                "best_class": classes[int(row.argmax())] if known else None,
                "purity": float(row.max() / row.sum()) if known else None,
                "class_entropy": float(entropy(row)) if known else None,
            }
        )
    return entries


def against_null(
    statistic: Callable[[ArrayLike], float],
    table: ArrayLike,
    permuted: Callable[[np.random.Generator], ArrayLike],
    options: Options,
) -> dict[str, float]:
    """A statistic of a table, its mean over permuted tables, and the p-value."""
    random = np.random.default_rng(options.seed)
    null = np.array([statistic(permuted(random)) for _ in range(options.draws)])
    value = statistic(table)
    return {"value": value, "shuffled": float(null.mean()), "p": null_p(value, null)}


def draw_dictionary(subject: Subject, maps: Tensor, entries: list[CodeEntry]) -> Figure:
    """The most used codes with the images they explain most."""
    scores = strengths(maps)

    def panel(axes: Axes, entry: CodeEntry) -> None:
        axes.imshow(strip(subject, maps, scores, entry["code"]))
        axes.set_axis_off()
        meaning = f", {entry['best_class']} {entry['purity']:.2f}" if entry["best_class"] else ""
        title = f"code {entry['code']}: {entry['count']} tokens{meaning}"
        axes.set_title(title, size=8.5, loc="left")

    panels = [partial(panel, entry=entry) for entry in entries[:_PICTURED]]
    return picture_grid(
        [panels[row : row + 2] for row in range(0, len(panels), 2)], [2.6] * 2, 1.75
    )


def draw_usage(usage: Counts, places: Counts) -> Figure:
    """Usage of codes by rank and by position."""
    figure = new_figure(7.5, 3.2)
    cells = figure.add_gridspec(1, 2)
    axes = plain_axes(figure, "codes, most used first", "share of tokens", cells[0])
    ranked = np.sort(usage)[::-1] / max(usage.sum(), 1)
    axes.plot(np.arange(1, len(ranked) + 1), np.where(ranked > 0, ranked, np.nan), color=PALETTE[0])
    axes.axhline(1 / len(ranked), color=MUTED, ls="--", lw=1, label="uniform usage")
    axes.legend(frameon=False, fontsize=8)
    axes.set_ylim(bottom=0)

    top = np.argsort(-usage, kind="stable")[:_SHOWN]
    axes = plain_axes(figure, "position in the program", f"the {len(top)} most used", cells[1])
    share = places[top] / np.maximum(places[top].sum(axis=1, keepdims=True), 1)
    order = np.argsort(share @ np.arange(share.shape[1]), kind="stable")
    drawn = axes.imshow(share[order], cmap=HEAT, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(top)), top[order].tolist(), size=5.5)
    figure.colorbar(drawn, ax=axes, label="share of the code's tokens")
    return figure


ANALYSIS = Analysis(run=run, options=Options)
