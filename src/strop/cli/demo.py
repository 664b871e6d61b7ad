"""`strop demo`: the tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from strop.cli.console import err, out
from strop.training.callbacks import ProgressBar


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("demo"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps; by default the preset's.")
    ] = None,
) -> None:
    """Train the smallest preset for a minute, then encode, interpret, decode and erase with it."""
    from strop.demo import PRESET, tour  # it draws, and no other command should wait for that

    looks = tour(
        folder,
        steps=steps,
        callbacks=[ProgressBar(err)],
        say=lambda text: err.print(text, highlight=False),
    )
    for seen in looks:
        table = Table("image", "", "length", "program", box=None)
        for number, row in enumerate(seen.program):
            codes = " ".join(map(str, row.codes.tolist()))
            image = f"{seen.title}-{number}.png"
            table.add_row(image, seen.captions[number], str(len(row)), codes)
        out.print(table)
        quality = Table(
            f"on these {seen.title}", "r2 (scalar mean)", "r2_centred (channel means)", box=None
        )
        for what, score in seen.scores.items():
            quality.add_row(what, f"{score['r2']:.2f}", f"{score['r2_centred']:.2f}")
        out.print()
        out.print(quality)
    out.print(
        f"\nThe teacher of {PRESET} has random weights and the training was a minute long: this "
        "shows how strop works, not how well.\n",
        highlight=False,
        soft_wrap=True,
    )
    out.print(f"Look at {folder}/index.html, then try:", highlight=False)
    out.print(f"  strop encode {folder}/scenes-0.png -m {folder}/model", highlight=False)
    out.print(f"  strop inspect {folder}/model", highlight=False)
    out.print(f"  strop info {folder}/model", highlight=False)
