"""Programs with the scenes they stand for: what readers learn from and are tested on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from strop.data.scenes import ScenesDataset
from strop.data.scenes.render import render
from strop.data.scenes.scene import Scenes
from strop.data.spec import open_dataset
from strop.errors import DataError, FormatError
from strop.files import check_format, format_tag, write_text
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.structure.study import Encoded, Job, encode_dataset
from strop.structure.things import ATTRIBUTES, Thing, Things, things_of

FORMAT = 1
_BLOCK, _CHUNK = 2048, 256  # scenes sampled at once, and images rendered and encoded at once


@dataclass(frozen=True)
class Pairs:
    """B programs, on the CPU, and their B scenes, or none where the data has none."""

    program: Program
    scenes: Sequence[Things]

    def __len__(self) -> int:
        return len(self.program)

    def __getitem__(self, rows: slice) -> Pairs:
        return Pairs(self.program[rows], self.scenes[rows])

    def codes(self) -> list[list[int]]:
        """The active codes of each program."""
        return [row.codes.tolist() for row in self.program]


def pairs_of(encoded: Encoded) -> Pairs:
    """The programs of encoded data with the objects of their scenes."""
    return Pairs(encoded.program, [things_of(scene) for scene in encoded.records.scenes or ()])


def training_and_test(
    tokenizer: Tokenizer, encoded: Encoded, spec: str, test_share: float, job: Job
) -> tuple[Pairs, Pairs]:
    """Pairs to learn from and pairs to be tested on.

    With a `spec` of their own, the first come from there and all of `encoded` is the test;
    without, the last `test_share` of `encoded` is.
    """
    own = pairs_of(encoded)
    if spec:
        learnt = encode_pairs(tokenizer, spec, job)
        if both := _common(learnt.scenes, own.scenes):
            raise DataError(
                f"{both} of the {len(own)} scenes to be tested on are also learnt from.",
                "Give --pairs other scenes: another seed, or another split.",
            )
        return learnt, own
    held_out = round(len(own) * test_share)
    if not 0 < held_out < len(own):
        raise DataError(
            f"{len(own)} images leave none to learn from or none to test on.", "Give more."
        )
    return own[: len(own) - held_out], own[len(own) - held_out :]


def _common(learnt: Sequence[Things], tested: Sequence[Things]) -> int:
    """How many of the scenes `tested` are among those `learnt`: like objects in the same places.

    Places are kept to a millimetre in files, so they are the same within two.
    """
    known: dict[tuple[tuple[str, ...], ...], list[Things]] = {}
    for scene in learnt:
        known.setdefault(tuple(thing.words for thing in scene), []).append(scene)

    def same(one: Things, other: Things) -> bool:
        apart = (max(abs(a.x - b.x), abs(a.y - b.y)) for a, b in zip(one, other, strict=True))
        return len(one) > 0 and max(apart) < 2e-3

    alike = (known.get(tuple(thing.words for thing in scene), []) for scene in tested)
    return sum(
        any(same(scene, each) for each in some) for scene, some in zip(tested, alike, strict=True)
    )


def encode_pairs(tokenizer: Tokenizer, spec: str, job: Job) -> Pairs:
    """The pairs of a dataset, kept in the job's folder for the next study of the same model.

    Rendered scenes are made on the model's device and nothing of them but programs and objects
    is kept, so that tens of thousands fit and a GPU makes them in seconds.
    """
    name = hashlib.sha256(f"{tokenizer.identity.codes} {spec}".encode()).hexdigest()[:12]
    path = job.folder / f"pairs-{name}.jsonl"
    if path.is_file():
        return load_pairs(path)
    dataset = open_dataset(spec)
    if isinstance(dataset, ScenesDataset):
        pairs = _rendered(tokenizer, dataset, job)
    else:
        pairs = pairs_of(encode_dataset(tokenizer, dataset, spec, watch=job.watch))
    save_pairs(pairs, path)
    return pairs


def save_pairs(pairs: Pairs, path: Path) -> None:
    """Write pairs as JSON lines, places to a millimetre."""
    program = pairs.program
    header = {
        "format": format_tag("pairs", FORMAT),
        "codebook_size": program.codebook_size,
        "capacity": program.capacity,
        "model": program.model,
    }
    lines: list[object] = [header]
    for codes, things in zip_longest(pairs.codes(), pairs.scenes):
        objects = [[*thing.words, round(thing.x, 3), round(thing.y, 3)] for thing in things or ()]
        lines.append({"codes": codes, **({} if things is None else {"objects": objects})})
    write_text(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def load_pairs(path: Path) -> Pairs:
    """Read what `save_pairs` wrote; `FormatError` if the file is anything else."""
    try:
        header, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        check_format(header.get("format"), "pairs", FORMAT, path)
        program = program_of(
            [row["codes"] for row in rows],
            header["codebook_size"],
            header["capacity"],
            header["model"],
        )
        scenes = [tuple(map(Thing._make, row["objects"])) for row in rows if "objects" in row]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} holds no pairs ({error}).", "Delete it; it is a cache."
        ) from error
    return Pairs(program, scenes)


def program_of(
    codes: Sequence[Sequence[int]], codebook_size: int, capacity: int, model: str = ""
) -> Program:
    """A batch of programs from lists of active codes."""
    padded = torch.zeros(len(codes), capacity, dtype=torch.int64)
    for row, active in enumerate(codes):
        padded[row, : len(active)] = torch.tensor(active)
    lengths = torch.tensor([len(active) for active in codes])
    return Program(codes=padded, lengths=lengths, codebook_size=codebook_size, model=model)


def _rendered(tokenizer: Tokenizer, dataset: ScenesDataset, job: Job) -> Pairs:
    programs: list[Program] = []
    scenes: list[Things] = []
    for start in range(0, len(dataset), _BLOCK):
        rows = range(start, min(start + _BLOCK, len(dataset)))
        sampled = dataset.scenes(rows, tokenizer.device)
        scenes += _things(sampled)
        for row in range(0, len(sampled), _CHUNK):
            images = render(sampled[row : row + _CHUNK], dataset.size)
            programs.append(tokenizer.encode(images, batch=_CHUNK).to("cpu"))
            job.watch("encoding pairs", start + row + len(images), len(dataset))
    return Pairs(Program.cat(programs), scenes)


def _things(scenes: Scenes) -> Iterable[Things]:
    """The objects of a batch of scenes, straight from the tensors."""
    scenes = scenes.to("cpu")
    columns = [getattr(scenes, name).tolist() for name in ATTRIBUTES]
    places, present = scenes.position.tolist(), scenes.present.tolist()
    for row, held in enumerate(present):
        yield tuple(
            Thing(
                *(
                    words[column[row][slot]]
                    for words, column in zip(ATTRIBUTES.values(), columns, strict=True)
                ),
                *places[row][slot],
            )
            for slot, is_there in enumerate(held)
            if is_there
        )
