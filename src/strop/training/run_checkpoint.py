"""Checkpoints: the complete state of a run in one safetensors file, written atomically."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strop.config import changes
from strop.curriculum import CurriculumState
from strop.errors import FormatError, TrainingError, parsing
from strop.files import atomic_path, check_format, format_tag
from strop.identity import of_tensors
from strop.training import distributed
from strop.training.step import Stepper

_KIND, _VERSION = "checkpoint", 1
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: the next step, further facts, and all tensors."""

    path: Path
    step: int
    about: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.path.parent.parent


def write_checkpoint(
    folder: Path,
    state: Mapping[str, Tensor],
    step: int,
    about: dict[str, Any],
    *,
    keep: int,
    kind: str = _KIND,
) -> Path:
    """Write the tensors of `state` after `step` steps, then delete all but the `keep` latest."""
    path = folder / f"step-{step:08d}.safetensors"
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    metadata = {
        "format": format_tag(kind, _VERSION),
        "step": str(step),
        "about": json.dumps(about),
        "digest": of_tensors(tensors),
    }
    try:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata)
    except (OSError, SafetensorError) as error:
        last = next(iter(checkpoint_paths(folder)), None)
        kept = f"The last good checkpoint is {last}." if last else "There is none before it."
        raise TrainingError(
            f"The checkpoint of step {step} cannot be written ({error}). {kept}",
            "Free some space or change the permissions, then continue with --resume.",
        ) from error
    for old in checkpoint_paths(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, latest first."""
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    }
    return [found[step] for step in sorted(found, reverse=True)]


def open_run(folder: Path, *, resume: bool, kind: str = _KIND) -> Checkpoint | None:
    """The checkpoint from which the run in `folder` continues; None for a new run."""
    if not resume:
        if checkpoint_paths(folder / "checkpoints"):
            raise TrainingError(
                f"{folder} already holds a run.",
                "Continue it with --resume, or choose another --out.",
            )
        # All processes must read the folder before the first one writes.
        distributed.wait_for_all()
        return None
    checkpoint, problems = latest_checkpoint(folder / "checkpoints", kind)
    said = ""
    if checkpoint is None:
        if problems:
            raise TrainingError(
                f"No checkpoint in {folder} can be used. {problems[0]}",
                "Start the run again, in another --out if this folder holds another run.",
            )
        said = f"There is no checkpoint in {folder}: a new run starts."
    elif problems:
        said = f"{problems[0]} Continuing from {checkpoint.path}."
    if said and distributed.this_process().first:
        warnings.warn(said, stacklevel=3)
    return checkpoint


def check_same(
    folder: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    may_change: Set[str] = frozenset(),
) -> None:
    """Raise if settings of the run in `folder` have changed since it started."""
    if different := changes(before, now, but=may_change):
        raise TrainingError(
            f"The run in {folder} has other settings: {different}.",
            "Resume with the same ones, or start a new run in another --out.",
        )


def latest_checkpoint(folder: Path, kind: str = _KIND) -> tuple[Checkpoint | None, list[str]]:
    """The latest complete checkpoint, or None, and the problems of later ones."""
    problems: list[str] = []
    for path in checkpoint_paths(folder):
        try:
            return read_checkpoint(path, kind), problems
        except FormatError as error:
            problems.append(error.problem)
    return None, problems


def read_checkpoint(path: Path, kind: str = _KIND) -> Checkpoint:
    """Read a checkpoint; `FormatError` if it is truncated or damaged."""
    damaged = f"The checkpoint {path} is truncated or damaged", "Use an earlier one."
    with parsing(FormatError, *damaged), safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    check_format(metadata.get("format"), kind, _VERSION, path)
    if metadata.get("digest") != of_tensors(tensors):
        raise FormatError(
            f"The checkpoint {path} is damaged: its digest is wrong.", "Use an earlier one."
        )
    with parsing(FormatError, *damaged):
        return Checkpoint(path, int(metadata["step"]), json.loads(metadata["about"]), tensors)


@torch.no_grad()
def restore(stepper: Stepper, checkpoint: Checkpoint) -> None:
    """Restore the state of a checkpoint."""
    tensors = checkpoint.tensors
    # Tensors are copied in place, because a CUDA graph may refer to them.
    for name, kept in state_of(stepper).items():
        if name.startswith("rng."):
            continue
        if name not in tensors or tensors[name].shape != kept.shape:
            raise TrainingError(
                f"The checkpoint {checkpoint.path} has no {name} of shape {tuple(kept.shape)}.",
                "It is of another model; give the run's own --out, or start a new one.",
            )
        kept.copy_(tensors[name])
    torch.set_rng_state(tensors["rng.cpu"])
    if stepper.device.type == "cuda" and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"], stepper.device)
    stepper.counted = int(checkpoint.about["counted"])


def state_of(stepper: Stepper) -> dict[str, Tensor]:
    """All tensors of a run by name, not copied."""
    state = {f"model.{name}": value for name, value in stepper.tokenizer.state_dict().items()}
    for name, parameter in stepper.parameters.items():
        for optimizer in stepper.optimizers:
            for part, value in optimizer.state.get(parameter, {}).items():
                state[f"optimizer.{name}.{part}"] = value
    for name, value in zip(CurriculumState._fields, stepper.state, strict=True):
        state[f"curriculum.{name}"] = value
    for name, value in (stepper.averaged or {}).items():
        state[f"averaged.{name}"] = value
    state["totals"] = stepper.totals
    state["rng.cpu"] = torch.get_rng_state()
    if stepper.device.type == "cuda":
        state["rng.cuda"] = torch.cuda.get_rng_state(stepper.device)
    return state
