"""The study of the vocabulary: how codes are used, what they stand for, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from strop.figures import HEAT, MUTED, PALETTE, new_figure, plain_axes
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.structure.association import entropy, gini, mutual_information, purity
from strop.structure.counterfactual import erasure_maps
from strop.structure.dictionary import Entry, dictionary_page, strengths, strip
from strop.structure.regions import NOBODY, owners, patch_shares
from strop.structure.study import Encoded, Findings, Job, Study, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]
Array = NDArray[np.float64]
_SHOWN = 24  # codes in the co-occurrence figure
_PICTURED = 8  # codes in the figure of the dictionary
_LISTED = 12  # rows of the tables
_SELDOM = 5  # co-occurrences below which a pair of codes says nothing


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of codes lets a user choose.

    pages     codes in the dictionary, the most used first
    examples  images for each of them
    draws     arrangements for the p-values
    seed      of everything random
    """

    pages: int = 256
    examples: int = 6
    draws: int = 200
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Usage, purity, positions and company of the codes, and the dictionary."""
    program = encoded.program
    maps = erasure_maps(tokenizer, program, job.watch)
    usage = used(program)
    places = position_table(program)
    together = cooccurrence(program)
    numbers: dict[str, Any] = {
        "usage": concentration(usage),
        "position": _against(
            mutual_information,
            lambda random: position_table(_mixed(program, random)),
            places,
            options,
        ),
        "pairs": company(together, len(program)),
    }
    meaning = None
    if encoded.records.semantic is not None:
        shares = patch_shares(encoded.records.semantic, tokenizer.config.grid, len(encoded.classes))
        owned = owned_codes(program, owners(maps))
        meaning = joint(owned, shares, program.codebook_size)

        def other_images(random: np.random.Generator) -> Array:
            mixed = shares[torch.from_numpy(random.permutation(len(shares)))]
            return joint(owned, mixed, program.codebook_size)

        numbers["purity"] = _against(purity, other_images, meaning, options)
        numbers["classes"] = _against(mutual_information, other_images, meaning, options)
    entries = describe(usage, places, meaning, encoded.classes)
    return Findings(
        numbers={**numbers, "codes": [entry.summary() for entry in entries]},
        tables=_tables(numbers, entries),
        figures={
            "usage": draw_usage(usage, places, together, len(program)),
            "dictionary": draw_dictionary(encoded, maps, entries, options.examples),
        },
        files=dictionary_page(encoded, maps, entries[: options.pages], options.examples, job.watch),
        notes=(
            "The effective vocabulary is the exponential of the entropy of usage. Purity takes, "
            "for the pixels a code owns, the share of their most frequent class; beside it "
            "stands what the same regions have with another image's mask, which is far from zero "
            "where one class is everywhere.",
        ),
    )


def used(program: Program) -> Counts:
    """How often each code stands in an active place: `(N,)`."""
    return np.bincount(program.codes[program.active].numpy(), minlength=program.codebook_size)


def concentration(usage: Counts) -> dict[str, float]:
    """How much of the vocabulary is in use, and how evenly."""
    ranked = np.sort(usage)[::-1] / max(usage.sum(), 1)
    return {
        "tokens": int(usage.sum()),
        "active_codes": int((usage > 0).sum()),
        "active_share": float((usage > 0).mean()),
        "effective_vocabulary": float(np.exp(entropy(usage))),
        "gini": gini(usage),
        "top_1_share": float(ranked[0]),
        "top_10_share": float(ranked[:10].sum()),
        "top_tenth_share": float(ranked[: max(1, len(ranked) // 10)].sum()),
    }


def position_table(program: Program) -> Counts:
    """How often each code stands at each prefix position: `(N, K)`."""
    return _count(
        program.codes[program.active],
        program.active.nonzero()[:, 1],
        program.codebook_size,
        program.capacity,
    )


def owned_codes(program: Program, regions: Tensor) -> Tensor:
    """The code of the token that owns each location: `(B, S)`, `NOBODY` where none does."""
    codes = program.codes.gather(1, regions.clamp(min=0))
    return torch.where(regions == NOBODY, NOBODY, codes)


def joint(owned: Tensor, shares: Tensor, rows: int) -> Array:
    """Locations, in parts, by what owns them and by class: `(rows, C)`.

    owned `(B, S)` below `rows`, `NOBODY` for none; shares `(B, S, C)`, from `patch_shares`.
    """
    known = owned != NOBODY
    found = torch.zeros(rows, shares.shape[2], dtype=torch.double)
    return found.index_add_(0, owned[known], shares[known]).numpy()


def cooccurrence(program: Program) -> Counts:
    """Images that hold both of two codes: `(N, N)`; on the diagonal, those that hold one."""
    held = np.zeros((len(program), program.codebook_size), np.int64)
    row = program.active.nonzero()[:, 0]
    held[row.numpy(), program.codes[program.active].numpy()] = 1
    return held.T @ held


def company(together: Counts, images: int) -> list[dict[str, Any]]:
    """Pairs of codes that keep each other's company most: the highest normalised PMI."""
    first, second = np.nonzero(np.triu(together, 1) >= _SELDOM)
    both = together[first, second] / images
    apart = together[first, first] * together[second, second] / images**2
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(both < 1, np.log(both / apart) / -np.log(both), 0)
    best = np.argsort(-score, kind="stable")[:_LISTED]
    return [
        {
            "codes": [int(first[k]), int(second[k])],
            "images": int(together[first[k], second[k]]),
            "expected": float(apart[k] * images),
            "npmi": float(score[k]),
        }
        for k in best
    ]


def describe(
    usage: Counts, places: Counts, meaning: Array | None, classes: tuple[str, ...]
) -> list[Entry]:
    """An entry for every code in use, the most used first."""
    spread = entropy(places)
    mean = places @ np.arange(places.shape[1]) / np.maximum(usage, 1)
    entries = []
    for code in np.argsort(-usage, kind="stable")[: int((usage > 0).sum())].tolist():
        row = meaning[code] if meaning is not None else np.zeros(0)
        known = row.sum() > 0
        entries.append(
            Entry(
                code=code,
                count=int(usage[code]),
                position=float(mean[code]),
                position_entropy=float(spread[code]),
                best_class=classes[int(row.argmax())] if known else None,
                purity=float(row.max() / row.sum()) if known else None,
                class_entropy=float(entropy(row)) if known else None,
            )
        )
    return entries


def _against(
    statistic: Callable[[ArrayLike], float],
    shuffled: Callable[[np.random.Generator], ArrayLike],
    seen: ArrayLike,
    options: Options,
) -> dict[str, float]:
    """A statistic of a table beside what it is when nothing is there, and the p-value."""
    random = np.random.default_rng(options.seed)
    null = np.array([statistic(shuffled(random)) for _ in range(options.draws)])
    value = statistic(seen)
    reached = int((null >= value - 1e-12).sum())
    return {
        "value": value,
        "shuffled": float(null.mean()),
        "p": (1 + reached) / (1 + options.draws),
    }


def _mixed(program: Program, random: np.random.Generator) -> Program:
    """The same active codes dealt anew to all active places."""
    codes = program.codes.clone()
    held = codes[program.active]
    codes[program.active] = held[torch.from_numpy(random.permutation(len(held)))]
    return Program(
        codes=codes, lengths=program.lengths, codebook_size=program.codebook_size, check=False
    )


def _count(rows: Tensor, columns: Tensor, r: int, c: int) -> Counts:
    return torch.bincount(rows * c + columns, minlength=r * c).view(r, c).numpy()


def _tables(numbers: dict[str, Any], entries: list[Entry]) -> list[Table]:
    usage = Table("Usage", ("", ""), [[name, value] for name, value in numbers["usage"].items()])
    labels = {
        "position": "mutual information of code and position, nats",
        "purity": "purity of codes by class",
        "classes": "mutual information of code and class, nats",
    }
    rows = [[label, *numbers[name].values()] for name, label in labels.items() if name in numbers]
    shown = [
        [e.code, e.count, e.position, e.best_class, e.purity, e.class_entropy]
        for e in entries[:_LISTED]
    ]
    header = ("code", "tokens", "mean position", "class", "purity", "class entropy, nats")
    pairs = [
        ["{} {}".format(*pair["codes"]), pair["images"], pair["expected"], pair["npmi"]]
        for pair in numbers["pairs"]
    ]
    return [
        usage,
        Table("What a code tells", ("", "value", "shuffled", "p"), rows),
        Table("The most used codes", header, shown),
        Table("Codes in company", ("codes", "images", "expected", "normalised PMI"), pairs),
    ]


def draw_dictionary(encoded: Encoded, maps: Tensor, entries: list[Entry], examples: int) -> Figure:
    """A page of the dictionary: the most used codes with the images they explain most."""
    shown = entries[:_PICTURED]
    lines = -(-len(shown) // 2)
    figure = new_figure(9, 1.75 * lines)
    scores = strengths(maps)
    for number, entry in enumerate(shown):
        axes = figure.add_subplot(lines, 2, number + 1)
        axes.imshow(strip(encoded, maps, scores, entry.code, examples))
        axes.set_axis_off()
        meaning = f", {entry.best_class} {entry.purity:.2f}" if entry.best_class else ""
        axes.set_title(f"code {entry.code}: {entry.count} tokens{meaning}", size=8.5, loc="left")
    return figure


def draw_usage(usage: Counts, places: Counts, together: Counts, images: int) -> Figure:
    """How often codes are used, at which positions, and in which company."""
    figure = new_figure(10.5, 3.2)
    cells = figure.add_gridspec(1, 3)
    axes = plain_axes(figure, "codes, most used first", "share of tokens", cells[0])
    ranked = np.sort(usage)[::-1] / max(usage.sum(), 1)
    axes.plot(np.arange(1, len(ranked) + 1), np.where(ranked > 0, ranked, np.nan), color=PALETTE[0])
    axes.axhline(1 / len(ranked), color=MUTED, ls="--", lw=1, label="if all were used alike")
    axes.legend(frameon=False, fontsize=8)
    axes.set_ylim(bottom=0)

    top = np.argsort(-usage, kind="stable")[:_SHOWN]
    axes = plain_axes(figure, "position in the program", f"the {len(top)} most used", cells[1])
    share = places[top] / np.maximum(places[top].sum(axis=1, keepdims=True), 1)
    order = np.argsort(share @ np.arange(share.shape[1]), kind="stable")
    drawn = axes.imshow(share[order], cmap=HEAT, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(top)), top[order].tolist(), size=5.5)
    figure.colorbar(drawn, ax=axes, label="share of the code's tokens")

    axes = plain_axes(figure, "the most used", "the most used", cells[2])
    held = together[np.ix_(top, top)].astype(float)
    alone = np.diag(held).copy()
    np.fill_diagonal(held, np.nan)
    lift = held * images / np.maximum(np.outer(alone, alone), 1)
    drawn = axes.imshow(lift, cmap=HEAT, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    figure.colorbar(drawn, ax=axes, label="images with both, times chance")
    return figure


STUDY = Study(run=run, options=Options)
