"""A page of text, tables and pictures, written as Markdown or HTML."""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.analysis.findings import Table


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title of the page."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A picture with a caption."""

    path: Path
    caption: str


_CODE = re.compile(r"`([^`]+)`")

Block = Heading | Text | Points | Table | Picture


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The page as Markdown in `folder`, with links to pictures relative to it."""
    return "\n\n".join(_markdown(block, folder) for block in blocks) + "\n"


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Points(items):
            return "\n".join(f"- {item}" for item in items)
        case Table():
            return block.markdown()
        case Picture(path, caption):
            return f"![{caption}]({_relative(path, folder)})"


def _relative(path: Path, folder: Path) -> str:
    """The path from a folder to a file, which may be outside of it."""
    return Path(os.path.relpath(path, folder)).as_posix()


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
td { white-space: nowrap } th { vertical-align: bottom; min-width: 3em }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% } figcaption { color: #555 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd }
  th, td { border-color: #444 } img { background: #fff } figcaption { color: #aaa } }
""".strip()


def to_html(blocks: Sequence[Block]) -> str:
    """The page as one HTML file with embedded pictures."""
    title = next((html.escape(each.text) for each in blocks if isinstance(each, Heading)), "")
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Points(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case Table(_, header):

            def line(cells: Sequence[str], tag: str) -> str:
                inner = "".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in cells)
                return f"<tr>{inner}</tr>"

            body = "\n".join(line(row, "td") for row in block.cells())
            return f"<table>\n{line(header, 'th')}\n{body}\n</table>"
        case Picture(path, caption):
            content = base64.b64encode(path.read_bytes()).decode()
            shown = html.escape(caption)
            return (
                f'<figure><img src="data:image/png;base64,{content}" alt="{shown}">'
                f"<figcaption>{shown}</figcaption></figure>"
            )


def _inline(text: str) -> str:
    """Text as HTML; text between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(text))
