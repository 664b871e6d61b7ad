"""Other tokenizers, probed as a STROP is: FlexTok D12-D12-IN1k and One-D-Piece-S-256.

Neither is part of strop. Each adapter follows the public encode call of the package that the user
has installed, and the package loads its own weights. What stands for the interpreted field
(`latent`) and for the code vectors (`program`) is a choice, since the paper does not say which it
took; `taps` tells it.

The adapters are tested against the recorded interface of both packages: names, shapes and ranges.
Neither has been run here with its weights.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.data.loader import record_batches
from strop.data.record import Dataset
from strop.errors import ConfigError, ModelError
from strop.evaluation.context import Report
from strop.evaluation.features import Truth, truth_of
from strop.evaluation.parts import Part, Run, open_sources
from strop.evaluation.probes.checks import check_apart
from strop.evaluation.probes.heads import Representation, Tokens
from strop.evaluation.probes.protocol import PAPER
from strop.evaluation.probes.tasks import DepthTask, MultilabelTask, SegmentationTask, Task
from strop.evaluation.probes.tasks import run as probe
from strop.evaluation.suites import SUITES, check_data, check_suites
from strop.files import PathLike

SIZE = 256
"""Side of the images that both take."""
LOCATIONS = 256
"""S: both have a grid of 16 x 16."""
_BATCH = 16

Adapted = tuple[dict[str, Representation], Truth]
"""Representations of images by name, and what is known about the images."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """Another tokenizer, frozen.

    encode  uint8 images (B, 3, 256, 256) to `latent` (B, S, d) and `program` (B, K, d_c)
    bits    what its program costs at a fixed rate
    taps    where in the model the two are taken from
    """

    name: str
    bits: float
    taps: dict[str, str]
    encode: Callable[[Tensor], tuple[Tensor, Tensor]]
    device: torch.device


def flextok(model: Any = None, *, device: str | torch.device = "cpu") -> Adapter:
    """FlexTok D12-D12-IN1k: 256 registers of six dimensions, quantized to 64,000 values.

    `model` is a loaded `FlexTokFromHub`; without one it is fetched.
    """
    if model is None:
        hub = _package("flextok.flextok_wrapper", "FlexTokFromHub", "github.com/apple/ml-flextok")
        model = hub.from_pretrained("EPFL-VILAB/flextok_d12_d12_in1k")
    model = model.eval().to(device)
    model.vae.sample_posterior = False  # the same image, the same tokens

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

    `model` is a loaded `OneDPiece`; without one it is fetched.
    """
    if model is None:
        hub = _package("modeling.one_d_piece", "OneDPiece", "github.com/turingmotors/One-D-Piece")
        model = hub.from_pretrained("turing-motors/One-D-Piece-S-256")
    model = model.eval().to(device)

    def encode(images: Tensor) -> tuple[Tensor, Tensor]:
        z_q, _ = model.encode(images.to(device).float() / 255)
        seen: list[Tensor] = []
        # The decoder's field is what its last, convolutional part is given.
        hook = model.decoder.ffn.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            model.decoder(z_q)
        finally:
            hook.remove()
        return seen[0].flatten(2).transpose(1, 2), z_q.squeeze(2).transpose(1, 2)

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
    report: Report | None = None,
) -> list[Part]:
    """Run the suites of probes, by the paper's protocol, as `evaluate` does for a STROP."""
    names = [name for name in check_suites(suites) if SUITES[name].part]
    if other := sorted(set(suites) - {"all", *names}):
        raise ConfigError(
            f"The suite {other[0]} is not for other tokenizers.",
            f"Choose from {', '.join(name for name, each in SUITES.items() if each.part)}.",
        )
    sources = open_sources(data, train)
    for source in sources:
        for name in names:
            check_data(name, source)
    about = {"bits": adapter.bits, "taps": adapter.taps}
    model = {"name": adapter.name, "fingerprint": adapter.name, "config": {}, "about": about}
    settings = {name: {"seed": seed, "protocol": PAPER.name} for name in names}
    run = Run(folder=Path(out), model=model, settings=settings)
    parts: list[Part | None] = []
    for source in sources:
        waiting = [name for name in names if run.finished(source, name) is None]
        if waiting and source.train is not None:
            fitted = _features(adapter, source.train, report)
            measured = _features(adapter, source.data, report)
            check_apart(fitted[1].images, fitted[1].names, measured[1].images, measured[1].names)
            for name in waiting:
                began = time.perf_counter()
                result = _probe(adapter, name, fitted, measured, seed)
                run.finish(source, name, result, time.perf_counter() - began, adapter.device)
        parts += [run.finished(source, name) for name in names]
    return [part for part in parts if part is not None]


def _probe(adapter: Adapter, suite: str, train: Adapted, val: Adapted, seed: int) -> Part:
    (fitted, known), (measured, truth) = train, val
    task = _task(suite, known, truth)
    return {
        "images": len(truth),
        "train_images": len(known),
        "representations": {
            name: probe(task, fitted[name], measured[name], seed=seed, device=adapter.device)[0]
            for name in fitted
        },
    }


def _task(suite: str, known: Truth, truth: Truth) -> Task:
    there, wanted = (getattr(each, SUITES[suite].part or "") for each in (known, truth))
    if suite == "segmentation":
        classes = len(truth.classes)
        return SegmentationTask(there, wanted, classes, LOCATIONS, PAPER.segmentation)
    if suite == "multilabel":
        assert PAPER.multilabel is not None
        return MultilabelTask(there, wanted, PAPER.multilabel)
    return DepthTask(there, wanted, LOCATIONS, PAPER.depth)


@torch.no_grad()
def _features(adapter: Adapter, dataset: Dataset, report: Report | None) -> Adapted:
    """Representations of a dataset, on the CPU, and what is known about its images."""
    latents, programs, records, done = [], [], [], 0
    for loaded in record_batches(
        dataset, size=SIZE, fit="squash", batch=_BATCH, device=adapter.device
    ):
        latent, program = adapter.encode(loaded.images)
        latents.append(latent.half().cpu())
        programs.append(program.float().cpu())
        records.append(loaded)
        done += len(loaded)
        if report is not None:
            report("images", done, len(dataset))
    vectors = torch.cat(programs)
    tokens = Tokens(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
    return {"latent": torch.cat(latents), "program": tokens}, truth_of(dataset, records)


def _package(module: str, name: str, where: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{name} needs {module}, which is not installed ({error}).",
            f"Install it from {where}; it loads its own weights.",
        ) from error
