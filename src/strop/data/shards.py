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
from functools import partial
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


class ShardEntry(NamedTuple):
    """The members of one record, and the path of its shard."""

    shard: str
    key: str
    members: Members


def shards(path: str, classes: int = 0) -> ShardDataset:
    """The records of the tars that `path` names: a glob, one tar, or a folder of tars.

    `classes` is the number of classes of the `.cls` members, which are ignored without it.
    """
    return ShardDataset(find_files(path, ".tar", "shards"), classes)


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
    """Random access to the records of tar shards, without unpacking them."""

    columns = _AnyColumn()

    def __init__(self, paths: list[str], classes: int = 0) -> None:
        self.name = Path(paths[0]).parent.name
        self.classes: tuple[str, ...] = ()
        self.label_names = tuple(str(i) for i in range(classes))
        self._paths = paths
        # A shard does not name its classes, so every id is allowed in a mask.
        self._table = identity_table(VOID + 1)
        self._entries: list[ShardEntry] = []
        problems = []
        for path in paths:
            try:
                groups, problem = index_shard(path)
            except DataError as error:
                if len(paths) == 1:
                    raise
                groups, problem = [], str(error)
            if problem is not None:
                problems.append(problem)
            self._entries += [
                ShardEntry(path, key, members) for key, members in groups if _image_of(members)
            ]
        self.problems = tuple(problems)
        if not self._entries:
            raise DataError(
                f"The shards at {Path(paths[0]).parent} hold no images. {' '.join(problems)}",
                "Expected members such as 000001.jpg, 000001.mask.png, 000001.json.",
            )

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Record:
        entry = self._entries[index]
        part = partial(self._member, entry)
        image = part(_image_of(entry.members))
        assert image is not None
        mask = part(next((extension for extension in _MASKS if extension in entry.members), ""))
        parts = read_parts(image, mask, part("instance.png"), part("depth.png"), table=self._table)
        label = part("cls") if self.label_names else None
        scene = part("json")
        return Record(
            name=self._name(entry),
            labels=None if label is None else _one_label(*label, len(self.label_names)),
            scene=None if scene is None else _scene(*scene),
            **parts,
        )

    def names(self) -> list[str]:
        """The name of each record."""
        return [self._name(entry) for entry in self._entries]

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """The bytes of the images, with the text of other members.

        A column is the extension of a member, such as `txt`, or a field of the member `json`.
        """
        return [self._raw(self._entries[index], columns) for index in indices]

    def sources(self) -> Iterator[Path]:
        """The shards."""
        return map(Path, self._paths)

    def _name(self, entry: ShardEntry) -> str:
        return f"{Path(entry.shard).stem}/{entry.key}"

    def _raw(self, entry: ShardEntry, columns: Sequence[str]) -> Raw:
        about: dict[str, Any] = {}
        if columns and (described := self._member(entry, "json")):
            with suppress(ValueError, RecursionError):
                content = json.loads(described[0])
                about = content if isinstance(content, dict) else {}
        values: dict[str, Any] = {}
        for column in columns:
            value = about.get(column)
            if member := self._member(entry, column):
                value = member[0].decode(errors="replace")
            values[column] = value if value is None or isinstance(value, str) else json.dumps(value)
        image = self._member(entry, _image_of(entry.members))
        assert image is not None
        return image[0], values

    def _member(self, entry: ShardEntry, extension: str) -> tuple[bytes, str] | None:
        """The bytes of a member of a record, and the name that errors give it."""
        if extension not in entry.members:
            return None
        offset, size = entry.members[extension]
        name = f"{entry.shard}/{entry.key}.{extension}"
        if size > MAX_FILE_BYTES:
            raise DataError(
                f"{name} has {size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}.",
                "Store smaller members.",
            )
        content = read_range(entry.shard, offset, size)
        if len(content) != size:
            raise DataError(
                f"{name} ends after {len(content)} of {size} bytes.",
                "The shard is truncated; download it again.",
            )
        return content, name


def _image_of(members: Members) -> str:
    """The extension of the record's image, "" if there is none."""
    return next((e for e in members if f".{e}" in SUFFIXES), "")


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
