"""The dictionary: an HTML page with the patches and images that each code explains most."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from strop.analysis.subject import Subject
from strop.figures import HEAT

_TILE = 72  # pixels along a side of a thumbnail
EXAMPLES = 6  # of each code
_CUT = 3  # locations along a side of the patch that is shown


CodeEntry = Mapping[str, Any]
"""A code: its `count`, mean `position`, `best_class` and its `purity`."""


def dictionary_page(
    subject: Subject, maps: Tensor, entries: Sequence[CodeEntry]
) -> dict[str, str | bytes]:
    """Files by path: `dictionary/index.html` and a strip of pictures for each code.

    The examples of a code are the tokens whose erasure changes the field most, at most one of
    each image: above, the patch around the peak; below, the image with the map on top.
    """
    files: dict[str, str | bytes] = {}
    rows = []
    scores = strengths(maps)
    for done, entry in enumerate(entries, 1):
        name = f"code-{entry['code']:04d}.jpg"
        files[f"dictionary/{name}"] = _jpeg(strip(subject, maps, scores, entry["code"]))
        rows.append(_row(entry, name))
        subject.progress("dictionary", done, len(entries))
    about = f"{len(entries)} codes on {len(subject)} images of {subject.data}"
    page = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    files["dictionary/index.html"] = page.substitute(
        about=html.escape(about), rows="\n".join(rows), width=(_TILE + 2) * EXAMPLES
    )
    return files


def strengths(maps: Tensor) -> Tensor:
    """How much each token changes the field, `(B, K)`; 0 where it cannot be erased."""
    return maps.flatten(2).mean(dim=2).nan_to_num()


def strip(subject: Subject, maps: Tensor, scores: Tensor, code: int) -> NDArray[np.uint8]:
    """The examples of a code, side by side: `(H, W, 3)`."""
    program = subject.program
    mine = torch.where((program.codes == code) & program.active, scores, -1.0)
    best, token = mine.max(dim=1)
    rows = [r for r in best.argsort(descending=True, stable=True).tolist() if best[r] >= 0]
    canvas = np.full((2 * _TILE + 2, (_TILE + 2) * EXAMPLES, 3), 255, np.uint8)
    for column, row in enumerate(rows[:EXAMPLES]):
        image, heat = subject.records.images[row], maps[row, token[row]].nan_to_num()
        left = column * (_TILE + 2)
        canvas[:_TILE, left : left + _TILE] = _pixels(_cut(image, heat))
        canvas[_TILE + 2 :, left : left + _TILE] = _overlaid(image, heat)
    return canvas


def _jpeg(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(picture).save(written, "JPEG", quality=85)
    return written.getvalue()


def _cut(image: Tensor, heat: Tensor) -> Tensor:
    """The part of the image around the peak of the map, within its borders."""
    grid = heat.shape[0]
    side = image.shape[-1] // grid
    span = min(_CUT, grid)
    y, x = divmod(int(heat.argmax()), grid)
    top, left = (max(0, min(at - span // 2, grid - span)) * side for at in (y, x))
    return image[:, top : top + span * side, left : left + span * side]


def _overlaid(image: Tensor, heat: Tensor) -> NDArray[np.uint8]:
    from matplotlib import colormaps

    large = F.interpolate(heat[None, None], (_TILE, _TILE), mode="nearest")[0, 0]
    colour = colormaps[HEAT]((large / large.max().clamp(min=1e-9)).numpy())[..., :3]
    grey = _pixels(image).mean(axis=2, keepdims=True) / 255
    return ((0.4 * grey + 0.6 * colour) * 255).astype(np.uint8)


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    small = F.interpolate(image[None].float(), (_TILE, _TILE), mode="bilinear", antialias=True)
    return small[0].clamp(0, 255).byte().permute(1, 2, 0).numpy()


def _row(entry: CodeEntry, name: str) -> str:
    meaning = ""
    if entry["best_class"] is not None:
        meaning = f"{html.escape(entry['best_class'])}<br>purity {entry['purity']:.2f}"
    keys = f'data-count="{entry["count"]}" data-code="{entry["code"]}" '
    keys += f'data-purity="{entry["purity"] or 0:.4f}" data-position="{entry["position"]:.2f}"'
    return (
        f"<article {keys}><h2>{entry['code']}</h2>"
        f"<p>{entry['count']} tokens<br>mean position {entry['position']:.1f}<br>{meaning}</p>"
        f'<img src="{name}" alt="images that code {entry["code"]} explains most" loading="lazy">'
        "</article>"
    )
