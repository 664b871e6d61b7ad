"""strop: images as short programs of discrete codes, interpreted back into a DINO patch field."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strop.auto import register_with_transformers

if TYPE_CHECKING:
    from strop.analysis.counterfactual import erasure
    from strop.errors import StropError
    from strop.model.checkpoint import list_models, load
    from strop.model.tokenizer import Tokenizer, TokenizerConfig
    from strop.program import Program
    from strop.store.encode import encode_corpus
    from strop.store.store import open_store
    from strop.training.loop import train

__version__ = "0.1.0"

__all__ = [
    "Program",
    "StropError",
    "Tokenizer",
    "TokenizerConfig",
    "encode_corpus",
    "erasure",
    "list_models",
    "load",
    "open_store",
    "train",
]

# Imported at first use: `strop --help` and `import strop` need not wait for torch.
_MODULES = {
    "Program": "strop.program",
    "StropError": "strop.errors",
    "Tokenizer": "strop.model.tokenizer",
    "TokenizerConfig": "strop.model.tokenizer",
    "encode_corpus": "strop.store.encode",
    "erasure": "strop.analysis.counterfactual",
    "list_models": "strop.model.checkpoint",
    "load": "strop.model.checkpoint",
    "open_store": "strop.store.store",
    "train": "strop.training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'strop' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_transformers()
