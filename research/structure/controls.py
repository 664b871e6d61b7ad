"""Controls: how much the order of tokens, the prefix, and a token's position matter.

python research/structure/controls.py MODEL --data SPEC --out FOLDER
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import bars, lines
from strop.analysis.regions import REMOVALS, RemovalOptions, erasure_maps
from strop.analysis.subject import Subject
from strop.cli.study import run_script
from strop.figures import MUTED, PALETTE, Figure, new_figure
from strop.metrics import r2, r2_centred
from strop.statistics import Array, mean_interval, paired_test

PREFIX, SUBSET, MOVED = "prefix", "random subset", "random subset, moved up"
WRITTEN, OTHER, MEAN = "as written", "another image's program", "mean field, no program"


TURNS = 4
"""Tokens moved into each program."""


def run(subject: Subject, options: RemovalOptions) -> Findings:
    """Permuted orders, prefixes against subsets, swapped neighbours and transplanted tokens."""
    random = torch.Generator().manual_seed(options.seed)
    fields = subject.fields  # first: one pass over the images gives fields and programs
    interpreted = subject.tokenizer.interpret(subject.program).cpu()
    maps = erasure_maps(subject, edit=options.edit)
    order = compare_orders(subject, fields, interpreted, random)
    sizes = compare_subsets(subject, fields, options, random)
    swaps = swapped_neighbours(subject, interpreted, maps)
    turns = [transplant(subject, interpreted, maps, random) for _ in range(TURNS)]
    moved = {
        name: paired_test(*averaged(*(turn[name] for turn in turns)), **options.sampling)
        for name in turns[0]
    }
    return Findings(
        numbers={"swaps": swaps, "order": order, "sizes": sizes, "transplants": moved},
        tables=[
            Table(
                "Order, and programs of other images",
                ("", "cosine to the teacher", "low", "high", "r2", "r2_centred", "field changed"),
                order,
            ),
            Table(
                "Cosine to the teacher by number of tokens",
                ("tokens", "images", PREFIX, SUBSET, MOVED, "d", "p"),
                sizes,
            ),
            Table(
                "A token moved to the same position of another program",
                ("", "moved token", "control", "d", "p", "images"),
                moved,
            ),
        ],
        figures={
            "order": draw_order(order, swaps),
            "prefix": draw_sizes(sizes),
        },
        notes=(
            "`Field changed` is 1 - cos to the interpretation as written. The tokens of a random "
            "subset keep their own positions; `moved up` closes the gaps. d and p compare the "
            "prefix with the subset that was not moved, paired by image; p is one-sided, by "
            "random signs. A moved token acts where it did before if the change it causes "
            "correlates with its map in its own program more than with the map of the same "
            "position in a third program. It brings its content if the field there gets closer to "
            "the field of its own image than with a random code in its place.",
            f"Maps of single tokens: {REMOVALS[options.edit]}",
        ),
    )


def compare_orders(
    subject: Subject, fields: Tensor, interpreted: Tensor, random: torch.Generator
) -> dict[str, dict[str, Any]]:
    """Interpretation of permuted programs, of another image's program, and of none."""
    program = subject.program
    lengths = program.lengths.tolist()
    orders: dict[str, list[list[int]]] = {
        "one pair of neighbours swapped": [
            swapped(length, [int(torch.randint(max(length - 1, 1), (1,), generator=random))])
            for length in lengths
        ],
        "all neighbours swapped in pairs": [swapped(n, range(0, n - 1, 2)) for n in lengths],
        "reversed": [list(range(n))[::-1] for n in lengths],
        "shuffled": [torch.randperm(n, generator=random).tolist() for n in lengths],
    }
    results = {WRITTEN: interpreted}
    for what, rows in orders.items():
        results[what] = subject.tokenizer.interpret(program.permute(rows)).cpu()
    results[OTHER] = interpreted.roll(1, dims=0)
    results[MEAN] = fields.mean(dim=0).expand_as(fields)
    return {
        what: {
            "cosine": mean_interval(_cosine(result, fields), draws=300),
            "r2": r2(result, fields).item(),
            "r2_centred": r2_centred(result, fields).item(),
            "changed": float(1 - _cosine(result, interpreted).mean()),
        }
        for what, result in results.items()
    }


def compare_subsets(
    subject: Subject, fields: Tensor, options: RemovalOptions, random: torch.Generator
) -> list[dict[str, Any]]:
    """Prefixes and random subsets of equal size, of programs that are longer."""
    program = subject.program
    found = []
    size = 1
    while (longer := program.lengths > size).any():
        part, target = program[longer], fields[longer]
        chosen = random_subsets(part.lengths, part.capacity, size, random)
        # Sorting by "not chosen" moves the chosen tokens to the front in their order.
        front = (~chosen).int().argsort(dim=1, stable=True)
        edited = {
            PREFIX: part.truncate(size),
            SUBSET: replace(part, erased=~chosen),
            MOVED: part.permute(front).truncate(size),
        }
        scores = {
            what: _cosine(subject.tokenizer.interpret(each).cpu(), target)
            for what, each in edited.items()
        }
        test = paired_test(scores[PREFIX], scores[SUBSET], **options.sampling)
        found.append(
            {"size": size, "n": len(part)}
            | {what: float(values.mean()) for what, values in scores.items()}
            | {name: test[name] for name in ("d", "p")}
        )
        size *= 2
    return found


def random_subsets(lengths: Tensor, capacity: int, size: int, random: torch.Generator) -> Tensor:
    """`size` of the first `lengths[b]` positions of each row: `(B, K)` bool."""
    noise = torch.rand(len(lengths), capacity, generator=random)
    noise[torch.arange(capacity) >= lengths[:, None]] = -1
    chosen = noise.argsort(dim=1, descending=True)[:, :size]
    return torch.zeros(len(lengths), capacity, dtype=torch.bool).scatter_(1, chosen, True)


def swapped_neighbours(subject: Subject, interpreted: Tensor, maps: Tensor) -> list[dict[str, Any]]:
    """Change of the field when tokens k and k + 1 are swapped, beside the erasure of k."""
    program = subject.program
    found = []
    for k in range(int(program.lengths.max()) - 1):
        both = program.lengths > k + 1
        part = program[both]
        edited = part.permute([swapped(n, [k]) for n in part.lengths.tolist()])
        after = subject.tokenizer.interpret(edited).cpu()
        found.append(
            {
                "position": k,
                "n": len(part),
                "swap": float((1 - _cosine(after, interpreted[both])).mean()),
                "erase": float(maps[both, k].nanmean()),
            }
        )
    return found


def transplant(
    subject: Subject, interpreted: Tensor, maps: Tensor, random: torch.Generator
) -> dict[str, Array]:
    """One token moved to the same position of another program: effects and controls, (2, B) each.

    Where: correlation of the change it causes with its own map, against the map of the same
    position in a third program. What: how much closer the field there gets to that of the
    token's own image, against a random code. NaN where the move has no meaning: the donor is the
    program itself, or the codes are equal.
    """
    program, interpret = subject.program, subject.tokenizer.interpret
    here = torch.arange(len(program))
    donor, third = (torch.randperm(len(program), generator=random) for _ in range(2))
    room = torch.stack([program.lengths, program.lengths[donor], program.lengths[third]]).amin(0)
    place = (torch.rand(len(program), generator=random) * room).long()
    code = program.codes[donor, place]
    another = torch.randint(program.codebook_size, (len(program),), generator=random)
    moved = interpret(program.replace(place, code)).cpu()
    control = interpret(program.replace(place, another)).cpu()
    change = 1 - F.cosine_similarity(moved, interpreted, dim=-1)
    own, other = (maps[row, place].flatten(1) for row in (donor, third))
    weight = own.nan_to_num().clamp(min=0)
    weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)

    def gained(field: Tensor) -> Array:
        after, before = (
            F.cosine_similarity(each, interpreted[donor], dim=-1) for each in (field, interpreted)
        )
        return ((after - before) * weight).sum(dim=1).double().numpy()

    meaningful = (donor != here) & (third != donor) & (code != program.codes[here, place])
    found = {
        "acts where it did (correlation)": (_correlation(change, own), _correlation(change, other)),
        "brings its content (cosine gained)": (gained(moved), gained(control)),
    }
    return {
        name: np.where(meaningful.numpy(), np.stack(both), np.nan) for name, both in found.items()
    }


def averaged(*turns: Array) -> Array:
    """Pairs (2, B) averaged over the turns in which both are known; NaN where none is."""
    stacked = np.stack(turns)
    known = np.isfinite(stacked).all(axis=1, keepdims=True)
    count = known.sum(axis=0)
    total = np.where(known, stacked, 0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def draw_order(order: Mapping[str, Any], swaps: Sequence[Mapping[str, Any]]) -> Figure:
    """Cosine of edited programs, and the changes of the field by swapping and by erasing."""
    figure = new_figure(10, 3)
    cells = figure.add_gridspec(1, 2, width_ratios=[1.1, 1])
    colours = [MUTED if what in (OTHER, MEAN) else PALETTE[0] for what in order]
    values = [found["cosine"] for found in order.values()]
    bars(figure, list(order), values, "cosine to the teacher", cells[0], colours)
    series = {
        label: [found[name] for found in swaps]
        for name, label in (("erase", "erase k"), ("swap", "swap k and k + 1"))
    }
    at = [found["position"] for found in swaps]
    axes = lines(figure, "position in the program", "mean change", at, series, cells[1])
    axes.set_ylim(bottom=0)
    return figure


def draw_sizes(sizes: Sequence[Mapping[str, Any]]) -> Figure:
    """Cosine of prefixes and of random subsets by size."""
    figure = new_figure(5, 3.2)
    at = [found["size"] for found in sizes]
    series = {what: [found[what] for found in sizes] for what in (PREFIX, SUBSET, MOVED)}
    axes = lines(figure, "tokens kept", "cosine to the teacher", at, series)
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, list(map(str, at)))
    axes.minorticks_off()
    return figure


def swapped(length: int, places: Iterable[int]) -> list[int]:
    """An order of `length` tokens in which each of `places` and the next one are swapped."""
    order = list(range(length))
    for k in places:
        order[k : k + 2] = order[k : k + 2][::-1]
    return order


def _cosine(a: Tensor, b: Tensor) -> Array:
    """Mean over locations of the cosine of two fields `(B, S, d)`: `(B,)`."""
    return F.cosine_similarity(a, b, dim=-1).double().mean(dim=1).numpy()


def _correlation(a: Tensor, b: Tensor) -> Array:
    """Pearson correlation of two maps `(B, S)` of each image: `(B,)`."""
    a, b = (each.double() - each.double().mean(dim=1, keepdim=True) for each in (a, b))
    return ((a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))).numpy()


ANALYSIS = Analysis(name="controls", run=run, options=RemovalOptions)


if __name__ == "__main__":
    run_script(ANALYSIS)
