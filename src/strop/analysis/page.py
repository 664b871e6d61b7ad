"""A page of paragraphs, lists, tables and pictures, written as Markdown or HTML."""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

from strop.analysis.findings import Table

Block = str | list[str] | Table
"""A heading, paragraph or picture in Markdown; the points of a list; a table."""

_PICTURE = re.compile(r'<p><img src="([^"]+)" alt="([^"]*)" /></p>')
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


def picture(path: Path, caption: str, folder: Path) -> str:
    """A picture for a page in `folder`, by its path from there."""
    return f"![{caption}]({Path(os.path.relpath(path, folder)).as_posix()})"


def to_markdown(blocks: Iterable[Block]) -> str:
    """The page as Markdown."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Table):
        return block.markdown()
    return block if isinstance(block, str) else "\n".join(f"- {item}" for item in block)


def to_html(markdown: str, folder: Path) -> str:
    """A page of `folder` as one HTML file, with a title and with embedded pictures."""

    def embed(found: re.Match[str]) -> str:
        content = base64.b64encode((folder / unquote(found[1])).read_bytes()).decode()
        return (
            f'<figure><img src="data:image/png;base64,{content}" alt="{found[2]}">'
            f"<figcaption>{found[2]}</figcaption></figure>"
        )

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    title = html.escape(markdown.partition("\n")[0].lstrip("# "))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"{_PICTURE.sub(embed, renderer.render(markdown))}</body>\n</html>\n"
    )
