"""What an analysis finds, and the files that hold it.

`write_findings` writes NAME.json, NAME.md, NAME-FIGURE.png and further files into a folder. The
JSON file is written last: if it exists, the result is complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strop.config import to_dict
from strop.figures import Figure, save_figure
from strop.files import PathLike, atomic_path, read_json, write_json, write_text

FORMAT = 1
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers and None (shown as a dash) under a header.

    title  may be empty
    rows   a list of rows, or rows by the name in their first cell. A row is a cell, or a sequence
           or mapping of them, in which an interval is three cells.
    """

    title: str
    header: Sequence[str]
    rows: Any

    def __post_init__(self) -> None:
        named = isinstance(self.rows, Mapping)
        cells = [list(_flat(row)) for row in (self.rows.items() if named else self.rows)]
        object.__setattr__(self, "rows", cells)

    def cells(self) -> list[list[str]]:
        """The rows as text, floats with four significant digits."""
        return [[_text(value) for value in row] for row in self.rows]

    def markdown(self) -> str:
        """The table as Markdown: the first column is text, the others are numbers."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
            for row in (self.header, rule, *self.cells())
        ]
        return (f"**{self.title}**\n\n" if self.title else "") + "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an analysis found.

    numbers  keys of the JSON file: anything JSON can hold; NaN becomes null. An evaluation has
             `values` by the name of a metric (`strop.analysis.metric_info`), and `intervals`,
             [low, high] by the same names
    tables   what a reader should see of the numbers; those without rows are left out
    figures  by name; NAME-FIGURE.png is written
    files    further text or bytes by path inside the folder, such as an HTML page
    notes    sentences that say what was compared, and what it does not show
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def content(self) -> dict[str, Any]:
        """What the JSON file holds of the findings."""
        return {
            **self.numbers,
            "tables": [to_dict(table) for table in self.tables if table.rows],
            "figures": list(self.figures),
            "notes": list(self.notes),
        }


def write_findings(
    folder: PathLike, name: str, kind: str, header: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """Write findings into a folder, each file atomically; return the content of NAME.json.

    kind    the kind of file that NAME.json says it is: `study` or `evaluation`
    header  what was analysed: the first keys of NAME.json, at least `model`, `data` and, if it is
            not among the findings' numbers, `images`
    """
    folder = Path(folder)
    result = {**header, **findings.content()}
    for title, figure in findings.figures.items():
        save_figure(figure, folder / f"{name}-{title}.png")
    for inside, content in findings.files.items():
        with atomic_path(folder / inside) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    model = result["model"]
    shown = model if isinstance(model, str) else model["fingerprint"]
    parts = [
        f"# {name}",
        f"{result['images']} images of `{result['data']}`, model `{shown}`.",
        *(table.markdown() for table in findings.tables if table.rows),
        *(f"![{title}]({name}-{title}.png)" for title in findings.figures),
        *(f"[{path}]({path})" for path in findings.files if path.endswith(".html")),
        *findings.notes,
    ]
    write_text(folder / f"{name}.md", "\n\n".join(parts) + "\n")
    path = folder / f"{name}.json"
    write_json(path, kind, FORMAT, result)
    return read_json(path, kind, FORMAT)


def read_findings(folder: PathLike, name: str, kind: str) -> dict[str, Any] | None:
    """The content of NAME.json, or None if there is none."""
    path = Path(folder) / f"{name}.json"
    return read_json(path, kind, FORMAT) if path.is_file() else None


def _flat(row: Any) -> Iterator[Cell]:
    if isinstance(row, str) or not isinstance(row, Iterable):
        yield row
        return
    for value in row.values() if isinstance(row, Mapping) else row:
        yield from _flat(value)


def _text(value: Cell) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
