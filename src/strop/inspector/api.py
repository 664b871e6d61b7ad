"""The JSON API. Every request carries all it needs: nothing is kept between two of them."""

from __future__ import annotations

from threading import Semaphore
from typing import Annotated

import torch
import torch.nn.functional as F
from fastapi import APIRouter, Path
from torch import Tensor

from strop.analysis.counterfactual import erasure, pair_erasure
from strop.data.scenes import ScenesDataset, object_counts
from strop.data.scenes.vocabulary import MAX_OBJECTS, MIN_OBJECTS
from strop.errors import ProgramError
from strop.inspector.colours import Basis, clusters
from strop.inspector.engine import Encoding, Engine
from strop.inspector.gallery import Gallery
from strop.inspector.pictures import MAX_BYTES, png, read_upload
from strop.inspector.schema import (
    Appearance,
    ClusterRequest,
    Clusters,
    CodePage,
    ComparisonRequest,
    Curve,
    Encoded,
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
from strop.program import Program, check_range

Code = Annotated[int, Path(ge=0, lt=2**31)]
REFUSALS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request comes from another site.",
    413: "The body is too large.",
    422: "The request makes no sense.",
}


def build(engine: Engine, gallery: Gallery, name: str) -> APIRouter:
    """All endpoints, for one model and the name it goes by."""
    api = APIRouter(
        prefix="/api",
        responses={
            status: {"model": Problem, "description": told} for status, told in REFUSALS.items()
        },
    )
    config = engine.config
    drawing = Semaphore(2)

    def read(image: str) -> Encoding:
        return engine.encode(read_upload(image, config))

    def grid(values: Tensor) -> Tensor:
        return values.view(config.grid, config.grid)

    @api.get("/model")
    def model() -> ModelFacts:
        """The loaded model: its sizes and its name."""
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
        """Draw a scene with a given number of objects."""
        # One in eight scenes has a given number: a thousand always hold one.
        counts = object_counts(request.seed, range(1000))
        index = int((counts == request.objects).nonzero()[0])
        scenes = ScenesDataset(1, seed=request.seed, start=index, size=config.image_size)
        with drawing:
            image = scenes.images([0])[0]
        return Scene(image=png(image), seed=request.seed, index=index, size=config.image_size)

    @api.post("/encode")
    def encode(request: ImageRequest) -> Encoded:
        """An image to its program. Send the square that comes back from then on: it is smaller."""
        square = read_upload(request.image, config)
        made = engine.encode(square)
        return Encoded(
            image=png(square), program=ProgramJson.of(made.program), predicted=made.predicted
        )

    @api.post("/interpret")
    def interpret(request: InterpretRequest) -> Interpreted:
        """A program to its field and preview, beside the teacher's field of the image."""
        program = request.program.program()
        field = engine.interpret(program)
        pixels = engine.decode(field)
        preview = None if pixels is None else png(pixels)
        bits = program.bits.item()
        if request.image is None:
            colours = Basis.of(field[0]).colours(field[0])
            return Interpreted(bits=bits, preview=preview, field=png(colours))
        made = read(request.image)
        error = 1 - F.cosine_similarity(field[0], made.field[0], dim=-1)
        return Interpreted(
            bits=bits,
            preview=preview,
            field=png(made.basis.colours(field[0])),
            teacher=png(made.basis.colours(made.field[0])),
            error=as_map(grid(error)),
            scores=Scores(
                r2=r2(field, made.field).item(),
                r2_centred=r2_centred(field, made.field).item(),
                cosine=cosine(field, made.field).item(),
            ),
        )

    @api.post("/curve")
    def curve(request: ComparisonRequest) -> Curve:
        """R² of a program cut at every length."""
        program, target = request.program.program(), read(request.image).field
        whole = program.with_lengths(program.capacity)
        some = [length for length in range(1, program.capacity + 1) if _readable(whole, length)]
        points = Curve(r2=[None] * program.capacity, r2_centred=[None] * program.capacity)
        for start in range(0, len(some), engine.portion):
            lengths = torch.tensor(some[start : start + engine.portion])
            fields = engine.interpret(whole[[0] * len(lengths)].with_lengths(lengths))
            for length, field in zip(lengths.tolist(), fields.split(1), strict=True):
                points.r2[length - 1] = r2(field, target).item()
                points.r2_centred[length - 1] = r2_centred(field, target).item()
        return points

    @api.post("/erasure")
    def erase(request: ProgramRequest) -> Erasure:
        """What each active token holds up."""
        program = request.program.program()
        maps = erasure(engine.as_tokenizer, program, batch=engine.portion)[0]
        maps = maps[: int(program.lengths)]
        scores = maps.mean(dim=(1, 2)).tolist()
        return Erasure(maps=[as_map(each) for each in maps], scores=[as_score(s) for s in scores])

    @api.post("/synergy")
    def synergy(request: SynergyRequest) -> Synergy:
        """What two tokens hold up together, beyond what each does alone."""
        program = request.program.program()
        i, j = request.first, request.second
        check_range(torch.tensor([i, j]), 0, int(program.lengths) - 1, "position")
        if i == j:
            raise ProgramError(f"Both positions are {i}.", "Give two different ones.")
        # A pair of a token and itself is that token alone.
        pairs = torch.tensor([(0, i, j), (0, i, i), (0, j, j)])
        ((_, (both, first, second)),) = pair_erasure(engine.as_tokenizer, program, pairs)
        more = both - first - second
        return Synergy(map=as_map(grid(more)), score=as_score(more.mean().item()))

    @api.post("/clusters")
    def cluster(request: ClusterRequest) -> Clusters:
        """k-means of the teacher's field, applied to the interpreted one too."""
        field = engine.interpret(request.program.program())[0]
        teacher, interpreted = clusters(read(request.image).field[0], [field], request.k)
        return Clusters(teacher=grid(teacher).tolist(), interpreted=grid(interpreted).tolist())

    @api.get("/codes/{code}")
    def code_page(code: Code) -> CodePage:
        """Where else a code appears, in the pictures encoded so far."""
        check_range(torch.tensor(code), 0, config.quantizer.codes - 1, "code")
        count, places = gallery.find(code)
        return CodePage(
            code=code,
            count=count,
            encoded=len(gallery.pictures),
            total=gallery.total,
            appearances=[
                Appearance(
                    name=place.picture.name,
                    thumbnail=place.picture.thumbnail,
                    position=place.position,
                    length=int(place.picture.program.lengths),
                    map=as_map(place.map),
                )
                for place in places
            ],
        )

    return api


def _readable(program: Program, length: int) -> bool:
    """Whether a prefix holds a token that is not erased."""
    return not bool(program.erased[0, :length].all())
