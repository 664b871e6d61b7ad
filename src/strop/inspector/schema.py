"""What the API takes and gives. A program is a line of the `.jsonl` that `Program.save` writes."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from strop.errors import ProgramError
from strop.files import check_format, format_tag
from strop.inspector.pictures import MAX_BYTES
from strop.program import FORMAT, Program
from strop.scenes.vocabulary import MAX_OBJECTS, MIN_OBJECTS

LONGEST = 4096
MAX_CLUSTERS = 12

Whole = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Wholes = Annotated[list[Whole], Field(max_length=LONGEST)]
Base64Image = Annotated[
    str,
    Field(
        max_length=4 * (MAX_BYTES // 3 + 1),
        description="A PNG, JPEG or WebP file in base64.",
        json_schema_extra={"contentEncoding": "base64"},
    ),
]
Picture = Annotated[str, Field(description="A PNG file in base64.")]
Map = Annotated[
    list[list[float | None]], Field(description="h rows of w numbers; null where undefined.")
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


class ProgramJson(_Strict):
    """A program: `codes` are active, `rest` lie past the length, `erased` are the holes."""

    format: Annotated[str, Field(max_length=64)] = format_tag("program", FORMAT)
    codebook_size: Whole
    model: Annotated[str, Field(max_length=64)] = ""
    name: Annotated[str, Field(max_length=1024)] | None = None
    length: Whole
    codes: Wholes
    rest: Wholes = []
    erased: Wholes = []

    def program(self) -> Program:
        """Itself as a batch of one; `ProgramError` if it is impossible."""
        check_format(self.format, "program", FORMAT, "The program")
        codes = self.codes + self.rest
        if self.length != len(self.codes):
            raise ProgramError(
                f"The length is {self.length}, but {len(self.codes)} codes are active.",
                "Put exactly the active ones into codes and the others into rest.",
            )
        holes = torch.zeros(1, len(codes), dtype=torch.bool)
        for hole in self.erased:
            if not 0 <= hole < len(codes):
                raise ProgramError(
                    f"Position {hole} is erased, but there are {len(codes)} codes.",
                    "Positions count from 0.",
                )
            holes[0, hole] = True
        return Program(
            codes=torch.tensor([codes], dtype=torch.int64),
            lengths=torch.tensor([self.length]),
            codebook_size=self.codebook_size,
            model=self.model,
            erased=holes,
        )

    @staticmethod
    def of(program: Program) -> ProgramJson:
        """The first of a batch."""
        length, codes = int(program.lengths[0]), program.codes[0].tolist()
        return ProgramJson(
            codebook_size=program.codebook_size,
            model=program.model,
            length=length,
            codes=codes[:length],
            rest=codes[length:],
            erased=program.erased[0].nonzero().flatten().tolist(),
        )


class SceneRequest(_Strict):
    """Which scene to draw: the first of a seed's with so many objects."""

    objects: Annotated[int, Field(ge=MIN_OBJECTS, le=MAX_OBJECTS)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Scene(BaseModel):
    """A drawn scene: `ScenesDataset(1, seed=seed, start=index, size=size)[0].image`."""

    image: Picture
    seed: int
    index: int
    size: int


class ImageRequest(_Strict):
    """An image."""

    image: Base64Image


class Encoded(BaseModel):
    """The image as the model sees it, its program, and the length before it was rounded."""

    image: Picture
    program: ProgramJson
    predicted: float


class ProgramRequest(_Strict):
    """A program."""

    program: ProgramJson


class InterpretRequest(ProgramRequest):
    """A program and, to compare with, the image it came from."""

    image: Base64Image | None = None


class Scores(BaseModel):
    """How well the interpreted field reproduces the teacher's."""

    r2: float
    r2_centred: float
    cosine: float


class Interpreted(BaseModel):
    """What a program stands for. Without an image there is no teacher, no error and no score."""

    bits: float
    preview: Picture | None
    field: Picture
    teacher: Picture | None = None
    error: Map | None = None
    scores: Scores | None = None


class ComparisonRequest(ProgramRequest):
    """A program and the image it came from."""

    image: Base64Image


class Curve(BaseModel):
    """R² at every length from 1 on; null where all tokens of the prefix are erased."""

    r2: list[float | None]
    r2_centred: list[float | None]


class Erasure(BaseModel):
    """For each active position: how much the field changes without that token, where and overall.

    A hole holds nothing up. The only token of a program cannot be taken out: null.
    """

    maps: list[Map]
    scores: list[float | None]


class SynergyRequest(ProgramRequest):
    """A program and two of its positions."""

    first: Whole
    second: Whole


class Synergy(BaseModel):
    """D_ij - D_i - D_j: above 0 where either would do, below where both are needed at once."""

    map: Map
    score: float | None


class ClusterRequest(ComparisonRequest):
    """A program, its image, and how many clusters."""

    k: Annotated[int, Field(ge=2, le=MAX_CLUSTERS)] = 6


class Clusters(BaseModel):
    """k-means of the teacher's field, and where the interpreted one falls in the same clusters."""

    teacher: list[list[int]]
    interpreted: list[list[int]]


class Appearance(BaseModel):
    """A picture in which a code is active, and what it holds up there."""

    name: str
    thumbnail: Annotated[str, Field(description="A WebP file in base64.")]
    position: int
    length: int
    map: Map


class CodePage(BaseModel):
    """Where a code appears among the pictures encoded so far."""

    code: int
    count: int
    encoded: int
    total: int
    appearances: list[Appearance]


class ModelFacts(BaseModel):
    """The model behind the page."""

    name: str
    fingerprint: str
    teacher: str
    image_size: int
    grid: int
    max_length: int
    codebook_size: int
    decodes: bool
    min_objects: int
    max_objects: int
    max_bytes: int


class Problem(BaseModel):
    """What is wrong, and what to do about it."""

    problem: str
    remedy: str


def as_map(values: Tensor, digits: int = 5) -> list[list[Any]]:
    """A map `(h, w)` as JSON has it."""
    return [[None if v != v else round(v, digits) for v in row] for row in values.tolist()]


def as_score(value: float) -> float | None:
    """A number, or null for NaN."""
    return None if value != value else value
