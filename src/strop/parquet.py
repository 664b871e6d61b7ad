"""What a Parquet file claims to hold, read from its headers before any page is decoded.

Run lengths and compression let a file of 2 KB hold 60 million numbers. Readers of Parquet allocate
what the headers of pages say, so these are added up first. They are structures of Thrift's compact
protocol.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from strop.errors import FormatError, parsing

VALUES_PER_BYTE = 8
"""A value takes at least a bit, except in runs."""
BYTES_PER_BYTE = 64
ALWAYS = 2**24
"""Values, and bytes, that a file of any size may claim."""

_MAGIC = b"PAR1"
_PAGE_HEADER = 2**16  # bytes; statistics make some of them long

Struct = dict[int, "Value"]
Value = int | bytes | list["Value"] | Struct | None


def check_claims(path: str | os.PathLike[str], remedy: str) -> None:
    """Refuse a file that claims to hold far more than its bytes can."""
    size = Path(path).stat().st_size
    with parsing(FormatError, f"{path} is not a readable Parquet file", remedy):
        with Path(path).open("rb") as file:
            values, total = _claims(file, size)
        for what, claimed, share in (
            ("values", values, VALUES_PER_BYTE),
            ("bytes", total, BYTES_PER_BYTE),
        ):
            if claimed > max(share * size, ALWAYS):
                raise FormatError(f"{path} claims {claimed:,} {what} in {size:,} bytes.", remedy)


def _claims(file: BinaryIO, size: int) -> tuple[int, int]:
    """How many values, and bytes once decompressed, the headers of all pages claim.

    ValueError and IndexError for another file.
    """
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size - 8:
        raise ValueError("it has no footer")
    file.seek(size - 8 - length)
    footer = _Reader(file.read(length)).struct()
    values = total = 0
    for group in _structs(footer.get(4)):
        values += _number(group.get(3))  # rows
        for column in _structs(group.get(1)):
            about = column.get(3)
            if not isinstance(about, dict):
                raise ValueError("a column has no metadata")
            starts = [_number(about[key]) for key in (9, 11) if key in about]  # data, dictionary
            at = min(start for start in starts if start)
            stop = at + _number(about.get(7))
            if not 0 < at <= stop <= size:
                raise ValueError("a column lies outside the file")
            while at < stop:
                file.seek(at)
                reader = _Reader(file.read(_PAGE_HEADER))
                page = reader.struct()
                for key in (5, 7, 8):  # a data page, a dictionary, a data page of version 2
                    if isinstance(header := page.get(key), dict):
                        values += _number(header.get(1))
                total += _number(page.get(2))
                at += reader.at + _number(page.get(3))
    return values, total


def _structs(value: Value) -> list[Struct]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _number(value: Value) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a count is {value!r:.40}")
    return value


class _Reader:
    """Values of Thrift's compact protocol, without names: a struct is a dict by field number."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15)
        return fields

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _unsigned(self) -> int:
        number = shift = 0
        while (byte := self._byte()) >= 128:
            number |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")
        return number | byte << shift

    def _signed(self) -> int:
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def _skip(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.content):
            raise IndexError("a value ends outside the file")
        return self.content[self.at - size : self.at]

    def _value(self, kind: int) -> Value:
        match kind:
            case 1 | 2:  # a boolean, which is in the kind
                return 2 - kind
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = self._unsigned() if head >> 4 == 15 else head >> 4
                item = head & 15
                return [self._byte() if item < 3 else self._value(item) for _ in range(count)]
            case 12:
                return self.struct()
        raise ValueError(f"there is no type {kind}")
