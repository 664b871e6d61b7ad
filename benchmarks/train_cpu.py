"""One training step on a CPU: ours beside the same architecture from stock parts.

The other one is what one would put together first: `nn.TransformerEncoder` over sources and
queries with one big mask, an interpreter from `nn.MultiheadAttention`, and the quantizer of
`vector-quantize-pytorch` with its own commitment and diversity losses. Same sizes, same losses,
same data, fp32, AdamW; steps of the two alternate, so that whatever else the machine does falls on
both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from vector_quantize_pytorch import VectorQuantize

from common import machine, save
from strop.curriculum import random_lengths, scaled
from strop.model.generator import query_visibility
from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.training.forward import Recipe, step_values
from strop.training.preset import load_preset
from strop.training.step import Stepper


class StockInterpreterLayer(nn.Module):
    """Cross-attention and feed-forward, pre-norm."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width)
        )

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        seen, _ = self.attention(
            self.norm1(x), memory, memory, key_padding_mask=hidden, need_weights=False
        )
        x = x + seen
        return x + self.feedforward(self.norm2(x))


class Stock(nn.Module):
    """The paper's figure from stock layers."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        g, i, q = config.generator, config.interpreter, config.quantizer
        self.s, self.k = config.grid**2, config.max_length
        self.norm_in = nn.LayerNorm(config.teacher.width)
        self.project_in = nn.Linear(config.teacher.width, g.width)
        self.sources = nn.Parameter(torch.randn(self.s, g.width) * 0.02)
        self.queries = nn.Parameter(torch.randn(self.k, g.width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            g.width,
            g.heads,
            g.feedforward,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.generator = nn.TransformerEncoder(
            layer, g.depth, nn.LayerNorm(g.width), enable_nested_tensor=False
        )
        hidden = torch.zeros(self.s + self.k, self.s + self.k, dtype=torch.bool)
        hidden[: self.s, self.s :] = True
        hidden[self.s :] = ~query_visibility(self.s, self.k)
        self.register_buffer("hidden", hidden)
        self.quantizer = VectorQuantize(
            g.width,
            q.codes,
            codebook_dim=q.code_width,
            use_cosine_sim=True,
            decay=q.decay,
            commitment_weight=1.0,
            codebook_diversity_loss_weight=0.3,
            codebook_diversity_temperature=0.1,
            rotation_trick=False,
        )
        self.positions = nn.Parameter(torch.randn(self.k, i.width) * 0.02)
        self.grid = nn.Parameter(torch.randn(self.s, i.width) * 0.02)
        self.layers = nn.ModuleList(
            StockInterpreterLayer(i.width, i.heads, i.feedforward) for _ in range(i.depth)
        )
        self.norm_out = nn.LayerNorm(i.width)
        self.project_out = nn.Linear(i.width, config.teacher.width)

    def forward(self, field: Tensor, active: Tensor) -> Tensor:
        x = self.project_in(self.norm_in(field)) + self.sources
        x = torch.cat([x, self.queries.expand(len(field), -1, -1)], dim=1)
        raw = self.generator(x, mask=self.hidden)[:, self.s :]
        z_q, _, loss = self.quantizer(raw)
        memory = z_q + self.positions
        grid = self.grid.expand(len(field), -1, -1)
        for layer in self.layers:
            grid = layer(grid, memory, ~active)
        predicted = self.project_out(self.norm_out(grid))
        cosine = F.cosine_similarity(predicted, field, dim=-1).mean()
        return 1 - cosine + F.mse_loss(predicted, field) + loss.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="strop-s-dinov3-s")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="ours compiled, the other as it is")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    compiled = "on" if arguments.compile else "off"
    preset = load_preset(
        arguments.preset, {"training.batch": arguments.batch, "training.compile": compiled}
    )
    model, steps = preset.model, preset.training.steps
    torch.manual_seed(0)
    field = torch.randn(arguments.batch, model.grid**2, model.teacher.width)
    steps_of = {"ours": ours(preset, field, steps), "stock": stock(model, field)}
    seconds: dict[str, list[float]] = {name: [] for name in steps_of}
    for take in steps_of.values():
        take()
    for _ in range(arguments.rounds):
        for name, take in steps_of.items():
            started = time.perf_counter()
            take()
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    ratio = statistics.median(
        theirs / mine for mine, theirs in zip(seconds["ours"], seconds["stock"], strict=True)
    )
    result = {
        "preset": arguments.preset,
        "batch": arguments.batch,
        "threads": arguments.threads,
        "compiled": arguments.compile,
        "seconds_per_step": medians,
        "images_per_second": {name: arguments.batch / value for name, value in medians.items()},
        "ratio": ratio,
    }
    save("train_cpu", result)
    Console().print(
        f"{machine()['device']}, {arguments.threads} threads, batch {arguments.batch}: ours "
        f"{medians['ours']:.3f} s a step, stock {medians['stock']:.3f} s: {ratio:.2f} times"
    )


def ours(preset: object, field: Tensor, steps: int) -> Callable[[], None]:
    """A step of phase 1 through the `Stepper`."""
    recipe = Recipe(
        scaled(preset.objective, steps),
        scaled(preset.curriculum, steps),
        scaled(preset.training, steps),
    )
    tokenizer = Tokenizer(preset.model).train()
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], recipe, device=torch.device("cpu"))
    stepper.initialise_codebook((field,))
    stepper.warm_up((field,), step_values(recipe, 1))
    return lambda: stepper((field,), step_values(recipe, 1), 1)


def stock(config: TokenizerConfig, field: Tensor) -> Callable[[], None]:
    """The same step with stock parts."""
    model = Stock(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.02)

    def take() -> None:
        uniform = torch.rand(len(field))
        lengths = random_lengths(uniform, torch.tensor(3.0), 8, config.max_length)
        optimizer.zero_grad()
        model(field, prefix_mask(lengths, config.max_length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return take


if __name__ == "__main__":
    main()
