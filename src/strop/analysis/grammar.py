"""Have programs a grammar? What comes next, by counting and by a small autoregressive prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from strop.figures import MUTED, PALETTE, new_figure, plain_axes, show_image
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import ranks
from strop.structure.fitting import NetworkConfig
from strop.structure.ngrams import (
    CHAINS,
    Counts,
    bigram_table,
    informative_bigrams,
    mutual_information,
    neighbours,
    shuffled_across,
    shuffled_within,
    symbols_of,
)
from strop.structure.pairs import training_and_test
from strop.structure.prior import Prior, train_prior
from strop.structure.scoring import mean_interval
from strop.structure.study import Encoded, Findings, Job, Study, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6
PRIOR = "transformer"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is learnt from, and for how long.

    pairs       spec of the images to learn from; without one, the data is split
    test_share  of the data that is then tested on
    epochs      how often the prior sees each program
    samples     programs drawn from the prior
    width, depth  size of the prior
    seed        of everything random
    """

    pairs: str = ""
    test_share: float = 0.2
    epochs: int = 40
    samples: int = 512
    width: int = 128
    depth: int = 3
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Model the programs of some images, and measure on those of others."""
    pairs = training_and_test(tokenizer, encoded, options.pairs, options.test_share, job)
    train, test = (part.program for part in pairs)
    prior = train_prior(
        train,
        NetworkConfig(width=options.width, depth=options.depth),
        epochs=options.epochs,
        seed=options.seed,
        device=tokenizer.device,
        watch=partial(job.watch, "learning the grammar"),
    )
    bits = {**counted_bits(train, test), PRIOR: prior.bits(test).double().numpy()}
    symbols = np.array([len(each) for each in symbols_of(test)])
    perplexity = {name: float(2 ** (each.sum() / symbols.sum())) for name, each in bits.items()}
    spent = {name: mean_interval(each, options.seed) for name, each in bits.items()}
    drawn = prior.sample(options.samples, options.seed)
    order = order_information(train, options.seed)
    bigrams = informative_bigrams(bigram_table(neighbours(train), train.codebook_size))
    lengths = {
        "sampled against held out": length_distance(drawn.lengths, test.lengths),
        "training against held out": length_distance(train.lengths, test.lengths),
    }
    surprise = surprise_aucs(prior, test, options.seed)
    fixed = float(test.bits.mean())
    figures = {"models": draw_models(bits, symbols, test, drawn)}
    if tokenizer.decoder is not None:
        figures["samples"] = draw_samples(tokenizer, prior, test, drawn)
    return Findings(
        numbers={
            "programs": len(train),
            "test_programs": len(test),
            "codebook_size": train.codebook_size,
            "perplexity": perplexity,
            "bits_per_image": {name: list(interval) for name, interval in spent.items()},
            "fixed_rate_bits": fixed,
            "order_information": order,
            "bigrams": bigrams,
            "lengths": lengths,
            "surprise_auc": surprise,
        },
        tables=(
            Table(
                "Held-out programs",
                ("model", "perplexity of a symbol", "bits per image", "of the fixed rate"),
                [
                    (
                        name,
                        perplexity[name],
                        f"{i.value:.1f} ({i.low:.1f} to {i.high:.1f})",
                        i.value / fixed,
                    )
                    for name, i in spent.items()
                ],
            ),
            Table("What a code tells about the next, in bits", ("", "bits"), list(order.items())),
            Table(
                "Most informative pairs",
                ("code", "next", "times", "expected", "PMI, bits"),
                bigrams,
            ),
            Table(
                "Distance of length distributions",
                ("", "total variation", "Kolmogorov-Smirnov"),
                [(name, *each.values()) for name, each in lengths.items()],
            ),
            Table(
                "Surprise tells held-out programs from altered ones",
                ("altered by", "area under the curve"),
                list(surprise.items()),
            ),
        ),
        figures=figures,
        files={"prior.safetensors": prior.to_bytes()},
        notes=(
            "A symbol is a code or the end of the program. Bits are those of an ideal entropy "
            f"coder; the fixed rate is length times log2 {train.codebook_size}, {fixed:.1f} bits "
            "on average, without the length.",
            "`Positions only` deals codes anew among images at each position: what is above it "
            "is what the codes of one image have to do with each other. Mutual information is "
            "biased upwards where pairs are many and programs few; the shuffled rows show by how "
            "much.",
        ),
    )


def counted_bits(train: Program, test: Program) -> dict[str, NDArray[np.float64]]:
    """Bits of each held-out program under each model that counts."""
    learnt, held_out = symbols_of(train), symbols_of(test)
    return {
        name: Counts(chain, learnt, train.codebook_size + 1).bits(held_out)
        for name, chain in CHAINS.items()
    }


def order_information(program: Program, seed: int) -> dict[str, float]:
    """Mutual information of neighbouring codes, and of neighbours after two kinds of shuffling."""
    arranged = {
        "as written": program,
        "positions only": shuffled_across(program, seed),
        "shuffled within programs": shuffled_within(program, seed),
    }
    return {
        name: mutual_information(bigram_table(neighbours(each), program.codebook_size))
        for name, each in arranged.items()
    }


def length_distance(one: Tensor, other: Tensor) -> dict[str, float]:
    """How far apart two samples of lengths are: total variation and Kolmogorov-Smirnov."""
    bins = int(max(one.max(), other.max())) + 1
    p, q = (torch.bincount(x, minlength=bins).double() / len(x) for x in (one, other))
    return {
        "total_variation": float((p - q).abs().sum() / 2),
        "kolmogorov_smirnov": float((p - q).cumsum(0).abs().max()),
    }


def surprise_aucs(prior: Prior, program: Program, seed: int) -> dict[str, float]:
    """How well surprise tells programs from altered copies of them: 0.5 is chance."""
    own = prior.surprise(program)
    altered = {
        "shuffled within programs": shuffled_within(program, seed),
        "positions only": shuffled_across(program, seed),
        "random codes": random_codes(program, seed),
    }
    return {name: auc(prior.surprise(each), own) for name, each in altered.items()}


def random_codes(program: Program, seed: int) -> Program:
    """Programs of the same lengths with codes drawn uniformly."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(program.codebook_size, program.codes.shape, generator=random)
    return Program(codes=codes, lengths=program.lengths, codebook_size=program.codebook_size)


def auc(higher: ArrayLike, lower: ArrayLike) -> float:
    """How often one of `higher` exceeds one of `lower`, ties counting half."""
    high, low = np.asarray(higher, np.float64), np.asarray(lower, np.float64)
    total = ranks(np.concatenate([high, low]))[: len(high)].sum()
    return float((total - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


def draw_models(
    bits: Mapping[str, NDArray[np.float64]],
    symbols: NDArray[np.int64],
    test: Program,
    drawn: Program,
) -> Figure:
    """Bits per symbol of each model, and lengths held out and sampled."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(9.0, 3.2)
    axes = plain_axes(figure, "bits per symbol", "", 121)
    names = list(bits)[::-1]
    values = [bits[name].sum() / symbols.sum() for name in names]
    colours = [PALETTE[0] if name == PRIOR else MUTED for name in names]
    drawn_bars = axes.barh(names, values, color=colours)
    axes.bar_label(drawn_bars, fmt="%.2f", padding=3, size=8)
    axes.set_xlim(0, max(values) * 1.15)
    axes = plain_axes(figure, "length", "share of programs", 122)
    bins = [length - 0.5 for length in range(test.capacity + 2)]
    for name, lengths in {
        "held out": test.lengths,
        "sampled from the prior": drawn.lengths,
    }.items():
        axes.hist(lengths.numpy(), bins, density=True, histtype="step", lw=1.6, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_samples(tokenizer: Tokenizer, prior: Prior, test: Program, drawn: Program) -> Figure:
    """Decoded: held-out programs, samples of the prior, and codes that only fit their positions."""
    kinds = {
        "held out": test[:SHOWN],
        "from the prior": drawn[:SHOWN],
        "positions only": shuffled_across(test, 0)[:SHOWN],
    }
    columns = max(map(len, kinds.values()))
    figure = new_figure(1.5 * columns, 1.75 * len(kinds))
    axes = figure.subplots(len(kinds), columns, squeeze=False)
    for line, (kind, program) in zip(axes, kinds.items(), strict=True):
        pictures = tokenizer.decode(tokenizer.interpret(program))
        surprise = prior.surprise(program)
        for axis in line:
            axis.set_axis_off()
        for number, (axis, picture) in enumerate(zip(line, pictures, strict=False)):
            title = f"{kind}\n" if number == 0 else "\n"
            show_image(axis, picture, f"{title}{surprise[number]:.1f} bits/code")
    return figure


STUDY = Study(run=run, options=Options)
