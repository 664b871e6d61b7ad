"""What `clevr.md` shows of the rows in `benchmarks/results/clevr` and, of small ones,
`clevr-small` beside it: the parts of `strop report`.

The rows are those that `recipes/clevr.py` wrote. `docs/make.py` fills in the tables, and
`docs/figures.py` draws the figures. What lengths follow and what the mean image scores is not of
rows, but from benchmarks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.analysis.findings import Table
from strop.analysis.metric_info import METRICS
from strop.analysis.page import Block, Picture, Text, to_markdown
from strop.errors import DataError
from strop.evaluation.clevr import figures, tables
from strop.evaluation.clevr.rows import DATA, FACTS, HELD_OUT, Row, read_rows
from strop.figures import save_figure
from strop.files import read_json

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "clevr"
SMALL = RESULTS.parent / "clevr-small"
MEAN_IMAGE = RESULTS.parent / "mean_image.json"
FOLLOWED = RESULTS.parent / "what_lengths_follow.json"
IMAGES = DOCS / "images" / "clevr"

FIELDS_TELL = {
    "spread": "variance over locations",
    "volume": "log volume of locations",
    "variation_1": "variation between neighbours of 8 by 8",
    "variation_2": "of 16 by 16",
    "variation_4": "of 32 by 32, which `outlines` goes by",
    "together": "the first three, by a linear map that was taught the number",
    "taught": "the pooled field, by a linear map that was taught the number",
    "learnt": "the pooled field, by a linear map that was taught the variation of 32 by 32",
}
"""In the words of the page: see `benchmarks/what_lengths_follow.py`."""


def rows(small: bool = False) -> list[Row]:
    """Every row that is there, of those at full size or of the small ones."""
    return read_rows(
        sorted(path.parent for path in (SMALL if small else RESULTS).glob(f"*/{FACTS}"))
    )


def block(
    make: Callable[[Sequence[Row]], Iterator[Block]], picture: str = "", small: bool = False
) -> str:
    """One of the page's blocks as Markdown, and the picture that goes with it."""
    found = rows(small)
    if not found:
        return "Not measured yet."
    blocks = list(make(found))
    path = _drawn(picture, small)
    if picture and path.is_file():
        blocks.append(Picture(path, figures.CAPTIONS[picture]))
    return to_markdown(blocks, DOCS).strip()


def mean_image(_: Sequence[Row]) -> Iterator[Block]:
    """What one image for all has, which says how little SSIM tells of ours."""
    found = read_json(MEAN_IMAGE, "benchmark", 1)["sets"]
    told = (f"{METRICS['ssim'].format(found[kind]['ssim'])} on {DATA[kind]}" for kind in DATA)
    yield Text(f"The mean image, one for all, has SSIM {', '.join(told)}.")


def follow(rows: Sequence[Row]) -> Iterator[Block]:
    """What the chosen lengths follow, and what fields alone, or the number of objects, would."""
    if not FOLLOWED.is_file():
        return
    found = read_json(FOLLOWED, "benchmark", 1)
    header = ["", "objects", "covered", "outlines"]

    def line(name: str, each: Mapping[str, Any]) -> list[str]:
        return [name, *(tables.interval(each[key]) for key in header[1:])]

    if unknown := {name for said in found["fields"].values() for name in said} - {*FIELDS_TELL}:
        raise DataError(
            f"{FOLLOWED.name} is older than the page: it tells of {', '.join(sorted(unknown))}.",
            "Run benchmarks/what_lengths_follow.py again.",
        )
    kept = [row for row in rows if row.name in found["rows"]]
    for row in kept:
        now = tables.followed(row.parts[HELD_OUT, "rate"])["chosen"]
        if abs(found["rows"][row.name]["objects"]["value"] - now) > 1e-6:
            raise DataError(
                f"{FOLLOWED.name} is of another run of {row.name}.",
                "Run benchmarks/what_lengths_follow.py again.",
            )
    images = " or ".join(sorted({str(found["rows"][row.name]["images"]) for row in kept}))
    yield Text(
        f"Pearson r, with 95 % intervals, of the lengths of {images} held-out scenes with the "
        "number of objects, the share of the image that they cover, and the length of their "
        "outlines:"
    )
    yield Table("", header, [line(f"`{row.name}`", found["rows"][row.name]) for row in kept])
    yield Text(f"The same of {found['images']:,} scenes, without a model:")
    fields = [
        line(f"`{teacher}`: {FIELDS_TELL[name]}", each)
        for teacher, said in found["fields"].items()
        for name, each in said.items()
    ]
    truth = [
        line("the number of objects", found["objects"]),
        line("outlines² / cover", found["isoperimetric"]),
    ]
    yield Table("", header, [*truth, *fields])


def draw_figures() -> None:
    """Those that there are rows for."""
    for small in (False, True):
        for name, figure in figures.draw_figures(rows(small)).items():
            save_figure(figure, _drawn(name, small))


def _drawn(picture: str, small: bool) -> Path:
    return IMAGES / f"{'small-' if small else ''}{picture}.png"
