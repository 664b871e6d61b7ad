"""Many runs over a grid of settings, and the frontier of R² against bits that they make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.config import override
from strop.data.record import Dataset
from strop.errors import ConfigError
from strop.files import PathLike, read_json, write_json
from strop.training.loop import train
from strop.training.plots import plot_frontier
from strop.training.preset import Preset, load_preset


def sweep(
    preset: Preset | str,
    data: str | Dataset | Tensor,
    axes: Mapping[str, Sequence[Any]],
    *,
    out: PathLike,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Train `preset` at every combination of `axes`; `sweep.json` and `frontier.png` in `out`.

    axes     dotted keys and their values: `{"model.quantizer.codes": [256, 1024]}`
    options  go to `train`

    Called again, it goes on: finished runs are read back, a broken-off one is resumed.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    if not axes or not all(axes.values()):
        raise ConfigError("The sweep has nothing to vary.", "Give --axis training.seed=0,1,2.")
    folder, results = Path(out), []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        done = folder / name / "result.json"
        if done.is_file():
            say(f"{name}: done before")
            results.append(read_json(done, "sweep-run", 1))
            continue
        say(name)
        varied = override(preset, chosen)
        # A function keeps eight compiled versions at most, and every run makes two.
        torch.compiler.reset()
        result = train(varied, data, out=folder / name, resume=True, **options)
        if not result.finished:
            break
        bits = result.metrics["length_mean"] * math.log2(varied.model.quantizer.codes)
        entry = {"name": name, "settings": chosen, "bits": bits, **result.metrics}
        write_json(done, "sweep-run", 1, entry)
        results.append(entry)
    write_json(folder / "sweep.json", "sweep", 1, {"runs": results})
    if results:
        plot_frontier(results, folder / "frontier.png")
    return results
