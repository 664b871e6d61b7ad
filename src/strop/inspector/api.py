"""The JSON API. It is stateless: every request holds all that its response depends on."""

from __future__ import annotations

from pathlib import Path
from threading import Semaphore
from typing import Annotated

import torch
import torch.nn.functional as F
from fastapi import APIRouter
from fastapi import Path as PathParameter
from torch import Tensor

from strop.analysis.colours import Basis, clusters
from strop.analysis.counterfactual import erasure, pair_erasure
from strop.data import ScenesDataset
from strop.data.samples import PHOTOGRAPHS, photograph
from strop.errors import ProgramError, StoreError
from strop.inspector import messages
from strop.inspector.engine import AnalysedImage, Engine
from strop.inspector.gallery import Gallery
from strop.inspector.image_io import MAX_BYTES, png, read_upload, thumbnail
from strop.metrics import cosine, r2, r2_centred
from strop.program import Program, check_range
from strop.scenes import object_counts
from strop.scenes.vocabulary import MAX_OBJECTS, MIN_OBJECTS
from strop.store.store import Store

Code = Annotated[int, PathParameter(ge=0, lt=2**31)]
SampleNumber = Annotated[int, PathParameter(ge=0, lt=len(PHOTOGRAPHS))]
ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request comes from another site.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    422: "A value is invalid.",
    503: "The server is receiving too much at once.",
}


def build(engine: Engine, gallery: Gallery, name: str, opened: Store | None = None) -> APIRouter:
    """All endpoints, for a model, the name to show for it, and a store to search."""
    api = APIRouter(
        prefix="/api",
        responses={
            status: {"model": messages.Problem, "description": text}
            for status, text in ERRORS.items()
        },
    )
    config = engine.config
    rendering = Semaphore(2)

    def analyse(image: str) -> AnalysedImage:
        return engine.analyse(read_upload(image, config))

    def grid(values: Tensor) -> Tensor:
        return values.view(config.grid, config.grid)

    @api.get("/model")
    def model() -> messages.ModelFacts:
        """Name and sizes of the model."""
        return messages.ModelFacts(
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
            samples=list(PHOTOGRAPHS),
            sees_scenes=engine.sees_scenes,
            store=None
            if opened is None
            else messages.StoreFacts(path=Path(opened.path).name, programs=len(opened)),
        )

    @api.get("/samples/{number}")
    def sample(number: SampleNumber) -> messages.NamedImage:
        """A sample photograph."""
        name = PHOTOGRAPHS[number]
        return messages.NamedImage(image=png(photograph(name)), name=name)

    @api.post("/scene")
    def scene(request: messages.SceneRequest) -> messages.Scene:
        """Render a scene with a given number of objects."""
        # One in eight scenes has a given number of objects, so 1000 scenes always hold one.
        counts = object_counts(request.seed, range(1000))
        index = int((counts == request.objects).nonzero()[0])
        scenes = ScenesDataset(1, seed=request.seed, start=index, size=config.image_size)
        with rendering:
            image = scenes.images([0])[0]
        return messages.Scene(
            image=png(image), seed=request.seed, index=index, size=config.image_size
        )

    @api.post("/encode")
    def encode(request: messages.ImageRequest) -> messages.EncodedImage:
        """An image to its program. Later requests can send the smaller square that is returned."""
        square = read_upload(request.image, config)
        analysed = engine.analyse(square)
        return messages.EncodedImage(
            image=png(square),
            program=messages.ProgramJson.of(analysed.program),
            predicted=analysed.predicted,
            expected=analysed.expected,
        )

    @api.post("/interpret")
    def interpret(request: messages.InterpretRequest) -> messages.Interpreted:
        """A program to its field and preview, compared with the teacher's field of the image."""
        program = request.program.program()
        field = engine.interpret(program)
        pixels = engine.decode(field)
        preview = None if pixels is None else png(pixels)
        bits = program.bits.item()
        if request.image is None:
            colours = Basis.of(field[0]).colours(field[0])
            return messages.Interpreted(bits=bits, preview=preview, field=png(colours))
        analysed = analyse(request.image)
        target = analysed.field
        error = 1 - F.cosine_similarity(field[0], target[0], dim=-1)
        return messages.Interpreted(
            bits=bits,
            preview=preview,
            field=png(analysed.basis.colours(field[0])),
            teacher=png(analysed.basis.colours(target[0])),
            error=messages.as_map(grid(error)),
            scores=messages.Scores(
                r2=r2(field, target).item(),
                r2_centred=r2_centred(field, target).item(),
                cosine=cosine(field, target).item(),
                floor=cosine(target.mean(dim=1, keepdim=True).expand_as(target), target).item(),
            ),
        )

    @api.post("/curve")
    def curve(request: messages.ComparisonRequest) -> messages.Curve:
        """Scores of a program truncated to every length."""
        program, target = request.program.program(), analyse(request.image).field
        full = program.with_lengths(program.capacity)
        present = ~full.erased[0]  # a prefix without a token has no field
        lengths = [k for k in range(1, program.capacity + 1) if present[:k].any()]
        scores = {"r2": r2, "r2_centred": r2_centred, "cosine": cosine}
        curves: dict[str, list[float | None]] = {s: [None] * program.capacity for s in scores}
        for start in range(0, len(lengths), engine.chunk):
            chunk = lengths[start : start + engine.chunk]
            fields = engine.interpret(full[[0] * len(chunk)].with_lengths(torch.tensor(chunk)))
            for length, field in zip(chunk, fields.split(1), strict=True):
                for score, of in scores.items():
                    curves[score][length - 1] = of(field, target).item()
        return messages.Curve(**curves)

    @api.post("/erasure")
    def erase(request: messages.ProgramRequest) -> messages.Erasure:
        """How much the field changes where, without each active token."""
        program = request.program.program()
        maps = erasure(engine.as_tokenizer, program, batch=engine.chunk)[0]
        maps = maps[: int(program.lengths)]
        scores = maps.mean(dim=(1, 2)).tolist()
        return messages.Erasure(
            maps=[messages.as_map(values) for values in maps],
            scores=[messages.as_score(s) for s in scores],
        )

    @api.post("/synergy")
    def synergy(request: messages.SynergyRequest) -> messages.Synergy:
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
        return messages.Synergy(
            map=messages.as_map(grid(excess)), score=messages.as_score(excess.mean().item())
        )

    @api.post("/clusters")
    def cluster(request: messages.ClusterRequest) -> messages.Clusters:
        """k-means of the teacher's field, and the nearest clusters of the interpreted field."""
        field = engine.interpret(request.program.program())[0]
        teacher, interpreted = clusters(analyse(request.image).field[0], field, request.k)
        return messages.Clusters(
            teacher=grid(teacher).tolist(), interpreted=grid(interpreted).tolist()
        )

    @api.get("/codes/{code}")
    def code_page(code: Code) -> messages.CodePage:
        """Where a code appears in the gallery, as far as it is encoded."""
        check_range(torch.tensor(code), 0, config.quantizer.codes - 1, "code")
        return gallery.find(code)

    @api.post("/search")
    def search(request: messages.SearchRequest) -> messages.SearchResults:
        """Rows of the store that are similar to an image or a program, or that have codes."""
        store = _required(opened)
        query: Tensor | Program | None = None
        if request.image is not None:
            query = read_upload(request.image, config)
        elif request.program is not None:
            query = request.program.program()
        found, pictures = engine.search(
            store,
            query,
            k=request.k,
            region=request.region and tuple(request.region),
            without=request.without,
            codes=request.codes or None,
        )
        return messages.SearchResults(
            hits=[
                messages.Found(
                    row=hit.row,
                    key=hit.key,
                    length=hit.length,
                    score=hit.score,
                    region=hit.region
                    and [
                        value / side
                        for value, side in zip(hit.region, (hit.width, hit.height) * 2, strict=True)
                    ],
                    thumbnail=thumbnail(picture),
                )
                for hit, picture in zip(found.hits, pictures, strict=True)
            ],
            total=len(store) if found.total is None else found.total,
            unindexed=found.unindexed,
        )

    @api.get("/rows/{row}")
    def row(row: Code) -> messages.NamedImage:
        """The image of a row of the store, or its decoded preview."""
        store = _required(opened)
        check_range(torch.tensor(row), 0, len(store) - 1, "row")
        key = store.read([row], columns=["key"]).to_pylist()[0]["key"]
        return messages.NamedImage(image=png(engine.picture(store, row)), name=key)

    return api


def _required(store: Store | None) -> Store:
    if store is None:
        raise StoreError("There is no store to search.", "Start strop inspect with --store STORE.")
    return store
