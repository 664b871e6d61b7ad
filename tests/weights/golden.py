"""Golden programs: what the bundled models write for some images, kept in `golden.json`.

    python tests/weights/golden.py    # records them again, for new weights only

Programs are compared code by code, and another CPU adds in another order. In fp32 that moves the
cosine of a token with a code, and a predicted log error, by about 1e-6. So images are taken only
where the best code leads, and the log errors are off the threshold of a length, by hundreds of
times that. Should a golden program come out otherwise all the same, the test says whether the
pixels are the same and how wide the margins now are:

- Same pixels, wide margins: the model, or the way to it, has changed. That is a fault.
- Same pixels, a margin near zero: this machine rounds more coarsely. Raise the least margins below
  and record again, which takes other images.
- Other pixels: the JPEG decoder, the resizing or the renderer differs, not the model. Look there.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_sample_image

import strop
from strop.data.spec import open_dataset
from strop.files import read_json, write_json
from strop.images import fit_square, to_tensor
from strop.model.length_head import CONFIDENCE, RateHead

PATH = Path(__file__).with_name("golden.json")
LEAD, DISTANCE = 2e-4, 1e-3
"""Least lead of the best code, in cosine; least distance of a log error from the threshold."""

PHOTO_HEIGHT, PHOTO_WIDTH = 427, 640


def scenes(seed: int) -> list[str]:
    return [f"scenes:?n=1&seed={seed}&size=128&start={start}" for start in range(24)]


def squares(photo: str) -> list[str]:
    return [f"{photo}+{left}" for left in range(0, PHOTO_WIDTH - PHOTO_HEIGHT, 3)]


CANDIDATES = {
    "photos": (squares("china.jpg"), squares("flower.jpg")),
    "scenes": (scenes(78), scenes(79)),
}
"""Of each list, the first two with wide margins and programs of different lengths are taken."""


def picture(name: str, tokenizer: strop.Tokenizer) -> torch.Tensor:
    """uint8 `(3, H, H)`: a scene by its spec, or a square of a photograph by its left edge."""
    if name.startswith("scenes:"):
        image = open_dataset(name)[0].image
    else:
        photo, left = name.split("+")
        image = load_sample_image(photo)[:, int(left) : int(left) + PHOTO_HEIGHT]
    return fit_square(to_tensor(image), tokenizer.config.image_size, tokenizer.config.fit)


@torch.no_grad()
def margins(image: torch.Tensor, tokenizer: strop.Tokenizer) -> tuple[float, float]:
    """The smallest lead of an active code, and how near a log error is to the threshold."""
    head = tokenizer.length_head
    assert isinstance(head, RateHead)
    field = tokenizer.field(image) * tokenizer.config.teacher.scale
    curves = head(field)
    length = int(head.shortest(curves, head.quality, CONFIDENCE))
    similarity = tokenizer.quantizer(tokenizer.generator(field)).similarity
    first, second = similarity[0, :length].topk(2).values.unbind(-1)
    distance = (curves[:, 0] - head.threshold(head.quality, CONFIDENCE)).abs().min()
    return (first - second).min().item(), distance.item()


def spell(image: torch.Tensor, tokenizer: strop.Tokenizer) -> dict[str, str]:
    """The active codes, and a hash of the pixels."""
    codes = tokenizer.encode(image)[0].codes.tolist()
    pixels = hashlib.sha256(image.numpy().tobytes()).hexdigest()[:12]
    return {"codes": " ".join(map(str, codes)), "pixels": pixels}


def read() -> dict[str, Any]:
    """Programs by model and by image."""
    values = read_json(PATH, "golden", 1)
    return {model: values[model] for model in CANDIDATES}


def write() -> None:
    """Choose the images, encode them, write the file."""
    golden: dict[str, dict[str, dict[str, str]]] = {}
    for model, lists in CANDIDATES.items():
        tokenizer = strop.load(model, device="cpu")

        def firm(name: str, tokenizer: strop.Tokenizer = tokenizer) -> bool:
            lead, distance = margins(picture(name, tokenizer), tokenizer)
            return lead >= LEAD and distance >= DISTANCE

        golden[model] = {}
        for names in lists:
            found: dict[int, tuple[str, dict[str, str]]] = {}  # by length
            for name in filter(firm, names):
                spelt = spell(picture(name, tokenizer), tokenizer)
                found.setdefault(len(spelt["codes"].split()), (name, spelt))
                if len(found) == 2:
                    break
            golden[model] |= dict(found.values())
    write_json(PATH, "golden", 1, golden)


if __name__ == "__main__":
    write()
