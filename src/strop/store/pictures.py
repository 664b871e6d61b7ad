"""The images of a store where they can be found, else previews; and a page of search results."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from strop.errors import ImageError
from strop.files import PathLike, write_text
from strop.images import SUFFIXES, ImageLike, fit_square, read_square
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.store.search import Hit, Results

if TYPE_CHECKING:
    from strop.store.store import Store

THUMBNAIL = 192
"""Side of the pictures of a page, in pixels."""


def find_image(source: str, key: str) -> Path | None:
    """The file of an image that was read from a folder, if it is still there.

    A store may come from elsewhere, so no URL is opened, and only files that are
    named like images.
    """
    if "://" in source or "\0" in source + key:
        return None
    path = Path(source) / key
    return path if path.suffix.lower() in SUFFIXES and path.is_file() else None


def picture(store: Store, row: int, size: int = 128) -> Tensor:
    """The image of a row as a small square (3, size, size) uint8.

    If the file is not available, the decoded preview is returned.
    """
    about = store.read([row], columns=["key", "source"]).to_pylist()[0]
    path = find_image(about["source"], about["key"])
    if path is not None:
        try:
            return read_square(path, size, store.model.config.fit)
        except ImageError:
            pass  # it was changed since; the preview is what the program holds
    return _preview(store.model, store[[row]], size)


def _preview(tokenizer: Tokenizer, program: Program, size: int) -> Tensor:
    """What the model decodes, as a small square; grey if it has no decoder."""
    if tokenizer.decoder is None:
        return torch.full((3, size, size), 128, dtype=torch.uint8)
    preview = tokenizer.decode(program)[0]
    return fit_square((preview * 255).round().to(torch.uint8).cpu(), size)


def write_sheet(
    store: Store,
    found: Results,
    path: PathLike,
    *,
    title: str,
    query: ImageLike | None = None,
) -> None:
    """Write an HTML page with the pictures of search results, without external resources."""
    figures = []
    if query is not None:
        square = read_square(query, THUMBNAIL, store.model.config.fit)
        figures.append(_figure(square, "the query", ""))
    elif found.program is not None:
        square = _preview(store.model, found.program, THUMBNAIL)
        figures.append(_figure(square, "the query", "decoded from its program"))
    for hit in found.hits:
        score = "" if hit.score is None else f"{hit.score:.3f}, "
        about = f"{score}{hit.length} codes, row {hit.row}"
        box = _outline(hit) if store.model.config.fit == "squash" else ""
        figures.append(_figure(store.picture(hit.row, THUMBNAIL), hit.key, about, box))
    shown = html.escape(title)
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{shown}</h1><main>{''.join(figures)}</main></body></html>\n",
    )


def _figure(square: Tensor, name: str, about: str, inside: str = "") -> str:
    file = io.BytesIO()
    Image.fromarray(square.permute(1, 2, 0).contiguous().numpy()).save(file, "WEBP", quality=80)
    content = base64.b64encode(file.getvalue()).decode()
    shown = html.escape(name)
    return (
        f'<figure><div><img src="data:image/webp;base64,{content}" alt="{shown}">{inside}</div>'
        f"<figcaption><b>{shown}</b><br>{about}</figcaption></figure>\n"
    )


def _outline(hit: Hit) -> str:
    """The region of a hit as a frame over its picture."""
    if hit.region is None:
        return ""
    x, y, width, height = hit.region
    sides = {"left": x / hit.width, "top": y / hit.height}
    sides |= {"width": width / hit.width, "height": height / hit.height}
    style = ";".join(f"{name}:{share:.2%}" for name, share in sides.items())
    return f'<i style="{style}"></i>'


_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:1.5rem;color:#1c1c1c;background:#fff}"
    "h1{font-size:1rem}main{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));"
    "gap:1rem}figure{margin:0}figure div{position:relative}img{width:100%;display:block}"
    "i{position:absolute;border:2px solid #f60;box-sizing:border-box}"
    "figcaption{overflow-wrap:anywhere;font-size:.85rem}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}}"
)
