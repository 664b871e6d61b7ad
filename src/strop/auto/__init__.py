"""`transformers.AutoModel` and `AutoImageProcessor` for models of strop.

`import strop` calls `register_with_transformers`. It does not import transformers: what is here is
registered when the user imports the automatic classes, before or after strop. No remote code is
involved: a `config.json` with `"model_type": "strop"` is read by the installed package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def register_with_transformers() -> None:
    """Register strop's classes with those modules of transformers that are imported, or will be."""
    for name, register in _REGISTRATIONS.items():
        if name in sys.modules:
            register()
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _register_model() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModel

    from strop.auto.model import StropConfig, StropModel

    AutoConfig.register(StropConfig.model_type, StropConfig, exist_ok=True)
    AutoModel.register(StropConfig, StropModel, exist_ok=True)


def _register_processor() -> None:
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    from strop.auto.model import StropConfig
    from strop.auto.processor import StropImageProcessor

    AutoImageProcessor.register(
        StropConfig, image_processor_classes={"pil": StropImageProcessor}, exist_ok=True
    )


_REGISTRATIONS = {
    "transformers.models.auto.configuration_auto": _register_model,
    "transformers.models.auto.image_processing_auto": _register_processor,
}


class _AfterImport(MetaPathFinder):
    """Runs a registration after its module of transformers was imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _REGISTRATIONS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _REGISTRATIONS[name]()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
