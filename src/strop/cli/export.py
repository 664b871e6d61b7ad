"""`strop export`: a model as files that run without strop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.console import OUT, Json, ModelArgument, check_writable, load_model, print_json, say
from strop.errors import ConfigError


def export(
    model: ModelArgument,
    output: Annotated[Path, typer.Option(*OUT, help="Output folder.")],
    to: Annotated[str, typer.Option(help="Format: onnx.")] = "onnx",
    as_json: Json = False,
) -> None:
    """Export a model with its teacher and preprocessing as ONNX graphs.

    The folder holds encoder.onnx, interpreter.onnx, and a README with code that runs them.
    """
    if to != "onnx":
        raise ConfigError(f"--to is {to!r}.", "The only format is onnx.")
    check_writable(output, folder=True)
    from strop.model.onnx import export_onnx

    folder = export_onnx(load_model(model, "cpu"), output)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if as_json:
        print_json({"output": str(folder), "files": files})
        return
    for name, size in files.items():
        say(f"{folder / name}: {size / 1e6:.1f} MB")
