"""Time of all K erasures of an image, relative to interpreting a batch of K programs."""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

import strop
from common import device, save, side_by_side
from strop import Tokenizer
from strop.training.preset import load_preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="strop-s-dinov3-s")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    where = device()
    tokenizer = Tokenizer(load_preset(arguments.preset).model).to(where).eval()
    capacity, codes = tokenizer.config.max_length, tokenizer.config.quantizer.codes
    rows = []
    table = Table("images", "K erasures, ms", "K programs, ms", "ratio", box=None)
    for images in arguments.images:

        def programs(count: int) -> strop.Program:
            return strop.Program(
                codes=torch.randint(codes, (count, capacity)),
                lengths=torch.full((count,), capacity),
                codebook_size=codes,
            ).to(where)

        one, many = programs(images), programs(images * capacity)
        times = side_by_side(
            {
                "erasures": lambda one=one: strop.erasure(tokenizer, one),
                "programs": lambda many=many: tokenizer.interpret(many),
            },
            repeat=arguments.repeat,
        )
        # Each pair was timed together, so other load affects both.
        ratios = sorted(e / p for e, p in zip(times["erasures"], times["programs"], strict=True))
        middle = {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}
        ratio = ratios[len(ratios) // 2]
        rows.append(
            {
                "images": images,
                "erasures_s": middle["erasures"],
                "programs_s": middle["programs"],
                "ratio": ratio,
            }
        )
        milliseconds = (f"{middle[name] * 1000:.1f}" for name in ("erasures", "programs"))
        table.add_row(str(images), *milliseconds, f"{ratio:.3f}")
    Console().print(table)
    save(f"erasure_{where.type}", {"setting": arguments.preset, "length": capacity, "rows": rows})


if __name__ == "__main__":
    main()
