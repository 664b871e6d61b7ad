"""The tables of scene readers, ours and the paper's, in the same columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strop.structure.scoring import METRICS, Scores
from strop.structure.study import Table

# Table "Scene decoding performance": name, codebook, parse failures of 15, count error, attribute
# accuracy, position MSE and MAE.
PAPER: tuple[tuple[str, int | None, int, float, float, float, float], ...] = (
    ("Naive baseline", None, 0, 2.27, 0.568, 3.84, 2.22),
    ("GPT-OSS-120B", 32, 1, 2.36, 0.469, 2.45, 1.71),
    ("GPT-OSS-120B", 64, 3, 2.83, 0.536, 3.26, 1.87),
    ("GPT-OSS-120B", 128, 1, 2.36, 0.524, 4.61, 2.13),
    ("Qwen3.5-397B-A17B", 32, 0, 1.43, 0.510, 3.22, 1.90),
    ("Qwen3.5-397B-A17B", 64, 0, 1.00, 0.458, 3.37, 2.00),
    ("Qwen3.5-397B-A17B", 128, 0, 1.53, 0.505, 3.17, 1.91),
    ("DeepSeek-V3.1", 32, 1, 1.36, 0.513, 3.68, 2.11),
    ("DeepSeek-V3.1", 64, 0, 0.93, 0.543, 3.64, 1.97),
    ("DeepSeek-V3.1", 128, 0, 1.13, 0.487, 3.15, 1.84),
)
HEADER = ("", "codebook", "parse failures", *(metric.title for metric in METRICS.values()))


def numbers_of(scores: Scores) -> dict[str, Any]:
    """Scores as JSON holds them: each metric with its interval, attributes, failures."""
    return {
        **{name: list(interval) for name, interval in scores.intervals().items()},
        "attributes": {name: float(np.nanmean(v)) for name, v in scores.attributes.items()},
        "parse_failures": scores.failures,
        "scenes": len(scores.rows["count_error"]) + scores.failures,
    }


def scene_table(scores: Mapping[str, Scores], codebook_size: int) -> Table:
    """A row for each reader: its scores with their intervals."""
    rows: list[Sequence[str | int | None]] = []
    for name, each in scores.items():
        total = len(each.rows["count_error"]) + each.failures
        cells = [f"{i.value:.3g} ({i.low:.3g} to {i.high:.3g})" for i in each.intervals().values()]
        size = None if name == "naive" else codebook_size
        rows.append((name, size, f"{each.failures} / {total}", *cells))
    return Table("Scenes read from programs", HEADER, rows)


def paper_table() -> Table:
    """The paper's table in the same columns."""
    rows = [
        (name, size, f"{failures} / 15", count, accuracy, None, mse, mae)
        for name, size, failures, count, accuracy, mse, mae in PAPER
    ]
    return Table("The paper's table: CLEVR, 15 scenes, 50 shots", HEADER, rows)
