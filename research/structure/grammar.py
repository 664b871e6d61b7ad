"""Grammar: prediction of the next code, by n-gram counts and by a trained prior.

    python research/structure/grammar.py MODEL --data SPEC --out FOLDER

It writes the prior as `prior.safetensors`, for `load_prior` and `strop store export`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.panels import bars, lines, picture_grid
from strop.analysis.prior import Prior
from strop.analysis.prior_training import WIDTH, train_prior
from strop.analysis.subject import Subject, check_disjoint
from strop.cli.study import run_script
from strop.data.loader import record_batches
from strop.data.spec import open_dataset
from strop.errors import DataError
from strop.figures import MUTED, PALETTE, Figure, new_figure, show_image
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import Array, Interval, mean_interval

SHOWN = 6
TEST_SHARE = 0.2
PRIOR = "prior"


Context = Callable[[Sequence[int]], Hashable]
"""The part of the codes so far that predicts the next one."""

CHAINS: dict[str, tuple[Context, ...]] = {
    "uniform": (),
    "unigram": (lambda past: 0,),
    "position": (lambda past: 0, lambda past: len(past)),
    "bigram": (lambda past: 0, lambda past: tuple(past[-1:])),
    "trigram": (lambda past: 0, lambda past: tuple(past[-1:]), lambda past: tuple(past[-2:])),
    "position and last": (
        lambda past: 0,
        lambda past: len(past),
        lambda past: (len(past), *past[-1:]),
    ),
}
"""Models by name: contexts from the most general to the most specific."""


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
        name: {
            "perplexity": 2 ** (bits[name].sum() / symbols),
            "bits_per_image": each,
            "of_fixed_rate": each.value / fixed,
        }
        for name, each in spent.items()
    }
    drawn = prior.sample(options.samples, options.seed)
    lengths = {
        "sampled against held out": length_distance(drawn.lengths, test.lengths),
        "training against held out": length_distance(train.lengths, test.lengths),
    }
    bigrams = informative_bigrams(bigram_table(neighbours(train), train.codebook_size))
    figures = {"models": draw_models(spent, len(test) / symbols, test, drawn)}
    if subject.tokenizer.decoder is not None:
        figures["samples"] = draw_samples(subject.tokenizer, prior, test, drawn)
    return Findings(
        numbers={
            "models": models,
            "bigrams": bigrams,
            "lengths": lengths,
            "programs": len(train),
            "test_programs": len(test),
            "codebook_size": train.codebook_size,
            "fixed_rate_bits": fixed,
        },
        tables=[
            Table(
                "Held-out programs",
                ("model", "perplexity of a symbol", "bits per image", "low", "high", "of fixed"),
                models,
            ),
            Table(
                "Most informative pairs",
                ("code", "next", "count", "expected", "PMI, bits"),
                bigrams,
            ),
            Table(
                "Distance of length distributions",
                ("", "total variation", "Kolmogorov-Smirnov"),
                lengths,
            ),
        ],
        figures=figures,
        files={"prior.safetensors": prior.to_bytes()},
        notes=(
            "A symbol is a code or the end of the program; the prior gives a length first, which "
            "is the same information. Bits are those of an ideal entropy coder; the fixed rate is "
            f"length times log2 {train.codebook_size}, {fixed:.1f} bits on average, without the "
            "length.",
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


def length_distance(one: Tensor, other: Tensor) -> dict[str, float]:
    """Total variation and Kolmogorov-Smirnov distance of two samples of lengths."""
    bins = int(max(one.max(), other.max())) + 1
    p, q = (torch.bincount(x, minlength=bins).double() / len(x) for x in (one, other))
    return {
        "total_variation": float((p - q).abs().sum() / 2),
        "kolmogorov_smirnov": float((p - q).cumsum(0).abs().max()),
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
    """Decoded programs: held out, and sampled from the prior."""
    kinds = {
        "held out": test[:SHOWN],
        "from the prior": drawn[:SHOWN],
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


# Counts of codes.


class NgramModel:
    """A model of programs from counts along a chain of contexts.

    Witten-Bell smoothing mixes a context with the next more general one, whose weight is the number
    of distinct symbols seen in the specific one. The most general model is uniform. There are
    N + 1 symbols, the codes and the end.
    """

    def __init__(self, chain: Sequence[Context], sequences: Sequence[Sequence[int]], symbols: int):
        self.chain = chain
        self.symbols = symbols
        self.seen: list[dict[Hashable, Counter[int]]] = [defaultdict(Counter) for _ in chain]
        for sequence in sequences:
            for k, symbol in enumerate(sequence):
                past = sequence[:k]
                for context, seen in zip(chain, self.seen, strict=True):
                    seen[context(past)][symbol] += 1
        self._totals = [{at: seen[at].total() for at in seen} for seen in self.seen]

    def probability(self, symbol: int, past: Sequence[int]) -> float:
        """The probability of the next symbol after the codes so far."""
        p = 1 / self.symbols
        for context, seen, totals in zip(self.chain, self.seen, self._totals, strict=True):
            at = context(past)
            if at in totals:
                kinds = len(seen[at])
                p = (seen[at][symbol] + kinds * p) / (totals[at] + kinds)
        return p

    def bits(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """`(N,)`: the bits that an ideal entropy coder spends on each sequence."""
        return np.array(
            [
                -sum(math.log2(self.probability(symbol, s[:k])) for k, symbol in enumerate(s))
                for s in sequences
            ]
        )


def symbols_of(program: Program) -> list[list[int]]:
    """The active codes of each program and the end, which is symbol N.

    After K codes a program must end, so the end is left out.
    """
    end = program.codebook_size
    return [
        codes if len(codes) == program.capacity else [*codes, end]
        for codes in (row.codes.tolist() for row in program.as_batch())
    ]


def neighbours(program: Program) -> NDArray[np.int64]:
    """`(M, 2)`: every active code and the one after it, over all programs."""
    codes, lengths = program.codes.cpu().numpy(), program.lengths.cpu().numpy()
    both = np.arange(1, codes.shape[1]) < lengths[:, None]
    return np.stack([codes[:, :-1][both], codes[:, 1:][both]], axis=1)


def bigram_table(pairs: NDArray[np.int64], codes: int) -> NDArray[np.int64]:
    """`(N, N)` counts of (code, next code)."""
    return np.bincount(pairs[:, 0] * codes + pairs[:, 1], minlength=codes**2).reshape(codes, codes)


def informative_bigrams(
    table: NDArray[np.int64], most: int = 20, least: int = 5
) -> list[tuple[int, int, int, float, float]]:
    """The most informative pairs (code, next code, count, expected count, PMI in bits).

    They are ranked by count times PMI, a pair's contribution to the mutual information. Pairs seen
    fewer than `least` times are left out, because their PMI is noise.
    """
    total = table.sum()
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log2(table / expected)
    weight = np.where(table >= least, table * np.nan_to_num(pmi), -np.inf)
    order = np.argsort(-weight, axis=None, kind="stable")[:most]
    return [
        (int(a), int(b), int(table[a, b]), float(expected[a, b]), float(pmi[a, b]))
        for a, b in (divmod(int(flat), len(table)) for flat in order)
        if weight[a, b] > 0
    ]


ANALYSIS = Analysis(
    name="grammar", run=run, options=Options, roles=("codes", "fields", "lengths", "pictures")
)


if __name__ == "__main__":
    run_script(ANALYSIS)
