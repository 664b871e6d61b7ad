"""Train a small language model on programs, and let it continue one.

    python examples/language_model.py                       # rendered scenes, no download
    python examples/language_model.py --images photos/      # your images

The model is a GPT-2 of `transformers` with random weights.
"""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import strop
from strop.data import open_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", help="a folder; default: rendered scenes")
    parser.add_argument("--count", type=int, default=256, help="number of rendered scenes")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(0)

    tok = strop.load("photos" if options.images else "scenes")
    images = options.images or open_dataset(f"scenes:?n={options.count}")
    program = tok.encode(images)
    batch = program.to_lm()
    size = program.codebook_size
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size + 3,
            n_positions=program.capacity + 2,
            n_embd=128,
            n_layer=2,
            n_head=4,
            bos_token_id=size,
            eos_token_id=size + 1,
        )
    )
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        rows = torch.randint(len(program), (32,))
        loss = model(**{key: value[rows] for key, value in batch.items()}, labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step}: {loss.item():.2f} nats per token")

    start = batch["input_ids"][:1, :4]
    continued = model.generate(start, max_new_tokens=8, do_sample=False, pad_token_id=size + 2)
    print("program:  ", program[0].codes[:11].tolist())
    print("continued:", continued[0, 1:].tolist())


if __name__ == "__main__":
    main()
