"""Pack a trained model: bf16 weights, their metrics, and a model card.

    python research/bundle/bundle.py runs/scenes/model --name scenes \
        --out src/strop/weights/scenes \
        --data "scenes:?n=2000&seed=2000&size=128" --fit "scenes:?n=8192&seed=1&size=128" \
        --check "scenes:?n=32&seed=77&size=128" --results benchmarks/results/scenes

Metrics in the card come from the run or are measured here, on the rounded weights. `--check` is a
small set that the test suite measures again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import strop
from measure import fields_of, images_of, measure, object_counts
from strop.analysis.alignment import HEADLINE, evaluate_model
from strop.analysis.subject import encode_fields
from strop.data.spec import open_dataset
from strop.files import read_json, write_json
from strop.model.checkpoint import load_folder, save_folder
from strop.model.tokenizer import Tokenizer
from strop.statistics import pearson
from strop.training.run_data import data_name

FORMAT = ("bundled", 1)
CHECKED = (*HEADLINE, "length_mean")
"""Metrics of every model on the small set."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the trained model")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--data", required=True, help="spec of data to measure on")
    parser.add_argument("--fit", required=True, help="spec of data to fit baselines on")
    parser.add_argument("--check", required=True, help="spec of a small set for the tests")
    parser.add_argument("--also", action="append", default=[], help="other data to measure on")
    parser.add_argument("--trained-on", help="name of the training data in the card")
    parser.add_argument("--licence", action="append", default=[], help="of a source, repeatable")
    parser.add_argument(
        "--limit", action="append", default=[], help="sentence of the card, repeatable"
    )
    parser.add_argument("--results", required=True, help="folder for all metrics")
    arguments = parser.parse_args()

    tokenizer = rounded(arguments.model)
    path = Path(arguments.results) / "bundled.json"
    wanted = {
        "model": tokenizer.identity.codes,
        "data": data_name(arguments.data),
        "fit": data_name(arguments.fit),
        "specs": [data_name(spec) for spec in (arguments.check, *arguments.also)],
    }
    results = read_json(path, *FORMAT) if path.is_file() else {}
    if {key: results.get(key) for key in wanted} != wanted:  # else only the card is written again
        fitted = fields_of(tokenizer, images_of(tokenizer, arguments.fit))
        results = {
            **wanted,
            "measured": measure(tokenizer, arguments.data, fitted),
            "check": {"data": data_name(arguments.check), **check(tokenizer, arguments.check)},
            "also": {data_name(spec): measure(tokenizer, spec, fitted) for spec in arguments.also},
        }
        write_json(path, *FORMAT, results)
    about = tokenizer.about
    about["name"] = about["load"] = arguments.name
    if arguments.trained_on:
        about["data"] = arguments.trained_on
    about["licences"] = "; ".join(arguments.licence)
    about["limits"] = " ".join(arguments.limit)
    about["measured on"] = data_name(arguments.data)
    about["metrics"] = card_metrics(results)
    save_folder(tokenizer, arguments.out, torch.bfloat16)


def rounded(folder: str) -> Tokenizer:
    """The model with its weights rounded to bf16, on the GPU if there is one."""
    with tempfile.TemporaryDirectory() as scratch:
        save_folder(load_folder(folder), scratch, torch.bfloat16)
        tokenizer = strop.load(scratch)
    tokenizer.precision = "fp32"
    return tokenizer


def check(tokenizer: Tokenizer, spec: str) -> dict[str, float]:
    """Headline metrics on a small set, mean length and, for scenes, Pearson's r."""
    fields = fields_of(tokenizer, images_of(tokenizer, spec))
    lengths = encode_fields(tokenizer, fields).lengths.cpu().numpy()
    values = evaluate_model(tokenizer, fields)["values"]
    found = {"images": len(fields), **{name: values[name] for name in CHECKED}}
    if (objects := object_counts(open_dataset(spec))) is not None:
        found["pearson"] = pearson(lengths, objects)
    return found


def card_metrics(results: dict[str, Any]) -> dict[str, float | str]:
    """The metrics in the card, by name."""
    found = results["measured"]
    values = found["values"]
    own, whole = found["budgets"]
    metrics: dict[str, float | str] = {name: values[name] for name in HEADLINE}
    metrics |= _beside(own, "at equal bits")
    metrics["bits per image, mean"] = own["bits"]
    metrics |= {f"{name} at all K": whole["model"][name] for name in HEADLINE}
    metrics |= _beside(whole, "at the bits of all K")
    metrics["bits of all K"] = whole["bits"]
    metrics |= {
        name.replace("_", " "): values[name] for name in values if name.startswith("length")
    }
    metrics["codes in use"] = values["codebook_used"]
    metrics |= {f"preview, {name}": value for name, value in found["preview"].items()}
    metrics |= _complexity(found, "")
    for name, part in results["also"].items():
        metrics |= {f"{score} on {name}": part["values"][score] for score in HEADLINE}
        metrics |= _beside(part["budgets"][0], f"at equal bits on {name}")
        metrics |= _complexity(part, f" on {name}")
    return metrics


def _beside(budget: dict[str, Any], where: str) -> dict[str, float]:
    """Metrics of baselines at equal bits, and the margin over the best of them."""
    scores = {
        f"{score} of {name} {where}": values[score]
        for name, values in budget["baselines"].items()
        for score in HEADLINE
    }
    margins = {f"{score}, margin {where}": budget["margin"][score] for score in HEADLINE}
    return scores | margins


def _complexity(part: dict[str, Any], where: str) -> dict[str, float]:
    """How lengths follow the number of objects, if that is known."""
    if "complexity" not in part:
        return {}
    follows = part["complexity"]
    found = {
        f"length against objects, {name.title()} r{where}": follows[name]["value"]
        for name in ("pearson", "spearman")
    }
    if "percentiles" in follows:
        ratio = follows["percentiles"]["ratio"]
        found[f"95th percentile at ten objects over 5th at three{where}"] = ratio
    return found


if __name__ == "__main__":
    main()
