"""What `AutoConfig` and `AutoModel` use for models of strop."""

from __future__ import annotations

from inspect import signature
from typing import Any

from transformers import PretrainedConfig

from strop.model.checkpoint import MODEL_TYPE, load
from strop.model.tokenizer import Tokenizer


class StropConfig(PretrainedConfig):  # type: ignore[misc]
    """The content of a model's `config.json`."""

    model_type = MODEL_TYPE


class StropModel:
    """What `AutoModel` asks for a model. The result is a `strop.Tokenizer`."""

    config_class = StropConfig

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Tokenizer:
        """Options that concern only models of transformers are left out."""
        known = {*signature(load).parameters, "device_map", "torch_dtype"}
        kept = {key: value for key, value in options.items() if key in known}
        return Tokenizer.from_pretrained(name, **kept)
