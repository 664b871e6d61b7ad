"""`strop demo`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from strop.cli import console
from strop.demo import run_demo, tables
from strop.device import choose_device

NEXT = {
    "encode {folder}/photos-0.png": "or your.jpg",
    "search {folder}/photos.lance {folder}/photos-0.png": "similar images in a store",
    "inspect": "view and edit programs in the browser",
    'study scenes complexity --data "scenes:?n=40" --out {folder}/study': "lengths and content",
    'eval scenes --suite rate --data "scenes:?n=40" --out {folder}/eval': "quality at each length",
}
"""Commands to try afterwards, with a comment."""


def demo(
    folder: Annotated[Path, typer.Option(*console.OUT, help="Output folder.")] = Path("demo"),
    device: console.Device = None,
) -> None:
    """Run the bundled models on a few scenes and photographs. It takes about half a minute."""
    # So few images gain little from a second thread, which slows down a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = run_demo(folder, device=choose_device(device), say=console.say)
    finally:
        torch.set_num_threads(threads)
    for table in (each for result in results for each in tables(result)):
        shown = Table(*table.header, box=None)
        for row in table.cells():
            shown.add_row(*row)
        console.out.print(shown, "")
    console.out.print(f"Open {folder}/index.html, then try:", soft_wrap=True)
    # `make demo` installs strop in a virtual environment that is not on the path.
    installed = Path(sys.executable).with_name("strop")
    hidden = installed.is_file() and not shutil.which("strop")
    strop = shlex.quote(os.path.relpath(installed)) if hidden else "strop"
    for command, comment in NEXT.items():
        arguments = command.format(folder=shlex.quote(str(folder)))
        console.out.print(f"  {strop} {arguments}  # {comment}", soft_wrap=True)
