"""The ladder: one reader of equal size on everything between the teacher and the codes.

    python research/reading/ladder.py scenes --pairs "scenes:?n=20000&seed=5" \\
        --data "scenes:?n=1000&seed=9"

teacher      the teacher's field                        what the images give
raw          tokens before quantization                 minus teacher: lost in the generator
quantized    the code vectors                           minus raw: lost in quantization
codes        the same codes as symbols                  minus quantized: the codebook's geometry
interpreted  the field that is interpreted from them    minus quantized: gained by the interpreter

Programs have the lengths that the model chose. With `--whole` all K tokens are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from code_transformer import Inputs, NetworkConfig
from reader_network import Reader, fit_reader
from scene_objects import Objects, objects_of
from scene_pairs import objects_in_common
from scene_scores import NAIVE, Scores, naive_scene, score
from strop.analysis.subject import program_of
from strop.data.loader import record_batches
from strop.data.spec import open_dataset
from strop.device import describe_machine
from strop.errors import DataError
from strop.files import write_json
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.random import seeded

CHUNK = 256


class Rungs:
    """Programs, fields and raw tokens of scenes, on the CPU in half precision."""

    def __init__(self, tokenizer: Tokenizer, spec: str, whole: bool) -> None:
        self.tokenizer, self.scenes = tokenizer, list[Objects]()
        programs: list[Program] = []
        fields: list[Tensor] = []
        raw: list[Tensor] = []
        config = tokenizer.config
        for batch in record_batches(
            open_dataset(spec), size=config.image_size, fit=config.fit, device=tokenizer.device
        ):
            if batch.scenes is None:
                raise DataError(f"{spec} has no scenes.", "Use scenes: or clevr:.")
            encoding = tokenizer.analyse(batch.images)
            programs.append(program_of(tokenizer, encoding).to("cpu"))
            fields.append(encoding.field.half().cpu())
            raw.append(encoding.z.half().cpu())
            self.scenes += [objects_of(scene) for scene in batch.scenes]
        self.program = Program.cat(programs)
        if whole:
            self.program = self.program.with_lengths(self.program.capacity)
        self.fields, self.raw = torch.cat(fields), torch.cat(raw)

    def __getitem__(self, name: str) -> Inputs:
        return getattr(self, f"_{name}")()

    def _teacher(self) -> Inputs:
        return _all_active(self.fields)

    def _raw(self) -> Inputs:
        return Inputs(self.raw, self.program.active)

    def _quantized(self) -> Inputs:
        codebook = self.tokenizer.quantizer.vectors(self.program.codes.to(self.tokenizer.device))
        return Inputs(codebook.detach().half().cpu(), self.program.active)

    def _codes(self) -> Inputs:
        return Inputs.of(self.program)

    def _interpreted(self) -> Inputs:
        parts = [
            self.tokenizer.interpret(self.program[start : start + CHUNK]).half().cpu()
            for start in range(0, len(self.program), CHUNK)
        ]
        return _all_active(torch.cat(parts))


RUNGS = ("teacher", "raw", "quantized", "codes", "interpreted")


def _all_active(fields: Tensor) -> Inputs:
    return Inputs(fields, torch.ones(fields.shape[:2], dtype=torch.bool))


def climb(
    train: Rungs,
    test: Rungs,
    name: str,
    config: NetworkConfig,
    *,
    epochs: float,
    seed: int,
    note: Callable[[str], None],
) -> Scores:
    """Train a reader on one rung, and score it on the test scenes."""
    inputs = train[name]
    vectors = inputs.values.is_floating_point()
    size = inputs.values.shape[-1] if vectors else train.program.codebook_size
    with seeded(seed):
        reader = Reader(config, size, inputs.values.shape[1], vectors=vectors)
    reader = reader.to(train.tokenizer.device)

    def progress(step: int, steps: int) -> None:
        note(f"{name}: step {step} of {steps}")

    fit_reader(reader, inputs, train.scenes, epochs, seed, progress)
    return score(reader.read(test[name], seed=seed), test.scenes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", required=True, help="scenes to train on")
    parser.add_argument("--data", required=True, help="scenes to test on")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS))
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="read all K tokens")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ladder.json"))
    args = parser.parse_args()
    tokenizer = load(args.model)
    train, test = (Rungs(tokenizer, spec, args.whole) for spec in (args.pairs, args.data))
    if objects_in_common(train.scenes, test.scenes):
        raise DataError("Some test scenes are also trained on.", "Use another seed.")
    config = NetworkConfig(width=args.width, depth=args.depth)
    found: dict[str, Any] = {
        NAIVE: [score([naive_scene(train.scenes)] * len(test.scenes), test.scenes).numbers()]
    }
    for name in args.rungs:
        found[name] = []
        for seed in range(args.seeds):
            scores = climb(
                train, test, name, config, epochs=args.epochs, seed=seed, note=_say
            ).numbers()
            found[name].append(scores)
            _say(
                f"{name}: count error {scores['count_error'][0]:.3f}, "
                f"matched by place {scores['placed_accuracy'][0]:.3f}"
            )
            about = {
                "model": args.model,
                "codes": tokenizer.identity.codes,
                "pairs": args.pairs,
                "train_scenes": len(train.scenes),
                "data": args.data,
                "test_scenes": len(test.scenes),
                "epochs": args.epochs,
                "width": args.width,
                "depth": args.depth,
                "whole": args.whole,
                "mean_length": float(test.program.lengths.double().mean()),
            }
            result = {**about, "rungs": found, "machine": describe_machine(tokenizer.device)}
            write_json(args.out, "ladder", 1, result)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
