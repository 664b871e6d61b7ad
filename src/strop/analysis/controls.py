"""The study of order and place: what a program loses when its tokens are not where they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from strop.figures import MUTED, PALETTE, new_figure, plain_axes
from strop.metrics import r2, r2_centred
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import Interval, bootstrap, cohens_d, sign_flip_p
from strop.structure.counterfactual import erasure_maps
from strop.structure.panels import bars
from strop.structure.study import Encoded, Findings, Job, Study, Table, teacher_fields

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
PREFIX, SUBSET, MOVED = "prefix", "random subset", "random subset, moved up"
WRITTEN, OTHER, MEAN = "as written", "another image's program", "mean field, no program"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of controls lets a user choose.

    transplants  tokens moved into each program
    draws        signs drawn for the p-values
    seed         of everything random
    """

    transplants: int = 4
    draws: int = 1000
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Order, prefix against subset, neighbours swapped, and tokens moved to another program."""
    program = encoded.program
    random = torch.Generator().manual_seed(options.seed)
    field = teacher_fields(tokenizer, encoded, job.watch)
    made = tokenizer.interpret(program).cpu()
    maps = erasure_maps(tokenizer, program, job.watch)
    order = order_matters(tokenizer, program, field, made, random)
    sizes = prefix_or_subset(tokenizer, program, field, options, random)
    swaps = swapped_neighbours(tokenizer, program, made, maps)
    moved = transplants(tokenizer, program, made, maps, options, random)
    return Findings(
        numbers={"order": order, "sizes": sizes, "swaps": swaps, "transplants": moved},
        tables=[
            Table(
                "Order, and whose program it is",
                ("", "cosine to the teacher", "low", "high", "r2", "r2_centred", "field changed"),
                [
                    [what, *found["cosine"], found["r2"], found["r2_centred"], found["changed"]]
                    for what, found in order.items()
                ],
            ),
            Table(
                "Cosine of so many tokens to the teacher",
                ("tokens", "images", PREFIX, SUBSET, MOVED, "d", "p"),
                [list(found.values()) for found in sizes],
            ),
            Table(
                "A token moved to the same place in another program",
                ("", "it", "control", "d", "p"),
                [[what, *found.values()] for what, found in moved.items()],
            ),
        ],
        figures={
            "order": draw_order(order, swaps),
            "prefix": draw_sizes(sizes),
        },
        notes=(
            "Field changed is 1 - cos to the interpretation as written. A random subset leaves "
            "its tokens at their own positions; moved up, it closes the gaps. d and p compare the "
            "prefix with the subset that was not moved, image by image; p draws signs anew, "
            "one-sided. A moved token acts where it did if the change it makes correlates with "
            "its map in the program it came from more than with the map of the same position in "
            "a third program; it brings its content if the field there comes closer to the "
            "donor's than a random code in its place would bring it.",
        ),
    )


def order_matters(
    tokenizer: Tokenizer, program: Program, field: Tensor, made: Tensor, random: torch.Generator
) -> dict[str, dict[str, Any]]:
    """How well edited programs are interpreted: order, another image's, and none at all."""
    lengths = program.lengths.tolist()
    orders: dict[str, list[list[int]]] = {
        "one pair of neighbours swapped": [_swap_one(n, random) for n in lengths],
        "all neighbours swapped in pairs": [_swap_all(n) for n in lengths],
        "reversed": [list(range(n))[::-1] for n in lengths],
        "shuffled": [torch.randperm(n, generator=random).tolist() for n in lengths],
    }
    results = {WRITTEN: made}
    for what, rows in orders.items():
        results[what] = tokenizer.interpret(program.permute(rows)).cpu()
    results[OTHER] = made.roll(1, dims=0)
    results[MEAN] = field.mean(dim=0).expand_as(field)
    return {
        what: {
            "cosine": _mean(_cosine(result, field)),
            "r2": r2(result, field).item(),
            "r2_centred": r2_centred(result, field).item(),
            "changed": float(1 - _cosine(result, made).mean()),
        }
        for what, result in results.items()
    }


def prefix_or_subset(
    tokenizer: Tokenizer,
    program: Program,
    field: Tensor,
    options: Options,
    random: torch.Generator,
) -> list[dict[str, Any]]:
    """Prefixes beside random subsets of equal size, of programs that are longer."""
    found = []
    size = 1
    while (longer := program.lengths > size).any():
        part, target = program[longer], field[longer]
        chosen = random_subsets(part.lengths, part.capacity, size, random)
        holes = replace(part, erased=~chosen)
        # Sorting by "not chosen" moves the chosen to the front and keeps all else in order.
        front = (~chosen).int().argsort(dim=1, stable=True)
        moved = part.permute(front).truncate(size)
        scores = {
            what: _cosine(tokenizer.interpret(edited).cpu(), target)
            for what, edited in ((PREFIX, part.truncate(size)), (SUBSET, holes), (MOVED, moved))
        }
        better = scores[PREFIX] - scores[SUBSET]
        found.append(
            {"size": size, "n": len(part)}
            | {what: float(values.mean()) for what, values in scores.items()}
            | {
                "d": cohens_d(better),
                "p": sign_flip_p(better, draws=options.draws, seed=options.seed),
            }
        )
        size *= 2
    return found


def random_subsets(lengths: Tensor, capacity: int, size: int, random: torch.Generator) -> Tensor:
    """`size` of the first `lengths[b]` places of each row: `(B, K)` bool."""
    noise = torch.rand(len(lengths), capacity, generator=random)
    noise[torch.arange(capacity) >= lengths[:, None]] = -1
    chosen = noise.argsort(dim=1, descending=True)[:, :size]
    return torch.zeros(len(lengths), capacity, dtype=torch.bool).scatter_(1, chosen, True)


def swapped_neighbours(
    tokenizer: Tokenizer, program: Program, made: Tensor, maps: Tensor
) -> list[dict[str, Any]]:
    """How much the field changes when tokens k and k + 1 change places, beside erasing k."""
    found = []
    for k in range(int(program.lengths.max()) - 1):
        both = program.lengths > k + 1
        part = program[both]
        swapped = part.permute([_swapped(n, k) for n in part.lengths.tolist()])
        changed = 1 - _cosine(tokenizer.interpret(swapped).cpu(), made[both])
        found.append(
            {
                "position": k,
                "n": len(part),
                "swap": float(changed.mean()),
                "erase": float(maps[both, k].nanmean()),
            }
        )
    return found


def transplants(
    tokenizer: Tokenizer,
    program: Program,
    made: Tensor,
    maps: Tensor,
    options: Options,
    random: torch.Generator,
) -> dict[str, dict[str, float]]:
    """Put a token of one program into the same place of another; does it do there what it did.

    Where: correlation of the change it makes with its own map, against that of the same position
    in a third program. What: how much nearer the donor's field the changed places come, against
    a random code.
    """
    turns = [
        _transplant(tokenizer, program, made, maps, random) for _ in range(options.transplants)
    ]
    own, other, content, random_code = np.stack(turns, axis=1)
    return {
        "acts where it did (correlation)": _compare(own, other, options),
        "brings its content (cosine gained)": _compare(content, random_code, options),
    }


def _transplant(
    tokenizer: Tokenizer, program: Program, made: Tensor, maps: Tensor, random: torch.Generator
) -> Array:
    """One token moved into each program: the four measures of `transplants`, `(4, B)`.

    NaN where it says nothing: a token that stayed at home, or found its own code there.
    """
    here = torch.arange(len(program))
    donor, third = (torch.randperm(len(program), generator=random) for _ in range(2))
    room = torch.stack([program.lengths, program.lengths[donor], program.lengths[third]]).amin(0)
    place = (torch.rand(len(program), generator=random) * room).long()
    code = program.codes[donor, place]
    another = torch.randint(program.codebook_size, (len(program),), generator=random)
    moved = tokenizer.interpret(program.replace(place, code)).cpu()
    control = tokenizer.interpret(program.replace(place, another)).cpu()
    change = 1 - F.cosine_similarity(moved, made, dim=-1)
    own, other = (maps[whose, place].flatten(1) for whose in (donor, third))
    weight = own.nan_to_num().clamp(min=0)
    weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)

    def nearer(field: Tensor) -> Array:
        gained = F.cosine_similarity(field, made[donor], dim=-1)
        gained = gained - F.cosine_similarity(made, made[donor], dim=-1)
        return (gained * weight).sum(dim=1).double().numpy()

    told = (donor != here) & (third != donor) & (code != program.codes[here, place])
    found = [_correlation(change, own), _correlation(change, other), nearer(moved), nearer(control)]
    return np.where(told.numpy(), np.stack(found), np.nan)


def draw_order(order: dict[str, Any], swaps: Sequence[dict[str, Any]]) -> Figure:
    """Cosine of edited programs, and the change by swapping beside that by erasing."""
    figure = new_figure(10, 3)
    cells = figure.add_gridspec(1, 2, width_ratios=[1.1, 1])
    colours = [MUTED if what in (OTHER, MEAN) else PALETTE[0] for what in order]
    values: list[Interval | float] = [found["cosine"] for found in order.values()]
    bars(figure, list(order), values, "cosine to the teacher", cells[0], colours)
    axes = plain_axes(figure, "position in the program", "mean change of the field", cells[1])
    where = [found["position"] for found in swaps]
    for name, label in (("erase", "erase k"), ("swap", "swap k and k + 1")):
        axes.plot(where, [found[name] for found in swaps], marker=".", label=label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_sizes(sizes: Sequence[dict[str, Any]]) -> Figure:
    """Cosine of prefixes and of random subsets by size."""
    figure = new_figure(5, 3.2)
    axes = plain_axes(figure, "tokens kept", "cosine to the teacher")
    for what in (PREFIX, SUBSET, MOVED):
        axes.plot(
            [f["size"] for f in sizes], [f[what] for f in sizes], marker="o", ms=4, label=what
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([found["size"] for found in sizes], [str(found["size"]) for found in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    return figure


def _swapped(length: int, k: int) -> list[int]:
    order = list(range(length))
    order[k], order[k + 1] = order[k + 1], order[k]
    return order


def _swap_one(length: int, random: torch.Generator) -> list[int]:
    if length < 2:
        return list(range(length))
    return _swapped(length, int(torch.randint(length - 1, (1,), generator=random)))


def _swap_all(length: int) -> list[int]:
    """0 and 1, 2 and 3 and so on change places; a last one alone stays."""
    return [k ^ 1 if k < length - length % 2 else k for k in range(length)]


def _cosine(a: Tensor, b: Tensor) -> Array:
    """Mean over locations of the cosine of two fields `(B, S, d)`: `(B,)`."""
    return F.cosine_similarity(a, b, dim=-1).double().mean(dim=1).numpy()


def _correlation(a: Tensor, b: Tensor) -> Array:
    """Pearson correlation of two maps `(B, S)` of each image: `(B,)`."""
    a, b = (each.double() - each.double().mean(dim=1, keepdim=True) for each in (a, b))
    return ((a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))).numpy()


def _mean(values: Array) -> Interval:
    return bootstrap(np.mean, values, draws=300)


def _compare(it: Array, control: Array, options: Options) -> dict[str, float]:
    """Two measures `(turns, B)`, averaged over turns first, image by image."""
    told = np.isfinite(it) & np.isfinite(control)
    counted = told.any(axis=0)
    one, two = (
        np.where(told, each, 0).sum(axis=0)[counted] / told.sum(axis=0)[counted]
        for each in (it, control)
    )
    return {
        "it": float(one.mean()) if len(one) else float("nan"),
        "control": float(two.mean()) if len(two) else float("nan"),
        "d": cohens_d(one - two) if len(one) else float("nan"),
        "p": sign_flip_p(one - two, draws=options.draws, seed=options.seed),
    }


STUDY = Study(run=run, options=Options)
