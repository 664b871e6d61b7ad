"""Grammar: prediction of the next code, by n-gram counts and by a trained prior."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.ngrams import (
    CHAINS,
    NgramModel,
    bigram_table,
    informative_bigrams,
    neighbours,
    shuffled_across,
    shuffled_within,
    symbols_of,
)
from strop.analysis.prior import Prior
from strop.analysis.prior_training import WIDTH, train_prior
from strop.analysis.subject import Subject, check_disjoint
from strop.data.loader import record_batches
from strop.data.spec import open_dataset
from strop.errors import DataError
from strop.figures import MUTED, PALETTE, Figure, new_figure, plain_axes, show_image
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import Array, auc, mean_interval, mutual_information

SHOWN = 6
PRIOR = "prior"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the grammar analysis.

    pairs       spec of the data to train on, such as scenes:?n=20000&seed=5; without one, the data
                is split
    test_share  share of the data that is then tested on
    epochs      passes of the prior over the training data
    width       width of the prior
    samples     programs drawn from the prior
    seed        random seed
    """

    pairs: str = field(default="", metadata={"dataset": True})
    test_share: float = field(default=0.2, metadata={"above": 0, "below": 1})
    epochs: int = field(default=20, metadata={"min": 1})
    width: int = field(default=WIDTH, metadata={"min": 1})
    samples: int = field(default=512, metadata={"min": 1})
    seed: int = 0


def run(subject: Subject, options: Options) -> Findings:
    """Fit models of programs to those of some images, and evaluate them on those of others."""
    train, test = training_and_test(subject, options.pairs, options.test_share)
    prior = train_prior(
        train,
        epochs=options.epochs,
        width=options.width,
        vectors=subject.tokenizer.quantizer.codebook,
        seed=options.seed,
        device=subject.tokenizer.device,
        progress=partial(subject.progress, "training the prior"),
    )
    bits = {**counted_bits(train, test), PRIOR: prior.bits(test).double().numpy()}
    symbols = np.array([len(each) for each in symbols_of(test)])
    perplexity = {name: float(2 ** (each.sum() / symbols.sum())) for name, each in bits.items()}
    spent = {name: mean_interval(each, seed=options.seed) for name, each in bits.items()}
    fixed = float(test.bits.mean())
    drawn = prior.sample(options.samples, options.seed)
    lengths = {
        "sampled against held out": length_distance(drawn.lengths, test.lengths),
        "training against held out": length_distance(train.lengths, test.lengths),
    }
    order = order_information(train, options.seed)
    bigrams = informative_bigrams(bigram_table(neighbours(train), train.codebook_size))
    surprise = surprise_aucs(prior, test, options.seed)
    figures = {"models": draw_models(bits, symbols, test, drawn)}
    if subject.tokenizer.decoder is not None:
        figures["samples"] = draw_samples(subject.tokenizer, prior, test, drawn)
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
            Table.of("Mutual information of a code and the next", ("", "bits"), order),
            Table(
                "Most informative pairs",
                ("code", "next", "count", "expected", "PMI, bits"),
                bigrams,
            ),
            Table.of(
                "Distance of length distributions",
                ("", "total variation", "Kolmogorov-Smirnov"),
                lengths,
            ),
            Table.of(
                "Detection of altered programs by surprise",
                ("altered by", "area under the curve"),
                surprise,
            ),
        ),
        figures=figures,
        files={"prior.safetensors": prior.to_bytes()},
        notes=(
            "A symbol is a code or the end of the program; the prior gives a length first, which "
            "is the same information. Bits are those of an ideal entropy coder; the fixed rate is "
            f"length times log2 {train.codebook_size}, {fixed:.1f} bits on average, without the "
            "length.",
            "`Positions only` permutes the codes at each position among images: the difference to "
            "`as written` is the dependence between the codes of one image. Estimates of mutual "
            "information are biased upwards with many pairs and few programs; the shuffled rows "
            "show by how much.",
        ),
    )


def training_and_test(subject: Subject, spec: str, test_share: float) -> tuple[Program, Program]:
    """Programs to train on and programs to test on.

    With a `spec`, its images are trained on and all of the subject is tested on. Without one, the
    last `test_share` of the subject is tested on.
    """
    if not spec:
        held_out = round(len(subject) * test_share)
        if not 0 < held_out < len(subject):
            raise DataError(
                f"{len(subject)} images leave none to train on or none to test on.",
                "Give more images.",
            )
        split = len(subject) - held_out
        return subject.program[:split], subject.program[split:]
    tokenizer, dataset = subject.tokenizer, open_dataset(spec)
    programs: list[Program] = []
    done = 0

    def images() -> Iterator[tuple[Tensor, str]]:
        """The training images, each encoded when its batch is read."""
        nonlocal done
        for batch in record_batches(
            dataset,
            size=tokenizer.config.image_size,
            fit=tokenizer.config.fit,
            device=tokenizer.device,
            workers=subject.workers,
        ):
            programs.append(tokenizer.encode(batch.images, batch=subject.batch).to("cpu"))
            done += len(batch)
            subject.progress("encoding programs", done, len(dataset))
            yield from zip(batch.images.cpu(), batch.names, strict=True)

    check_disjoint(images(), subject.named_images())
    return Program.cat(programs), subject.program


def counted_bits(train: Program, test: Program) -> dict[str, Array]:
    """Bits of each held-out program under each n-gram model."""
    known, held_out = symbols_of(train), symbols_of(test)
    return {
        name: NgramModel(chain, known, train.codebook_size + 1).bits(held_out)
        for name, chain in CHAINS.items()
    }


def order_information(program: Program, seed: int) -> dict[str, float]:
    """Mutual information in bits of neighbouring codes, as written and shuffled in two ways."""
    arranged = {
        "as written": program,
        "positions only": shuffled_across(program, seed),
        "shuffled within programs": shuffled_within(program, seed),
    }
    return {
        name: mutual_information(bigram_table(neighbours(each), program.codebook_size))
        / math.log(2)
        for name, each in arranged.items()
    }


def length_distance(one: Tensor, other: Tensor) -> dict[str, float]:
    """Total variation and Kolmogorov-Smirnov distance of two samples of lengths."""
    bins = int(max(one.max(), other.max())) + 1
    p, q = (torch.bincount(x, minlength=bins).double() / len(x) for x in (one, other))
    return {
        "total_variation": float((p - q).abs().sum() / 2),
        "kolmogorov_smirnov": float((p - q).cumsum(0).abs().max()),
    }


def surprise_aucs(prior: Prior, program: Program, seed: int) -> dict[str, float]:
    """AUC of surprise as a detector of altered programs: 0.5 is chance."""
    own = prior.surprise(program)
    altered = {
        "shuffled within programs": shuffled_within(program, seed),
        "positions only": shuffled_across(program, seed),
        "random codes": random_codes(program, seed),
    }
    is_altered = np.repeat([1, 0], len(own))
    return {
        name: auc(torch.cat([prior.surprise(each), own]), is_altered)
        for name, each in altered.items()
    }


def random_codes(program: Program, seed: int) -> Program:
    """Programs of the same lengths with codes drawn uniformly."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(program.codebook_size, program.codes.shape, generator=random)
    return replace(program, codes=codes)


def draw_models(
    bits: Mapping[str, Array],
    symbols: NDArray[np.int64],
    test: Program,
    drawn: Program,
) -> Figure:
    """Bits per symbol of each model, and lengths of held-out and sampled programs."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(9.0, 3.2)
    axes = plain_axes(figure, "bits per symbol", "", 121)
    names = list(bits)[::-1]
    values = [bits[name].sum() / symbols.sum() for name in names]
    colours = [PALETTE[0] if name == PRIOR else MUTED for name in names]
    axes.bar_label(axes.barh(names, values, color=colours), fmt="%.2f", padding=3, size=8)
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
    """Decoded programs: held out, sampled from the prior, and with codes permuted by position."""
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


ANALYSIS = Analysis(run=run, options=Options, roles=("codes", "fields", "lengths", "pictures"))
