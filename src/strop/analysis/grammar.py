"""Grammar: prediction of the next code, by n-gram counts and by a trained prior."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
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
from strop.analysis.panels import bars, lines, picture_grid
from strop.analysis.prior import Prior
from strop.analysis.prior_training import WIDTH, train_prior
from strop.analysis.subject import Subject, check_disjoint
from strop.data.loader import record_batches
from strop.data.spec import open_dataset
from strop.errors import DataError
from strop.figures import MUTED, PALETTE, Figure, new_figure, show_image
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import Array, Interval, auc, mean_interval, mutual_information

SHOWN = 6
TEST_SHARE = 0.2
PRIOR = "prior"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the grammar analysis.

    pairs    spec of the data to train on, such as scenes:?n=20000&seed=5; without one, the last
             fifth of the data is tested on
    epochs   passes of the prior over the training data
    width    width of the prior
    samples  programs drawn from the prior
    seed     random seed
    """

    pairs: str = field(default="", metadata={"dataset": True})
    epochs: int = field(default=20, metadata={"min": 1})
    width: int = field(default=WIDTH, metadata={"min": 1})
    samples: int = field(default=512, metadata={"min": 1})
    seed: int = 0


def run(subject: Subject, options: Options) -> Findings:
    """Fit models of programs to those of some images, and evaluate them on those of others."""
    train, test = training_and_test(subject, options.pairs)
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
    symbols = sum(map(len, symbols_of(test)))
    fixed = float(test.bits.mean())
    spent = {name: mean_interval(each, seed=options.seed) for name, each in bits.items()}
    models = {
        name: [2 ** (bits[name].sum() / symbols), *each, each.value / fixed]
        for name, each in spent.items()
    }
    drawn = prior.sample(options.samples, options.seed)
    lengths = {
        "sampled against held out": length_distance(drawn.lengths, test.lengths),
        "training against held out": length_distance(train.lengths, test.lengths),
    }
    order = order_information(train, options.seed)
    bigrams = informative_bigrams(bigram_table(neighbours(train), train.codebook_size))
    surprise = surprise_aucs(prior, test, options.seed)
    figures = {"models": draw_models(spent, len(test) / symbols, test, drawn)}
    if subject.tokenizer.decoder is not None:
        figures["samples"] = draw_samples(subject.tokenizer, prior, test, drawn)
    return Findings(
        numbers={
            "programs": len(train),
            "test_programs": len(test),
            "codebook_size": train.codebook_size,
            "perplexity": {name: row[0] for name, row in models.items()},
            "bits_per_image": {name: list(interval) for name, interval in spent.items()},
            "fixed_rate_bits": fixed,
            "order_information": order,
            "bigrams": bigrams,
            "lengths": lengths,
            "surprise_auc": surprise,
        },
        tables=(
            Table.of(
                "Held-out programs",
                ("model", "perplexity of a symbol", "bits per image", "low", "high", "of fixed"),
                models,
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


def training_and_test(subject: Subject, spec: str) -> tuple[Program, Program]:
    """Programs to train on and programs to test on.

    With a `spec`, its images are trained on and all of the subject is tested on. Without one, the
    last `TEST_SHARE` of the subject is tested on.
    """
    if not spec:
        split = len(subject) - round(len(subject) * TEST_SHARE)
        if not 0 < split < len(subject):
            raise DataError(
                f"{len(subject)} images leave none to train on or none to test on.",
                "Give more images.",
            )
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
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(program.codebook_size, program.codes.shape, generator=generator)
    altered = {
        "shuffled within programs": shuffled_within(program, seed),
        "positions only": shuffled_across(program, seed),
        "random codes": replace(program, codes=random),
    }
    is_altered = np.repeat([1, 0], len(own))
    return {
        name: auc(torch.cat([prior.surprise(each), own]), is_altered)
        for name, each in altered.items()
    }


def draw_models(
    spent: Mapping[str, Interval], share: float, test: Program, drawn: Program
) -> Figure:
    """Bits per symbol of each model, and lengths of held-out and sampled programs.

    share  images per symbol
    """
    figure = new_figure(9.0, 3.2)
    colours = [PALETTE[0] if name == PRIOR else MUTED for name in spent]
    values = [Interval(*(share * bits for bits in each)) for each in spent.values()]
    bars(figure, list(spent), values, "bits per symbol", 121, colours)
    lengths = {"held out": test.lengths, "sampled from the prior": drawn.lengths}
    counts = {
        name: (torch.bincount(each, minlength=test.capacity + 1) / len(each)).tolist()
        for name, each in lengths.items()
    }
    lines(figure, "length", "share of programs", range(test.capacity + 1), counts, 122)
    return figure


def draw_samples(tokenizer: Tokenizer, prior: Prior, test: Program, drawn: Program) -> Figure:
    """Decoded programs: held out, sampled from the prior, and with codes permuted by position."""
    kinds = {
        "held out": test[:SHOWN],
        "from the prior": drawn[:SHOWN],
        "positions only": shuffled_across(test, 0)[:SHOWN],
    }
    rows = []
    for kind, program in kinds.items():
        pictures = tokenizer.decode(tokenizer.interpret(program))
        surprise = prior.surprise(program).tolist()
        rows.append(
            [
                partial(show_image, image=picture, title=f"{kind}\n{bits:.1f} bits/code")
                for picture, bits in zip(pictures, surprise, strict=True)
            ]
        )
    return picture_grid(rows)


ANALYSIS = Analysis(run=run, options=Options, roles=("codes", "fields", "lengths", "pictures"))
