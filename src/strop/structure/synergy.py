"""The study of pairs: what two tokens hold up together that neither holds up alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.data.record import VOID
from strop.errors import ProgramError
from strop.figures import MUTED, PALETTE, new_figure, plain_axes, show_image
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import bootstrap, cohens_d, sign_flip_p
from strop.structure.counterfactual import erasure_maps, pair_erasure, rows_within
from strop.structure.panels import show_ids, show_signed
from strop.structure.regions import NOBODY, mask_ids, owners, patch_shares, tables
from strop.structure.study import Encoded, Findings, Job, Study, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 3  # pairs beside each image
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of synergy lets a user choose.

    pairs     active pairs drawn from each program; 0 for all
    examples  images in the figure
    draws     arrangements for the p-values
    memory    GiB that the interpretation of pairs may take
    seed      of everything random
    """

    pairs: int = 64
    examples: int = 4
    draws: int = 1000
    memory: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Pairs:
    """Pairs of tokens and their synergy.

    index    (P, 3) row, i, j, ordered by row
    scores   (P,) mean of the synergy map
    halves   (P, 2) the same over each colour of a chequerboard of locations
    """

    index: Tensor
    scores: Array
    halves: Array


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Synergy of active pairs, of the strongest among them, and of pairs with an inactive token."""
    program = encoded.program
    drawn = draw_pairs(program, options.pairs, options.seed)
    controls = draw_inactive(program, options.pairs, options.seed)
    if not len(drawn):
        raise ProgramError(
            "No program of these images has three tokens, so none has a pair to lose.",
            "Use a model that writes longer programs, or images that hold more.",
        )
    batch = rows_within(tokenizer, options.memory)
    maps = erasure_maps(tokenizer, program, job.watch)
    active = measure(tokenizer, program, maps, drawn, batch, job)
    inactive = measure(tokenizer, program, maps, controls, batch, job)
    comparisons = {
        "active pairs against inactive tokens": _compare(
            _by_image(active.index, np.abs(active.scores)),
            _by_image(inactive.index, np.abs(inactive.scores)),
            options,
        ),
        "strongest pair against random active pairs": _compare(*strongest(active), options),
    }
    masks = encoded.records.instance
    masks = encoded.records.semantic if masks is None else masks
    if masks is not None:
        shares = patch_shares(masks, tokenizer.config.grid, mask_ids(masks))
        home = homes(owners(maps), shares, program.capacity)
        comparisons["pairs on one segment against pairs on two"] = _compare(
            *same_home(active, home), options
        )
        comparisons["overlap with a segment, strongest against a random pair"] = _compare(
            map_overlap(tokenizer, program, maps, strongest_of_each(active), shares),
            map_overlap(tokenizer, program, maps, random_of_each(active, options.seed), shares),
            options,
        )
    return Findings(
        numbers={
            "pairs": len(active.scores),
            "score": bootstrap(np.mean, _by_image(active.index, active.scores)[1], draws=500),
            "positive": float((active.scores > 0).mean()),
            "comparisons": comparisons,
            "by_distance": by_distance(active),
        },
        tables=[
            Table(
                "Synergy, averaged over each image's pairs",
                ("", "first", "second", "effect size d", "p", "images"),
                [[what, *found.values()] for what, found in comparisons.items()],
            )
        ],
        figures={
            "pairs": draw_pairs_figure(tokenizer, encoded, maps, active, masks, options.examples),
            "scores": draw_scores(active, inactive),
        },
        notes=(
            "Syn = D_ij - D_i - D_j. It is above zero where the field stands on either token and "
            "falls with both, below zero where one loss already did what two would do. Against "
            "inactive tokens the size of the mean synergy is compared. The strongest pair is "
            "chosen on one half of the locations and measured on the other, so that choosing it "
            "alone gains nothing. p: signs of the images' differences drawn anew, one-sided.",
        ),
    )


def draw_pairs(program: Program, count: int, seed: int) -> Tensor:
    """At most `count` active pairs (all, if 0) of each program that has three tokens: `(P, 3)`."""
    random = torch.Generator().manual_seed(seed)
    drawn = []
    for row, active in enumerate(program.active):
        tokens = active.nonzero()[:, 0]
        if len(tokens) < 3:
            continue
        pairs = torch.combinations(tokens)
        if count and len(pairs) > count:
            pairs = pairs[torch.randperm(len(pairs), generator=random)[:count].sort().values]
        drawn.append(torch.cat([torch.full((len(pairs), 1), row), pairs], dim=1))
    return torch.cat(drawn) if drawn else torch.zeros(0, 3, dtype=torch.int64)


def draw_inactive(program: Program, count: int, seed: int) -> Tensor:
    """As many pairs of an active and an inactive token, of each program that has both."""
    random = torch.Generator().manual_seed(seed)
    drawn = []
    for row, active in enumerate(program.active):
        pairs = torch.cartesian_prod(active.nonzero()[:, 0], (~active).nonzero()[:, 0])
        if active.sum() < 3 or not len(pairs):
            continue
        chosen = torch.randperm(len(pairs), generator=random)[: count or None].sort().values
        drawn.append(torch.cat([torch.full((len(chosen), 1), row), pairs[chosen]], dim=1))
    return torch.cat(drawn) if drawn else torch.zeros(0, 3, dtype=torch.int64)


def synergy_maps(
    tokenizer: Tokenizer, program: Program, maps: Tensor, index: Tensor, batch: int = 256
) -> Iterator[Tensor]:
    """`Syn_ij` of pairs `(P, 3)`, in chunks of at most `batch`: `(n, S)` each.

    maps `(B, K, h, w)` are those of erasing one token.
    """
    alone = maps.flatten(2)
    for part, together in pair_erasure(tokenizer, program, index, batch=batch):
        row, i, j = part.cpu().unbind(dim=1)
        yield together.cpu() - alone[row, i] - alone[row, j]


def measure(
    tokenizer: Tokenizer, program: Program, maps: Tensor, index: Tensor, batch: int, job: Job
) -> Pairs:
    """Scores of pairs; their maps are summed up chunk by chunk and not kept."""
    grid = tokenizer.config.grid
    board = (torch.arange(grid)[:, None] + torch.arange(grid)).flatten() % 2 == 0
    halves: list[Tensor] = []
    done = 0
    for synergy in synergy_maps(tokenizer, program, maps, index, batch):
        halves.append(
            torch.stack([synergy[:, board].mean(dim=1), synergy[:, ~board].mean(dim=1)], dim=1)
        )
        done += len(synergy)
        job.watch("pairs", done, len(index))
    both = torch.cat(halves).double().numpy() if halves else np.zeros((0, 2))
    share = board.double().mean().item()
    return Pairs(index, both @ np.array([share, 1 - share]), both)


def strongest(pairs: Pairs) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Each image's pair that is best on one half, and all its pairs, both on the other half."""
    rows = pairs.index[:, 0].numpy()
    images = np.unique(rows)
    best, random = [], []
    for image in images:
        first, second = pairs.halves[rows == image].T
        best.append(second[first.argmax()])
        random.append(second.mean())
    return (images, np.array(best)), (images, np.array(random))


def homes(owned: Tensor, shares: Tensor, capacity: int) -> Tensor:
    """The mask segment of which each token owns most: `(B, K)`, `NOBODY` without any."""
    joint = torch.from_numpy(tables(owned, shares))[:, :-1]
    most, segment = joint.max(dim=2)
    home = torch.full((len(owned), capacity), NOBODY)
    home[:, : joint.shape[1]] = torch.where(most > 0, segment, NOBODY)
    return home


def same_home(pairs: Pairs, home: Tensor) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Scores by image of pairs whose tokens live on one segment, and on two."""
    row, i, j = pairs.index.unbind(dim=1)
    known = (home[row, i] != NOBODY) & (home[row, j] != NOBODY)
    same = known & (home[row, i] == home[row, j])
    other = known & ~same
    return (
        _by_image(pairs.index[same], pairs.scores[same.numpy()]),
        _by_image(pairs.index[other], pairs.scores[other.numpy()]),
    )


def strongest_of_each(pairs: Pairs) -> Tensor:
    """The pair with the highest score of each image: `(N, 3)`."""
    order = torch.from_numpy(np.lexsort([-pairs.scores, pairs.index[:, 0].numpy()]))
    return _first_of_each(pairs.index[order])


def random_of_each(pairs: Pairs, seed: int) -> Tensor:
    """A random pair of each image: `(N, 3)`."""
    order = torch.randperm(len(pairs.index), generator=torch.Generator().manual_seed(seed))
    mixed = pairs.index[order]
    return _first_of_each(mixed[mixed[:, 0].argsort(stable=True)])


def map_overlap(
    tokenizer: Tokenizer, program: Program, maps: Tensor, index: Tensor, shares: Tensor
) -> tuple[Array, Array]:
    """How well the upper half of each pair's synergy map covers one mask segment: best IoU."""
    row = index[:, 0]
    synergy = torch.cat(list(synergy_maps(tokenizer, program, maps, index)))
    covered = (synergy >= synergy.amax(dim=1, keepdim=True) / 2).double()
    inside = torch.einsum("ns,nsc->nc", covered, shares[row])
    union = inside.sum(dim=1, keepdim=True) + shares[row].sum(dim=1) - inside
    return row.numpy(), (inside / union.clamp(min=1e-12)).amax(dim=1).numpy()


def by_distance(pairs: Pairs) -> list[dict[str, Any]]:
    """Mean score of pairs by how far apart they stand in the program."""
    apart = (pairs.index[:, 2] - pairs.index[:, 1]).numpy()
    return [
        {
            "distance": int(distance),
            "n": int((apart == distance).sum()),
            "score": float(pairs.scores[apart == distance].mean()),
        }
        for distance in np.unique(apart)
    ]


def draw_pairs_figure(
    tokenizer: Tokenizer,
    encoded: Encoded,
    maps: Tensor,
    pairs: Pairs,
    masks: Tensor | None,
    examples: int,
) -> Figure:
    """Image, mask, and the synergy maps of the strongest pairs, each on its own scale."""
    rows = pairs.index[:, 0].unique().tolist()[:examples]
    columns = _SHOWN + 1 + (masks is not None)
    figure = new_figure(1.9 * columns, 2.2 * max(len(rows), 1))
    cells = figure.add_gridspec(max(len(rows), 1), columns)
    grid = tokenizer.config.grid
    for line, row in enumerate(rows):
        image = encoded.records.images[row]
        show_image(figure.add_subplot(cells[line, 0]), image)
        if masks is not None:
            mask = torch.where(masks[row] == VOID, NOBODY, masks[row])
            show_ids(figure.add_subplot(cells[line, 1]), mask, "mask")
        mine = (pairs.index[:, 0] == row).nonzero()[:, 0]
        best = mine[torch.from_numpy(pairs.scores)[mine].argsort(descending=True)][:_SHOWN]
        chosen = pairs.index[best] * torch.tensor([0, 1, 1])  # of a batch of this row alone
        found = synergy_maps(tokenizer, encoded.program[[row]], maps[[row]], chosen)
        for column, (pair, synergy) in enumerate(zip(chosen, torch.cat(list(found)), strict=True)):
            axes = figure.add_subplot(cells[line, columns - _SHOWN + column])
            title = f"#{pair[1]} and #{pair[2]}\n{synergy.mean():+.4f}"
            show_signed(axes, image, synergy.view(grid, grid), title)
    return figure


def draw_scores(active: Pairs, inactive: Pairs) -> Figure:
    """Scores of active pairs and of the control, and the mean by distance in the program."""
    figure = new_figure(8, 3)
    cells = figure.add_gridspec(1, 2)
    axes = plain_axes(figure, "mean synergy of a pair", "share of pairs", cells[0])
    everything = np.concatenate([active.scores, inactive.scores, [-1e-6, 1e-6]])
    low, high = (float(np.nanquantile(everything, share)) for share in (0.005, 0.995))
    edges = np.linspace(low, high, 40).tolist()
    groups = {"active pairs": (active, PALETTE[0]), "with an inactive token": (inactive, MUTED)}
    for name, (pairs, colour) in groups.items():
        if len(pairs.scores):
            weights = np.full(len(pairs.scores), 1 / len(pairs.scores))
            clipped = np.clip(pairs.scores, edges[0], edges[-1])
            axes.hist(clipped, edges, weights=weights, label=name, color=colour, alpha=0.8)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    distance = plain_axes(figure, "distance in the program", "mean synergy", cells[1])
    found = by_distance(active)
    distance.axhline(0, color=MUTED, lw=1)
    distance.plot([f["distance"] for f in found], [f["score"] for f in found], marker=".")
    return figure


def _first_of_each(index: Tensor) -> Tensor:
    """The first pair of each image, of pairs ordered by row."""
    row = index[:, 0]
    return index[torch.cat([torch.ones(1, dtype=torch.bool), row[1:] != row[:-1]])]


def _by_image(index: Tensor, scores: Array) -> tuple[Array, Array]:
    """Images `(N,)` that have pairs, and the mean score of each."""
    images, which = np.unique(index[:, 0].numpy(), return_inverse=True)
    total = np.bincount(which, weights=scores, minlength=len(images))
    return images, total / np.maximum(np.bincount(which, minlength=len(images)), 1)


def _compare(
    first: tuple[Array, Array], second: tuple[Array, Array], options: Options
) -> dict[str, float]:
    """Two groups of pairs, image by image."""
    _, a, b = np.intersect1d(first[0], second[0], return_indices=True)
    one, two = first[1][a], second[1][b]
    return {
        "first": float(one.mean()) if len(one) else float("nan"),
        "second": float(two.mean()) if len(two) else float("nan"),
        "d": cohens_d(one - two) if len(one) else float("nan"),
        "p": sign_flip_p(one - two, draws=options.draws, seed=options.seed),
        "images": len(one),
    }


STUDY = Study(run=run, options=Options)
