"""Handwritten rows of the CLEVR study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strop.analysis.evaluate import KIND
from strop.analysis.findings import FORMAT
from strop.config import to_dict
from strop.files import format_tag, write_json
from strop.scenes.sampling import object_counts
from strop.training.callbacks import METRICS_FORMAT
from strop.training.preset import load_preset

LONGEST = 32


def write_row(
    folder: Path,
    name: str,
    *,
    preset: str = "clevr-64",
    changes: dict[str, Any] | None = None,
    teacher: str = "vits14-focus",
    seed: int = 0,
    r2: float = 0.9,
    r2_whole: float = 0.9,
    correlation: float = 0.9,
    since_handoff: float = 0.1,
    ssim: float | None = None,
) -> Path:
    """The folder of a row, as `research/clevr/study.py` writes it."""
    options = {"model.teacher.name": teacher, "training.seed": seed}
    plan = load_preset(preset, {"training.batch": 512, "training.steps": 1000, **options})
    curve = [r2_whole] * LONGEST
    suites: dict[str, dict[str, Any]] = {
        "alignment": {
            "values": {
                "cosine": 0.95,
                "r2": r2,
                "r2_centred": r2 - 0.1,
                "cosine_mean_field": 0.9,
                "r2_mean_field": 0.8,
                "r2_centred_mean_field": 0.3,
                "codebook_effective": 80.0,
                "length_mean": 12.5,
                "length_least": 4.0,
                "length_most": 30.0,
            }
        },
        "rate": {
            "values": {
                "r2": r2,
                "length_mean": 12.5,
                "regret_r2": 0.0012,
                "regret_r2_fixed": 0.0034,
            },
            "curve": {"length": list(range(1, LONGEST + 1)), "r2": curve},
            # one increases with the number of objects, the other decreases
            "lengths": {
                "searched": object_counts(0, range(40)).tolist(),
                "chosen": (20 - object_counts(0, range(40))).tolist(),
            },
        },
    }
    if ssim is not None:
        suites["pixels"] = {"values": {"ssim": ssim}}
    model = {"name": name, "fingerprint": name, "config": to_dict(plan.model), "about": {}}
    circumstances = {
        "train": None,
        "protocol": "paper",
        "seed": 0,
        "machine": {"device": "GPU", "cores": 2, "torch": "2"},
        "seconds": 1.0,
        "finished": "today",
    }
    for suite, found in suites.items():
        for spec in ("scenes:?n=40", "clevr:/data/clevr"):
            part = {"suite": suite, "model": model, "data": spec, "images": 40, **circumstances}
            path = folder / name / spec.partition(":")[0] / f"{suite}.json"
            write_json(path, KIND, FORMAT, part | found)
    follows = {"value": correlation, "low": correlation - 0.01, "high": correlation + 0.01}
    complexity = {
        "pearson": follows,
        "spearman": follows,
        "mean_length": {"3": 8.0, "10": 20.0},
        "percentiles": {"ratio": 2.5},
    }
    facts = {
        "row": name.partition("-seed")[0].removesuffix(f"-{teacher}"),
        "preset": preset,
        "changes": changes or {},
        "teacher": teacher,
        "seed": seed,
        "machine": "GPU",
        "minutes": 3.0,
        "images_per_second": 9000.0,
        "images_seen": 1_536_000,
        "complexity": {"scenes": complexity, "clevr": complexity},
    }
    write_json(folder / name / "row.json", "clevr", 1, facts)
    write_json(folder / name / "run.json", "run", 1, to_dict(plan))
    log = [
        {"kind": "training", "step": 1000},
        {"kind": "validation", "step": 400, f"r2@{LONGEST}": r2_whole - since_handoff},
        {"kind": "validation", "step": 1000, f"r2@{LONGEST}": r2_whole},
    ]
    tag = {"format": format_tag("metrics", METRICS_FORMAT)}
    lines = "\n".join(json.dumps(tag | line) for line in log)
    (folder / name / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return folder / name


def line_of(page: str, start: str) -> list[str]:
    """The cells of the first table row that begins so."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]
