"""`strop encode`, `strop interpret`, `strop decode`: images, programs, fields, pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Column, Table
from safetensors.torch import save_file
from torch import Tensor

from strop.cli.console import (
    Batch,
    Device,
    Json,
    Model,
    check_writable,
    complain,
    find_images,
    load_model,
    out,
    parse_length,
    print_json,
    progress_bars,
    say,
)
from strop.errors import FormatError, ImageError, ProgramError
from strop.files import atomic_path, format_tag
from strop.images import read_square, save_image
from strop.model.rate import check_mean_length, lengths_for_mean
from strop.model.tokenizer import Tokenizer
from strop.program import SUFFIXES, Program
from strop.progress import Progress

FIELD_FORMAT = 1
Programs = Annotated[Path, typer.Argument(help="A file written by `strop encode`.")]


def encode(
    images: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"Output file: {' or '.join(SUFFIXES)}."),
    ] = None,
    model: Model = None,
    length: Annotated[
        str | None, typer.Option(help='Use this length for all images, or "max" for all K codes.')
    ] = None,
    mean_length: Annotated[
        float | None, typer.Option(help="Adapt lengths to the images, with this mean.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Use the shortest length whose cosine error is this close to the best. Slow."
        ),
    ] = None,
    batch: Batch = 32,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn images into programs.

    Unreadable images are skipped and listed at the end. The exit status is then 1.
    """
    if sum(choice is not None for choice in (length, mean_length, tolerance)) > 1:
        raise ProgramError(
            "--length, --mean-length and --tolerance were given together.", "Give at most one."
        )
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise FormatError(
            f"{output.name} is not a file for programs.", f"Name it {' or '.join(SUFFIXES)}."
        )
    if output is not None:
        check_writable(output)
    forced = parse_length(length)
    paths = find_images(images)
    tokenizer = load_model(model, device)
    if mean_length is not None:
        check_mean_length(mean_length, tokenizer.config.max_length)
    predicted: list[Tensor] = []  # a mean over all images needs the lengths before rounding
    encoded: list[Program] = []
    broken: dict[str, ImageError] = {}
    with progress_bars() as progress:
        for start in range(0, len(paths), batch):
            part = paths[start : start + batch]
            names, squares = _read(tokenizer, part, broken)
            if names and mean_length is not None:
                encoding = tokenizer.analyse(torch.stack(squares), batch=batch)
                predicted.append(encoding.predicted.cpu())
                encoded.append(tokenizer.to_program(encoding).named(names).to("cpu"))
            elif names:
                made = tokenizer.encode(
                    torch.stack(squares), length=forced, tolerance=tolerance, batch=batch
                )
                encoded.append(made.named(names).to("cpu"))
            progress("encoding", start + len(part), len(paths))
    program = Program.cat(encoded) if encoded else None
    if program is not None and mean_length is not None:
        lengths = lengths_for_mean(torch.cat(predicted), mean_length, program.capacity)
        program = program.with_lengths(lengths)
    if program is not None and output is not None:
        program.save(output)
    if as_json:
        print_json(_summary(program, output, broken))
    elif program is not None:
        _show(program, output)
    for problem in broken.values():
        complain("skipped", problem)
    if broken:
        say(f"{len(broken)} of {len(paths)} images could not be read.")
        raise typer.Exit(1)


def interpret(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file: .safetensors.")],
    model: Model = None,
    batch: Batch = 256,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn programs into the teacher's patch field.

    The output holds one tensor, `field` (B, S, d_enc), in the teacher's scale.
    """
    if output.suffix.lower() != ".safetensors":
        raise FormatError(f"{output.name} is not a file for fields.", "Name it .safetensors.")
    check_writable(output)
    program = Program.load(programs)
    tokenizer = load_model(model, device)
    with progress_bars() as progress:
        parts = _interpret(tokenizer, program, batch, "interpreting", progress)
        field = torch.cat([part.cpu() for part in parts])
    metadata = {
        "format": format_tag("field", FIELD_FORMAT),
        "model": program.model,
        "names": json.dumps(program.names),
    }
    with atomic_path(output) as temporary:
        save_file({"field": field.contiguous()}, temporary, metadata=metadata)
    if as_json:
        print_json({"programs": len(program), "field": list(field.shape), "output": str(output)})
    else:
        say(f"Wrote {tuple(field.shape)} to {output}")


def decode(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Output folder.")],
    model: Model = None,
    batch: Batch = 64,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn programs into preview images, one PNG each."""
    check_writable(output, folder=True)
    program = Program.load(programs)
    tokenizer = load_model(model, device)
    width = len(str(len(program) - 1))
    number = 0
    with progress_bars() as progress:
        for field in _interpret(tokenizer, program, batch, "decoding", progress):
            for picture in tokenizer.decode(field, batch=batch):
                stem = Path(program.names[number]).stem if program.names else "program"
                save_image(output / f"{number:0{width}d}-{stem}.png", picture)
                number += 1
    if as_json:
        print_json({"pictures": number, "output": str(output)})
    else:
        say(f"Wrote {number} pictures to {output}")


def _read(
    tokenizer: Tokenizer, paths: list[str], broken: dict[str, ImageError]
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Names and squares of the readable images; errors of the others go to `broken`."""
    names, squares = [], []
    for path in paths:
        try:
            squares.append(read_square(path, tokenizer.config.image_size, tokenizer.config.fit))
        except ImageError as error:
            broken[path] = error
        else:
            names.append(path)
    return tuple(names), squares


def _interpret(
    tokenizer: Tokenizer, program: Program, batch: int, task: str, progress: Progress
) -> Iterator[Tensor]:
    """Fields of a program, batch by batch. Progress counts what the caller has processed."""
    for start in range(0, len(program), batch):
        part = program[start : start + batch]
        yield tokenizer.interpret(part, batch=batch)
        progress(task, start + len(part), len(program))


def _summary(
    program: Program | None, output: Path | None, broken: dict[str, ImageError]
) -> dict[str, Any]:
    """The output of `encode --json`. Without a program, every image was broken."""
    rows = zip(program.names, program, strict=True) if program else ()
    programs = [
        {"name": name, "length": len(row), "codes": row.codes.tolist()} for name, row in rows
    ]
    skipped = [{"name": name, "reason": str(error)} for name, error in broken.items()]
    return {
        "images": len(programs),
        "mean_length": round(program.lengths.float().mean().item(), 3) if program else None,
        **({"output": str(output) if program else None} if output else {"programs": programs}),
        "skipped": skipped,
    }


def _show(program: Program, output: Path | None) -> None:
    if output is not None:
        lengths = program.lengths.float()
        say(
            f"Wrote {len(program)} programs to {output}: mean length {lengths.mean():.1f}, "
            f"from {int(lengths.min())} to {int(lengths.max())}"
        )
        return
    # In a narrow terminal codes wrap and names are not cut.
    table = Table(Column("image", no_wrap=True), "length", "program", box=None)
    for name, row in zip(program.names, program, strict=True):
        table.add_row(name, str(len(row)), " ".join(map(str, row.codes.tolist())))
    out.print(table)
