"""MkDocs hooks: the generated parts of the reference page, and links to files outside `docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import griffe

from strop.analysis.frame import describe_options, find_analysis
from strop.analysis.metric_info import METRICS
from strop.analysis.registry import STUDIES
from strop.cli import COMMANDS, load_command


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Fill `<!-- cli -->` and similar marks. Point `../FILE` to the repository."""
    blob = f"{config['extra']['repository']}/blob/main/"
    markdown = re.sub(r"\]\(\.\./", f"]({blob}", markdown)
    markdown = re.sub(r"\]\((\w+\.ipynb)\)", rf"]({blob}docs/\1)", markdown)
    for mark, generate in GENERATED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, generate())
    return markdown


class AlignedLists(griffe.Extension):
    """Shows the aligned `name  description` lines of docstrings as lists."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = aligned_to_list(inspect.cleandoc(obj.docstring.value))


def aligned_to_list(text: str) -> str:
    """`name    text`, continued on indented lines, as Markdown list items."""
    lines: list[str] = []
    for line in text.splitlines():
        item = re.fullmatch(r"(\w[\w, .]*?)  +(\S.*)", line)
        if item:
            if lines and not lines[-1].startswith(("- ", " ")) and lines[-1]:
                lines.append("")
            lines.append(f"- **{item[1]}**: {item[2]}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("    ") else line)
    return "\n".join(lines)


def cli_reference() -> str:
    """One section per command: usage, help, arguments and options."""
    parts = []
    for path, command in commands():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [
            each
            for each in command.params
            if each.param_type_name == "option" and "--help" not in each.opts
            if not getattr(each, "hidden", False) and "completion" not in (each.name or "")
        ]
        names = [f"{argument_name(each)}" for each in arguments]
        usage = " ".join([path, *names, *(["[OPTIONS]"] if options else [])])
        parts.append(f"### {path}\n\n```\n{usage}\n```\n\n{prose(command.help or '')}")
        rows = [(name, each) for name, each in zip(names, arguments, strict=True)]
        rows += [(", ".join([*each.opts, *each.secondary_opts]), each) for each in options]
        if rows:
            parts.append(
                table(["", "", "default"], [[f"`{n}`", help_of(p), default_of(p)] for n, p in rows])
            )
    return "\n\n".join(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, in the order of `strop --help`."""

    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        if children := getattr(command, "commands", None):
            for name, child in children.items():
                yield from walk(f"{path} {name}", child)
        else:
            yield path, command

    for name in COMMANDS:
        yield from walk(f"strop {name}", load_command(name))


def argument_name(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").strip("{}[]<>.").upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def help_of(parameter: Any) -> str:
    required = parameter.required and parameter.param_type_name == "option"
    return cell((parameter.help or "") + (" Required." if required else ""))


def default_of(parameter: Any) -> str:
    value = parameter.default
    shown = value is not None and not callable(value) and "Sentinel" not in type(value).__name__
    if not shown or value in ((), [], "") or isinstance(value, bool):
        return ""
    return f"`{value}`"


def study_options() -> str:
    """The options of every study."""
    rows = []
    for name in STUDIES:
        kind = find_analysis(name, STUDIES, "study").options
        texts = describe_options(kind)
        for option in fields(kind):
            shown = f"`--{option.name.replace('_', '-')}`"
            rows.append([name, shown, cell(texts[option.name]), f"`{option.default!r}`"])
    return table(["study", "option", "", "default"], rows)


def metrics() -> str:
    """Every metric of `strop eval`."""
    return table(
        ["metric", "unit", "better", "definition"],
        [[f"`{name}`", each.unit, each.better, each.definition] for name, each in METRICS.items()],
    )


def prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.replace("\b", "")).strip()


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


GENERATED = {
    "<!-- cli -->": cli_reference,
    "<!-- studies -->": study_options,
    "<!-- metrics -->": metrics,
}
