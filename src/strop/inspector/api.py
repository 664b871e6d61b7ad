"""The JSON API. It is stateless: every request holds all that its response depends on."""

from __future__ import annotations

from threading import Semaphore
from typing import Annotated

import torch
import torch.nn.functional as F
from fastapi import APIRouter, Path
from torch import Tensor

from strop.analysis.counterfactual import erasure, pair_erasure
from strop.data import ScenesDataset
from strop.errors import ProgramError
from strop.inspector.colours import Basis, clusters
from strop.inspector.engine import AnalysedImage, Engine
from strop.inspector.gallery import Gallery
from strop.inspector.image_io import MAX_BYTES, png, read_upload
from strop.inspector.messages import (
    Appearance,
    ClusterRequest,
    Clusters,
    CodePage,
    ComparisonRequest,
    Curve,
    EncodedImage,
    Erasure,
    ImageRequest,
    Interpreted,
    InterpretRequest,
    ModelFacts,
    Problem,
    ProgramJson,
    ProgramRequest,
    Scene,
    SceneRequest,
    Scores,
    Synergy,
    SynergyRequest,
    as_map,
    as_score,
)
from strop.metrics import cosine, r2, r2_centred
from strop.program import check_range
from strop.scenes import object_counts
from strop.scenes.vocabulary import MAX_OBJECTS, MIN_OBJECTS

Code = Annotated[int, Path(ge=0, lt=2**31)]
ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request comes from another site.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    422: "A value is invalid.",
    503: "The server is receiving too much at once.",
}


def build(engine: Engine, gallery: Gallery, name: str) -> APIRouter:
    """All endpoints, for a model and the name to show for it."""
    api = APIRouter(
        prefix="/api",
        responses={
            status: {"model": Problem, "description": text} for status, text in ERRORS.items()
        },
    )
    config = engine.config
    rendering = Semaphore(2)

    def analyse(image: str) -> AnalysedImage:
        return engine.analyse(read_upload(image, config))

    def grid(values: Tensor) -> Tensor:
        return values.view(config.grid, config.grid)

    @api.get("/model")
    def model() -> ModelFacts:
        """Name and sizes of the model."""
        return ModelFacts(
            name=name,
            fingerprint=engine.tokenizer.identity.codes,
            teacher=config.teacher.name.rsplit("/", 1)[-1],
            image_size=config.image_size,
            grid=config.grid,
            max_length=config.max_length,
            codebook_size=config.quantizer.codes,
            decodes=engine.tokenizer.decoder is not None,
            min_objects=MIN_OBJECTS,
            max_objects=MAX_OBJECTS,
            max_bytes=MAX_BYTES,
        )

    @api.post("/scene")
    def scene(request: SceneRequest) -> Scene:
        """Render a scene with a given number of objects."""
        # One in eight scenes has a given number of objects, so 1000 scenes always hold one.
        counts = object_counts(request.seed, range(1000))
        index = int((counts == request.objects).nonzero()[0])
        scenes = ScenesDataset(1, seed=request.seed, start=index, size=config.image_size)
        with rendering:
            image = scenes.images([0])[0]
        return Scene(image=png(image), seed=request.seed, index=index, size=config.image_size)

    @api.post("/encode")
    def encode(request: ImageRequest) -> EncodedImage:
        """An image to its program. Later requests can send the smaller square that is returned."""
        square = read_upload(request.image, config)
        analysed = engine.analyse(square)
        return EncodedImage(
            image=png(square),
            program=ProgramJson.of(analysed.program),
            predicted=analysed.predicted,
        )

    @api.post("/interpret")
    def interpret(request: InterpretRequest) -> Interpreted:
        """A program to its field and preview, compared with the teacher's field of the image."""
        program = request.program.program()
        field = engine.interpret(program)
        pixels = engine.decode(field)
        preview = None if pixels is None else png(pixels)
        bits = program.bits.item()
        if request.image is None:
            colours = Basis.of(field[0]).colours(field[0])
            return Interpreted(bits=bits, preview=preview, field=png(colours))
        analysed = analyse(request.image)
        target = analysed.field
        error = 1 - F.cosine_similarity(field[0], target[0], dim=-1)
        return Interpreted(
            bits=bits,
            preview=preview,
            field=png(analysed.basis.colours(field[0])),
            teacher=png(analysed.basis.colours(target[0])),
            error=as_map(grid(error)),
            scores=Scores(
                r2=r2(field, target).item(),
                r2_centred=r2_centred(field, target).item(),
                cosine=cosine(field, target).item(),
            ),
        )

    @api.post("/curve")
    def curve(request: ComparisonRequest) -> Curve:
        """R² of a program truncated to every length."""
        program, target = request.program.program(), analyse(request.image).field
        full = program.with_lengths(program.capacity)
        present = ~full.erased[0]  # a prefix without a token has no field
        lengths = [k for k in range(1, program.capacity + 1) if present[:k].any()]
        curve = Curve(r2=[None] * program.capacity, r2_centred=[None] * program.capacity)
        for start in range(0, len(lengths), engine.chunk):
            chunk = lengths[start : start + engine.chunk]
            fields = engine.interpret(full[[0] * len(chunk)].with_lengths(torch.tensor(chunk)))
            for length, field in zip(chunk, fields.split(1), strict=True):
                curve.r2[length - 1] = r2(field, target).item()
                curve.r2_centred[length - 1] = r2_centred(field, target).item()
        return curve

    @api.post("/erasure")
    def erase(request: ProgramRequest) -> Erasure:
        """How much the field changes where, without each active token."""
        program = request.program.program()
        maps = erasure(engine.as_tokenizer, program, batch=engine.chunk)[0]
        maps = maps[: int(program.lengths)]
        scores = maps.mean(dim=(1, 2)).tolist()
        return Erasure(
            maps=[as_map(values) for values in maps], scores=[as_score(s) for s in scores]
        )

    @api.post("/synergy")
    def synergy(request: SynergyRequest) -> Synergy:
        """How much the field changes without two tokens, beyond the sum of their own changes."""
        program = request.program.program()
        i, j = request.first, request.second
        check_range(torch.tensor([i, j]), 0, int(program.lengths) - 1, "position")
        if i == j:
            raise ProgramError(f"Both positions are {i}.", "Give two different positions.")
        # A pair of a token and itself is the erasure of that token.
        pairs = torch.tensor([(0, i, j), (0, i, i), (0, j, j)])
        ((_, (both, first, second)),) = pair_erasure(engine.as_tokenizer, program, pairs)
        excess = both - first - second
        return Synergy(map=as_map(grid(excess)), score=as_score(excess.mean().item()))

    @api.post("/clusters")
    def cluster(request: ClusterRequest) -> Clusters:
        """k-means of the teacher's field, and the nearest clusters of the interpreted field."""
        field = engine.interpret(request.program.program())[0]
        teacher, interpreted = clusters(analyse(request.image).field[0], field, request.k)
        return Clusters(teacher=grid(teacher).tolist(), interpreted=grid(interpreted).tolist())

    @api.get("/codes/{code}")
    def code_page(code: Code) -> CodePage:
        """Where a code appears in the gallery, as far as it is encoded."""
        check_range(torch.tensor(code), 0, config.quantizer.codes - 1, "code")
        count, occurrences = gallery.find(code)
        return CodePage(
            code=code,
            count=count,
            encoded=len(gallery.images),
            total=gallery.total,
            appearances=[
                Appearance(
                    name=found.image.name,
                    thumbnail=found.image.thumbnail,
                    position=found.position,
                    length=int(found.image.program.lengths),
                    map=as_map(found.map),
                )
                for found in occurrences
            ],
        )

    return api
