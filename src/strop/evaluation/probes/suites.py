"""The suites `segmentation`, `multilabel` and `depth`: one probe per frozen representation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from strop.data.record import VOID
from strop.errors import ConfigError, DataError
from strop.evaluation.alignment import interpreted as interpreted_beside
from strop.evaluation.alignment import probe_weighted
from strop.evaluation.context import Context
from strop.evaluation.probes.crops import CroppedDepth, CroppedSegmentation, probe_crops
from strop.evaluation.probes.figure import COLUMNS, MOST_ROWS, draw_lengths, draw_predictions
from strop.evaluation.probes.heads import Probe, Representation
from strop.evaluation.probes.protocol import find_protocol
from strop.evaluation.probes.representations import SEQUENCES, code_vectors, interpreted
from strop.evaluation.probes.tasks import (
    DepthTask,
    MultilabelTask,
    SegmentationTask,
    Task,
    run,
)
from strop.files import atomic_path


def segmentation(context: Context) -> dict[str, Any]:
    """Classes at every pixel: mIoU, pixel and class accuracy.

    Beside them `r2_probe`: R² of the interpreted field as the teacher's probe sees it. The probe's
    weights (C, d_enc) are in `segmentation.safetensors`.
    """
    protocol = find_protocol(context.protocol)
    crops = protocol.segmentation.crops
    if crops is not None:
        classes = context.data.classes
        cropped = CroppedSegmentation(len(classes), protocol.segmentation, crops)
        return {
            **probe_crops(context, cropped),
            "class_names": list(classes),
            "hyperparameters": asdict(protocol.segmentation),
        }
    train, val = context.train, context.val
    task = SegmentationTask(
        _there(train.semantic),
        _there(val.semantic),
        len(val.classes),
        val.fields.shape[1],
        protocol.segmentation,
    )
    result, probes = _all(context, task)
    result |= {
        "class_names": list(val.classes),
        "lengths": _at_lengths(context, task, "segmentation", "miou"),
        "hyperparameters": asdict(protocol.segmentation),
    }
    weights = probes["teacher"].readout.weights().cpu()
    with atomic_path(context.folder / "segmentation.safetensors") as temporary:
        save_file({"weights": weights.contiguous()}, temporary)
    pairs = interpreted_beside(context.tokenizer, val.program, val.fields)
    result["values"] = probe_weighted(pairs, weights)
    _draw(context, task, probes, "segmentation.png")
    return result


def multilabel(context: Context) -> dict[str, Any]:
    """Which classes an image holds, from its pooled representation: mAP."""
    protocol = find_protocol(context.protocol)
    if protocol.multilabel is None:
        raise ConfigError(
            f"The protocol {protocol.name} has no multi-label probe.", "Use --protocol paper."
        )
    train, val = context.train, context.val
    task = MultilabelTask(_there(train.labels), _there(val.labels), protocol.multilabel)
    result, _ = _all(context, task)
    return {
        **result,
        "class_names": list(val.label_names),
        "hyperparameters": asdict(protocol.multilabel),
    }


def depth(context: Context) -> dict[str, Any]:
    """Depth at every pixel: RMSE, AbsRel, deltas."""
    protocol = find_protocol(context.protocol)
    if protocol.depth.crops is not None:
        cropped = CroppedDepth(protocol.depth, protocol.depth.crops)
        return {**probe_crops(context, cropped), "hyperparameters": asdict(protocol.depth)}
    train, val = context.train, context.val
    task = DepthTask(_there(train.depth), _there(val.depth), val.fields.shape[1], protocol.depth)
    result, probes = _all(context, task)
    _draw(context, task, probes, "depth.png")
    return {
        **result,
        "lengths": _at_lengths(context, task, "depth", "depth_rmse"),
        "hyperparameters": asdict(protocol.depth),
    }


def _all(context: Context, task: Task) -> tuple[dict[str, Any], dict[str, Probe]]:
    """Probe every representation; the figures, and the trained probes by name."""
    told = context.progress("probes")
    seen, held = context.representations
    scores: dict[str, Any] = {}
    probes: dict[str, Probe] = {}
    for done, (name, train) in enumerate(seen.items()):
        told(done, len(seen))
        scores[name], fitted = run(
            task,
            train,
            held[name],
            seed=context.seed,
            device=context.tokenizer.device,
            sequence=name in SEQUENCES,
        )
        probes[name] = fitted.probe
    told(len(seen), len(seen))
    result = {
        "train_images": len(context.train),
        "images": len(context.val),
        "representations": scores,
    }
    return result, probes


def _at_lengths(context: Context, task: Task, file: str, measure: str) -> list[dict[str, Any]]:
    """`latent` and `program` at each forced length, by probes trained at that length."""
    told = context.progress("probes at forced lengths")
    tokenizer, results = context.tokenizer, []
    readers: dict[str, Callable[..., Representation]] = {
        "latent": interpreted,
        "program": code_vectors,
    }
    for done, length in enumerate(context.probe_lengths):
        told(done, len(context.probe_lengths))
        programs = [each.program.with_lengths(length) for each in (context.train, context.val)]
        row: dict[str, Any] = {"length": length}
        for name, read in readers.items():
            train, val = (read(tokenizer, program) for program in programs)
            row[name], _ = run(task, train, val, seed=context.seed, device=tokenizer.device)
        results.append(row)
    if results:
        draw_lengths(context.folder / f"{file}_lengths.png", results, measure)
    return results


@torch.no_grad()
def _draw(
    context: Context,
    task: SegmentationTask | DepthTask,
    probes: dict[str, Probe],
    file: str,
) -> None:
    """The picture of the first images that hold more than one class or depth, or of the first."""
    truth = task.val
    several = (row for row, mask in enumerate(truth) if len(mask[mask != VOID].unique()) > 1)
    rows = torch.tensor(list(islice(several, MOST_ROWS)) or range(min(MOST_ROWS, len(truth))))
    _, representations = context.representations
    device = context.tokenizer.device
    predicted = {
        name: task.predict(probes[name](representations[name][rows].to(device))).cpu()
        for name in COLUMNS
    }
    draw_predictions(context.folder / file, context.val.images[rows], truth[rows], predicted)


def _there(part: Tensor | None) -> Tensor:
    """Checked for the first record before any work; a later one may still lack it."""
    if part is None:
        raise DataError(
            "Some records lack what this suite asks about.", "Run `strop data check` on the data."
        )
    return part
