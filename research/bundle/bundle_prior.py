"""Train the prior of a bundled model and store it beside the weights.

    strop encode PHOTOS -o programs.parquet --model photos --length max
    python research/bundle/bundle_prior.py photos programs.parquet

A prior models all K codes, so that it serves prefixes of any length, and all lengths are equally
likely: it stays valid if a model gets another length head.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from strop.analysis.prior import FILE
from strop.analysis.prior_training import WIDTH, train_prior
from strop.files import atomic_path
from strop.model.checkpoint import find_folder, load
from strop.program import Program


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the prior of a bundled model.")
    parser.add_argument("model")
    parser.add_argument("programs", type=Path, nargs="+", help="files that `strop encode` wrote")
    parser.add_argument(
        "--epochs", type=float, default=0, help="of training after the Gaussian start"
    )
    parser.add_argument("--width", type=int, default=WIDTH)
    args = parser.parse_args()
    tokenizer = load(args.model)
    program = Program.cat([Program.load(path) for path in args.programs])
    prior = train_prior(
        program.with_lengths(program.capacity),
        epochs=args.epochs,
        width=args.width,
        vectors=tokenizer.quantizer.codebook,
        device=tokenizer.device,
        progress=lambda step, steps: print(f"step {step} of {steps}", flush=True),
    )
    prior = replace(prior, lengths=torch.ones(program.capacity, dtype=torch.int64))
    path = find_folder(args.model) / FILE
    with atomic_path(path) as temporary:
        temporary.write_bytes(prior.to_bytes())
    print(f"{path}: {path.stat().st_size:,} bytes, {len(program):,} programs")


if __name__ == "__main__":
    main()
