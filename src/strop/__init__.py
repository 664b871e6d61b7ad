"""strop: images as short programs of discrete codes, interpreted back into a DINO patch field."""

from typing import TYPE_CHECKING, Any

from strop.errors import StropError
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program

if TYPE_CHECKING:
    from strop.structure.counterfactual import erasure
    from strop.training.loop import train

__version__ = "0.1.0"

__all__ = ["Program", "StropError", "Tokenizer", "TokenizerConfig", "erasure", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import what takes long when it is first used."""
    if name == "train":
        from strop.training.loop import train

        return train
    if name == "erasure":
        from strop.structure.counterfactual import erasure

        return erasure
    raise AttributeError(f"module 'strop' has no attribute {name!r}")
