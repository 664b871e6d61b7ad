"""`transformers.AutoModel` and `AutoImageProcessor` for models of strop.

`import strop` calls `register_with_transformers`. It does not import transformers: what is here is
registered when the user imports the automatic classes, before or after strop. No remote code is
involved: a `config.json` with `"model_type": "strop"` is read by the installed package.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def register_with_transformers() -> None:
    """Register strop's classes with those modules of transformers that are imported, or will be."""
    for name, register in _REGISTRATIONS.items():
        if name in sys.modules:
            register(sys.modules[name])
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _register_config(module: ModuleType) -> None:
    from strop.auto.model import StropConfig

    module.AutoConfig.register(StropConfig.model_type, StropConfig, exist_ok=True)
    _take_bundled_names(module.AutoConfig)


def _register_model(module: ModuleType) -> None:
    from strop.auto.model import StropConfig, StropModel

    module.AutoModel.register(StropConfig, StropModel, exist_ok=True)
    _take_bundled_names(module.AutoModel)


def _register_processor(module: ModuleType) -> None:
    import torch
    from transformers import AutoConfig, BatchFeature, PretrainedConfig
    from transformers.image_processing_utils import BaseImageProcessor

    from strop.images import Fit, read_square
    from strop.model.checkpoint import IMAGE_PROCESSOR

    class StropProcessorConfig(PretrainedConfig):  # type: ignore[misc]
        """The key under which the processor is registered."""

        model_type = "strop_image_processor"

    class StropImageProcessor(BaseImageProcessor):  # type: ignore[misc]
        """Images to the uint8 squares `(B, 3, size, size)` that a tokenizer is called with."""

        model_input_names = ("pixel_values",)

        def __init__(self, size: int = 256, fit: Fit = "squash", **options: Any) -> None:
            super().__init__(**options)
            self.size, self.fit = size, fit

        def preprocess(self, images: Any, **options: Any) -> Any:
            """One image or a list; images are whatever `Tokenizer.encode` takes."""
            listed = images if isinstance(images, list | tuple) else [images]
            squares = [read_square(image, self.size, self.fit) for image in listed]
            kind = options.get("return_tensors")
            return BatchFeature({"pixel_values": torch.stack(squares)}, tensor_type=kind)

        __call__ = preprocess

    assert StropImageProcessor.__name__ == IMAGE_PROCESSOR
    AutoConfig.register(StropProcessorConfig.model_type, StropProcessorConfig, exist_ok=True)
    module.AutoImageProcessor.register(
        StropProcessorConfig, image_processor_classes={"pil": StropImageProcessor}, exist_ok=True
    )


def _take_bundled_names(auto: Any) -> None:
    """Let a class load models that came with strop by name, for which it would ask the hub."""
    ask = auto.from_pretrained.__func__

    @functools.wraps(ask)
    def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
        from strop.model.checkpoint import find_folder, list_models

        bundled = name in list_models() and not Path(name, "config.json").is_file()
        return ask(cls, find_folder(name) if bundled else name, *args, **options)

    auto.from_pretrained = classmethod(from_pretrained)


_REGISTRATIONS = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_model,
    "transformers.models.auto.image_processing_auto": _register_processor,
}


class _AfterImport(MetaPathFinder):
    """Runs a registration after its module of transformers was imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _REGISTRATIONS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _REGISTRATIONS[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
