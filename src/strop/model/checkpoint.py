"""Model folders: `config.json`, `model.safetensors` and a model card. Nothing is unpickled."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import strop.model.card as card
from strop.config import from_dict, to_dict
from strop.device import choose_device
from strop.errors import ConfigError, FormatError, ModelError, did_you_mean
from strop.files import PathLike, atomic_path, read_json, write_json
from strop.model.teacher import BUNDLED
from strop.model.tokenizer import Tokenizer, TokenizerConfig

FORMAT = 1
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DISTILLED = "distilled.json"
"""What the folder of a distilled teacher holds beside its weights."""


def load(name: PathLike, *, device: str | torch.device | None = None, **hub: Any) -> Tokenizer:
    """A model by name: bundled (`scenes`), a folder, or a hub id (`someone/their-strop`).

    device  where to put it; by default a GPU if there is one
    hub     goes to the download: `revision`, `token`, `cache_dir`, `local_files_only`
    """
    chosen = choose_device(device)
    return load_folder(find_folder(name, **hub)).to(chosen)


def bundled_models() -> list[str]:
    """Names of the models that came with this installation."""
    folders = (config.parent for config in BUNDLED.glob("*/config.json"))
    return sorted(folder.name for folder in folders if _is_model(folder))


def find_folder(name: PathLike, **hub: Any) -> Path:
    """The folder of a model, downloaded if it is a hub id."""
    models = bundled_models()
    text = str(name)
    if text in models:
        return BUNDLED / text
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    known = f"bundled models: {', '.join(models)}" if models else "no models are bundled"
    if text.count("/") != 1 or text.startswith((".", "/", "~")):
        raise ModelError(
            f"There is no model {text!r} ({known}).",
            f"{did_you_mean(text, models)}Give a bundled name, a folder that holds config.json, or "
            "a hub id such as a/b. A preset has to be trained first (`strop train`).",
        )
    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors"], **hub))
    except (OSError, ValueError, HFValidationError) as error:
        # The hub's errors are all one or the other: no network, no such repository, no access.
        raise ModelError(
            f"The model {text} is neither a folder here nor could it be fetched "
            f"({str(error).splitlines()[0]}).",
            f"Check the name and the network; offline, give a folder ({known}).",
        ) from error


def read_config(folder: PathLike) -> tuple[TokenizerConfig, dict[str, Any]]:
    """The config of a model and what its folder says about it, without its weights."""
    values = _read_values(folder)
    return _model_config(folder, values), _table(values, "about")


def _read_values(folder: PathLike) -> dict[str, Any]:
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        run = (folder / "model" / "config.json").is_file()  # as `strop train --out` leaves it
        raise FormatError(
            f"{folder} holds no config.json.",
            f"Give {folder / 'model'}." if run else "Give a folder that `save_pretrained` wrote.",
        )
    if (folder / DISTILLED).is_file():
        raise FormatError(
            f"{folder} holds a teacher, not a model.", "Train a model on it: strop train --teacher."
        )
    return read_json(folder / "config.json", "model", FORMAT)


def _model_config(folder: PathLike, values: dict[str, Any]) -> TokenizerConfig:
    try:
        return from_dict(TokenizerConfig, values.get("model", {}), "model")
    except ConfigError as error:
        raise FormatError(
            f"{Path(folder) / 'config.json'} does not describe a model. {error.problem}",
            error.remedy,
        ) from error


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    table = values.get(key)
    return table if isinstance(table, dict) else {}


def load_folder(folder: PathLike) -> Tokenizer:
    """The model in a folder that `save_folder` wrote, on the CPU, in eval mode."""
    folder = Path(folder)
    values = _read_values(folder)
    config = _model_config(folder, values)
    try:
        tokenizer = Tokenizer(
            config,
            about=_table(values, "about"),
            teacher_digest=str(values.get("teacher_digest") or ""),
        )
    except (RuntimeError, OverflowError, MemoryError) as error:  # a size no machine has
        raise FormatError(
            f"{folder / 'config.json'} does not describe a model that fits here ({error}).",
            _DAMAGED,
        ) from error
    _load_weights(tokenizer, _read_weights(folder), folder)
    return tokenizer.eval()


def save_folder(tokenizer: Tokenizer, folder: PathLike, dtype: torch.dtype = torch.float32) -> None:
    """Write a model to a folder. Parameters become `dtype`; the codebook stays fp32.

    All files are written before any is put into place, so that a full disk leaves an older model
    as it was; and the config comes last, so that a folder that has one is complete.
    """
    folder = Path(folder)
    parameters = {name for name, _ in tokenizer.named_parameters()}
    tensors = {
        name: value.detach().to("cpu", dtype if name in parameters else value.dtype).contiguous()
        for name, value in tokenizer.state_dict().items()
    }
    with ExitStack() as stack:  # puts into place in reverse: weights, card, config
        config, readme, weights = (
            stack.enter_context(atomic_path(folder / name))
            for name in ("config.json", "README.md", WEIGHTS)
        )
        values = {
            "model": to_dict(tokenizer.config),
            "teacher_digest": tokenizer.known_teacher_digest,
            "about": tokenizer.about,
        }
        write_json(config, "model", FORMAT, values)
        readme.write_text(card.render(tokenizer), encoding="utf-8")
        save_file(tensors, weights, metadata={"format": "pt"})
        # Only renames are left to do. Until the last of them the folder is no model: cut short
        # with the old config still there, it would load as a mixture of two.
        old_shards = folder.glob("model-*-of-*.safetensors")
        for old in (folder / "config.json", folder / INDEX, *old_shards):
            old.unlink(missing_ok=True)


def _is_model(folder: Path) -> bool:
    """Tells models from teachers, whose config.json is of another kind."""
    try:
        read_json(folder / "config.json", "model", FORMAT)
    except FormatError:
        return False
    return True


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from one file or from the shards that an index names."""
    shards = [WEIGHTS]
    if (folder / INDEX).is_file():
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            shards = sorted({str(Path(shard).name) for shard in index["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{folder / INDEX} is not an index of shards ({error!r}).", _DAMAGED
            ) from error
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            raise FormatError(f"{folder} lacks {shard}.", _DAMAGED)
        try:
            tensors |= load_file(folder / shard)
        except (SafetensorError, OSError, ValueError) as error:
            raise FormatError(f"{folder / shard} cannot be read ({error}).", _DAMAGED) from error
    return tensors


def _load_weights(tokenizer: Tokenizer, tensors: dict[str, Tensor], folder: Path) -> None:
    expected = tokenizer.state_dict()
    missing, foreign = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    if missing or foreign:
        told = [f"lack {', '.join(missing[:3])}"] if missing else []
        told += [f"hold the unknown {', '.join(foreign[:3])}"] if foreign else []
        raise FormatError(f"The weights in {folder} {' and '.join(told)}.", _MISMATCH)
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise FormatError(
                f"{name} in {folder} has the shape {tuple(value.shape)}, "
                f"not {tuple(expected[name].shape)}.",
                _MISMATCH,
            )
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise FormatError(f"{name} in {folder} holds NaN or infinity.", _DAMAGED)
    tokenizer.load_state_dict(tensors)


_DAMAGED = "The folder is damaged or incomplete; copy or download it again."
_MISMATCH = "Its config.json belongs to other weights; copy the folder as a whole."
