"""Share of codes and lengths that a GPU and a CPU compute alike, by precision."""

from __future__ import annotations

import argparse

import torch
from rich.console import Console

import strop
from common import save
from strop.data.spec import open_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU")

    dataset = open_dataset(arguments.data)
    images = [dataset[index].image for index in range(min(arguments.images, len(dataset)))]
    exact = strop.load(arguments.model, device="cpu").encode(images)
    result = {"data": dataset.name, "images": len(images)}
    for precision in ("bf16", "fp16", "fp32"):
        tokenizer = strop.load(arguments.model, device="cuda")
        tokenizer.precision = precision
        fast = tokenizer.encode(images).to("cpu")
        same = fast.codes == exact.codes
        result[precision] = {
            "codes": same[exact.active].float().mean().item(),
            "codes_of_all_k": same.float().mean().item(),
            "lengths": (fast.lengths == exact.lengths).float().mean().item(),
            "lengths_within_one": ((fast.lengths - exact.lengths).abs() <= 1).float().mean().item(),
        }
    Console().print_json(data=result)
    save("agreement", result)


if __name__ == "__main__":
    main()
