"""Programs with their scenes: the data that readers are trained and tested on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from scene_objects import ATTRIBUTES, Objects, SceneObject, objects_of
from strop.analysis.subject import Subject
from strop.data import ScenesDataset
from strop.data.spec import open_dataset
from strop.errors import DataError, FormatError
from strop.files import check_format, format_tag, write_text
from strop.identity import digest, of_dataset
from strop.program import Program
from strop.scenes.render import render
from strop.scenes.scene import Scenes

FORMAT = 1
SAME_PLACE = 2e-3  # metres; files hold positions to a millimetre
_BLOCK, _CHUNK = 2048, 256  # scenes sampled at once, and images rendered and encoded at once


@dataclass(frozen=True)
class ScenePairs:
    """B programs, on the CPU, and their B scenes, or none if the data has none."""

    program: Program
    scenes: Sequence[Objects]

    def __len__(self) -> int:
        return len(self.program)

    def __getitem__(self, rows: slice) -> ScenePairs:
        return ScenePairs(self.program[rows], self.scenes[rows])

    def codes(self) -> list[list[int]]:
        """The active codes of each program."""
        return [row.codes.tolist() for row in self.program]


def pairs_of(subject: Subject) -> ScenePairs:
    """The programs of a subject with the objects of its scenes."""
    return ScenePairs(subject.program, [objects_of(s) for s in subject.records.scenes or ()])


def training_and_test(
    subject: Subject, spec: str, test_share: float
) -> tuple[ScenePairs, ScenePairs]:
    """Pairs to train on and pairs to test on.

    With a `spec`, its dataset is trained on and all of the subject is tested on. Without one, the
    last `test_share` of the subject is tested on.
    """
    own = pairs_of(subject)
    if spec:
        train = encode_pairs(subject, spec)
        if common := objects_in_common(train.scenes, own.scenes):
            raise DataError(
                f"{common} of the {len(own)} scenes to be tested on are also trained on.",
                "Give --pairs other scenes: another seed, or another split.",
            )
        return train, own
    held_out = round(len(own) * test_share)
    if not 0 < held_out < len(own):
        raise DataError(
            f"{len(own)} images leave none to train on or none to test on.", "Give more images."
        )
    return own[: len(own) - held_out], own[len(own) - held_out :]


def objects_in_common(train: Sequence[Objects], test: Sequence[Objects]) -> int:
    """The number of test scenes with equal objects at equal positions in a training scene."""
    by_words: dict[tuple[tuple[str, ...], ...], list[Objects]] = {}
    for scene in train:
        by_words.setdefault(tuple(each.words for each in scene), []).append(scene)

    def same(one: Objects, other: Objects) -> bool:
        apart = (max(abs(a.x - b.x), abs(a.y - b.y)) for a, b in zip(one, other, strict=True))
        return len(one) > 0 and max(apart) < SAME_PLACE

    return sum(
        any(same(scene, each) for each in by_words.get(tuple(e.words for e in scene), ()))
        for scene in test
    )


def encode_pairs(subject: Subject, spec: str) -> ScenePairs:
    """The pairs of another dataset, cached in the subject's folder.

    The name of the file is a digest of the model and the data. Rendered scenes are made on the
    model's device and only their programs and objects are kept, so that tens of thousands fit into
    memory.
    """
    dataset = open_dataset(spec)
    identity = subject.tokenizer.identity
    key = digest(identity.codes, identity.lengths, of_dataset(dataset))
    path = subject.folder / f"pairs-{key}.jsonl"
    if path.is_file():
        return load_pairs(path)
    if isinstance(dataset, ScenesDataset):
        pairs = _rendered_pairs(subject, dataset)
    else:
        pairs = pairs_of(
            Subject(
                tokenizer=subject.tokenizer,
                dataset=dataset,
                data=spec,
                batch=subject.batch,
                workers=subject.workers,
                progress=subject.progress,
            )
        )
    save_pairs(pairs, path)
    return pairs


def _rendered_pairs(subject: Subject, dataset: ScenesDataset) -> ScenePairs:
    tokenizer = subject.tokenizer
    programs: list[Program] = []
    scenes: list[Objects] = []
    for start in range(0, len(dataset), _BLOCK):
        rows = range(start, min(start + _BLOCK, len(dataset)))
        sampled = dataset.scenes(rows, tokenizer.device)
        scenes += _objects_of_batch(sampled.to("cpu"))
        for row in range(0, len(sampled), _CHUNK):
            images = render(sampled[row : row + _CHUNK], dataset.size)
            programs.append(tokenizer.encode(images, batch=_CHUNK).to("cpu"))
            subject.progress("encoding pairs", start + row + len(images), len(dataset))
    return ScenePairs(Program.cat(programs), scenes)


def _objects_of_batch(scenes: Scenes) -> Iterator[Objects]:
    """The objects of each scene of a batch, from its tensors."""
    words = [
        [[table[index] for index in row] for row in getattr(scenes, name).tolist()]
        for name, table in ATTRIBUTES.items()
    ]
    for row, present in enumerate(scenes.present):
        yield tuple(
            SceneObject(
                *(column[row][slot] for column in words), *scenes.position[row, slot].tolist()
            )
            for slot in present.nonzero()[:, 0].tolist()
        )


def save_pairs(pairs: ScenePairs, path: Path) -> None:
    """Write pairs as JSON lines, positions to a millimetre."""
    program = pairs.program
    header = {
        "format": format_tag("pairs", FORMAT),
        "codebook_size": program.codebook_size,
        "capacity": program.capacity,
        "model": program.model,
    }
    lines: list[object] = [header]
    for codes, scene in zip_longest(pairs.codes(), pairs.scenes):
        objects = [[*each.words, round(each.x, 3), round(each.y, 3)] for each in scene or ()]
        lines.append({"codes": codes, **({} if scene is None else {"objects": objects})})
    write_text(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def load_pairs(path: Path) -> ScenePairs:
    """Read a file of `save_pairs`; `FormatError` for any other file."""
    try:
        header, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        check_format(header.get("format"), "pairs", FORMAT, path)
        program = program_of(
            [row["codes"] for row in rows],
            header["codebook_size"],
            header["capacity"],
            header["model"],
        )
        scenes = [tuple(map(SceneObject._make, row["objects"])) for row in rows if "objects" in row]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} holds no pairs ({error}).", "Delete it; it is a cache."
        ) from error
    return ScenePairs(program, scenes)


def program_of(
    codes: Sequence[Sequence[int]], codebook_size: int, capacity: int, model: str = ""
) -> Program:
    """A batch of programs from lists of active codes."""
    padded = torch.zeros(len(codes), capacity, dtype=torch.int64)
    for row, active in enumerate(codes):
        padded[row, : len(active)] = torch.tensor(active)
    lengths = torch.tensor([len(active) for active in codes])
    return Program(codes=padded, lengths=lengths, codebook_size=codebook_size, model=model)
