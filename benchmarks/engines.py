"""Engines on a CPU: time of `encode` in one thread beside PyTorch's, and how many codes are equal.

    python benchmarks/engines.py --data coco.tar --model photos

Codes are compared with PyTorch in fp32. Where they differ, the margin says how close the two
nearest code vectors were: the difference of their cosine similarities to the token.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common import RESULTS, save, side_by_side
from strop import Tokenizer, load
from strop.files import read_json
from strop.model.model_engine import ENGINES, ModelEngine, make_engine
from strop.squares import read_squares
from strop.store.corpus import Corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["times", "agreement"])
    parser.add_argument("--model", default="photos")
    parser.add_argument("--data", required=True, help="photographs: what `strop encode` takes")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load(arguments.model, device="cpu")
    engines = {name: make_engine(name, tokenizer) for name in ENGINES}
    path = RESULTS / "engines.json"
    found = read_json(path, "benchmark", 1) if path.is_file() else {}
    kept = {key: found[key] for key in ("rows", "agreement", "images", "data") if key in found}
    if "times" in arguments.parts:
        images = photographs(arguments.data, 8, tokenizer)
        kept["rows"] = [time(tokenizer, engines, images[:n], arguments.repeat) for n in (1, 8)]
    if "agreement" in arguments.parts:
        images = photographs(arguments.data, arguments.images, tokenizer)
        kept |= {"images": len(images), "data": Path(arguments.data).name}
        kept["agreement"] = {
            name: compare(tokenizer, engine, images)
            for name, engine in engines.items()
            if name != "torch"
        }
    print(kept)
    setting = f"{arguments.model}, one thread, from uint8 images to programs"
    save("engines", {"setting": setting, **kept})


def time(
    tokenizer: Tokenizer, engines: dict[str, ModelEngine], images: torch.Tensor, repeat: int
) -> dict[str, Any]:
    """The median time of each engine relative to PyTorch's."""
    calls = {name: partial(encode, tokenizer, engine, images) for name, engine in engines.items()}
    times = side_by_side(calls, repeat=repeat, at_least=0.1)
    middle = {name: statistics.median(samples) for name, samples in times.items()}
    return {
        "batch": len(images),
        "times_torch": {name: middle[name] / middle["torch"] for name in engines},
    }


def photographs(data: str, count: int, tokenizer: Tokenizer) -> torch.Tensor:
    """The first images of `data` as squares."""
    corpus = Corpus([data], [], "")
    items = corpus.items(range(min(count, len(corpus))))
    config = tokenizer.config
    squares = read_squares((item.image for item in items), config.image_size, config.fit)
    return torch.stack([square for _, square in squares if isinstance(square, torch.Tensor)])


def encode(tokenizer: Tokenizer, engine: Any, images: torch.Tensor) -> Any:
    tokenizer.engine = engine
    return tokenizer.encode(images)


@torch.no_grad()
def compare(tokenizer: Tokenizer, engine: Any, images: torch.Tensor) -> dict[str, Any]:
    """Equal codes and lengths, and the margins of PyTorch's choice where codes differ."""
    differ, lengths, margins, every = 0, 0, [], []
    for image in images.split(1):
        tokenizer.engine = make_engine("torch", tokenizer)
        plain = tokenizer.analyse(image)
        tokenizer.engine = engine
        other = tokenizer.analyse(image)
        best = (plain.z @ tokenizer.quantizer.codebook.T).topk(2, dim=-1).values
        margin = best[..., 0] - best[..., 1]
        unequal = plain.codes != other.codes
        differ += int(unequal.sum())
        lengths += int((plain.lengths != other.lengths).sum())
        margins += margin[unequal].tolist()
        every.append(margin.median().item())
    codes = len(images) * tokenizer.config.max_length
    return {
        "codes": codes,
        "equal_codes": 1 - differ / codes,
        "equal_lengths": 1 - lengths / len(images),
        "largest_margin_where_codes_differ": max(margins, default=None),
        "median_margin": sorted(every)[len(every) // 2],
    }


if __name__ == "__main__":
    main()
