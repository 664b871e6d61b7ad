"""The alignment suite: fields against the teacher's, the codebook, lengths, bits, baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import ModelError
from strop.evaluation import usage
from strop.evaluation.agreement import Agreement, agree
from strop.evaluation.baselines import fit_baselines
from strop.evaluation.context import Context
from strop.evaluation.features import compute_features, encode_fields
from strop.figures import MUTED, PALETTE, new_figure, plain_axes, save_figure
from strop.metrics import effective_rank
from strop.model.tokenizer import Tokenizer
from strop.program import Program

Pairs = Iterator[tuple[Tensor, Tensor]]
HEADLINE = ("cosine", "r2", "r2_centred")
_CHUNK = 64


def run(context: Context) -> dict[str, Any]:
    """The suite; with training data also the baselines."""
    fit = context.train.fields if context.train_data is not None else None
    result = align(
        context.tokenizer, context.val.fields, context.val.program, fit=fit, seed=context.seed
    )
    _plot(result, context.folder / "alignment.png")
    return result


def evaluate_model(
    tokenizer: Tokenizer,
    data: str | Dataset | Tensor,
    *,
    fit: str | Dataset | Tensor | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What a model card says: alignment, codebook, lengths, bits, and baselines of equal bits.

    data  what is measured: a spec, a dataset, or fields (n, S, d_enc) in the teacher's scale
    fit   what the baselines are fitted on, images that are not measured; without it there are none
    """

    def fields_and_program(source: str | Dataset | Tensor) -> tuple[Tensor, Program]:
        if isinstance(source, Tensor):
            _check_fields(tokenizer, source)
            return source, encode_fields(tokenizer, source)
        dataset = open_dataset(source) if isinstance(source, str) else source
        features = compute_features(tokenizer, dataset)
        return features.fields, features.program

    fields, program = fields_and_program(data)
    fitted = None if fit is None else fields_and_program(fit)[0]
    return align(tokenizer, fields, program, fit=fitted, seed=seed)


def align(
    tokenizer: Tokenizer,
    fields: Tensor,
    program: Program,
    *,
    fit: Tensor | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures for fields (n, S, d_enc) and their programs; baselines fitted on `fit`.

    `values` and `intervals` are at the length the model chose. `budgets` compares model and
    baselines at that rate, and at full length.
    """
    chosen = agree(interpreted(tokenizer, program, fields))
    floor = agree(_mean_field(fields)).scores()
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
        budgets = _budgets(tokenizer, fields, program, chosen, fit, seed)
        result["budgets"] = budgets
        margin = budgets[0]["margin"]
        values |= {f"margin_{name}": margin[name] for name in HEADLINE}
    return result


def interpreted(tokenizer: Tokenizer, program: Program, fields: Tensor) -> Pairs:
    """What programs stand for, beside the teacher's fields (n, S, d_enc), chunk by chunk."""
    for start in range(0, len(fields), _CHUNK):
        made = tokenizer.interpret(program[start : start + _CHUNK])
        yield made, fields[start : start + _CHUNK].to(made.device)


def probe_weighted(pairs: Pairs, weights: Tensor) -> dict[str, float]:
    """R² of fields as a probe with weights (C, d_enc) sees them: errors it cannot see are free.

    The mean over classes is taken out of the weights: it moves all classes alike and decides
    nothing. With one output, a depth say, the weights stay as they are.
    """
    weights = weights.float() if len(weights) == 1 else weights.float() - weights.float().mean(0)

    def seen() -> Pairs:
        for made, true in pairs:
            through = weights.to(made.device).T
            yield made.float() @ through, true.float() @ through

    return {"r2_probe": agree(seen()).scores()["r2_centred"]}


def _budgets(
    tokenizer: Tokenizer,
    fields: Tensor,
    program: Program,
    chosen: Agreement,
    fit: Tensor,
    seed: int,
) -> list[dict[str, Any]]:
    """Model and baselines at the rate the model chose, and at its highest."""
    capacity = program.capacity
    whole = agree(interpreted(tokenizer, program.with_lengths(capacity), fields))
    most = capacity * math.log2(program.codebook_size)
    # A reader of several lengths must be told which: the baselines get those bits as well.
    told = math.log2(capacity) if len(set(program.lengths.tolist())) > 1 else 0.0
    own = min(most, float(program.bits.double().mean()) + told)
    return [
        _beside(tokenizer, fields, "chosen by the model", own, chosen.scores(), fit, seed),
        _beside(tokenizer, fields, "all K", most, whole.scores(), fit, seed),
    ]


def _beside(
    tokenizer: Tokenizer,
    fields: Tensor,
    lengths: str,
    bits: float,
    scores: dict[str, float],
    fit: Tensor,
    seed: int,
) -> dict[str, Any]:
    codes = fit_baselines(fit, bits, config=tokenizer.config, device=tokenizer.device, seed=seed)
    baselines: dict[str, dict[str, Any]] = {
        code.name: {
            **agree(code.pairs(fields)).scores(),
            "bits": code.bits,
            "setting": code.setting,
        }
        for code in codes
    }
    margin = {
        name: scores[name] - max(each[name] for each in baselines.values()) for name in HEADLINE
    }
    best = max(baselines, key=lambda name: baselines[name]["r2"])
    return {
        "lengths": lengths,
        "bits": bits,
        "fitted_on": len(fit),
        "model": scores,
        "baselines": baselines,
        "best_baseline": best,
        "margin": margin,
    }


def _mean_field(fields: Tensor) -> Pairs:
    mean = fields.mean(dim=0, dtype=torch.double).float()
    for chunk in fields.split(_CHUNK):
        yield mean.expand(chunk.shape), chunk


def _plot(result: dict[str, Any], path: Path) -> None:
    """How long programs are; and, at each budget, R² of the model and the baselines."""
    budgets = result.get("budgets", [])
    figure = new_figure(3.4 * (1 + len(budgets)), 3)
    first = 101 + 10 * (1 + len(budgets))  # matplotlib's numbers for axes in a row: 131, 132, 133
    axes = plain_axes(figure, "length", "images", first)
    counts = result["length_histogram"]
    axes.bar(range(1, len(counts) + 1), counts, width=0.9)
    for number, budget in enumerate(budgets):
        axes = plain_axes(figure, "R²", "", first + 1 + number)
        codes = {**budget["baselines"], "the model": budget["model"]}
        colours = [MUTED] * (len(codes) - 1) + [PALETTE[0]]
        axes.barh(list(codes), [max(0.0, each["r2"]) for each in codes.values()], color=colours)
        axes.set_title(f"{budget['bits']:.0f} bits: {budget['lengths']}", size=9)
    save_figure(figure, path)


def _check_fields(tokenizer: Tokenizer, fields: Tensor) -> None:
    expected = (tokenizer.config.grid**2, tokenizer.config.teacher.width)
    if fields.ndim != 3 or tuple(fields.shape[1:]) != expected:
        raise ModelError(
            f"Fields of shape {tuple(fields.shape)} are not of this model's teacher.",
            f"Give (n, {expected[0]}, {expected[1]}), as the teacher "
            f"{tokenizer.config.teacher.name} makes them.",
        )
