"""Probes of other tokenizers: FlexTok D12-D12-IN1k and One-D-Piece-S-256.

    python research/tokenizers/adapters.py one-d-piece-s-256 --data SPEC --train SPEC --out FOLDER

`strop report` reads the results. Neither tokenizer is part of strop. Each adapter follows the
public encode call of the installed package, which loads its own weights. The paper does not say
which tensors it took as the interpreted field (`latent`) and as code vectors (`program`); `taps`
documents the choice made here.

The adapters are tested against the recorded interfaces of both packages: names, shapes and ranges.
Neither has been run with its weights.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.analysis.evaluate import (
    EvaluationJob,
    Result,
    Split,
    choose_suites,
    open_splits,
    run_jobs,
)
from strop.analysis.findings import Findings
from strop.analysis.frame import check_needs
from strop.analysis.probes.depth import DepthTask
from strop.analysis.probes.heads import Representation, Tokens
from strop.analysis.probes.multilabel import MultilabelTask
from strop.analysis.probes.probe import Task, check_classes, required, run_probe
from strop.analysis.probes.protocol import PAPER
from strop.analysis.probes.segmentation import SegmentationTask
from strop.analysis.subject import check_disjoint, narrow
from strop.cli.console import progress_bars, say
from strop.data.loader import record_batches
from strop.data.record import Batch, Dataset, concat, first_readable
from strop.device import choose_device
from strop.errors import ConfigError, DataError, ModelError
from strop.files import PathLike, exclusive
from strop.identity import of_dataset
from strop.progress import Progress, no_progress

SIZE = 256
"""The side of the input images of both."""
LOCATIONS = 256
"""S: both have a grid of 16 x 16."""
_BATCH = 16

TASKS = {"segmentation": "semantic", "multilabel": "labels", "depth": "depth"}
"""The analyses that other tokenizers can take part in, with the part of the records they need."""
NAMES_OF = {"segmentation": "classes", "multilabel": "label_names"}

Adapted = tuple[dict[str, Representation], Batch]
"""Representations of images by name, and their records."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """Another tokenizer, frozen.

    encode  uint8 images (B, 3, 256, 256) to `latent` (B, S, d) and `program` (B, K, d_c)
    bits    the size of its program at a fixed rate
    taps    which tensors of the model these are
    """

    name: str
    bits: float
    taps: dict[str, str]
    encode: Callable[[Tensor], tuple[Tensor, Tensor]]
    device: torch.device


def flextok(model: Any = None, *, device: str | torch.device = "cpu") -> Adapter:
    """FlexTok D12-D12-IN1k: 256 registers of six dimensions, quantized to 64,000 values.

    `model` is a loaded `FlexTokFromHub`; by default it is downloaded.
    """
    if model is None:
        hub = _package("flextok.flextok_wrapper", "FlexTokFromHub", "github.com/apple/ml-flextok")
        model = hub.from_pretrained("EPFL-VILAB/flextok_d12_d12_in1k")
    model = model.eval().to(device)
    model.vae.sample_posterior = False  # deterministic tokens

    def encode(images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images.to(device).float() / 127.5 - 1
        made = model.encode({model.vae.images_read_key: pixels.split(1)})
        latent = torch.cat(list(made["enc_vae_latents_patched"]))
        program = torch.cat(list(made[model.quants_write_key]))
        return latent.flatten(1, -2), program

    return Adapter(
        name="flextok-d12-d12-in1k",
        bits=256 * math.log2(64_000),
        taps={
            "latent": "patch tokens after the encoder, 16 x 16 x 768",
            "program": "quantized registers, 256 x 6",
        },
        encode=encode,
        device=torch.device(device),
    )


def one_d_piece(model: Any = None, *, device: str | torch.device = "cpu") -> Adapter:
    """One-D-Piece-S-256: 256 tokens of twelve dimensions, 4096 codes.

    `model` is a loaded `OneDPiece`; by default it is downloaded.
    """
    if model is None:
        hub = _package("modeling.one_d_piece", "OneDPiece", "github.com/turingmotors/One-D-Piece")
        model = hub.from_pretrained("turing-motors/One-D-Piece-S-256")
    model = model.eval().to(device)

    def encode(images: Tensor) -> tuple[Tensor, Tensor]:
        z_q, _ = model.encode(images.to(device).float() / 255)
        fields: list[Tensor] = []
        # The decoder's field is the input of its convolutional part.
        hook = model.decoder.ffn.register_forward_pre_hook(lambda _, given: fields.append(given[0]))
        try:
            model.decoder(z_q)
        finally:
            hook.remove()
        return fields[0].flatten(2).transpose(1, 2), z_q.squeeze(2).transpose(1, 2)

    return Adapter(
        name="one-d-piece-s-256",
        bits=256 * math.log2(4096),
        taps={
            "latent": "the decoder's field before its convolutions, 16 x 16 x 512",
            "program": "quantized tokens, 256 x 12",
        },
        encode=encode,
        device=torch.device(device),
    )


ADAPTERS: dict[str, Callable[..., Adapter]] = {
    "flextok-d12-d12-in1k": flextok,
    "one-d-piece-s-256": one_d_piece,
}


def evaluate_adapter(
    adapter: Adapter,
    data: Sequence[str],
    out: PathLike,
    *,
    suites: Sequence[str] = ("all",),
    train: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[Result]:
    """Run the probes, by the paper's protocol, as `evaluate` does for a STROP."""
    names = [name for name in choose_suites(suites) if name in TASKS]
    if other := sorted(set(suites) - {"all", *names}):
        raise ConfigError(
            f"The suite {other[0]} is not for other tokenizers.",
            f"Choose from {', '.join(TASKS)}.",
        )
    about = {"bits": adapter.bits, "taps": adapter.taps}
    model = {"name": adapter.name, "fingerprint": adapter.name, "config": {}, "about": about}
    options = {"seed": seed, "protocol": PAPER.name}
    jobs: list[EvaluationJob] = []
    for split in open_splits(data, train):
        features = _Features(adapter, split, progress)
        for name in names:
            _check(name, split)
            header = {
                "suite": name,
                "model": model,
                "data": split.data,
                "train": split.train,
                **options,
                "options": options,
                "identities": {
                    "model": {"codes": adapter.name},
                    "data": of_dataset(split.dataset),
                    "train": of_dataset(split.train_dataset),
                },
            }
            run = partial(_probe, features, name, seed)
            jobs.append((Path(out) / split.folder, header, run))
    with exclusive(out):
        return run_jobs(jobs, adapter.device)


def _check(name: str, split: Split) -> None:
    if split.train is None or split.train_dataset is None:
        raise DataError(
            f"{name} is fitted on data, and there is none for {split.data}.",
            "Give it with --train SPEC.",
        )
    pairs = ((split.data, split.dataset), (split.train, split.train_dataset))
    for spec, dataset in pairs:
        check_needs((TASKS[name],), first_readable(dataset), name, spec)
    check_classes(split.train_dataset, split.dataset, NAMES_OF.get(name, ""))


class _Features:
    """What the probes of one split share: both datasets' records and representations."""

    def __init__(self, adapter: Adapter, split: Split, progress: Progress) -> None:
        self.adapter, self.split, self.progress = adapter, split, progress

    @cached_property
    def sides(self) -> tuple[Adapted, Adapted]:
        """Of the data to fit on, and of the data to measure on; they share no image."""
        assert self.split.train_dataset is not None
        train = _features(self.adapter, self.split.train_dataset, self.progress)
        measured = _features(self.adapter, self.split.dataset, self.progress)
        check_disjoint(*(zip(r.images, r.names, strict=True) for _, r in (train, measured)))
        return train, measured


def _probe(features: _Features, name: str, seed: int) -> Findings:
    (fitted, known), (measured, records) = features.sides
    train, truth = (required(getattr(each, TASKS[name])) for each in (known, records))
    task: Task
    if name == "segmentation":
        classes = len(features.split.dataset.classes)
        task = SegmentationTask(train, truth, classes, LOCATIONS, PAPER)
    elif name == "multilabel":
        task = MultilabelTask(train, truth, PAPER)
    else:
        task = DepthTask(train, truth, LOCATIONS, PAPER)
    device = features.adapter.device
    scores = {
        each: run_probe(task, fitted[each], measured[each], seed=seed, device=device)[0]
        for each in fitted
    }
    images = {"images": len(records), "train_images": len(known)}
    return Findings(numbers={**images, "representations": scores})


@torch.no_grad()
def _features(adapter: Adapter, dataset: Dataset, progress: Progress) -> Adapted:
    """Representations and records of a dataset, on the CPU."""
    latents, programs, batches, done = [], [], [], 0
    for batch in record_batches(
        dataset, size=SIZE, fit="squash", batch=_BATCH, device=adapter.device
    ):
        latent, program = adapter.encode(batch.images)
        latents.append(latent.half().cpu())
        programs.append(program.float().cpu())
        batches.append(narrow(batch))
        done += len(batch)
        progress("images", done, len(dataset))
    vectors = torch.cat(programs)
    tokens = Tokens(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
    return {"latent": torch.cat(latents), "program": tokens}, concat(batches)


def _package(module: str, name: str, where: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{name} needs {module}, which is not installed ({error}).",
            f"Install it from {where}; it loads its own weights.",
        ) from error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tokenizer", choices=ADAPTERS)
    parser.add_argument("--data", action="append", required=True, help="dataset to measure on")
    parser.add_argument("--train", action="append", required=True, help="dataset to fit on")
    parser.add_argument("--suite", action="append", choices=TASKS, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("evaluation"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    adapter = ADAPTERS[arguments.tokenizer](device=choose_device(arguments.device))
    with progress_bars() as bars:
        evaluate_adapter(
            adapter,
            arguments.data,
            arguments.out,
            suites=arguments.suite or ["all"],
            train=arguments.train,
            seed=arguments.seed,
            progress=bars,
        )
    say(f"Results are in {arguments.out}; `strop report {arguments.out}` makes a page of them.")


if __name__ == "__main__":
    main()
