"""What a user may ask of the lengths of programs, checked before any image is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from strop.errors import ModelError, ProgramError
from strop.model.rate import check_mean_length
from strop.model.rate_head import check_confidence
from strop.model.tokenizer_config import TokenizerConfig
from strop.program import check_range

TOLERANCE = 0.01
"""How much above the least cosine error of an image a search accepts if nothing is said."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthRule:
    """How lengths are chosen; the fields are the options of `Tokenizer.encode`.

    Without any, a model with a rate head encodes to the quality in its config, and any other
    uses the lengths that its head predicts.
    """

    length: int | Tensor | Literal["max", "search"] | None = None
    quality: float | None = None
    confidence: float | None = None
    verify: bool = False
    mean_length: float | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        goals = [name for name in ("length", "quality", "mean_length") if self._given(name)]
        if len(goals) > 1:
            raise ProgramError(f"{_listed(goals)} were given together.", "Give at most one.")
        goal = goals[0] if goals else "quality"
        if self.tolerance is not None and not (self.searches and self.tolerance >= 0):
            raise ProgramError(
                f"A tolerance of {self.tolerance} was given"
                + ("." if self.searches else " without a search."),
                'Give 0 or more, together with length="search".',
            )
        for name in ("verify", "confidence"):
            if self._given(name) and goal != "quality":
                raise ProgramError(
                    f"{name} was given together with {goal}.", f"Give {name} with a quality only."
                )
        if self.verify and self.confidence is not None:
            raise ProgramError(
                "verify and confidence were given together.",
                "Leave confidence out: a verified program reaches the quality for certain.",
            )
        if self.quality is not None and not 0 < self.quality < 1:
            raise ProgramError(
                f"A quality of {self.quality} is outside (0, 1).",
                "Give a cosine similarity between 0 and 1, such as 0.9.",
            )
        if self.confidence is not None:
            check_confidence(self.confidence)
        if isinstance(self.length, str):
            if self.length not in ("max", "search"):
                raise ProgramError(
                    f"length is {self.length!r}.",
                    'Give a number, "max" for all K, or "search" for each image\'s shortest.',
                )
        elif self.length is not None:
            lengths = torch.as_tensor(self.length)
            if lengths.is_floating_point():
                raise ProgramError(
                    f"A length of {lengths.flatten()[0]:g} was given as a float.",
                    "Give a whole number, or a tensor of them, one per image.",
                )
            object.__setattr__(self, "length", lengths)

    @property
    def searches(self) -> bool:
        """Whether every length of each image is interpreted."""
        return isinstance(self.length, str) and self.length == "search"

    def check(self, config: TokenizerConfig) -> None:
        """Refuse what a model of this config cannot do."""
        if isinstance(self.length, Tensor):
            check_range(self.length, 1, config.max_length, "length")
        if self.mean_length is not None:
            check_mean_length(self.mean_length, config.max_length)
        if config.length_head.kind != "rate":
            for name in ("quality", "verify", "confidence"):
                if self._given(name):
                    raise needs_rate_head(name)

    def _given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value is not False


def needs_rate_head(what: str) -> ModelError:
    """The error for a model without a rate head."""
    return ModelError(
        f"This model has no rate head, which {what} needs.",
        "Add one with `strop train-lengths MODEL --data SPEC --out FOLDER`.",
    )


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])
