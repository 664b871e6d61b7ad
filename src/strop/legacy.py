"""What models and programs of version 0.1.0 hold that this version does not write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from strop.config import to_dict
from strop.errors import ConfigError


def model_settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model without `interpreter.joint`, which nothing does any more."""
    kept = dict(stated)
    if isinstance(part := kept.get("interpreter"), dict):
        kept["interpreter"] = {key: value for key, value in part.items() if key != "joint"}
        if part.get("joint", False) is not False:
            problem = f"model.interpreter.joint is {part['joint']!r}, a setting that was removed."
            raise ConfigError(problem, "Use strop 0.1.0.")
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
