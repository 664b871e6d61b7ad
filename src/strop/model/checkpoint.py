"""Model folders: `config.json`, `model.safetensors` and a model card. Nothing is unpickled."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import strop.model.card as card
from strop.config import flatten, from_dict, to_dict
from strop.device import choose_device
from strop.errors import ConfigError, FormatError, ModelError, did_you_mean, expect, parsing
from strop.files import PathLike, at_home, atomic_path, exclusive, read_json, write_json
from strop.identity import of_tensors
from strop.legacy import model_settings
from strop.listing import expand
from strop.model.model_engine import make_engine
from strop.model.teacher import BUNDLED, hub_folder
from strop.model.tokenizer import Tokenizer, TokenizerConfig

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPROCESSOR = "preprocessor_config.json"
MODEL_TYPE = "strop"
"""What `transformers.AutoModel` finds a model's class by; see `strop.auto`."""
DISTILLED = "distilled.json"
"""What the folder of a distilled teacher holds beside its weights."""

OPTIONAL = {"decoder", "quantizer.centred", "length_head.kind", "length_head.quality"}
"""Settings that a folder may lack: it was written before they existed, or they change no program.
Any other missing setting is refused, because its default may give other programs."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load(
    name: PathLike,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    engine: str = "torch",
    verify: bool = True,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: PathLike | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> Tokenizer:
    """Load a model by name: bundled (`scenes`), a folder, or a hub id (`someone/their-strop`).

    device  where to put it; by default a GPU if there is one, or a CPU for the other engines
    engine  what computes: "torch"; on a CPU also "onnx" or "openvino", which are faster
    verify  compare the weights with the digest in `config.json`
    dtype   sets `precision`: weights stay float32 and products are computed in it

    The other options are those of `huggingface_hub.snapshot_download`.
    """
    chosen = choose_device("cpu" if device is None and engine != "torch" else device)
    folder = find_folder(
        name,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        force_download=force_download,
    )
    tokenizer = load_folder(folder, verify=verify).to(chosen)
    tokenizer.precision = dtype
    tokenizer.engine = make_engine(engine, tokenizer)
    return tokenizer


def list_models() -> list[str]:
    """Names of the tokenizers that came with this installation."""
    names = []
    for config in BUNDLED.glob(f"*/{CONFIG}"):
        with suppress(FormatError):  # the config.json of a teacher
            read_json(config, "model", FORMAT)
            names.append(config.parent.name)
    return sorted(names)


def find_folder(name: PathLike, **hub: Any) -> Path:
    """The folder of a model, downloaded if it is a hub id."""
    remedy = "Give a bundled name, a folder or a hub id; `strop.list_models()` lists the first."
    expect(name, str | os.PathLike, "the name of a model", ModelError, remedy)
    models = list_models()
    text = str(name)
    path = expand(name)
    if text in models:
        return BUNDLED / text
    if path.is_dir() and text:  # no name is not the current folder
        return path
    if (BUNDLED / text / CONFIG).is_file():
        raise ModelError(f"{text!r} is a bundled teacher, not a model.", "Give it to --teacher.")
    if path.is_file():
        raise ModelError(f"{text} is a file, not a model.", "Give the folder that holds it.")
    known = f"bundled models: {', '.join(models)}" if models else "no models are bundled"
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or text.endswith("/"):
        raise ModelError(
            f"There is no {'folder' if '/' in text else 'model'} {text!r} ({known}).",
            f"{did_you_mean(text, models)}Give a bundled name, a folder that holds config.json, or "
            "a hub id such as a/b. A preset has to be trained first (`strop train`).",
        )
    return hub_folder(text, "model", f"a folder ({known})", ModelError, **hub)


def read_config(folder: PathLike) -> tuple[TokenizerConfig, dict[str, Any]]:
    """The config of a model and what its folder says about it, without its weights."""
    folder = Path(folder)
    values = _read_values(folder)
    return _model_config(folder, values), _about(values)


def load_folder(folder: PathLike, *, verify: bool = True) -> Tokenizer:
    """The model in a folder that `save_folder` wrote, on the CPU, in eval mode.

    With `verify` the weights must have the digest that the config names. Folders of strop 0.1.0
    name none.
    """
    folder = Path(folder)
    while True:
        version = _version(folder)
        values = _read_values(folder)
        config = _model_config(folder, values)
        try:
            tensors = _read_weights(folder, str(values.get("weights_digest") or ""), verify)
        except FormatError:
            if _version(folder) == version:
                raise
        if _version(folder) == version:
            break
        # Another process replaced the model between config and weights: read it again.
    _check_weights(config, tensors, folder)
    tokenizer = Tokenizer(
        config, about=_about(values), teacher_digest=str(values.get("teacher_digest") or "")
    )
    tokenizer.load_state_dict(tensors)
    return tokenizer.eval()


def save_folder(tokenizer: Tokenizer, folder: PathLike, dtype: torch.dtype = torch.float32) -> None:
    """Write a model to a folder. Parameters become `dtype`; the codebook stays fp32.

    A reader sees the older model of the folder or the new one, whatever fails or is killed on the
    way. The config names the digest of its weights. These are first written under a name that holds
    this digest, replacing the config commits the save, and then they get their own name.
    """
    folder = at_home(folder)
    if not next(each for each in (folder, *folder.absolute().parents) if each.exists()).is_dir():
        raise ModelError(f"{folder} is a file, or in one.", "Name a folder for the model.")
    parameters = {name for name, _ in tokenizer.named_parameters()}
    tensors = {
        name: value.detach().to("cpu", dtype if name in parameters else value.dtype).contiguous()
        for name, value in tokenizer.state_dict().items()
    }
    values = {
        "model_type": MODEL_TYPE,
        "model": to_dict(tokenizer.config),
        "weights_digest": (weights_digest := of_tensors(tensors)),
        "teacher_digest": tokenizer.teacher_digest,
        "about": tokenizer.about,
    }
    processor = {
        "image_processor_type": "StropImageProcessor",  # of `strop.auto`
        "size": tokenizer.config.image_size,
        "fit": tokenizer.config.fit,
    }
    with exclusive(folder):
        new = folder / _name_until_committed(weights_digest)
        with ExitStack() as stack:  # moves into place in reverse: weights, config, the rest
            readme, preprocessor, config, weights = (
                stack.enter_context(atomic_path(folder / name))
                for name in ("README.md", PREPROCESSOR, CONFIG, new.name)
            )
            preprocessor.write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
            write_json(config, "model", FORMAT, values)
            readme.write_text(card.render(tokenizer), encoding="utf-8")
            save_file(tensors, weights, metadata={"format": "pt"})
        new.replace(folder / WEIGHTS)
        for old in folder.glob(".weights-*"):
            old.unlink(missing_ok=True)


# Reading.


def _read_values(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        run = (folder / "model" / CONFIG).is_file()  # as `strop train --out` leaves it
        raise FormatError(
            f"{folder} holds no config.json.",
            f"Give {folder / 'model'}." if run else "Give a folder that `save_pretrained` wrote.",
        )
    if (folder / DISTILLED).is_file():
        raise FormatError(
            f"{folder} holds a teacher, not a model.", "Train a model on it: strop train --teacher."
        )
    return read_json(folder / CONFIG, "model", FORMAT)


def _version(folder: Path) -> tuple[int, int]:
    """Changes whenever the config is replaced."""
    try:
        found = (folder / CONFIG).stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _model_config(folder: Path, values: dict[str, Any]) -> TokenizerConfig:
    stated = values.get("model", {})
    try:
        if isinstance(stated, dict):
            stated = model_settings(stated)
        config = from_dict(TokenizerConfig, stated, "model")
    except ConfigError as error:
        raise FormatError(
            f"{folder / CONFIG} does not describe a model. {error.problem}", error.remedy
        ) from error
    missing = sorted(flatten(to_dict(config)).keys() - flatten(stated).keys() - OPTIONAL)
    if missing:
        raise FormatError(
            f"{folder / CONFIG} does not describe a model: it lacks "
            f"{', '.join(f'model.{key}' for key in missing[:3])}.",
            _DAMAGED,
        )
    return config


def _about(values: dict[str, Any]) -> dict[str, Any]:
    about = values.get("about")
    return about if isinstance(about, dict) else {}


def _read_weights(folder: Path, digest: str, verify: bool) -> dict[str, Tensor]:
    """The tensors that have this digest. Without one, those that the folder has."""
    if digest:  # these are there if a save was cut short, or is about to end
        with suppress(FormatError):
            tensors = _read_file(folder / _name_until_committed(digest))
            if not verify or of_tensors(tensors) == digest:
                return tensors
    tensors = _read_file(folder / WEIGHTS)
    if digest and verify and of_tensors(tensors) != digest:
        raise FormatError(
            f"The weights in {folder} are not those that {CONFIG} names: their digest differs.",
            f"{_DAMAGED} To load them all the same, give verify=False.",
        )
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FormatError(f"{path.parent} lacks {path.name}.", _DAMAGED)
    with parsing(FormatError, f"{path} cannot be read", _DAMAGED):
        return load_file(path)


def _check_weights(config: TokenizerConfig, tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse weights of another model, before the one in the config takes any memory."""
    with (
        parsing(FormatError, f"{folder / CONFIG} describes a model that cannot be built", _DAMAGED),
        torch.device("meta"),
    ):
        expected = Tokenizer(config).state_dict()
    missing, foreign = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    if missing or foreign:
        found = [f"lack {', '.join(missing[:3])}"] if missing else []
        found += [f"hold the unknown {', '.join(foreign[:3])}"] if foreign else []
        raise FormatError(f"The weights in {folder} {' and '.join(found)}.", _MISMATCH)
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise FormatError(
                f"{name} in {folder} has the shape {tuple(value.shape)}, "
                f"not {tuple(expected[name].shape)}.",
                _MISMATCH,
            )
        wanted = expected[name].dtype
        allowed = DTYPES if wanted.is_floating_point else (wanted,)
        if value.dtype not in allowed:
            raise FormatError(
                f"{name} in {folder} is {value.dtype}.",
                f"Save it as {' or '.join(str(dtype) for dtype in allowed)}.",
            )
        if not torch.isfinite(value).all():
            raise FormatError(f"{name} in {folder} holds NaN or infinity.", _DAMAGED)


def _name_until_committed(digest: str) -> str:
    return f".weights-{digest[:16]}.safetensors"


_DAMAGED = "The folder is damaged or incomplete; copy or download it again."
_MISMATCH = "Its config.json belongs to other weights; copy the folder as a whole."
