"""`strop encode`, `strop interpret`, `strop decode`: images, programs, fields, pixels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
    counting,
    find_images,
    load_model,
    out,
    parse_length,
    print_json,
    say,
)
from strop.errors import FormatError, ImageError, ProgramError
from strop.files import atomic_path, format_tag
from strop.images import read_square, save_image
from strop.model.rate import check_mean_length, lengths_for_mean
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
    model: Model = None,
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
    if output is not None:
        check_writable(output)
    forced = parse_length(length)
    paths = find_images(images)
    tokenizer = load_model(model, device)
    if mean_length is not None:
        check_mean_length(mean_length, tokenizer.config.max_length)
    # `encode` returns whole lengths; a mean over all images is met from the real-valued ones.
    predicted: list[Tensor] = []
    tokenizer.register_forward_hook(lambda _model, _images, made: predicted.append(made[1].cpu()))
    done: list[Program] = []
    broken: dict[str, ImageError] = {}
    with counting("encoding") as count:
        for start in range(0, len(paths), batch):
            part = paths[start : start + batch]
            names, squares = _read(tokenizer, part, broken)
            if names:
                program = tokenizer.encode(
                    torch.stack(squares), length=forced, tolerance=tolerance, batch=batch
                )
                done.append(program.named(names).to("cpu"))
            count(start + len(part), len(paths))
    written = Program.cat(done) if done else None
    if written is not None and mean_length is not None:
        wanted = lengths_for_mean(torch.cat(predicted), mean_length, written.capacity)
        written = written.with_lengths(wanted)
    if written is not None and output is not None:
        written.save(output)
    if as_json:
        print_json(_summary(written, output, broken))
    elif written is not None:
        _show(written, output)
    for problem in broken.values():
        complain("skipped", problem)
    if broken:
        say(f"{len(broken)} of {len(paths)} images could not be read.")
        raise typer.Exit(1)


def interpret(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to: .safetensors.")],
    model: Model = None,
    batch: Batch = 256,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn programs back into the teacher's patch field.

    The file holds one tensor, `field` (B, S, d_enc), in the teacher's scale.
    """
    if output.suffix.lower() != ".safetensors":
        raise FormatError(f"Fields are not kept in {output.name}.", "Name it .safetensors.")
    check_writable(output)
    program = Program.load(programs)
    tokenizer = load_model(model, device)
    with counting("interpreting") as count:
        field = torch.cat([part.cpu() for part in _interpreted(tokenizer, program, batch, count)])
    about = {
        "format": format_tag("field", FIELD_FORMAT),
        "model": program.model,
        "names": json.dumps(program.names),
    }
    with atomic_path(output) as temporary:
        save_file({"field": field.contiguous()}, temporary, metadata=about)
    if as_json:
        print_json({"programs": len(program), "field": list(field.shape), "output": str(output)})
    else:
        say(f"Wrote {tuple(field.shape)} to {output}")


def decode(
    programs: Programs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures.")],
    model: Model = None,
    batch: Batch = 64,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn programs into pictures to look at, one PNG each."""
    check_writable(output, folder=True)
    program = Program.load(programs)
    tokenizer = load_model(model, device)
    width = len(str(len(program) - 1))
    number = 0
    with counting("decoding") as count:
        for field in _interpreted(tokenizer, program, batch, count):
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
    """The readable ones as squares of the model's size; the others' errors go to `broken`."""
    names, squares = [], []
    config = tokenizer.config
    for path in paths:
        try:
            squares.append(read_square(path, config.image_size, config.fit))
        except ImageError as error:
            broken[path] = error
            continue
        names.append(path)
    return tuple(names), squares


def _interpreted(
    tokenizer: Tokenizer, program: Program, batch: int, count: Callable[[int, int], None]
) -> Iterator[Tensor]:
    """Fields of a program, batch by batch; one is counted when the caller is done with it."""
    for start in range(0, len(program), batch):
        part = program[start : start + batch]
        yield tokenizer.interpret(part, batch=batch)
        count(start + len(part), len(program))


def _summary(
    program: Program | None, output: Path | None, broken: dict[str, ImageError]
) -> dict[str, Any]:
    """What `encode --json` prints; without a program, every image was broken."""
    rows = zip(program.names, program, strict=True) if program else ()
    told = [{"name": name, "length": len(row), "codes": row.codes.tolist()} for name, row in rows]
    skipped = [{"name": name, "reason": str(error)} for name, error in broken.items()]
    return {
        "images": len(told),
        "mean_length": round(program.lengths.float().mean().item(), 3) if program else None,
        **({"output": str(output) if program else None} if output else {"programs": told}),
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
    # Where the line is short, codes are wrapped before a name is cut.
    table = Table(Column("image", no_wrap=True), "length", "program", box=None)
    for name, row in zip(program.names, program, strict=True):
        table.add_row(name, str(len(row)), " ".join(map(str, row.codes.tolist())))
    out.print(table)
