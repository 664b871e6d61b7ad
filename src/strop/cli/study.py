"""`strop study`: what the codes of a model mean."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markdown import Markdown
from typer.core import TyperCommand

from strop.analysis.findings import Table
from strop.analysis.frame import Analysis, describe_options, find_analysis, run_study
from strop.analysis.registry import STUDIES
from strop.cli import console, main
from strop.model.checkpoint import load

_OWN = "own_"
"""Before the names of a study's own options, which may be those of the command."""


def study(
    analysis: Analysis,
    model: console.ModelArgument,
    data: console.Data,
    folder: Annotated[
        Path, typer.Option(*console.OUT, help="Folder for JSON, Markdown and figures.")
    ],
    batch: console.Batch = 32,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
    **own: Any,
) -> None:
    """Run a study on a dataset; the command line shows `HELP`."""
    name, options = analysis.name, {key.removeprefix(_OWN): value for key, value in own.items()}
    for each in fields(analysis.options):
        if isinstance(each.default, tuple):
            options[each.name] = _values(options[each.name])
    console.check_writable(folder, folder=True)
    tokenizer = load(model, device=device)
    tokenizer.precision = "fp32"  # studies look at small differences between fields
    with console.as_typed(name), console.progress_bars() as bars:
        found = run_study(
            tokenizer, analysis, data, folder, options, batch=batch, workers=workers, progress=bars
        )
    if as_json:
        console.print_json(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        return
    for table in found["tables"]:
        console.out.print(Markdown(Table(**table).markdown()))
    console.say(f"Wrote {folder / name}.json, {name}.md and {len(found['figures'])} figures")


class _StudyCommand(TyperCommand):
    """`strop study MODEL NAME`, with the options of the study that the arguments name."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """Hand over to the command of the study, if there is one."""
        values = [
            word for before, word in zip(["", *args], args, strict=False) if before[:1] != "-"
        ]
        name = next((word for word in (*values, *args) if word in STUDIES), None)
        if name is None:
            return super().make_context(info_name, args, *rest, **more)
        alone = typer.Typer(add_completion=False)
        run = _with_options(find_analysis(name, STUDIES, "study"))
        alone.command("study", help=f"{name}: {STUDIES[name].summary}.")(run)
        return typer.main.get_command(alone).make_context(info_name, args, *rest, **more)


def _with_options(analysis: Analysis | None, *, named: bool = True) -> Any:
    """`study` with the options of a study in its signature, which is what Typer reads.

    named  whether the study is an argument
    """
    hints = get_type_hints(study, include_extras=True)
    kept = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(study).parameters.values()
        if each.name not in ("analysis", "own")
    ]
    if named:
        argument = Annotated[str, typer.Argument(metavar="NAME", help="The study.")]
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        kept.insert(1, inspect.Parameter("name", either, annotation=argument))
    if analysis is not None:
        name, kind = analysis.name, analysis.options
        types, texts = get_type_hints(kind), describe_options(kind)
        for each in fields(kind):
            default: Any = each.default
            listed = isinstance(default, tuple)
            flag = f"--{each.name.replace('_', '-')}"
            option = typer.Option(flag, help=texts[each.name], rich_help_panel=f"Options of {name}")
            kept.append(
                inspect.Parameter(
                    _OWN + each.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=",".join(map(str, default)) if listed else default,
                    annotation=Annotated[str if listed else types[each.name], option],
                )
            )

    def run(name: str = "", **values: Any) -> None:
        study(analysis or find_analysis(name, STUDIES, "study"), **values)

    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in kept}
    return run


def _values(text: str) -> list[Any]:
    """`32,64` to the numbers, and `a,b` to the words."""
    return [int(part) if part.lstrip("-").isdecimal() else part for part in text.split(",") if part]


def run_script(analysis: Analysis) -> None:
    """Run a study that is not in the package: `python FILE MODEL --data SPEC`, and its options."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(help=inspect.getdoc(analysis.run))(_with_options(analysis, named=False))
    main(alone)


HELP = (
    "Study what the codes of a model mean.\n\n"
    + "\n\n".join(f"{name}: {entry.summary}." for name, entry in STUDIES.items())
    + "\n\n`strop study NAME --help` lists the options of a study."
)
app = typer.Typer(add_completion=False)
app.command("study", cls=_StudyCommand, help=HELP)(_with_options(None))
