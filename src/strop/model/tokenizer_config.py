"""The config of a tokenizer: those of its components, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from strop.config import check_ranges
from strop.errors import ConfigError
from strop.images import Fit
from strop.model.decoder import DecoderConfig
from strop.model.layers import TransformerConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import PIXELS_PER_LOCATION, TeacherConfig
from strop.program import MAX_CODES

MOST = 2**16
"""The largest size that a config may name where its field gives none. Larger ones are mistakes, and
only naming them would take minutes or all memory."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Architecture and image preprocessing of a model, as stored in `config.json`.

    image_size  H: images become squares of this side, by `fit`
    max_length  K: how many codes the generator writes
    """

    teacher: TeacherConfig
    image_size: int = field(default=256, metadata={"above": 0, "max": 2048})
    fit: Fit = "squash"
    max_length: int = field(default=64, metadata={"above": 0, "max": MAX_CODES})
    generator: TransformerConfig = field(default_factory=TransformerConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    length_head: LengthHeadConfig = field(default_factory=LengthHeadConfig)
    interpreter: TransformerConfig = field(default_factory=TransformerConfig)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "model", above=0, max=MOST)
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

    @property
    def grid(self) -> int:
        """h = w: locations along one side of the field."""
        return self.image_size // PIXELS_PER_LOCATION

    @property
    def bits(self) -> float:
        """Bits of a program of full length at a fixed rate."""
        return self.max_length * math.log2(self.quantizer.codes)
