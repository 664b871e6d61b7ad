"""Requests and responses. A program is a line of the `.jsonl` that `Program.save` writes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from strop.files import format_tag
from strop.inspector.image_io import MAX_BYTES
from strop.program import FORMAT, MAX_CODES, Program, program_of_rows
from strop.scenes.vocabulary import MAX_OBJECTS, MIN_OBJECTS

MAX_CLUSTERS = 12

Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int32s = Annotated[list[Int32], Field(max_length=MAX_CODES)]
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
    """A program: active `codes`, the `rest` past the length, and positions that are `erased`."""

    format: Annotated[str, Field(max_length=64)] = format_tag("program", FORMAT)
    codebook_size: Int32
    model: Annotated[str, Field(max_length=64)] = ""
    name: Annotated[str, Field(max_length=1024)] | None = None
    length: Int32
    codes: Int32s
    rest: Int32s = []
    erased: Int32s = []

    def program(self) -> Program:
        """This program as a batch of one; raises `FormatError` if it is invalid."""
        return program_of_rows([self.model_dump()], "The program")

    @staticmethod
    def of(program: Program) -> ProgramJson:
        """The first program of a batch."""
        row = program[:1].to_arrow().select(["length", "codes", "rest", "erased"]).to_pylist()[0]
        return ProgramJson(codebook_size=program.codebook_size, model=program.model, **row)


class SceneRequest(_Strict):
    """Which scene to render: the first of a seed with this number of objects."""

    objects: Annotated[int, Field(ge=MIN_OBJECTS, le=MAX_OBJECTS)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Scene(BaseModel):
    """A rendered scene: `ScenesDataset(1, seed=seed, start=index, size=size)[0].image`."""

    image: Picture
    seed: int
    index: int
    size: int


class NamedImage(BaseModel):
    """A sample photograph, or a row of the store."""

    image: Picture
    name: str


class ImageRequest(_Strict):
    """An image."""

    image: Base64Image


class EncodedImage(BaseModel):
    """The image as the model sees it, its program, and the length before it was rounded.

    `expected` are the cosine similarities that a rate head expects at lengths 1 to K.
    """

    image: Picture
    program: ProgramJson
    predicted: float
    expected: list[float] | None = None


class ProgramRequest(_Strict):
    """A program."""

    program: ProgramJson


class InterpretRequest(ProgramRequest):
    """A program and, for comparison, its image."""

    image: Base64Image | None = None


class Scores(BaseModel):
    """How well the interpreted field reproduces the teacher's.

    `floor` is the cosine similarity of the teacher's mean vector everywhere, without any token.
    Its R² about the channel means is 0.
    """

    r2: float
    r2_centred: float
    cosine: float
    floor: float


class Interpreted(BaseModel):
    """The field of a program. Teacher, error and scores need an image."""

    bits: float
    preview: Picture | None
    field: Picture
    teacher: Picture | None = None
    error: Map | None = None
    scores: Scores | None = None


class ComparisonRequest(ProgramRequest):
    """A program and its image."""

    image: Base64Image


class Curve(BaseModel):
    """Scores at every length from 1 on; null where all tokens of the prefix are erased."""

    r2: list[float | None]
    r2_centred: list[float | None]
    cosine: list[float | None]


class Erasure(BaseModel):
    """How much the field changes without the token at each active position: maps and their means.

    An erased position changes nothing. The only token of a program cannot be erased: null.
    """

    maps: list[Map]
    scores: list[float | None]


class SynergyRequest(ProgramRequest):
    """A program and two of its positions."""

    first: Int32
    second: Int32


class Synergy(BaseModel):
    """D_ij - D_i - D_j: positive where either token suffices, negative where both are needed."""

    map: Map
    score: float | None


class ClusterRequest(ComparisonRequest):
    """A program, its image, and the number of clusters."""

    k: Annotated[int, Field(ge=2, le=MAX_CLUSTERS)] = 6


class Clusters(BaseModel):
    """k-means of the teacher's field, and the nearest clusters of the interpreted field."""

    teacher: list[list[int]]
    interpreted: list[list[int]]


class Appearance(BaseModel):
    """An image in which a code is active, and the erasure map of that token."""

    name: str
    thumbnail: Annotated[str, Field(description="A WebP file in base64.")]
    position: int
    length: int
    map: Map


class CodePage(BaseModel):
    """Where a code appears in the gallery images encoded so far."""

    code: int
    count: int
    encoded: int
    total: int
    appearances: list[Appearance]


class SearchRequest(_Strict):
    """What to search the store for: an image or a program, codes, or both.

    `without` are positions to erase from the program of the image. `region` is x, y, width and
    height in pixels of the image. `codes` is an expression such as "17 and not 903".
    """

    image: Base64Image | None = None
    program: ProgramJson | None = None
    without: Int32s = []
    region: Annotated[list[float], Field(min_length=4, max_length=4)] | None = None
    codes: Annotated[str, Field(max_length=1024)] | None = None
    k: Annotated[int, Field(ge=1, le=100)] = 24


class Found(BaseModel):
    """A row of the store that was found; `region` is x, y, width and height as shares."""

    row: int
    key: str
    length: int
    score: float | None
    region: list[float] | None
    thumbnail: Annotated[str, Field(description="A WebP file in base64.")]


class SearchResults(BaseModel):
    """Rows of the store, the nearest first. `unindexed` rows were not searched."""

    hits: list[Found]
    total: int
    unindexed: int


class StoreFacts(BaseModel):
    """The store that can be searched."""

    path: str
    programs: int


class ModelFacts(BaseModel):
    """Name and sizes of a model, names of sample photographs, and the store, if there is one."""

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
    samples: list[str]
    sees_scenes: bool
    store: StoreFacts | None


class Problem(BaseModel):
    """An error: what is wrong, and what to do about it."""

    problem: str
    remedy: str


def as_map(values: Tensor, digits: int = 5) -> list[list[Any]]:
    """A map `(h, w)` for JSON, with null for NaN."""
    return [[None if v != v else round(v, digits) for v in row] for row in values.tolist()]


def as_score(value: float) -> float | None:
    """A number, or null for NaN."""
    return None if value != value else value
