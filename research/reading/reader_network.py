"""A small network that reads a program, or vectors, and writes the scene, object by object.

It writes the number of objects; then for each of them, nearest to the camera first, its cell on the
ground and its attributes. The cell comes first, so that attributes are predicted given the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from code_transformer import (
    CodeTransformer,
    Inputs,
    NetworkConfig,
    causal_mask,
    layer_sizes,
)
from consensus import Places, Words, consensus
from scene_objects import ATTRIBUTES, Objects, SceneObject
from scene_pairs import ScenePairs
from strop.analysis.network_training import StepProgress, train_network
from strop.errors import DataError
from strop.program import Program
from strop.random import seeded
from strop.scenes.vocabulary import EXTENT, MAX_OBJECTS

CELLS = 24  # along each side of the ground: a quarter of a metre each
BLUR = 0.25  # metres; standard deviation of the targets around the true cell
SIZES = tuple(len(words) for words in ATTRIBUTES.values())
_STEPS = 2 * MAX_OBJECTS + 1


class Reader(nn.Module):
    """A transformer over codes or vectors, and a causal decoder over the steps of the scene."""

    near: Tensor

    def __init__(
        self, config: NetworkConfig, size: int, capacity: int, *, vectors: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.encoder = CodeTransformer(config, size, capacity, vectors=vectors)
        self.start = nn.Parameter(torch.randn(width))
        self.steps = nn.Parameter(torch.randn(_STEPS, width))
        self.count_in = nn.Embedding(MAX_OBJECTS + 1, width)
        self.column_in, self.row_in = nn.Embedding(CELLS, width), nn.Embedding(CELLS, width)
        self.words_in = nn.ModuleList(nn.Embedding(size, width) for size in SIZES)
        layer = nn.TransformerDecoderLayer(**layer_sizes(config))
        self.layers = nn.TransformerDecoder(layer, config.depth, nn.LayerNorm(width))
        self.count_out = nn.Linear(width, MAX_OBJECTS + 1)
        self.cell_out = nn.Linear(width, CELLS**2)
        self.words_out = nn.Linear(width, sum(SIZES))
        self.register_buffer("near", cell_neighbours(), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.start.device

    def decode(self, memory: Tensor, active: Tensor, written: Tensor) -> Tensor:
        """Memory `(B, K, d)` and the embedded steps so far `(B, T, d)` to states `(B, T, d)`."""
        length = written.shape[1]
        return self.layers(
            written + self.steps[:length],
            memory,
            tgt_mask=causal_mask(length, self.device),
            tgt_is_causal=True,
            memory_key_padding_mask=~active,
        )

    def embed_cells(self, cells: Tensor) -> Tensor:
        """Cells `(...)` to `(..., d)`."""
        return self.column_in(cells // CELLS) + self.row_in(cells % CELLS)

    def embed_words(self, words: Tensor) -> Tensor:
        """Words `(..., 4)` to `(..., d)`."""
        return torch.stack(
            [e(w) for e, w in zip(self.words_in, words.unbind(-1), strict=True)]
        ).sum(0)

    def loss(self, inputs: Inputs, scenes: SceneTensors) -> Tensor:
        """Mean cross-entropy of the count, and of each object's cell and words."""
        objects = torch.stack([self.embed_cells(scenes.cells), self.embed_words(scenes.words)], 2)
        written = torch.cat(
            [
                self.start.expand(len(inputs), 1, -1),
                self.count_in(scenes.count)[:, None],
                objects.flatten(1, 2)[:, :-1],  # nothing follows the words of the last object
            ],
            dim=1,
        )
        states = self.decode(self.encoder(inputs), inputs.active, written)
        count = F.cross_entropy(self.count_out(states[:, 0]).float(), scenes.count)
        cells = -(
            self.near[scenes.cells] * self.cell_out(states[:, 1::2]).float().log_softmax(-1)
        ).sum(-1)
        parts = self.words_out(states[:, 2::2]).float().split(SIZES, dim=-1)
        words = sum(
            F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
            for logits, target in zip(parts, scenes.words.unbind(-1), strict=True)
        )
        return count + ((cells + words) * scenes.present).sum() / scenes.present.sum()

    def read(self, source: Program | Inputs, *, samples: int = 16, seed: int = 0) -> list[Objects]:
        """The scenes of B programs: the consensus of `samples` readings of each."""
        drawn = self._draw(source, samples, seed)
        return [named(*consensus(words, places)) if places.size else () for words, places in drawn]

    def readings(
        self, source: Program | Inputs, *, samples: int = 16, seed: int = 0
    ) -> list[list[Objects]]:
        """For each of B programs, `samples` scenes drawn from the reader's distribution.

        All have the median number of objects.
        """
        drawn = self._draw(source, samples, seed)
        return [list(map(named, words, places)) for words, places in drawn]

    @torch.no_grad()
    def _draw(
        self, source: Program | Inputs, samples: int, seed: int, batch: int = 64
    ) -> Iterator[tuple[Words, Places]]:
        """Words `(S, n, 4)` and places `(S, n, 2)` of S readings of each program."""
        rows = Inputs.of(source).to(self.device)
        random = torch.Generator(self.device).manual_seed(seed)
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            count, words, cells = self._write(part, samples, random)
            places = places_of(cells).cpu().numpy()
            for n, w, p in zip(count.tolist(), words.cpu().numpy(), places, strict=True):
                yield w[:, :n], p[:, :n]

    def _write(
        self, inputs: Inputs, samples: int, random: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Counts `(B,)`, and words `(B, S, n, 4)` and cells `(B, S, n)` drawn object by object."""
        memory, active = self.encoder(inputs), inputs.active
        written = self.start.expand(len(inputs), 1, -1)
        odds = self.count_out(self.decode(memory, active, written)[:, -1]).softmax(-1)
        count = (odds.cumsum(-1) < 0.5).sum(-1).clamp(max=MAX_OBJECTS)
        written = torch.cat([written, self.count_in(count)[:, None]], dim=1)
        memory, active, written = (
            x.repeat_interleave(samples, dim=0) for x in (memory, active, written)
        )
        cells = count.new_zeros(len(written), int(count.max()))
        words = count.new_zeros(*cells.shape, len(SIZES))
        for slot in range(cells.shape[1]):
            state = self.decode(memory, active, written)[:, -1]
            cells[:, slot] = _choose(self.cell_out(state), random)
            where = self.embed_cells(cells[:, slot])
            written = torch.cat([written, where[:, None]], dim=1)
            state = self.decode(memory, active, written)[:, -1]
            parts = self.words_out(state).split(SIZES, dim=-1)
            words[:, slot] = torch.stack([_choose(part, random) for part in parts], dim=-1)
            what = self.embed_words(words[:, slot])
            written = torch.cat([written, what[:, None]], dim=1)
        return count, words.unflatten(0, (-1, samples)), cells.unflatten(0, (-1, samples))


@dataclass(frozen=True)
class SceneTensors:
    """N scenes of up to O objects, in the order in which these are written.

    count    (N,) int64
    cells    (N, O) int64 in [0, 24²): 24 times column plus row
    words    (N, O, 4) int64: index of each attribute's word
    present  (N, O) bool
    """

    count: Tensor
    cells: Tensor
    words: Tensor
    present: Tensor

    def __getitem__(self, rows: Tensor) -> SceneTensors:
        return SceneTensors(*(part[rows] for part in vars(self).values()))

    def to(self, device: torch.device | str) -> SceneTensors:
        return SceneTensors(*(part.to(device) for part in vars(self).values()))


def scene_tensors(scenes: Sequence[Objects]) -> SceneTensors:
    """Scenes as the tensors that the reader is trained on."""
    count = torch.tensor([len(scene) for scene in scenes])
    slots = int(count.max())
    if slots > MAX_OBJECTS:
        raise DataError(
            f"A scene has {slots} objects.", f"The reader writes {MAX_OBJECTS} at most."
        )
    cells = torch.zeros(len(scenes), slots, dtype=torch.int64)
    words = torch.zeros(len(scenes), slots, len(SIZES), dtype=torch.int64)
    for row, scene in enumerate(scenes):
        for slot, each in enumerate(sorted(scene, key=_depth)):
            cells[row, slot] = _cell(each)
            words[row, slot] = torch.tensor(
                [table.index(w) for table, w in zip(ATTRIBUTES.values(), each.words, strict=True)]
            )
    return SceneTensors(count, cells, words, torch.arange(slots) < count[:, None])


def places_of(cells: Tensor) -> Tensor:
    """The centre of each cell: `(...)` to `(..., 2)`, in metres, float64."""
    along = torch.stack([cells // CELLS, cells % CELLS], dim=-1).double()
    return (along + 0.5) * (2 * EXTENT / CELLS) - EXTENT


def named(words: Words, places: Places) -> Objects:
    """Objects from the indices of their words `(n, 4)` and their places `(n, 2)`."""
    tables = list(ATTRIBUTES.items())
    return tuple(
        SceneObject(
            **{name: table[w] for (name, table), w in zip(tables, word, strict=True)},
            x=float(x),
            y=float(y),
        )
        for word, (x, y) in zip(words, places, strict=True)
    )


def cell_neighbours() -> Tensor:
    """`(24², 24²)`: the target distribution over cells for each true cell."""
    at = (torch.arange(CELLS) + 0.5) * 2 * EXTENT / CELLS
    near = (-((at[:, None] - at) ** 2) / (2 * BLUR**2)).exp()
    near = near / near.sum(-1, keepdim=True)
    return torch.kron(near, near)


def _choose(logits: Tensor, random: torch.Generator) -> Tensor:
    """Indices `(B,)` drawn from logits `(B, M)`."""
    return torch.multinomial(logits.float().softmax(-1), 1, generator=random).squeeze(-1)


def _depth(each: SceneObject) -> float:
    """The distance along the viewing direction of the camera, which is (-1, 1)."""
    return each.y - each.x


def _cell(each: SceneObject) -> int:
    column, row = (
        min(max(int((along + EXTENT) / (2 * EXTENT) * CELLS), 0), CELLS - 1)
        for along in (each.x, each.y)
    )
    return column * CELLS + row


def train_reader(
    pairs: ScenePairs,
    config: NetworkConfig,
    *,
    epochs: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: StepProgress | None = None,
) -> Reader:
    """A reader of the programs of one model, trained on pairs."""
    if len(pairs.scenes) != len(pairs):
        raise DataError(
            "These programs have no scenes.", "Use data with scenes: scenes:?n=... or clevr:PATH."
        )
    with seeded(seed):
        reader = Reader(config, pairs.program.codebook_size, pairs.program.capacity).to(device)
    fit_reader(reader, Inputs.of(pairs.program), pairs.scenes, epochs, seed, progress)
    return reader


def fit_reader(
    reader: Reader,
    inputs: Inputs,
    scenes: Sequence[Objects],
    epochs: float,
    seed: int = 0,
    progress: StepProgress | None = None,
) -> None:
    """Train a reader to write `scenes` from inputs, which may be on another device."""
    truth = scene_tensors(scenes).to(reader.device)

    def loss(rows: Tensor) -> Tensor:
        return reader.loss(inputs[rows.to(inputs.values.device)].to(reader.device), truth[rows])

    with seeded(seed):
        train_network(reader, loss, len(inputs), epochs=epochs, seed=seed, progress=progress)
