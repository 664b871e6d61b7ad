"""Contingency: do attributes live in single codes, or in combinations of codes?

Appendix G, "Attribute-token co-occurrence"; Figure 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from scene_objects import ATTRIBUTES, objects_of
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.regions import (
    NOBODY,
    REMOVALS,
    RemovalOptions,
    erasure_maps,
    patch_shares,
)
from strop.analysis.subject import Subject
from strop.cli.study import run_script
from strop.figures import DIVERGING, PALETTE, new_figure, plain_axes
from strop.program import Program
from strop.statistics import Array, bootstrap, mutual_information, null_p, ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROBES = ("single code", "bag of codes", "codes and pairs")
_SHOWN = 48  # codes in the heat map
_RARE = 0.05  # of images: attributes that fewer images have, or lack, are not probed


@dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of the analysis of attributes."""

    draws: int = field(default=200, metadata={"min": 1})


def run(subject: Subject, options: Options) -> Findings:
    """Associate attributes with codes, by image and by object, and probe them in three ways."""
    program, records = subject.program, subject.records
    held = words_held(subject)
    bags = bag_of_codes(program)
    association = {
        "in the same image": {name: associate(held[name], bags, options) for name in held},
        "on the same object": {},
    }
    if records.scenes is not None and records.instance is not None:
        shares = patch_shares(records.instance, subject.tokenizer.config.grid)
        bound = bindings(erasure_maps(subject, edit=options.edit), program, shares)
        objects, codes = objects_and_codes(program, bound, records.scenes)
        association["on the same object"] = {
            name: associate(objects[name], codes, options) for name in ATTRIBUTES
        }
    probes = {}
    for name, words in held.items():
        probes[name] = probe(words, bags, options.seed)
        subject.progress("probes", len(probes), len(held))
    vocabulary = {"class": subject.label_names} if records.scenes is None else ATTRIBUTES
    return Findings(
        numbers={"association": association, "probes": probes},
        tables=[
            Table(
                "Attribute and code",
                ("attribute", "", "Cramér's V", "shuffled", "p", "MI, nats", "shuffled", "p"),
                [
                    [name, unit, *found.values()]
                    for unit, each in association.items()
                    for name, found in each.items()
                ],
            ),
            Table(
                "AUC of probes on unseen images",
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
            "In the same image: every object is counted with every token of its program, as in "
            "the paper; shuffled permutes the programs of images. On the same object: a token is "
            "counted with the one object where its erasure changes the field most, if it changes "
            "more there than on the ground; shuffled permutes the attributes of objects. The "
            "probes are kernel ridge regressions on the number of shared codes, and of shared "
            "codes and pairs of codes; the single code is the best one on the images fitted on. "
            "Each predicts whether the share of an image's objects with a word is above the "
            "median; 0.5 is chance.",
            REMOVALS[options.edit],
        ),
    )


def words_held(subject: Subject) -> dict[str, Array]:
    """For each attribute, the number of objects of each image with each word: `(B, words)`."""
    if subject.records.scenes is None:
        assert subject.records.labels is not None  # checked through `needs`
        return {"class": subject.records.labels.double().numpy()}
    counts = {name: np.zeros((len(subject), len(words))) for name, words in ATTRIBUTES.items()}
    for row, scene in enumerate(subject.records.scenes):
        for each in objects_of(scene):
            for (name, words), word in zip(ATTRIBUTES.items(), each.words, strict=True):
                counts[name][row, words.index(word)] += 1
    return counts


def bag_of_codes(program: Program) -> Array:
    """How often each code occurs in each program: `(B, N)`."""
    bags = torch.zeros(len(program), program.codebook_size, dtype=torch.double)
    return bags.scatter_add_(1, program.codes, program.active.double()).numpy()


def cramers_v(table: Array) -> float:
    """Cramér's V of a (R, C) table of counts: 0 for independence, 1 for a one-to-one relation.

    Empty rows and columns are left out; NaN if fewer than two of either remain.
    """
    counts = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return float("nan")
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi2 / counts.sum() / (min(counts.shape) - 1)))


def associate(words: Array, codes: Array, options: Options) -> dict[str, float]:
    """Cramér's V and mutual information of words and codes, with permutation tests.

    words  (n, V), counts in each unit, which is an image or an object
    codes  (n, N), counts in the same units
    """
    random = np.random.default_rng(options.seed)
    tables = [words[random.permutation(len(words))].T @ codes for _ in range(options.draws)]
    found = {}
    for name, statistic in (("v", cramers_v), ("mi", mutual_information)):
        value = statistic(words.T @ codes)
        null = [statistic(table) for table in tables]
        found[name] = value
        found[f"{name}_shuffled"] = float(np.nanmean(null)) if np.isfinite(value) else value
        found[f"{name}_p"] = null_p(value, null)
    return found


def bindings(maps: Tensor, program: Program, shares: Tensor) -> Tensor:
    """The object that each token explains: `(B, K)`, from 0; `NOBODY` for the ground or none.

    maps    (B, K, h, w), erasure maps
    shares  (B, S, objects + 1) of each object, ground first
    """
    mean = maps.flatten(2).double().nan_to_num() @ shares / shares.sum(dim=1, keepdim=True)
    most, where = mean.nan_to_num(-1).max(dim=2)  # an invisible object has no mean
    return torch.where(program.active & (most > 0), where - 1, NOBODY)


def objects_and_codes(
    program: Program, bound: Tensor, scenes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Array], Array]:
    """Objects that some token explains: words `(n, V)` by attribute, and codes `(n, N)`."""
    rows: list[tuple[str, ...]] = []
    codes: list[Array] = []
    for row, scene in enumerate(scenes):
        for number, each in enumerate(objects_of(scene)):
            own = program.codes[row][bound[row] == number]
            if len(own):
                rows.append(each.words)
                codes.append(np.bincount(own, minlength=program.codebook_size).astype(float))
    words = {
        name: np.array([[row[index] == word for word in known] for row in rows], float)
        for index, (name, known) in enumerate(ATTRIBUTES.items())
    }
    return words, np.array(codes, float)


def probe(words: Array, bags: Array, seed: int) -> dict[str, Any]:
    """AUC of each probe, averaged over words: fitted on every other image, scored on the rest.

    words  (B, V), objects with each word
    bags   (B, N), from `bag_of_codes`

    A probe predicts whether the share of an image's objects with the word is above the median.
    It is the share because the length already tells the number of objects. Words for which this
    is nearly always or never the case are left out.
    """
    fitted = np.arange(len(words)) % 2 == 0
    share = words / np.maximum(words.sum(axis=1, keepdims=True), 1)
    above = share > np.median(share[fitted], axis=0)
    probed = [
        word
        for word in range(words.shape[1])
        if all(_RARE <= above[part, word].mean() <= 1 - _RARE for part in (fitted, ~fitted))
    ]
    if not probed:
        nothing = [float("nan")] * 3
        return dict.fromkeys(PROBES, nothing) | {"shuffled": float("nan"), "words": 0}
    target, held = above[:, probed].astype(float), (bags > 0).astype(float)
    shuffled = held[np.random.default_rng(seed).permutation(len(held))]

    def ridge(codes: Array, pairs: bool) -> Array:
        kernel = shared_codes(codes, codes[fitted], pairs)
        return kernel_ridge(kernel[fitted], kernel[~fitted], target[fitted])

    scores = {
        "single code": best_single(held[fitted], held[~fitted], target[fitted]),
        "bag of codes": ridge(held, pairs=False),
        "codes and pairs": ridge(held, pairs=True),
    }
    truth = target[~fitted]
    found: dict[str, Any] = {
        name: bootstrap(mean_auc, score, truth, draws=200, seed=seed)
        for name, score in scores.items()
    }
    control = mean_auc(ridge(shuffled, pairs=True), truth)
    return found | {"shuffled": control, "words": len(probed)}


def shared_codes(a: Array, b: Array, pairs: bool) -> Array:
    """The number of codes, or of codes and pairs of codes, that programs share: `(n, m)`.

    a `(n, N)` and b `(m, N)` are 1 where a program holds a code, otherwise 0.
    """
    codes = a @ b.T
    return codes + codes * (codes - 1) / 2 if pairs else codes


def kernel_ridge(known: Array, new: Array, target: Array) -> Array:
    """Kernel ridge regression with intercept: predictions `(m, T)`.

    known   (n, n), kernel of the rows that are fitted
    new     (m, n), kernel of new rows to these
    target  (n, T)

    Leave-one-out error selects the regularization of each target.
    """
    mean = target.mean(axis=0)
    scale = np.trace(known) / len(known) or 1.0
    # Adding a constant to the kernel fits the intercept.
    values, vectors = np.linalg.eigh(known / scale + 1)
    best, predicted = np.full(target.shape[1], np.inf), np.zeros((len(new), target.shape[1]))
    for strength in np.logspace(-3, 3, 13):
        inverse = (vectors / (np.maximum(values, 0) + strength)) @ vectors.T
        weights = inverse @ (target - mean)
        error = ((weights / np.diag(inverse)[:, None]) ** 2).mean(axis=0)
        predicted = np.where(error < best, (new / scale + 1) @ weights + mean, predicted)
        best = np.minimum(error, best)
    return predicted


def best_single(known: Array, new: Array, target: Array) -> Array:
    """Scores by the code that correlates most with each target on the known rows: `(m, T)`."""
    centred, wanted = known - known.mean(axis=0), target - target.mean(axis=0)
    spread = np.sqrt((centred**2).sum(axis=0))[:, None] * np.sqrt((wanted**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.nan_to_num(centred.T @ wanted / spread)
    chosen = np.abs(r).argmax(axis=0)
    return new[:, chosen] * np.sign(r[chosen, np.arange(target.shape[1])])


def auc(scores: ArrayLike, truth: ArrayLike) -> float:
    """Area under the ROC curve of (N,) scores; NaN unless `truth` has positives and negatives.

    It is the probability that a positive scores above a negative; ties count half.
    """
    positive = np.asarray(truth) > 0
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    above = ranks(scores)[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def mean_auc(scores: Array, truth: Array) -> float:
    """Mean AUC over the columns of `(m, T)`; columns of a single class are left out."""
    found = [auc(scores[:, word], truth[:, word]) for word in range(truth.shape[1])]
    return float(np.nanmean(found)) if np.isfinite(found).any() else float("nan")


def draw_heat(
    held: Mapping[str, Array], bags: Array, vocabulary: Mapping[str, Sequence[str]]
) -> Figure:
    """log2 of seen over expected images with each word and each of the most used codes."""
    top = np.argsort(-bags.sum(axis=0), kind="stable")[:_SHOWN]
    top = top[bags[:, top].sum(axis=0) > 0]
    occurs = {name: words.sum(axis=0) > 0 for name, words in held.items()}
    labels = [
        word
        for name, known in occurs.items()
        for word, seen in zip(vocabulary[name], known, strict=True)
        if seen
    ]
    blocks = [words[:, occurs[name]].T @ bags[:, top] for name, words in held.items()]
    expected = [np.outer(b.sum(axis=1), b.sum(axis=0)) / max(b.sum(), 1) for b in blocks]
    # Adding half a count keeps the logarithm of rare codes close to zero.
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
    """AUC by attribute and probe, with intervals; the dashed line is chance."""
    figure = new_figure(6.5, 0.9 + 0.62 * len(probes))
    axes = plain_axes(figure, "AUC on unseen images (0.5 is chance)")
    for number, name in enumerate(PROBES):
        for row, found in enumerate(probes.values()):
            value, low, high = found[name]
            height = row + (number - 1) * 0.25
            axes.plot([low, high], [height, height], color=PALETTE[number], lw=2)
            label = name if row == 0 else None
            axes.plot(value, height, "o", color=PALETTE[number], ms=5, label=label)
    axes.axvline(0.5, color="0.6", ls="--", lw=1)
    axes.set_yticks(range(len(probes)), list(probes))
    axes.set_ylim(len(probes) - 0.4, -0.6)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


ANALYSIS = Analysis(name="contingency", run=run, options=Options, needs=("scene or labels",))


if __name__ == "__main__":
    run_script(ANALYSIS)
