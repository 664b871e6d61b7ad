"""How many codes change in half precision, at what cost in R², and how fast each precision is.

On a GPU it writes `agreement.json`: codes of the GPU in each precision against fp32 on a CPU.
Without a GPU it writes `agreement_cpu.json`: autocast on the CPU against fp32, which rounds alike.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import strop
from common import device, save
from strop.data.loader import image_batches
from strop.data.spec import open_dataset
from strop.metrics import r2
from strop.model.tokenizer import Tokenizer
from strop.program import Program

PRECISIONS = ("bf16", "fp16", "fp32")
CLOSE = 1e-3
"""A margin to the second-nearest code, in squared distance, that rounding may bridge."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=500)
    arguments = parser.parse_args()

    where = device()
    exact = strop.load(arguments.model, device="cpu")
    fast = strop.load(arguments.model, device=where)
    dataset = open_dataset(arguments.data)
    config = exact.config
    images = list(image_batches(dataset, size=config.image_size, fit=config.fit, batch=50))
    squares = torch.cat(images)[: arguments.images]
    chunks = squares.split(50)
    reference = Program.cat([exact.encode(chunk) for chunk in chunks])
    fields = [exact.field(chunk) for chunk in chunks]
    quality = _r2(exact, fields, reference)
    result: dict[str, Any] = {
        "data": dataset.name,
        "images": len(squares),
        "active_tokens": int(reference.active.sum()),
        "close_margins": _close_margins(exact, fields, reference),
        "r2": quality.mean().item(),
    }
    for precision in PRECISIONS:
        if where.type == "cpu" and precision == "fp32":
            continue  # it is the reference
        fast.precision = precision
        fast.encode(chunks[0][:2])
        began = time.perf_counter()
        program = Program.cat([fast.encode(chunk.to(where)).to("cpu") for chunk in chunks])
        seconds = time.perf_counter() - began
        same = program.codes == reference.codes
        cost = quality - _r2(exact, fields, program)
        changed = ~(same | ~reference.active).all(dim=1)
        result[precision] = {
            "codes": same[reference.active].float().mean().item(),
            "codes_of_all_k": same.float().mean().item(),
            "images_with_a_change": changed.float().mean().item(),
            "lengths": (program.lengths == reference.lengths).float().mean().item(),
            "lengths_within_one": (
                ((program.lengths - reference.lengths).abs() <= 1).float().mean().item()
            ),
            "r2_cost": cost.mean().item(),
            "r2_cost_worst": cost.max().item(),
        }
        if where.type == "cuda":
            result[precision]["images_per_second"] = len(squares) / seconds
    Console().print_json(data=result)
    save("agreement" if where.type == "cuda" else "agreement_cpu", result)


@torch.no_grad()
def _r2(tokenizer: Tokenizer, fields: list[Tensor], program: Program) -> Tensor:
    """R² of each program, interpreted exactly, to the exact field of its image."""
    found: list[Tensor] = []
    for field in fields:
        part = tokenizer.interpret(program[len(found) : len(found) + len(field)])
        found += [r2(*pair) for pair in zip(part.split(1), field.split(1), strict=True)]
    return torch.stack(found)


@torch.no_grad()
def _close_margins(
    tokenizer: Tokenizer, fields: list[Tensor], program: Program
) -> dict[str, float]:
    """The share of active tokens whose two nearest codes are almost equally near."""
    margins = []
    for field in fields:
        raw = tokenizer.generator(field * tokenizer.config.teacher.scale)
        best, second = tokenizer.quantizer(raw).similarity.topk(2, dim=-1).values.unbind(-1)
        margins.append(2 * (best - second))  # the squared distance of unit vectors
    margin = torch.cat(margins)[program.active]
    return {"below": CLOSE, "share": (margin < CLOSE).float().mean().item()}


if __name__ == "__main__":
    main()
