"""The config of a tokenizer: those of its components, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from strop.errors import ConfigError
from strop.images import Fit
from strop.model.decoder import DecoderConfig
from strop.model.generator import GeneratorConfig
from strop.model.interpreter import InterpreterConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import PIXELS_PER_LOCATION, TeacherConfig
from strop.program import MAX_CODES

MOST = {"image_size": 2048, "max_length": MAX_CODES, "depth": 256, "codes": 2**24}
"""The largest sizes that a config may name; 65,536 for all others. Larger ones are mistakes, and
only naming them would take minutes or all memory."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Architecture and image preprocessing of a model, as stored in `config.json`.

    image_size  H: images become squares of this side, by `fit`
    max_length  K: how many codes the generator writes
    """

    teacher: TeacherConfig
    image_size: int = 256
    fit: Fit = "squash"
    max_length: int = 64
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    length_head: LengthHeadConfig = field(default_factory=LengthHeadConfig)
    interpreter: InterpreterConfig = field(default_factory=InterpreterConfig)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        _check_sizes(self, "")
        if self.image_size % PIXELS_PER_LOCATION:
            raise ConfigError(
                f"image_size is {self.image_size}.",
                f"Give a multiple of {PIXELS_PER_LOCATION}, such as 128 or 256.",
            )
        for name, part in (("generator", self.generator), ("interpreter", self.interpreter)):
            if part.width % part.heads:
                raise ConfigError(
                    f"{name}.width is {part.width} for {part.heads} heads.",
                    "Give a width that the heads can share evenly.",
                )
        if self.quantizer.codes < 2:
            raise ConfigError(
                f"quantizer.codes is {self.quantizer.codes}.",
                "Give at least 2; with one code, all programs are equal.",
            )
        if self.quantizer.decay >= 1:
            raise ConfigError(
                f"quantizer.decay is {self.quantizer.decay}.", "Give a number between 0 and 1."
            )

    @property
    def grid(self) -> int:
        """h = w: locations along one side of the field."""
        return self.image_size // PIXELS_PER_LOCATION

    @property
    def bits(self) -> float:
        """Bits of a program of full length at a fixed rate."""
        return self.max_length * math.log2(self.quantizer.codes)


def _check_sizes(config: Any, where: str) -> None:
    """Every number in a model's config is above 0 and of a size that can be built, in its parts
    too."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            _check_sizes(value, f"{where}{each.name}.")
        most = MOST.get(each.name, 2**16)
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) in (int, float) and not 0 < number <= most:
                raise ConfigError(
                    f"{where}{each.name} is {number!r:.60}.",
                    f"Give a number above 0 and at most {most:,}.",
                )
