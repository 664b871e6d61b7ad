"""Alignment: interpreted fields against the teacher's, codebook, lengths, bits, baselines.

Section 5.2; Tables 1 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.agreement import Agreement, agree
from strop.analysis import usage
from strop.analysis.baselines import check_enough, fit_baselines
from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.panels import bars
from strop.analysis.subject import Subject, encode_fields
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import ModelError
from strop.figures import MUTED, PALETTE, Figure, new_figure, plain_axes
from strop.metrics import effective_rank
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.program import Program

Pairs = Iterator[tuple[Tensor, Tensor]]
HEADLINE = ("cosine", "r2", "r2_centred")
_CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of alignment.

    seed  of intervals and baselines
    """

    seed: int = 0


def check(subject: Subject, options: Options) -> None:
    """Refuse data that is too small to fit baselines on."""
    if subject.train is not None:
        check_enough(len(subject.train.dataset))


def run(subject: Subject, options: Options) -> Findings:
    """Compare fields; with data to fit on, also with the baselines."""
    fit = None if subject.train is None else subject.fitted_on().fields
    result = align(
        subject.tokenizer,
        subject.fields,
        subject.program,
        fit=fit,
        inside=subject.inside,
        seed=options.seed,
    )
    return Findings(numbers=result, figures={"budgets": draw(result)})


ANALYSIS = Analysis(run=run, options=Options, check=check)


def evaluate_model(
    tokenizer: Tokenizer,
    data: str | Dataset | Tensor,
    *,
    fit: str | Dataset | Tensor | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The metrics of a model card: alignment, codebook, lengths, bits, baselines of equal bits.

    data  what to measure: a spec, a dataset, or fields (n, S, d_enc) in the teacher's scale
    fit   images to fit the baselines on, different from `data`; None for no baselines
    """
    check_tokenizer(tokenizer)

    def encoded(source: str | Dataset | Tensor) -> tuple[Tensor, Program, Tensor | None]:
        if isinstance(source, Tensor):
            _check_fields(tokenizer, source)
            return source, encode_fields(tokenizer, source), None
        dataset = open_dataset(source)
        subject = Subject(tokenizer=tokenizer, dataset=dataset, data=dataset.name)
        return subject.fields, subject.program, subject.inside

    fields, program, inside = encoded(data)
    fitted = None if fit is None else encoded(fit)[0]
    return align(tokenizer, fields, program, fit=fitted, inside=inside, seed=seed)


def align(
    tokenizer: Tokenizer,
    fields: Tensor,
    program: Program,
    *,
    fit: Tensor | None = None,
    inside: Tensor | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures for fields (n, S, d_enc) and their programs; baselines are fitted on `fit`.

    Locations that are not `inside` (n, S) bool do not count.

    `values` and `intervals` are at the lengths that the model chose. `budgets` compares model and
    baselines at that rate, and at full length.
    """
    chosen = agree(interpreted(tokenizer, program, fields), inside)
    floor = agree(_mean_field(fields), inside).scores()
    values = {
        **chosen.scores(),
        **{f"{name}_mean_field": floor[name] for name in HEADLINE},
        "effective_rank": effective_rank(fields),
        **usage.codebook(program),
        **usage.lengths(program, fields),
        **usage.bits(program, locations=fields.shape[1], width=fields.shape[2]),
    }
    result: dict[str, Any] = {
        "images": len(fields),
        "values": values,
        "intervals": chosen.intervals(seed=seed),
        "length_histogram": usage.histogram(program),
    }
    if fit is not None:
        budgets = _budgets(tokenizer, fields, program, chosen, fit, inside, seed)
        result["budgets"] = budgets
        margin = budgets[0]["margin"]
        values |= {f"margin_{name}": margin[name] for name in HEADLINE}
    return result


def interpreted(tokenizer: Tokenizer, program: Program, fields: Tensor) -> Pairs:
    """Interpreted fields of programs with the teacher's fields (n, S, d_enc), in chunks."""
    for start in range(0, len(fields), _CHUNK):
        made = tokenizer.interpret(program[start : start + _CHUNK])
        yield made, fields[start : start + _CHUNK].to(made.device)


def _budgets(
    tokenizer: Tokenizer,
    fields: Tensor,
    program: Program,
    chosen: Agreement,
    fit: Tensor,
    inside: Tensor | None,
    seed: int,
) -> list[dict[str, Any]]:
    """Model and baselines at the rate that the model chose, and at its highest rate."""
    capacity = program.capacity
    whole = agree(interpreted(tokenizer, program.with_lengths(capacity), fields), inside)
    most = capacity * math.log2(program.codebook_size)
    # A decoder of programs of several lengths needs the length too: the baselines get those bits.
    extra = math.log2(capacity) if len(set(program.lengths.tolist())) > 1 else 0.0
    own = min(most, float(program.bits.double().mean()) + extra)
    budgets = []
    for lengths, bits, agreement in (
        ("chosen by the model", own, chosen),
        ("all K", most, whole),
    ):
        codes = fit_baselines(
            fit, bits, config=tokenizer.config, device=tokenizer.device, seed=seed
        )
        scores = agreement.scores()
        baselines: dict[str, dict[str, Any]] = {
            code.name: {
                **agree(code.pairs(fields), inside).scores(),
                "bits": code.bits,
                "setting": code.setting,
            }
            for code in codes
        }
        best = {name: max(each[name] for each in baselines.values()) for name in HEADLINE}
        budgets.append(
            {
                "lengths": lengths,
                "bits": bits,
                "fitted_on": len(fit),
                "model": scores,
                "baselines": baselines,
                "best_baseline": max(baselines, key=lambda name: baselines[name]["r2"]),
                "margin": {name: scores[name] - best[name] for name in HEADLINE},
            }
        )
    return budgets


def _mean_field(fields: Tensor) -> Pairs:
    mean = fields.mean(dim=0, dtype=torch.double).float()
    for chunk in fields.split(_CHUNK):
        yield mean.expand(chunk.shape), chunk


def draw(result: dict[str, Any]) -> Figure:
    """The histogram of lengths and, at each budget, R² of the model and the baselines."""
    budgets = result.get("budgets", [])
    columns = 1 + len(budgets)
    figure = new_figure(3.4 * columns, 3)
    counts = result["length_histogram"]
    axes = plain_axes(figure, "length", "images", (1, columns, 1))
    axes.bar(range(1, len(counts) + 1), counts, width=0.9)
    for number, budget in enumerate(budgets):
        codes = {"the model": budget["model"], **budget["baselines"]}
        colours = [PALETTE[0]] + [MUTED] * (len(codes) - 1)
        values = [max(0.0, each["r2"]) for each in codes.values()]
        axes = bars(figure, list(codes), values, "R²", (1, columns, number + 2), colours)
        axes.set_title(f"{budget['bits']:.0f} bits: {budget['lengths']}", size=9)
    return figure


def _check_fields(tokenizer: Tokenizer, fields: Tensor) -> None:
    expected = (tokenizer.config.grid**2, tokenizer.config.teacher.width)
    if fields.ndim != 3 or tuple(fields.shape[1:]) != expected:
        raise ModelError(
            f"Fields of shape {tuple(fields.shape)} do not fit this model.",
            f"Give (n, {expected[0]}, {expected[1]}), the fields of its teacher "
            f"{tokenizer.config.teacher.name}.",
        )
