"""`strop demo`: the tour."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from strop.cli.console import Device, out, say
from strop.device import choose_device


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("demo"),
    device: Device = None,
) -> None:
    """Take the bundled models round a few rendered scenes and photographs; about half a minute."""
    from strop.demo import tour  # it draws, and no other command should wait for that

    with _one_thread():
        looks = tour(folder, device=choose_device(device), say=say)
    for seen in looks:
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
    # `make demo` leaves it in a virtual environment that is not on the path.
    own = Path(sys.executable).with_name("strop")
    hidden = own.is_file() and not shutil.which("strop")
    strop = shlex.quote(os.path.relpath(own)) if hidden else "strop"
    for command, what in NEXT.items():
        told = command.format(folder=shlex.quote(str(folder)))
        out.print(f"  {strop} {told}  # {what}", soft_wrap=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """With so few images a second thread gains little, and on a busy machine threads that wait for
    each other make minutes of it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


NEXT = {
    "encode {folder}/photos-0.png": "or your.jpg",
    "inspect": "see and edit programs in the browser",
    'study scenes complexity --data "scenes:?n=40" --out {folder}/study': "are lengths earned?",
    'eval scenes --suite rate --data "scenes:?n=40" --out {folder}/eval': "what lengths give",
}
