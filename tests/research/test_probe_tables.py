"""The probe tables of a model, at a tiny size: what is in them, and that the numbers agree."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strop.analysis.probes import protocol as protocols
from strop.analysis.probes.representations import NAMES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import probes


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Protocols of a few steps, small scenes, and results in a folder of their own."""

    known = {
        name: replace(each, steps=4, batch=4, warmup=1, weight_decays=(0.1,))
        for name, each in protocols.PROTOCOLS.items()
    }
    monkeypatch.setattr(protocols, "PROTOCOLS", known)
    scenes = tuple(f"scenes:?n=12&seed={seed}&size=64" for seed in (2, 1))
    monkeypatch.setitem(probes.SETS, "scenes", scenes)
    monkeypatch.setattr("common.RESULTS", tmp_path)


def test_tables_hold_floors_differences_and_shares_of_all_seeds(
    short, tokenizer, tmp_path, monkeypatch
):
    model = tmp_path / "model"
    tokenizer.save_pretrained(model)
    command = f"probes.py {model} --sets scenes --seeds 0 1 --draws 5 --name small --jobs 1"
    suites = "segmentation multilabel depth"
    monkeypatch.setattr(sys, "argv", [*f"{command} --workers 0 --suites {suites}".split()])
    probes.main()
    found = json.loads((tmp_path / "probes_small.json").read_text())
    assert (found["model"], found["codes"]) == ("small", tokenizer.identity.codes)
    asked = [(suite, protocol) for suite in suites.split() for protocol in ("strong", "paper")]
    assert [(row["suite"], row["protocol"]) for row in found["rows"]] == asked
    for row in found["rows"]:
        scores = {name: each["seeds"] for name, each in row["representations"].items()}
        assert set(scores) == set(NAMES)
        assert (row["images"], row["train_images"]) == (12, 12)
        for kind in ("representations", "differences", "shares"):
            for name, each in row[kind].items():
                assert each["value"] == pytest.approx(sum(each["seeds"]) / 2)
                assert each["low"] <= each["high"]
                first, _, second = name.partition(" minus ")
                if second:
                    pairs = zip(scores[first], scores[second], strict=True)
                    assert each["seeds"] == pytest.approx([a - b for a, b in pairs])
        sequence, latent = scores["program-sequence"], scores["latent"]
        shares = row["shares"]["program-sequence of latent"]["seeds"]
        assert shares == pytest.approx([a / b for a, b in zip(sequence, latent, strict=True)])
