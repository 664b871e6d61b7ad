"""Measure a model: alignment, lengths, preview, and length against complexity."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.analysis.alignment import align
from strop.analysis.subject import encode_fields
from strop.data import ScenesDataset
from strop.data.loader import image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.model.tokenizer import Tokenizer
from strop.pool import cores
from strop.statistics import bootstrap, pearson, spearman
from strop.training.decoder_training import measure_decoder

FEW, MANY = 3, 10
"""Objects in the emptiest and the fullest scenes."""

SHOWN = 256
"""Images whose preview is compared."""


def measure(tokenizer: Tokenizer, spec: str, fitted: Tensor) -> dict[str, Any]:
    """Alignment, lengths, preview and, for scenes, lengths against objects.

    Baselines of equal bits are fitted on the fields `fitted` (n, S, d_enc).
    """
    images = images_of(tokenizer, spec)
    fields = fields_of(tokenizer, images)
    program = encode_fields(tokenizer, fields)
    found = align(tokenizer, fields, program, fit=fitted)
    if (objects := object_counts(open_dataset(spec))) is not None:
        found["complexity"] = complexity(program.lengths.cpu().numpy(), objects)
    if tokenizer.decoder is not None:
        batches = (part.to(tokenizer.device) for part in images[:SHOWN].split(32))
        found["preview"] = measure_decoder(tokenizer, batches)
    return found


def images_of(tokenizer: Tokenizer, spec: str) -> Tensor:
    """(n, 3, H, H) uint8 on the CPU, at the model's size."""
    batches = image_batches(
        open_dataset(spec),
        size=tokenizer.config.image_size,
        fit=tokenizer.config.fit,
        device=tokenizer.device,
        workers=min(cores(), 8),
    )
    return torch.cat([images.cpu() for images in batches])


def fields_of(tokenizer: Tokenizer, images: Tensor) -> Tensor:
    """(n, S, d_enc) fp32 on the CPU, in the teacher's scale."""
    return torch.cat([tokenizer.field(part).cpu() for part in images.split(256)])


def object_counts(dataset: Dataset) -> np.ndarray | None:
    """(n,) number of objects per scene; None for other data."""
    if isinstance(dataset, ScenesDataset):
        return dataset.object_counts().numpy()
    scenes = [dataset[index].scene for index in range(len(dataset))]
    if any(scene is None for scene in scenes):
        return None
    return np.array([len(scene["objects"]) for scene in scenes if scene is not None])


def length_by_objects(tokenizer: Tokenizer, spec: str) -> dict[str, Any]:
    """How the lengths of a dataset of scenes follow the number of objects."""
    objects = object_counts(open_dataset(spec))
    assert objects is not None, "The data have no scenes."
    fields = fields_of(tokenizer, images_of(tokenizer, spec))
    return complexity(encode_fields(tokenizer, fields).lengths.cpu().numpy(), objects)


def complexity(lengths: np.ndarray, objects: np.ndarray) -> dict[str, Any]:
    """How program length follows the number of objects."""
    found: dict[str, Any] = {
        "pearson": bootstrap(pearson, lengths, objects)._asdict(),
        "spearman": bootstrap(spearman, lengths, objects)._asdict(),
        "mean_length": {
            str(count): float(lengths[objects == count].mean()) for count in np.unique(objects)
        },
    }
    if FEW in objects and MANY in objects:
        high = float(np.percentile(lengths[objects == MANY], 95))
        low = float(np.percentile(lengths[objects == FEW], 5))
        found["percentiles"] = {"95 at ten": high, "5 at three": low, "ratio": high / low}
    return found
