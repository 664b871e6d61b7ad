"""Time of a full evaluation: every suite, probes by the `paper` protocol.

1,000 rendered scenes for fitting and 500 for measuring. Rendering and packing are not timed.
The first suite on a dataset includes the time of its features.

    python benchmarks/eval.py MODEL
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import strop
from common import device, machine, save
from strop.analysis.evaluate import evaluate
from strop.data import pack_dataset

BARS = {"cuda": 180, "cpu": 900}
"""Target seconds on one H200, and on two CPU cores with the bundled teacher."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="scenes")
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--val", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    where = device()
    tokenizer = strop.load(arguments.model, device=where)
    size = tokenizer.config.image_size
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        specs = {}
        for name, count, seed in (("train", arguments.train, 1), ("val", arguments.val, 2)):
            scenes = f"scenes:?n={count}&seed={seed}&size={size}"
            pack_dataset(scenes, root / name, size=size, workers=arguments.workers)
            specs[name] = f"packed:{root / name}"
        began = time.perf_counter()
        parts = evaluate(tokenizer, [specs["val"]], root / "run", train=[specs["train"]])
        total = time.perf_counter() - began

    bar = BARS[where.type]
    rows = {part["suite"]: part["seconds"] for part in parts} | {"all": total}
    table = Table("suite", "seconds", title=f"evaluation on {machine()['device']}")
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.1f}")
    Console().print(table, f"target: at most {bar} s")
    setting = f"{arguments.train} scenes to fit on, {arguments.val} to measure on, {size} px"
    save(
        f"eval_{where.type}",
        {"setting": setting, "model": arguments.model, "seconds": rows, "bar_seconds": bar},
    )


if __name__ == "__main__":
    main()
