"""`strop encode`, `strop interpret`, `strop decode`: images, programs, fields, pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Column, Table
from safetensors.torch import save_file
from torch import Tensor

from strop.cli import console
from strop.errors import ConfigError, FormatError, ModelError
from strop.files import atomic_path, format_tag
from strop.images import save_image
from strop.model.checkpoint import find_folder, list_models, read_config
from strop.model.graph_engine import use_graphs
from strop.model.length_rule import LengthRule
from strop.model.model_engine import ENGINES
from strop.model.tokenizer import Tokenizer
from strop.program import SUFFIXES, Program, loads_as
from strop.progress import Progress
from strop.store.corpus import Corpus
from strop.store.encode import ENGINES as STORE_ENGINES
from strop.store.encode import SLICE, Report, encode_corpus, encode_to_program
from strop.store.store import is_store

FIELD_FORMAT = 1
STORES: dict[str, Any] = {"rich_help_panel": "Options for a store"}
Programs = Annotated[Path, typer.Argument(help="A file written by `strop encode`.")]


def encode(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="Files, folders or globs of images; specs such as voc:PATH?split=val; .tar and "
            ".parquet files; URLs.",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            *console.OUT, help=f"Output file, {' or '.join(SUFFIXES)}; or a store, .lance."
        ),
    ] = None,
    model: console.Model = None,
    length: Annotated[
        str | None,
        typer.Option(
            help='Use this length for all images, "max" for all K codes, or "search" for the '
            "shortest that is almost as good as any. A search is slow."
        ),
    ] = None,
    quality: Annotated[
        float | None,
        typer.Option(help="Use the shortest length that reaches this cosine similarity."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Share of images that reach the quality; 0.9 by default."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Measure the quality instead of predicting it."),
    ] = False,
    mean_length: Annotated[
        float | None, typer.Option(help="Adapt lengths to the images, with this mean.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="With a search: cosine error accepted above the least; 0.01 by default."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Columns of the data to keep: caption,label.", **STORES),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of each key.", **STORES)] = "",
    engine: Annotated[
        str,
        typer.Option(
            help="What computes: torch; or on a CPU onnx or openvino, which are faster. For a "
            "store also what writes it: local, this machine; or ray, a cluster."
        ),
    ] = "torch",
    address: Annotated[
        str | None,
        typer.Option(help='Address of a Ray cluster; "auto" finds it.', **STORES),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--as", help="Add programs of another model.", **STORES),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the programs.", **STORES)
    ] = False,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Try to read rejected images again.", **STORES),
    ] = False,
    slice_size: Annotated[
        int,
        typer.Option("--slice", min=1, help="Images committed together.", **STORES),
    ] = SLICE,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes. Default: one per core.")
    ] = None,
    batch: console.Batch = 32,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Turn images into programs.

    Unreadable images are skipped and listed at the end. The exit status is then 1.

    Repeat the command to continue a store: only new images are encoded.
    """
    whole = length is not None and length.isdecimal() and len(length) < 10
    forced: Any = int(length or "") if whole else length
    rule = LengthRule(
        length=forced,
        quality=quality,
        confidence=confidence,
        verify=verify,
        mean_length=mean_length,
        tolerance=tolerance,
    )
    name = model or console.DEFAULT_MODEL
    of_stores: dict[str, Any] = {"prefix": prefix, "address": address, "version": version}
    of_stores |= {"overwrite": overwrite, "retry": retry, "keep": keep.split(",") if keep else ()}
    if target is not None and is_store(target):
        computed = engine in ENGINES  # else this is what writes the store
        with console.progress_bars() as progress:
            report = encode_corpus(
                data,
                target,
                model=name,
                tokenizer=console.load_model(model, device, engine) if computed else None,
                device=device,
                engine="local" if computed else engine,  # type: ignore[arg-type]
                workers=workers,
                slice_size=slice_size,
                batch=batch,
                rule=rule,
                progress=progress,
                **of_stores,
            )
        _show_report(report, rule, name, as_json)
        return
    given = [f"--{each}".replace("version", "as") for each in of_stores if of_stores[each]]
    if engine in STORE_ENGINES:
        given.append(f"--engine {engine}")
    if given:
        raise ConfigError(f"{given[0]} is for a store.", "Name a store with -o STORE.lance.")
    output = None if target is None else Path(target)
    if output is not None:
        console.check_suffix(output, *SUFFIXES, ".lance")
        console.check_writable(output)
    corpus = Corpus(data)
    tokenizer = console.load_model(model, device, engine)
    rule.check(tokenizer.config)
    with console.progress_bars() as progress:
        program, broken = encode_to_program(
            corpus,
            tokenizer,
            rule,
            output=output,
            loads_as=name,
            workers=workers,
            batch=batch,
            progress=progress,
            say=console.say,
        )
    missed = (
        list(compress(program.names, rule.missed(program, tokenizer.config))) if program else []
    )
    if as_json:
        console.print_json(_summary(program, output, missed, broken))
    elif program is not None:
        _show(program, output)
    if missed:
        read = len(corpus) - len(broken)
        console.say(f"{rule.shortfall(len(missed), read, tokenizer.config)}: {', '.join(missed)}")
    if broken:
        unread = f"{len(broken)} of {console.plural(len(corpus), 'image')} could not be read."
        console.fail("skipped", broken.values(), unread)


def _show_report(report: Report, rule: LengthRule, model: str, as_json: bool) -> None:
    known = f", which has {report.known:,} already" if report.known else ""
    wrote = f"Wrote {report.encoded:,} of {report.images:,} programs to {report.store}{known}"
    console.show(as_json, asdict(report), wrote)
    if report.below_quality:
        config, _ = read_config(find_folder(model))
        console.say(f"{rule.shortfall(report.below_quality, report.encoded, config)}.")
    if report.elsewhere is not None:
        console.complain(
            "warning",
            f"The store has {report.elsewhere!r} and maybe more keys from another place. They were "
            "taken as the same images. Give --prefix to add these images under other keys.",
            "yellow",
        )
    if report.rejected:
        unread = f"{report.rejected:,} of {report.images:,} images could not be read."
        console.fail(
            "rejected", [f"{row['key']}: {row['reason']}" for row in report.rejects], unread
        )


def interpret(
    programs: Programs,
    output: Annotated[Path, typer.Option(*console.OUT, help="Output file: .safetensors.")],
    model: console.Model = None,
    batch: console.Batch = 256,
    device: console.Device = None,
    engine: console.Engine = "torch",
    as_json: console.Json = False,
) -> None:
    """Turn programs into the teacher's patch field.

    The output holds one tensor, `field` (B, S, d_enc), in the teacher's scale.
    """
    console.check_suffix(output, ".safetensors")
    console.check_writable(output)
    program, tokenizer = _load(programs, model, device, engine)
    use_graphs(tokenizer, batch)
    with console.progress_bars() as progress:
        parts = _interpret(tokenizer, program, batch, "interpreting", progress)
        field = torch.cat([part.cpu() for part in parts])
    metadata = {
        "format": format_tag("field", FIELD_FORMAT),
        "model": program.model,
        "names": json.dumps(program.names),
    }
    with atomic_path(output) as temporary:
        save_file({"field": field.contiguous()}, temporary, metadata=metadata)
    facts = {"programs": len(program), "field": list(field.shape), "output": str(output)}
    console.show(as_json, facts, f"Wrote {tuple(field.shape)} to {output}")


def decode(
    programs: Programs,
    output: Annotated[Path, typer.Option(*console.OUT, help="Output folder.")],
    model: console.Model = None,
    batch: console.Batch = 64,
    device: console.Device = None,
    engine: console.Engine = "torch",
    as_json: console.Json = False,
) -> None:
    """Turn programs into preview images, one PNG each."""
    console.check_writable(output, folder=True)
    program, tokenizer = _load(programs, model, device, engine)
    use_graphs(tokenizer, batch)
    width = len(str(len(program) - 1))
    number = 0
    with console.progress_bars() as progress:
        for field in _interpret(tokenizer, program, batch, "decoding", progress):
            for picture in tokenizer.decode(field, batch=batch):
                stem = Path(program.names[number]).stem if program.names else "program"
                save_image(output / f"{number:0{width}d}-{stem}.png", picture)
                number += 1
    facts = {"pictures": number, "output": str(output)}
    console.show(as_json, facts, f"Wrote {console.plural(number, 'picture')} to {output}")


def _load(
    programs: Path, model: str | None, device: str | None, engine: console.Engine
) -> tuple[Program, Tokenizer]:
    """The programs in a file, and the model that is given, or else the one that wrote them."""
    program = Program.load(programs)
    if model is not None:
        return program, console.load_model(model, device, engine)
    named = loads_as(programs)
    for name in dict.fromkeys([*([named] if named else []), console.DEFAULT_MODEL, *list_models()]):
        try:
            tokenizer = console.load_model(name, device, engine)
        except (ModelError, FormatError):  # it was moved, or is not bundled here
            continue
        if not program.model or tokenizer.wrote(program.model):
            return program, tokenizer
    where = f" {named}" if named else ""
    raise ModelError(
        f"The model{where} that wrote {programs} ({program.model}) is not here.",
        "Name it with -m MODEL: a folder or a hub id.",
    )


def _interpret(
    tokenizer: Tokenizer, program: Program, batch: int, task: str, progress: Progress
) -> Iterator[Tensor]:
    """Fields of a program, batch by batch. Progress counts what the caller has processed."""
    for start in range(0, len(program), batch):
        part = program[start : start + batch]
        yield tokenizer.interpret(part, batch=batch)
        progress(task, start + len(part), len(program))


def _summary(
    program: Program | None,
    output: Path | None,
    missed: list[str],
    broken: dict[str, str],
) -> dict[str, Any]:
    """The output of `encode --json`. Without a program, every image was broken."""
    rows = zip(program.names, program, strict=True) if program else ()
    programs = [
        {
            "name": name,
            "length": len(row),
            "codes": row.codes.tolist(),
            **({} if row.quality is None else {"quality": round(row.quality.item(), 6)}),
        }
        for name, row in rows
    ]
    skipped = [{"name": name, "reason": reason} for name, reason in broken.items()]
    return {
        "images": len(programs),
        "mean_length": round(program.lengths.float().mean().item(), 3) if program else None,
        **({"output": str(output) if program else None} if output else {"programs": programs}),
        "below_quality": missed,
        "skipped": skipped,
    }


def _show(program: Program, output: Path | None) -> None:
    if output is not None:
        lengths = program.lengths.float()
        console.say(
            f"Wrote {console.plural(len(program), 'program')} to {output}: "
            f"mean length {lengths.mean():.1f}, from {int(lengths.min())} to {int(lengths.max())}"
        )
        return
    # In a narrow terminal codes wrap and names are not cut.
    table = Table(Column("image", no_wrap=True), "length", "program", box=None)
    for name, row in zip(program.names, program, strict=True):
        table.add_row(name, str(len(row)), " ".join(map(str, row.codes.tolist())))
    console.out.print(table)
