"""Tar shards in WebDataset layout, with random access through an index of their members.

Members that share a name up to the first dot form one record: `0001.jpg`, `0001.mask.png`,
`0001.instance.png`, `0001.depth.png` (16 bit, millimetres), `0001.cls` (a class number) and
`0001.json` (a scene, if it lists objects).
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from strop.data.decode import identity_table, read_parts
from strop.data.record import VOID, Raw, Record
from strop.data.remote import find_files, open_file, read_range
from strop.errors import DataError, parsing, reason
from strop.images import MAX_FILE_BYTES, SUFFIXES
from strop.scenes.describe import check_scene

_MASKS = ("mask.png", "semantic.png", "seg.png")

Members = dict[str, tuple[int, int]]
"""The offset and size of each member of a record, by extension."""


Member = tuple[bytes, str]
"""The content of a member, and the name that errors give it."""


class ShardEntry(NamedTuple):
    """One record: the path of its shard, its key, its members and the extension of its image."""

    shard: str
    key: str
    members: Members
    image: str

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"{Path(self.shard).stem}/{self.key}"

    def read(self, extension: str) -> Member:
        """A member, by its extension."""
        offset, size = self.members[extension]
        name = f"{self.shard}/{self.key}.{extension}"
        if size > MAX_FILE_BYTES:
            raise DataError(
                f"{name} has {size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}.",
                "Store smaller members.",
            )
        content = read_range(self.shard, offset, size)
        if len(content) != size:
            raise DataError(
                f"{name} ends after {len(content)} of {size} bytes.",
                "The shard is truncated; download it again.",
            )
        return content, name

    def find(self, *extensions: str) -> Member | None:
        """The first of these members that the record has."""
        found = next((each for each in extensions if each in self.members), None)
        return None if found is None else self.read(found)


def index_shard(path: str) -> tuple[list[tuple[str, Members]], str | None]:
    """The records of a shard in order, and a description of its damage or None.

    Of a truncated shard, the complete records are returned.
    """
    groups: dict[str, Members] = {}
    problem = None
    if "://" not in path and not Path(path).is_file():
        raise DataError(f"{path} is not a regular file.", "Expected a .tar file.")
    key = ""
    plain = "Random access needs shards that are not compressed; unpack .tar.gz first."
    with parsing(DataError, f"{path} is not a plain tar file", plain), open_file(path) as stream:
        end = stream.seek(0, os.SEEK_END)
        if end == 0:
            raise DataError(f"{path} is empty (0 bytes).", "Download it again.")
        stream.seek(0)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            try:
                while (member := tar.next()) is not None:
                    # tarfile keeps all members in memory, which is too much for millions.
                    tar.members.clear()  # type: ignore[attr-defined]
                    if member.size < 0 or tar.offset <= member.offset:
                        raise tarfile.ReadError(f"a member of {member.size} bytes")
                    folder, _, base = member.name.rpartition("/")
                    stem, _, extension = base.partition(".")
                    if not member.isfile() or not stem or not extension:
                        continue
                    key = f"{folder}/{stem}" if folder else stem
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError("unexpected end of data")
                    place = (member.offset_data, member.size)
                    groups.setdefault(key, {})[extension.lower()] = place
                if end - tar.offset < tarfile.BLOCKSIZE:
                    problem = f"{path} has no end mark and may be cut short"
            # On corrupt headers tarfile raises nearly everything, such as RecursionError for
            # chained headers and MemoryError for absurd sizes.
            except Exception as error:
                groups.pop(key, None)  # the record that is cut
                problem = f"{path} is cut short or damaged ({reason(error)})"
    if problem is not None:
        problem = f"{problem}; the {len(groups)} records before the damage are kept"
    return list(groups.items()), problem


class _AnyColumn(dict[str, Any]):
    """The columns of shards, which no index of them lists."""

    def __missing__(self, name: str) -> Any:
        import pyarrow as pa

        return pa.string()

    def __contains__(self, name: object) -> bool:
        return True


class ShardDataset:
    """Random access to the records of tar shards, without unpacking them.

    `path` is a glob, one tar, or a folder of tars. `classes` is the number of classes of the `.cls`
    members, which are ignored without it.
    """

    columns = _AnyColumn()

    def __init__(self, path: str, classes: int = 0) -> None:
        self._paths = find_files(path, ".tar", "shards")
        self.name = Path(self._paths[0]).parent.name
        self.classes: tuple[str, ...] = ()
        self.label_names = tuple(str(i) for i in range(classes))
        # A shard does not name its classes, so every id is allowed in a mask.
        self._table = identity_table(VOID + 1)
        self._entries: list[ShardEntry] = []
        problems = []
        for shard in self._paths:
            try:
                groups, problem = index_shard(shard)
            except DataError as error:
                if len(self._paths) == 1:
                    raise
                groups, problem = [], str(error)
            if problem is not None:
                problems.append(problem)
            for key, members in groups:
                image = next((each for each in members if f".{each}" in SUFFIXES), None)
                if image is not None:
                    self._entries.append(ShardEntry(shard, key, members, image))
        self.problems = tuple(problems)
        if not self._entries:
            raise DataError(
                f"The shards at {Path(shard).parent} hold no images. {' '.join(problems)}",
                "Expected members such as 000001.jpg, 000001.mask.png, 000001.json.",
            )

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Record:
        entry = self._entries[index]
        masks = entry.find(*_MASKS), entry.find("instance.png"), entry.find("depth.png")
        parts = read_parts(entry.read(entry.image), *masks, table=self._table)
        label = entry.find("cls") if self.label_names else None
        scene = entry.find("json")
        return Record(
            name=entry.name,
            labels=None if label is None else _one_label(*label, len(self.label_names)),
            scene=None if scene is None else _scene(*scene),
            **parts,
        )

    def names(self) -> list[str]:
        """The name of each record."""
        return [entry.name for entry in self._entries]

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """The bytes of the images, with the text of other members.

        A column is the extension of a member, such as `txt`, or a field of the member `json`.
        """
        entries = [self._entries[index] for index in indices]
        return [(entry.read(entry.image)[0], _values(entry, columns)) for entry in entries]

    def sources(self) -> Iterator[Path]:
        """The shards."""
        return map(Path, self._paths)


def _values(entry: ShardEntry, columns: Sequence[str]) -> dict[str, Any]:
    """Columns of a record as text, None where it has none."""
    about: dict[str, Any] = {}
    if columns and (described := entry.find("json")):
        with suppress(ValueError, RecursionError):
            content = json.loads(described[0])
            about = content if isinstance(content, dict) else {}
    values: dict[str, Any] = {}
    for column in columns:
        value = about.get(column)
        if member := entry.find(column):
            value = member[0].decode(errors="replace")
        values[column] = value if value is None or isinstance(value, str) else json.dumps(value)
    return values


def _one_label(content: bytes, name: str, classes: int) -> torch.Tensor:
    text = content.strip()
    if not text.isdigit() or len(text) > 9 or int(text) >= classes:
        raise DataError(
            f"{name} holds {text[:20]!r}, expected a class number.", f"Expected 0 to {classes - 1}."
        )
    labels = torch.zeros(classes, dtype=torch.bool)
    labels[int(text)] = True
    return labels


def _scene(content: bytes, name: str) -> dict[str, Any] | None:
    with parsing(DataError, f"{name} is not valid JSON", "Write the shard again."):
        payload = json.loads(content)
    if not isinstance(payload, dict) or "objects" not in payload:
        return None  # metadata, not a scene
    check_scene(payload, name)
    return payload
