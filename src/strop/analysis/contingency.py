"""The study of attributes: do they live in single codes, or in combinations of codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.figures import DIVERGING, PALETTE, new_figure, plain_axes
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import bootstrap, ranks
from strop.structure.association import cramers_v, mutual_information
from strop.structure.counterfactual import erasure_maps
from strop.structure.regions import NOBODY, mask_ids, patch_shares
from strop.structure.study import Encoded, Findings, Job, Study, Table
from strop.structure.things import ATTRIBUTES, things_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
PROBES = ("single code", "bag of codes", "codes and pairs")
_SHOWN = 48  # codes in the heat map
_RARE = 0.05  # of images: what fewer have, or lack, is not asked for


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of attributes lets a user choose.

    draws  arrangements for the p-values
    seed   of these
    """

    draws: int = 200
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Attributes by code, in an image and on an object, and probes of three reaches."""
    program, records = encoded.program, encoded.records
    held = words_held(encoded)
    bags = bag_of_codes(program)
    in_image = {name: associate(held[name], bags, options) for name in held}
    on_object: dict[str, dict[str, float]] = {}
    if records.scenes is not None and records.instance is not None:
        maps = erasure_maps(tokenizer, program, job.watch)
        shares = patch_shares(records.instance, tokenizer.config.grid, mask_ids(records.instance))
        objects, bound = objects_and_codes(program, bindings(maps, program, shares), records.scenes)
        on_object = {name: associate(objects[name], bound, options) for name in ATTRIBUTES}
    probes = {}
    for name, words in held.items():
        probes[name] = probe(words, bags, options.seed)
        job.watch("probes", len(probes), len(held))
    vocabulary = _vocabulary(encoded)
    kinds = {"in the same image": in_image, "on the same object": on_object}
    return Findings(
        numbers={"association": kinds, "probes": probes},
        tables=[
            Table(
                "Attribute and code",
                ("attribute", "", "Cramér's V", "shuffled", "p", "MI, nats", "shuffled", "p"),
                [
                    [name, kind, *found.values()]
                    for kind, each in kinds.items()
                    for name, found in each.items()
                ],
            ),
            Table(
                "AUC of probes on images they have not seen",
                ("attribute", *PROBES, "shuffled programs", "words"),
                [
                    [name, *(found[what][0] for what in PROBES), found["shuffled"], found["words"]]
                    for name, found in probes.items()
                ],
            ),
        ],
        figures={
            "heat": draw_heat(held, bags, vocabulary),
            "probes": draw_probes(probes),
        },
        notes=(
            "In the same image: every object is counted with every token of its program, as the "
            "paper does; shuffled gives images each other's programs. On the same object: a token "
            "is counted with the one object where erasing it changes the field most, if that is "
            "more than on the ground; shuffled gives objects each other's attributes. The probes "
            "are kernel ridges that count shared codes, and shared codes and pairs of codes; the "
            "single code is the best one on the images they were fitted to. Each tells whether "
            "more of an image's objects than in the median image have a word; 0.5 is chance.",
        ),
    )


def words_held(encoded: Encoded) -> dict[str, Array]:
    """For each attribute, how many objects of each image have each of its words: `(B, words)`."""
    if encoded.records.scenes is None:
        assert encoded.records.labels is not None  # the study's needs say so
        return {"class": encoded.records.labels.double().numpy()}
    counts = {name: np.zeros((len(encoded), len(words))) for name, words in ATTRIBUTES.items()}
    for row, scene in enumerate(encoded.records.scenes):
        for thing in things_of(scene):
            for (name, words), word in zip(ATTRIBUTES.items(), thing.words, strict=True):
                counts[name][row, words.index(word)] += 1
    return counts


def bag_of_codes(program: Program) -> Array:
    """How often each code stands in each program: `(B, N)`."""
    bags = torch.zeros(len(program), program.codebook_size, dtype=torch.double)
    return bags.scatter_add_(1, program.codes, program.active.double()).numpy()


def associate(words: Array, codes: Array, options: Options) -> dict[str, float]:
    """Cramér's V and mutual information of words `(n, V)` and codes `(n, N)` of the same unit.

    Against arrangements in which the units' words are shuffled.
    """
    random = np.random.default_rng(options.seed)
    order = [random.permutation(len(words)) for _ in range(options.draws)]
    table = words.T @ codes
    nulls = [words[each].T @ codes for each in order]
    found = {}
    for name, statistic in (("v", cramers_v), ("mi", mutual_information)):
        value = statistic(table)
        null = np.array([statistic(each) for each in nulls])
        found[name] = value
        found[f"{name}_shuffled"] = float(np.nanmean(null)) if np.isfinite(value) else value
        found[f"{name}_p"] = (1 + int((null >= value - 1e-12).sum())) / (1 + len(null))
    return found


def bindings(maps: Tensor, program: Program, shares: Tensor) -> Tensor:
    """The object each token is about: `(B, K)`, from 0; `NOBODY` for the ground and for none.

    maps `(B, K, h, w)`; shares `(B, S, objects + 1)` of each object, ground first.
    """
    mean = maps.flatten(2).double().nan_to_num() @ shares / shares.sum(dim=1, keepdim=True)
    most, where = mean.nan_to_num(-1).max(dim=2)  # an object that is out of sight has no mean
    return torch.where(program.active & (most > 0), where - 1, NOBODY)


def objects_and_codes(
    program: Program, bound: Tensor, scenes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Array], Array]:
    """Objects that some token is about: their words `(n, V)` by attribute, their codes `(n, N)`."""
    rows: list[tuple[str, ...]] = []
    codes: list[Array] = []
    for row, scene in enumerate(scenes):
        for number, thing in enumerate(things_of(scene)):
            mine = program.codes[row][bound[row] == number]
            if len(mine):
                rows.append(thing.words)
                codes.append(np.bincount(mine, minlength=program.codebook_size).astype(float))
    words = {
        name: np.array([[row[place] == word for word in known] for row in rows], float)
        for place, (name, known) in enumerate(ATTRIBUTES.items())
    }
    return words, np.array(codes, float)


def probe(words: Array, bags: Array, seed: int) -> dict[str, Any]:
    """AUC of each probe, averaged over words, on every other image; fitted on the rest.

    words `(B, V)`, bags `(B, N)`. A probe tells whether a larger share of an image's objects has
    the word than in the median image: the share, because how many objects there are already
    shows in the length. Words for which that is nearly always so, or never, are left out.
    """
    fitted = np.arange(len(words)) % 2 == 0
    share = words / np.maximum(words.sum(axis=1, keepdims=True), 1)
    there = share > np.median(share[fitted], axis=0)
    asked = [
        word
        for word in range(words.shape[1])
        if all(_RARE <= there[part, word].mean() <= 1 - _RARE for part in (fitted, ~fitted))
    ]
    if not asked:
        nothing = [float("nan")] * 3
        return dict.fromkeys(PROBES, nothing) | {"shuffled": float("nan"), "words": 0}
    target, held = there[:, asked].astype(float), (bags > 0).astype(float)
    mixed = held[np.random.default_rng(seed).permutation(len(held))]

    def ridge(codes: Array, pairs: bool) -> Array:
        kernel = shared(codes, codes[fitted], pairs)
        return kernel_ridge(kernel[fitted], kernel[~fitted], target[fitted])

    scores = {
        "single code": best_single(held[fitted], held[~fitted], target[fitted]),
        "bag of codes": ridge(held, pairs=False),
        "codes and pairs": ridge(held, pairs=True),
    }
    truth = target[~fitted]
    found: dict[str, Any] = {
        what: bootstrap(mean_auc, score, truth, draws=200, seed=seed)
        for what, score in scores.items()
    }
    return found | {"shuffled": mean_auc(ridge(mixed, pairs=True), truth), "words": len(asked)}


def shared(a: Array, b: Array, pairs: bool) -> Array:
    """How many codes, and if asked pairs of codes, programs have in common: `(n, m)`.

    a `(n, N)` and b `(m, N)` say which codes each program holds.
    """
    codes = a @ b.T
    return codes + codes * (codes - 1) / 2 if pairs else codes


def kernel_ridge(known: Array, new: Array, target: Array) -> Array:
    """Ridge by a kernel: `(n, n)` among the fitted, `(m, n)` to new ones, targets `(n, T)`.

    The strength is, for each target, the one with the least error when each fitted row is left
    out in turn. Returns `(m, T)`.
    """
    mean = target.mean(axis=0)
    scale = np.trace(known) / len(known) or 1.0
    # A constant in the kernel stands for the intercept.
    values, vectors = np.linalg.eigh(known / scale + 1)
    best, made = np.full(target.shape[1], np.inf), np.zeros((len(new), target.shape[1]))
    for strength in np.logspace(-3, 3, 13):
        inverse = (vectors / (np.maximum(values, 0) + strength)) @ vectors.T
        weights = inverse @ (target - mean)
        error = ((weights / np.diag(inverse)[:, None]) ** 2).mean(axis=0)
        made = np.where(error < best, (new / scale + 1) @ weights + mean, made)
        best = np.minimum(error, best)
    return made


def best_single(known: Array, new: Array, target: Array) -> Array:
    """Scores by the one code that goes best with each target on the fitted images: `(m, T)`."""
    centred, wanted = known - known.mean(axis=0), target - target.mean(axis=0)
    spread = np.sqrt((centred**2).sum(axis=0))[:, None] * np.sqrt((wanted**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.nan_to_num(centred.T @ wanted / spread)
    chosen = np.abs(r).argmax(axis=0)
    return new[:, chosen] * np.sign(r[chosen, np.arange(target.shape[1])])


def auc(scores: Array, truth: Array) -> float:
    """Area under the ROC curve: how often a positive is scored above a negative."""
    positives = int((truth > 0).sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return float("nan")
    above = ranks(scores)[truth > 0].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def mean_auc(scores: Array, truth: Array) -> float:
    """Mean over the columns of `(m, T)`; columns of one kind only are left out."""
    found = [auc(scores[:, word], truth[:, word]) for word in range(truth.shape[1])]
    return float(np.nanmean(found)) if np.isfinite(found).any() else float("nan")


def draw_heat(
    held: Mapping[str, Array], bags: Array, vocabulary: Mapping[str, Sequence[str]]
) -> Figure:
    """How much oftener than by chance each word and each of the most used codes share an image."""
    top = np.argsort(-bags.sum(axis=0), kind="stable")[:_SHOWN]
    top = top[bags[:, top].sum(axis=0) > 0]
    there = {name: words.sum(axis=0) > 0 for name, words in held.items()}
    labels = [
        word
        for name, known in there.items()
        for word, seen in zip(vocabulary[name], known, strict=True)
        if seen
    ]
    blocks = [words[:, there[name]].T @ bags[:, top] for name, words in held.items()]
    expected = [np.outer(b.sum(axis=1), b.sum(axis=0)) / max(b.sum(), 1) for b in blocks]
    # Half a count more of each keeps the logarithm of a rare code near zero.
    lift = np.log2((np.concatenate(blocks) + 0.5) / (np.concatenate(expected) + 0.5))
    figure = new_figure(10, 1.2 + 0.19 * len(labels))
    axes = plain_axes(figure, "code, most used first")
    most = max(float(np.abs(lift).max()), 1e-6)
    drawn = axes.imshow(lift, cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
    axes.set_yticks(range(len(labels)), labels, size=8)
    axes.set_xticks(range(len(top)), top.tolist(), size=6.5, rotation=90)
    edge = -0.5
    for block in blocks[:-1]:
        edge += len(block)
        axes.axhline(edge, color="0.3", lw=0.8)
    figure.colorbar(drawn, ax=axes, label="log2 of seen over expected", pad=0.01)
    return figure


def draw_probes(probes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """AUC by attribute and probe, with intervals; chance is the left edge."""
    figure = new_figure(6.5, 0.9 + 0.62 * len(probes))
    axes = plain_axes(figure, "AUC on unseen images (0.5 is chance)")
    for number, what in enumerate(PROBES):
        for row, found in enumerate(probes.values()):
            value, low, high = found[what]
            place = row + (number - 1) * 0.25
            axes.plot([low, high], [place, place], color=PALETTE[number], lw=2)
            label = what if row == 0 else None
            axes.plot(value, place, "o", color=PALETTE[number], ms=5, label=label)
    axes.axvline(0.5, color="0.6", ls="--", lw=1)
    axes.set_yticks(range(len(probes)), list(probes))
    axes.set_ylim(len(probes) - 0.4, -0.6)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _vocabulary(encoded: Encoded) -> Mapping[str, Sequence[str]]:
    return {"class": encoded.label_names} if encoded.records.scenes is None else ATTRIBUTES


STUDY = Study(run=run, options=Options, needs=("scene or labels",))
