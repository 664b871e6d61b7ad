"""`strop encode`, `strop interpret`, `strop decode`: images, programs, fields, pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor

from strop.cli.console import (
    Batch,
    Device,
    Json,
    Model,
    check_device,
    err,
    find_images,
    out,
    parse_length,
    print_json,
    progress,
)
from strop.errors import DataError, FormatError, ImageError, ProgramError
from strop.files import atomic_path, format_tag
from strop.images import fit_square, read_image, save_image
from strop.model.checkpoint import load
from strop.model.rate import lengths_for_mean
from strop.model.tokenizer import Tokenizer
from strop.program import SUFFIXES, Program

FIELD_FORMAT = 1
Programs = Annotated[Path, typer.Argument(help="Programs that `strop encode` wrote.")]


def encode(
    images: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"Where to: {' or '.join(SUFFIXES)}."),
    ] = None,
    model: Model = "photos",
    length: Annotated[
        str | None, typer.Option(help='Force this length for all images, or "max" for all K.')
    ] = None,
    mean_length: Annotated[
        float | None, typer.Option(help="Let lengths follow the images but average this.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Shortest length within this cosine error of each image's best (slow)."),
    ] = None,
    batch: Batch = 32,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn images into programs.

    Unreadable images are skipped and named at the end, and the exit status is then 1.
    """
    if sum(choice is not None for choice in (length, mean_length, tolerance)) > 1:
        raise ProgramError(
            "--length, --mean-length and --tolerance were given together.", "Give at most one."
        )
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise FormatError(
            f"Programs are not kept in {output.name}.", f"Name it {' or '.join(SUFFIXES)}."
        )
    forced = parse_length(length)
    paths = find_images(images)
    tokenizer = load(model, device=check_device(device))
    done: list[Program] = []
    broken: list[ImageError] = []
    with progress() as bar:
        task = bar.add_task("encoding", total=len(paths))
        for start in range(0, len(paths), batch):
            names, squares = _read(tokenizer, paths[start : start + batch], broken)
            if names:
                program = tokenizer.encode(
                    torch.stack(squares), length=forced, tolerance=tolerance, batch=batch
                )
                done.append(program.named(names).to("cpu"))
            bar.advance(task, len(paths[start : start + batch]))
    if done:
        program = Program.cat(done)
        if mean_length is not None:
            wanted = lengths_for_mean(program.lengths, mean_length, program.capacity)
            program = program.with_lengths(wanted)
        _show(program, output, as_json)
    for problem in broken:
        err.print(f"[red]skipped[/red] {problem}", highlight=False, soft_wrap=True)
    if broken:
        err.print(f"{len(broken)} of {len(paths)} images could not be read.")
        raise typer.Exit(1)


def interpret(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to: .safetensors.")],
    model: Model = "photos",
    batch: Batch = 256,
    device: Device = None,
) -> None:
    """Turn programs back into the teacher's patch field.

    The file holds one tensor, `field` (B, S, d_enc), in the teacher's scale.
    """
    if output.suffix.lower() != ".safetensors":
        raise FormatError(f"Fields are not kept in {output.name}.", "Name it .safetensors.")
    program = Program.load(programs)
    tokenizer = load(model, device=check_device(device))
    field = torch.cat(_interpreted(tokenizer, program, batch))
    about = {
        "format": format_tag("field", FIELD_FORMAT),
        "model": program.model,
        "names": json.dumps(program.names),
    }
    with atomic_path(output) as temporary:
        save_file({"field": field.contiguous()}, temporary, metadata=about)
    err.print(f"Wrote {tuple(field.shape)} to {output}", highlight=False)


def decode(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures.")],
    model: Model = "photos",
    batch: Batch = 64,
    device: Device = None,
) -> None:
    """Turn programs into pictures to look at, one PNG each."""
    program = Program.load(programs)
    tokenizer = load(model, device=check_device(device))
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file.", "Name a folder for the pictures.")
    width = len(str(len(program) - 1))
    number = 0
    for field in _interpreted(tokenizer, program, batch):
        for picture in tokenizer.decode(field):
            stem = Path(program.names[number]).stem if program.names else "program"
            save_image(output / f"{number:0{width}d}-{stem}.png", picture)
            number += 1
    err.print(f"Wrote {number} pictures to {output}", highlight=False)


def _read(
    tokenizer: Tokenizer, paths: list[str], broken: list[ImageError]
) -> tuple[tuple[str, ...], list[Tensor]]:
    """The readable ones as squares of the model's size; the others' errors go to `broken`."""
    names, squares = [], []
    for path in paths:
        try:
            image = read_image(path)
        except ImageError as error:
            broken.append(error)
            continue
        names.append(path)
        squares.append(fit_square(image, tokenizer.config.image_size, tokenizer.config.fit))
    return tuple(names), squares


def _interpreted(tokenizer: Tokenizer, program: Program, batch: int) -> list[Tensor]:
    """Fields of a program, batch by batch, on the CPU, with a progress bar."""
    fields = []
    with progress() as bar:
        task = bar.add_task("interpreting", total=len(program))
        for start in range(0, len(program), batch):
            part = program[start : start + batch]
            fields.append(tokenizer.interpret(part).cpu())
            bar.advance(task, len(part))
    return fields


def _show(program: Program, output: Path | None, as_json: bool) -> None:
    if output is not None:
        program.save(output)
    lengths = program.lengths.float()
    if as_json:
        summary = {"images": len(program), "mean_length": round(lengths.mean().item(), 3)}
        rows = [
            {"name": name, "length": len(row), "codes": row.codes.tolist()}
            for name, row in zip(program.names, program, strict=True)
        ]
        print_json({**summary, "output": str(output)} if output else {**summary, "programs": rows})
    elif output is not None:
        err.print(
            f"Wrote {len(program)} programs to {output}: mean length {lengths.mean():.1f}, "
            f"from {int(lengths.min())} to {int(lengths.max())}",
            highlight=False,
        )
    else:
        table = Table("image", "length", "program", box=None)
        for name, row in zip(program.names, program, strict=True):
            table.add_row(name, str(len(row)), " ".join(map(str, row.codes.tolist())))
        out.print(table)
