"""`strop demo`: the tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from strop.cli.console import out, say


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("demo"),
) -> None:
    """Take the bundled models round a few rendered scenes and photographs; a minute at most."""
    from strop.demo import tour  # it draws, and no other command should wait for that

    # With so few images a second thread gains little, and on a busy machine threads that wait for
    # each other make minutes of it.
    torch.set_num_threads(1)
    for seen in tour(folder, say=say):
        table = Table("image", "", "r2", "length", "program", box=None)
        for number, row in enumerate(seen.program):
            table.add_row(
                f"{seen.title}-{number}.png",
                seen.captions[number],
                f"{seen.chosen[number]:.2f}",
                str(len(row)),
                " ".join(map(str, row.codes.tolist())),
            )
        out.print(table)
        quality = Table(
            f"on these {seen.title}", "r2 (scalar mean)", "r2_centred (channel means)", box=None
        )
        for what, score in seen.scores.items():
            quality.add_row(what, f"{score['r2']:.2f}", f"{score['r2_centred']:.2f}")
        out.print()
        out.print(quality)
        out.print()
    out.print(f"Look at {folder}/index.html, then try:", soft_wrap=True)
    for command, what in NEXT.items():
        out.print(f"  strop {command.format(folder=folder)}  # {what}", soft_wrap=True)


NEXT = {
    "encode {folder}/photos-0.png": "or your.jpg",
    "inspect": "see and edit programs in the browser",
    'study scenes complexity --data "scenes:?n=40" --out {folder}/study': "are lengths earned?",
    'eval scenes --suite rate --data "scenes:?n=40" --out {folder}/eval': "what lengths give",
}
