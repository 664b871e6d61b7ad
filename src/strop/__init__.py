"""strop: images as short programs of discrete codes, interpreted back into a DINO patch field."""

from strop.analysis.counterfactual import erasure
from strop.errors import StropError
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program
from strop.training.loop import train

__version__ = "0.1.0"

__all__ = ["Program", "StropError", "Tokenizer", "TokenizerConfig", "erasure", "load", "train"]
