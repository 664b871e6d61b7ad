"""The studies that read programs, on the bundled model: tables for the docs, and their figures.

The pairs to learn from are kept in the folder `--out`, so that several runs, one for each study,
may share them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import strop
from strop.structure.study import run_study
from structure import keep

ALL = ("reader", "grammar", "vqa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--model", default="scenes")
    parser.add_argument("--test", default="scenes:?n=1000&seed=9")
    parser.add_argument("--pairs", default="scenes:?n=20000&seed=5")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("studies/reading"))
    arguments = parser.parse_args()
    tokenizer = strop.load(arguments.model)
    tokenizer.precision = "fp32"  # as `strop study` has it
    options = {"pairs": arguments.pairs, "epochs": arguments.epochs}
    for name in arguments.studies:
        Console().print(f"{name} on {arguments.test} with {arguments.model}")
        run_study(tokenizer, name, arguments.test, arguments.out, options, batch=250, watch=tell)
        keep(arguments.out, name, "scenes", Path(arguments.model).name, private="")


def tell(what: str, done: int, total: int) -> None:
    """A line when something is done."""
    if done == total:
        Console().print(f"  {what}: {total}")


if __name__ == "__main__":
    main()
