"""Runs over a grid of settings, and their frontier of R² against bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.config import override
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import ConfigError, TrainingError
from strop.files import PathLike, write_json
from strop.progress import Progress, no_progress
from strop.training import distributed
from strop.training.loop import train
from strop.training.plots import plot_frontier
from strop.training.preset import Preset, load_preset
from strop.training.run_data import split


def sweep(
    preset: Preset | str,
    data: str | Dataset | Tensor,
    axes: Mapping[str, Sequence[Any]],
    *,
    out: PathLike,
    validation: str | Dataset | Tensor | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> list[dict[str, Any]]:
    """Train `preset` at every combination of `axes`; `sweep.json` and `frontier.png` in `out`.

    axes        dotted keys and their values: `{"model.quantizer.codes": [256, 1024]}`
    validation  validation images; by default part of `data` is held out
    options     passed to `train`

    A second call continues an interrupted sweep: each run is resumed, which only measures a
    finished one. Runs of other settings or data are refused.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    if not axes or not all(axes.values()):
        raise ConfigError("The sweep has no axis.", "Give --axis training.seed=0,1,2.")
    combinations = [
        dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())
    ]
    presets = [override(preset, chosen) for chosen in combinations]
    if validation is None:
        images = len(data if isinstance(data, Tensor) else open_dataset(data))
        for held_out in (each.training.held_out for each in presets):
            if not len(split(images, held_out)[1]):
                raise TrainingError(
                    f"No validation images: training.held_out = {held_out} holds out none of "
                    f"{images}.",
                    "Give --val, or use at least 10 images and a training.held_out above 0.",
                )
    folder, results, first = Path(out), [], distributed.this_process().first
    progress = progress if first else no_progress
    with distributed.only_writer(folder):
        for number, (chosen, varied) in enumerate(zip(combinations, presets, strict=True)):
            name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
            progress(f"runs: {name}", number, len(presets))
            # A function keeps at most eight compiled versions, and each run compiles two.
            torch.compiler.reset()
            result = train(
                varied,
                data,
                out=folder / name,
                validation=validation,
                resume=True,
                progress=progress,
                **options,
            )
            if not result.finished:
                break
            bits = result.metrics["length_mean"] * math.log2(varied.model.quantizer.codes)
            results.append({"name": name, "settings": chosen, "bits": bits, **result.metrics})
        if first:
            write_json(folder / "sweep.json", "sweep", 1, {"runs": results})
            if results:
                plot_frontier(results, folder / "frontier.png")
    return results
