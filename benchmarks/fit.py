"""Squash, crop and pad on images that are not square: what the bundled models reach.

    python benchmarks/fit.py scenes=clevr:/data/clevr photos='voc:/data/voc2012?split=val&limit=200'

Scores count only locations that lie inside the picture, so that padding is outside of them. `whole`
is the cosine over the whole square, as the model sees it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import strop
from common import save
from strop.data.loader import record_batches
from strop.data.spec import open_dataset
from strop.images import Fit
from strop.model.tokenizer import Tokenizer
from strop.training.run_data import data_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="+", help="MODEL=SPEC")
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    rows = []
    for each in arguments.sets:
        name, _, spec = each.partition("=")
        tokenizer = strop.load(name)
        for fit in get_args(Fit):
            found = measure(tokenizer, spec, fit, arguments.batch)
            rows.append({"model": name, "data": data_name(spec), "fit": fit, **found})
            print(rows[-1], flush=True)
    save("fit", {"rows": rows})


@torch.no_grad()
def measure(tokenizer: Tokenizer, spec: str, fit: Fit, batch: int) -> dict[str, Any]:
    """Scores with one fit, at all K tokens."""
    tokenizer.config = replace(tokenizer.config, fit=fit)
    sums: dict[str, list[Tensor]] = {"cosine": [], "residual": [], "whole": []}
    squares, channels, counts, kept = [], [], [], []
    images = record_batches(
        open_dataset(spec), size=tokenizer.config.image_size, fit=fit, batch=batch, device="cpu"
    )
    for records in images:
        inside = locations(records.valid, tokenizer.config.grid, len(records))
        field = tokenizer.field(records.images)
        program = tokenizer.to_program(tokenizer.analyse_field(field))
        made = tokenizer.interpret(program.with_lengths(tokenizer.config.max_length))
        seen = field[inside]
        sums["cosine"].append(F.cosine_similarity(made, field, dim=-1)[inside])
        sums["whole"].append(F.cosine_similarity(made, field, dim=-1).flatten())
        sums["residual"].append((made - field).square().sum(-1)[inside])
        squares.append(seen.double().square().sum())
        channels.append(seen.double().sum(0))
        counts.append(len(seen))
        kept.append(inside.float().mean(1))
    count = sum(counts)
    mean = torch.stack(channels).sum(0) / count
    total = torch.stack(squares).sum() - count * mean.square().sum()
    return {
        "images": sum(map(len, kept)),
        "r2_centred": 1 - (torch.cat(sums["residual"]).double().sum() / total).item(),
        **{name: torch.cat(sums[name]).mean().item() for name in ("cosine", "whole")},
        "inside": torch.cat(kept).mean().item(),
    }


def locations(valid: Tensor | None, grid: int, images: int) -> Tensor:
    """(B, S) bool: the locations that show nothing but the picture."""
    if valid is None:
        return torch.ones(images, grid**2, dtype=torch.bool)
    share = F.adaptive_avg_pool2d(valid[:, None].float(), grid)
    return (share[:, 0] > 1 - 1e-6).flatten(1)


if __name__ == "__main__":
    main()
