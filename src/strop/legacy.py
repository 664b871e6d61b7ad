"""What version 0.1.0 wrote and this version reads: settings that are gone, and fingerprints."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from strop.config import to_dict
from strop.errors import ConfigError

MODEL_SETTINGS = {"interpreter.joint": False}
"""Settings of models that were removed, with the default that each had; see `drop_retired`."""

PRESET_SETTINGS = {
    "curriculum.enabled": True,
    "curriculum.bias_steps": None,
    "curriculum.fixed_length": None,
    "curriculum.oracle_maximum": None,
    "curriculum.oracle": "error",
    "curriculum.oracle_contrast": 1.0,
    "curriculum.oracle_zoom": 4,
    "curriculum.oracle_tolerance": 0.05,
    "curriculum.price_per": "token",
    "curriculum.price_rate": 0.02,
    "curriculum.rate_knots": 10,
    "objective.distillation_weight": 0.0,
}
"""The same of presets and runs."""


def drop_retired(
    values: Mapping[str, Any], retired: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """`values` without the settings that this version no longer has.

    retired  maps dotted keys to the default that each had
    A key that has its old default is dropped with a warning; any other value is refused, because
    nothing does any more what it asks for.
    """
    kept = copy.deepcopy(dict(values))
    for dotted, default in retired.items():
        *path, last = dotted.split(".")
        table: Any = kept
        for key in path:
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            continue
        value = table.pop(last)
        if value != default:
            raise ConfigError(
                f"{where}.{dotted} is {value!r}, a setting that was removed.",
                f"Use strop 0.1.0, or its default {default!r}.",
            )
        warnings.warn(
            f"{where}.{dotted} was removed; its value {value!r} was the default and is ignored.",
            stacklevel=2,
        )
    return kept


def fingerprints(config: Any, codebook: Tensor) -> set[str]:
    """What 0.1.0 may have written into programs of a model: a digest of config and codebook alone.

    It included the length head, which may have been replaced since: codes stay the same. So there
    is one for the model's own head, and one each for heads as trained and as fitted afterwards.
    """
    values = to_dict(config)
    keys = ("image_size", "fit", "max_length", "generator", "quantizer", "interpreter")
    kept = {key: values[key] for key in keys}
    if not config.quantizer.centred:
        del kept["quantizer"]["centred"]
    kept["interpreter"]["joint"] = False
    kept["teacher"] = {"name": "", **{key: values["teacher"][key] for key in ("width", "scale")}}
    kept["decoder"] = None
    weights = codebook.detach().float().cpu().numpy().tobytes()
    head = config.length_head
    found = set()
    for hidden, fixed in ((head.widths, head.fixed), ((1024, 128), None), ((), None)):
        kept["length_head"] = {"hidden": list(hidden), "fixed": fixed}
        content = json.dumps(kept, sort_keys=True).encode()
        found.add(hashlib.sha256(content + weights).hexdigest()[:12])
    return found
