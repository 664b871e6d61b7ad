"""Programs: ordered codes of an image, of which a prefix is active."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.device import check_device
from strop.errors import FormatError, ProgramError, expect, parsing
from strop.files import PathLike, at_home, atomic_path, check_format, format_tag, write_text
from strop.identity import digest, of_tensors
from strop.parquet import check_claims

FORMAT = 1
SUFFIXES = (".parquet", ".jsonl")
MAX_CODES = 4096
"""The most codes that a program in a file may have; no model has more."""

_HEADER = ("codebook_size", "model")
LOADS_AS = "loads_as"
_LISTS = ("codes", "rest", "erased")
_DIGEST = b"strop.digest"


@runtime_checkable
class CodeLengths(Protocol):
    """A prior over programs: see `strop.analysis.prior.Prior`."""

    def bits(self, program: Program) -> Tensor:
        """`(B,)`: bits of each program."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Program:
    """The programs of a batch of images. It is immutable: every edit returns a new one.

    Programs share tensors with the edits and rows made of them, so that these cost little. Do not
    change a tensor in place: clone it, and make a program of the clone.

    codes          (B, K) int64; the first `lengths[b]` of row b are active
    lengths        (B,) int64, in [1, K]
    codebook_size  N: every code is in [0, N)
    model          `identity.codes` of the model that wrote the codes, empty if unknown
    erased         (B, K) bool: holes, tokens that were removed while others keep their positions
    names          where each row came from, or empty
    quality        (B,) float32: the cosine similarity to the teacher's field that each program is
                   expected to reach, or was measured to reach; None if unknown, as after an edit

    `program[0]` is one program without the batch axis, cut to its active codes: codes `(L,)`,
    lengths `()`. Slices, lists and masks give batches.
    """

    codes: Tensor
    lengths: Tensor
    codebook_size: int
    model: str = ""
    erased: Tensor = field(default=None)  # type: ignore[assignment]
    names: tuple[str, ...] = ()
    quality: Tensor | None = None
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if self.erased is None and isinstance(self.codes, Tensor):
            holes = torch.zeros_like(self.codes, dtype=torch.bool)
            object.__setattr__(self, "erased", holes)
        if check:
            self._check()

    # Properties.

    @property
    def capacity(self) -> int:
        """K: the number of codes, active or not."""
        return self.codes.shape[-1]

    @property
    def active(self) -> Tensor:
        """`(B, K)` bool: the tokens the interpreter sees, inside the length and not erased."""
        return self._within & ~self.erased

    @property
    def bits(self) -> Tensor:
        """`(B,)` float: what the active prefix costs at a fixed rate, `length * log2(N)`."""
        return self.lengths * math.log2(self.codebook_size)

    def entropy_bits(self, prior: CodeLengths) -> Tensor:
        """`(B,)`: bits of each program and its length under an entropy coder with this prior.

        The prior of a model comes from `strop.analysis.prior.load_prior`.
        """
        remedy = "Load one with `strop.analysis.prior.load_prior`."
        expect(prior, CodeLengths, "a prior", ProgramError, remedy)
        return prior.bits(self)

    def __len__(self) -> int:
        return len(self.codes) if self.codes.ndim == 2 else int(self.lengths)

    def __iter__(self) -> Iterator[Program]:
        return (self[row] for row in range(len(self.as_batch())))

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Program:
        """One program for an integer, else the batch of the rows that `index` picks."""
        if self.codes.ndim == 1:
            raise ProgramError(
                "This is a single program, which has no rows.", "Read `program.codes` instead."
            )
        if isinstance(index, tuple | bool):
            remedy = "Pick rows with a list, program[[0, 1]], and codes with program.codes[0, 1]."
            raise ProgramError(f"{index!r:.60} is not a row.", remedy)
        rows = torch.arange(len(self))
        if isinstance(index, slice):  # a tensor takes no negative step
            index = torch.tensor(range(len(self))[index], dtype=torch.int64)
        try:
            picked = rows[torch.as_tensor(index, device="cpu")]
        except (IndexError, TypeError, RuntimeError, ValueError) as error:
            raise ProgramError(
                f"There is no row {index!r}.", f"The rows of this batch are 0 to {len(self) - 1}."
            ) from error
        if picked.ndim and not len(picked):
            raise ProgramError(
                "This picks no program.", f"Pick some of the {len(self)} in this batch."
            )
        stop = self.capacity if picked.ndim else int(self.lengths[picked])
        names = tuple(self.names[int(row)] for row in picked.reshape(-1)) if self.names else ()
        picked = picked.to(self.codes.device)
        rows_of = replace(self, names=names, check=False)._map(lambda part: part[picked])
        return replace(rows_of, codes=rows_of.codes[..., :stop], erased=rows_of.erased[..., :stop])

    def __eq__(self, other: object) -> bool:
        """Same active codes, holes, codebook and model; not inactive codes, names and quality."""
        if not isinstance(other, Program):
            return NotImplemented
        # On a GPU, each row would need several synchronisations.
        mine, theirs = self.to("cpu").as_batch(), other.to("cpu").as_batch()
        return (
            self.codes.shape[:-1] == other.codes.shape[:-1]
            and (self.codebook_size, self.model) == (other.codebook_size, other.model)
            and [row.codes.tolist() for row in mine] == [row.codes.tolist() for row in theirs]
            and [row.erased.tolist() for row in mine] == [row.erased.tolist() for row in theirs]
        )

    __hash__ = None  # type: ignore[assignment]

    def to(self, device: str | torch.device) -> Program:
        """The same program on another device."""
        check_device(device)
        return self._map(lambda part: part.to(device))

    def as_batch(self) -> Program:
        """The program as a batch; a single program becomes a batch of one."""
        return self if self.codes.ndim == 2 else self._map(lambda part: part[None])

    def named(self, names: Sequence[str]) -> Program:
        """The same programs, with the names of the images they came from."""
        return replace(self, names=(names,) if isinstance(names, str) else tuple(names))

    @staticmethod
    def cat(programs: Iterable[Program]) -> Program:
        """Join batches of the same model and K, in order."""
        programs = list(programs)
        if not programs:
            raise ProgramError("There is nothing to join.", "Give at least one program.")
        for each in programs:
            expect(each, Program, "a program", ProgramError, "Join what `encode` returns.")
        parts = [program.as_batch() for program in programs]
        first = parts[0]
        for other in parts[1:]:
            for what in ("model", "codebook_size", "capacity"):
                if getattr(other, what) != getattr(first, what):
                    raise ProgramError(
                        f"Programs differ in {what}: {getattr(first, what)!r} and "
                        f"{getattr(other, what)!r}.",
                        "A single row is cut to its own length; take it as `program[0:1]`."
                        if what == "capacity"
                        else "Join programs that one model wrote.",
                    )
        named = all(part.names for part in parts)
        qualities = [part.quality for part in parts if part.quality is not None]
        return replace(
            first,
            codes=torch.cat([part.codes for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            erased=torch.cat([part.erased for part in parts]),
            names=tuple(name for part in parts for name in part.names) if named else (),
            quality=torch.cat(qualities) if len(qualities) == len(parts) else None,
            check=False,
        )

    # Edits. A position is one number for all rows, or one per row. Rows whose position is not
    # active stay as they are, because the interpreter does not read them.

    def truncate(self, length: int | Tensor) -> Program:
        """Keep at most the first `length` codes of each program active."""
        wanted = self._per_row(length)
        if self.codes.ndim == 1:  # one that is shorter already, and has no more room, is kept
            wanted = wanted.clamp(max=self.capacity)
        check_range(wanted, 1, self.capacity, "length")
        return self._edited(lengths=torch.minimum(self.lengths, wanted))

    def with_lengths(self, lengths: int | Tensor) -> Program:
        """Set each length, shorter or longer. Codes past a length are kept."""
        wanted = self._per_row(lengths)
        check_range(wanted, 1, self.capacity, "length")
        return self._edited(lengths=wanted)

    def erase(self, position: int | Tensor) -> Program:
        """Remove the token at `position` and leave a hole: the others keep their positions."""
        return self._edited(erased=self.erased | (self._at(position) & self._within))

    def delete(self, position: int | Tensor) -> Program:
        """Remove the token at `position` and close the gap: the following tokens move up."""
        gone = self._at(position) & self._within
        # Sorting by "gone" moves the deleted token to the very end and keeps all else in order.
        order = gone.int().argsort(dim=-1, stable=True)
        moved = self.erased.gather(-1, order)
        last = torch.arange(self.capacity, device=order.device) == self.capacity - 1
        removed = gone.any(dim=-1)
        return self._edited(
            codes=self.codes.gather(-1, order),
            lengths=self.lengths - removed.long(),
            erased=moved & ~(last & removed[..., None]),
        )

    def replace(self, position: int | Tensor, code: int | Tensor) -> Program:
        """Set the code at `position`; a hole there is filled."""
        codes = self._per_row(code)
        check_range(codes, 0, self.codebook_size - 1, "code")
        here = self._at(position) & self._within
        return self._edited(
            codes=torch.where(here, codes[..., None], self.codes), erased=self.erased & ~here
        )

    def permute(self, order: Sequence[int] | Sequence[Sequence[int]] | Tensor) -> Program:
        """Reorder active tokens: the token at `order[k]` moves to position k, holes included.

        One order for all rows, or one per row. It permutes the active prefix and may stop there
        or go on to K.
        """
        rows = self._orders(order)
        codes, erased = self.codes.clone(), self.erased.clone()
        flat_codes, flat_erased = codes.view(-1, self.capacity), erased.view(-1, self.capacity)
        for row, length in enumerate(self.lengths.reshape(-1).tolist()):
            wanted = rows[row % len(rows)][:length]
            if sorted(wanted) != list(range(length)):
                raise ProgramError(
                    f"{wanted} is not an order of the {length} active tokens of row {row}.",
                    f"Name each position from 0 to {length - 1} once.",
                )
            flat_codes[row, :length] = flat_codes[row, wanted]
            flat_erased[row, :length] = flat_erased[row, wanted]
        return self._edited(codes=codes, erased=erased)

    def check_fits(self, codebook_size: int, capacity: int) -> None:
        """Raise `ProgramError` if a model of this codebook size and K cannot read the program."""
        if self.codebook_size != codebook_size:
            raise ProgramError(
                f"The program's codebook has {self.codebook_size} codes, this model's "
                f"{codebook_size}.",
                "Interpret it with the model that wrote it (--model on the command line).",
            )
        if self.capacity > capacity:
            raise ProgramError(
                f"The program has room for {self.capacity} codes, this model reads {capacity}.",
                "Interpret it with the model that wrote it.",
            )

    # Conversions.

    def to_numpy(self) -> np.ndarray:
        """Active codes `(B, L)` int64, or `(L,)` of one program; -1 at holes and past a length."""
        longest = int(self.lengths.max())
        return torch.where(self.active, self.codes, -1)[..., :longest].cpu().numpy()

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with one row per program: what `save` writes to Parquet."""
        import pyarrow as pa

        batch = self.to("cpu").as_batch()  # on a GPU, each row would need synchronisations
        positions = torch.arange(self.capacity).expand_as(batch.codes)

        def lists(values: Tensor, picked: Tensor) -> Any:
            offsets = F.pad(picked.sum(dim=1).cumsum(0), (1, 0))
            return pa.ListArray.from_arrays(
                pa.array(offsets.numpy(), pa.int32()), pa.array(values[picked].numpy(), pa.int32())
            )

        header = {"format": format_tag("program", FORMAT), **self._header(), "digest": "sha256"}
        try:
            columns = {
                "name": pa.array(batch.names or [None] * len(batch), pa.string()),
                "length": pa.array(batch.lengths.numpy(), pa.int32()),
                "codes": lists(batch.codes, batch._within),
                "rest": lists(batch.codes, ~batch._within),
                "erased": lists(positions, batch.erased),
            }
        except UnicodeEncodeError as error:
            raise FormatError(
                f"The name {error.object!r} is not UTF-8, which Arrow and Parquet need.",
                "Rename the image, or save to .jsonl.",
            ) from error
        if batch.quality is not None:
            columns["quality"] = pa.array(batch.quality.numpy())
        return pa.table(columns).replace_schema_metadata(
            {"strop": json.dumps(header), _DIGEST: _digest(batch)}
        )

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns of `to_arrow`. It needs pandas."""
        try:
            return self.to_arrow().to_pandas()
        except ImportError as error:
            raise ProgramError("pandas is not installed.", "Run `pip install pandas`.") from error

    def to_lm(
        self, *, bos: int | None = None, eos: int | None = None, pad: int | None = None
    ) -> dict[str, Tensor]:
        """Input of a language model: `input_ids` and `attention_mask`, `(B, T)` int64.

        Ids of codes are the codes, 0 to N - 1; holes are left out. `bos` and `eos` are put around
        each program, `pad` after it. By default they are N, N + 1 and N + 2.
        """
        for given in (bos, eos, pad):
            expect(given, Integral | None, "the id of a token", ProgramError, "Give whole numbers.")
        first = self.codebook_size
        begin, end, padding = (
            first + offset if given is None else given
            for offset, given in enumerate((bos, eos, pad))
        )
        if min(begin, end) < first:
            raise ProgramError(
                f"bos and eos are {begin} and {end}, but ids below {first} are codes.",
                f"Give ids of at least {first}, or omit them.",
            )
        rows = [[begin, *row.codes[row.active].tolist(), end] for row in self.to("cpu").as_batch()]
        longest = max(map(len, rows))
        ids = [row + [padding] * (longest - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    # Files.

    def save(self, path: PathLike, *, loads_as: str = "") -> None:
        """Write all programs to `.parquet` or `.jsonl`, exactly and atomically.

        The file keeps `loads_as`, a name, folder or hub id of the model, for `strop decode`.
        """
        suffix = _suffix(path)
        if suffix == ".jsonl":
            # JSON takes names that Arrow does not.
            rows = replace(self, names=(), check=False).to_arrow().to_pylist()
            for row, name in zip(rows, self.names, strict=False):
                row["name"] = name
            tag = {"format": format_tag("program", FORMAT), **self._header()}
            tag |= {LOADS_AS: loads_as} if loads_as else {}
            write_text(path, "".join(json.dumps({**tag, **row}) + "\n" for row in rows))
            return
        import pyarrow.parquet as pq

        table = self.to_arrow()
        if loads_as:
            known = table.schema.metadata
            table = table.replace_schema_metadata({**known, LOADS_AS: loads_as})
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary, write_page_checksum=True)

    @staticmethod
    def load(path: PathLike) -> Program:
        """Read what `save` wrote; `FormatError` if the file is anything else."""
        expect(path, str | os.PathLike, "a path", FormatError, "Give the path of a file.")
        path = at_home(path)
        reader = _read_jsonl if _suffix(path) == ".jsonl" else _read_parquet
        with parsing(FormatError, f"Cannot read {os.fspath(path)!r}", "Check the path."):
            found = Path(path).is_file()
        if not found:
            raise FormatError(f"There is no file {path}.", "Check the path.")
        return reader(path)

    # Display.

    def __repr__(self) -> str:
        many = "program" if len(self) == 1 else "programs"
        head = f"Program of {len(self)} codes" if self.codes.ndim == 1 else f"{len(self)} {many}"
        lines = [f"{head} (K = {self.capacity}, {self.codebook_size} codes in the codebook)"]
        batch = self.as_batch()
        for row in range(min(len(batch), 8)):
            name = f"{batch.names[row]}  " if batch.names else ""
            lines.append(f"  {name}{int(batch.lengths[row]):>3}: {_text(batch[row])}")
        if len(batch) > 8:
            lines.append(f"  ... and {len(batch) - 8} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Coloured chips, for notebooks."""
        batch = self.as_batch()
        names = batch.names or tuple(map(str, range(len(batch))))
        rows = "".join(
            f'<tr><td style="text-align:left">{html.escape(names[row])}</td>'
            f"<td>{int(batch.lengths[row])}</td>"
            f'<td style="text-align:left">{_chips(batch[row])}</td></tr>'
            for row in range(min(len(batch), 32))
        )
        more = f"<p>... and {len(batch) - 32} more</p>" if len(batch) > 32 else ""
        return (
            '<table><tr><th style="text-align:left">image</th><th>length</th>'
            f'<th style="text-align:left">program</th></tr>{rows}</table>{more}'
        )

    # Internals.

    def _map(self, function: Callable[[Tensor], Tensor]) -> Program:
        """The program with `function` applied to all of its tensors."""
        names = ("codes", "lengths", "erased", "quality")
        parts = {name: getattr(self, name) for name in names}
        changes: dict[str, Any] = {n: function(p) for n, p in parts.items() if p is not None}
        return replace(self, **changes, check=False)

    @property
    def _within(self) -> Tensor:
        return torch.arange(self.capacity, device=self.codes.device) < self.lengths[..., None]

    def _edited(self, **changes: Any) -> Program:
        edited = replace(self, **changes, quality=None, check=False)
        if not bool(edited.active.any(dim=-1).all()):
            raise ProgramError(
                "This would remove the last token of a program.",
                "A program keeps at least one token that the interpreter can read.",
            )
        return edited

    def _per_row(self, value: int | Tensor) -> Tensor:
        """A number, or one per row, as a tensor of the lengths' shape."""
        if isinstance(value, bool) or not isinstance(value, Integral | Tensor):
            raise ProgramError(
                f"{value!r} is not a whole number.", "Give an int, or a tensor with one per row."
            )
        numbers = torch.as_tensor(value, device=self.codes.device)
        if numbers.is_floating_point() or numbers.dtype == torch.bool:
            raise ProgramError(f"{value!r} is not a whole number.", "Give integers.")
        if numbers.ndim and numbers.shape != self.lengths.shape:
            raise ProgramError(
                f"Got {tuple(numbers.shape)} numbers for lengths of {tuple(self.lengths.shape)}.",
                "Give one number, or one per row.",
            )
        return numbers.long().expand(self.lengths.shape)

    def _at(self, position: int | Tensor) -> Tensor:
        """`(B, K)` bool: True at the given position of each row."""
        wanted = self._per_row(position)
        check_range(wanted, 0, self.capacity - 1, "position")
        return torch.arange(self.capacity, device=self.codes.device) == wanted[..., None]

    def _orders(self, order: Any) -> list[list[int]]:
        values = order.tolist() if isinstance(order, Tensor) else list(order)
        nested = [list(row) for row in values] if values and _is_row(values[0]) else [values]
        rows = self.lengths.numel()
        if len(nested) not in (1, rows):
            raise ProgramError(
                f"Got {len(nested)} orders for {rows} programs.", "Give one, or one per row."
            )
        return nested

    def _check(self) -> None:
        for name, values in (("codes", self.codes), ("lengths", self.lengths)):
            if not isinstance(values, Tensor) or values.dtype != torch.int64:
                found = values.dtype if isinstance(values, Tensor) else type(values).__name__
                raise ProgramError(f"{name} are {found}.", "Give them as an int64 tensor.")
        if self.codes.ndim not in (1, 2) or self.codes.numel() == 0:
            raise ProgramError(
                f"codes have the shape {tuple(self.codes.shape)}.",
                "Give (B, K), or (K,) for one program, with at least one code.",
            )
        if self.lengths.shape != self.codes.shape[:-1]:
            raise ProgramError(
                f"lengths have the shape {tuple(self.lengths.shape)}, codes "
                f"{tuple(self.codes.shape)}.",
                "Give one length per program.",
            )
        if self.erased.shape != self.codes.shape or self.erased.dtype != torch.bool:
            raise ProgramError(
                f"erased is {self.erased.dtype} of shape {tuple(self.erased.shape)}.",
                "Give a bool tensor of the codes' shape.",
            )
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            raise ProgramError(f"names is {self.names!r:.60}.", "Give one text per program.")
        if self.names and len(self.names) != self.lengths.numel():
            raise ProgramError(
                f"There are {len(self.names)} names for {self.lengths.numel()} programs.",
                "Give one per program, or none.",
            )
        if type(self.codebook_size) is not int or not 1 <= self.codebook_size < 2**31:
            raise ProgramError(
                f"The codebook size is {self.codebook_size!r:.60}.",
                "Give a positive whole number of 31 bits.",
            )
        remedy = "Give a float32 number per program, or none."
        expect(self.quality, Tensor | None, "a tensor of qualities", ProgramError, remedy)
        if self.quality is not None and (
            self.quality.shape != self.lengths.shape or self.quality.dtype != torch.float32
        ):
            raise ProgramError(
                f"quality is {self.quality.dtype} of shape {tuple(self.quality.shape)}.", remedy
            )
        check_range(self.lengths, 1, self.capacity, "length")
        check_range(self.codes, 0, self.codebook_size - 1, "code")
        if not bool(self.active.any(dim=-1).all()):
            raise ProgramError(
                "A program has no token left that is not erased.", "Keep at least one."
            )

    def _header(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in _HEADER}


def loads_as(path: PathLike) -> str:
    """What `strop.load` takes for the model of a sound file of programs; "" if it is not known."""
    if _suffix(path) == ".jsonl":
        with Path(path).open(encoding="utf-8") as file:
            return str(json.loads(file.readline()).get(LOADS_AS, ""))
    import pyarrow.parquet as pq

    stored = pq.read_schema(path).metadata or {}
    return stored.get(LOADS_AS.encode(), b"").decode(errors="replace")


def check_range(values: Tensor, low: int, high: int, what: str) -> None:
    """Refuse numbers outside [low, high]; the error calls them `what`."""
    wrong = values[(values < low) | (values > high)]
    if wrong.numel():
        raise ProgramError(
            f"A {what} of {int(wrong[0])} is outside [{low}, {high}].",
            f"Give a {what} from {low} to {high}.",
        )


def _is_row(value: object) -> bool:
    return isinstance(value, Sequence | Tensor) and not isinstance(value, str)


def _suffix(path: PathLike) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise FormatError(
            f"{path} is not a file of programs.",
            f"Files of programs end in {' or '.join(SUFFIXES)}. Open a store with "
            "`strop.open_store`, or write it to such a file with `strop store export`.",
        )
    return suffix


def _read_jsonl(path: PathLike) -> Program:
    with parsing(FormatError, f"{path} is not JSON Lines", _DAMAGED):
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise FormatError(f"Line {number} of {path} is not an object.", _DAMAGED)
    return program_of_rows(rows, path)


def program_of_rows(rows: Sequence[dict[str, Any]], source: object) -> Program:
    """The batch of programs in lines of `.jsonl`; `FormatError` names their `source`."""
    headers = [{key: row.get(key) for key in ("format", *_HEADER)} for row in rows]
    if any(header != headers[0] for header in headers):
        raise FormatError(f"The lines of {source} come from different models.", _DAMAGED)
    header = headers[0] if headers else {}
    check_format(header.get("format"), "program", FORMAT, source)
    with parsing(FormatError, f"{source} does not hold programs", _DAMAGED):
        columns = {name: _flatten([row[name] for row in rows]) for name in _LISTS}
        lengths = torch.tensor([row["length"] for row in rows])
        names = [row.get("name") for row in rows]
        quality = [row.get("quality") for row in rows]  # older files have none
        return _assembled(header, lengths, names, quality, source, **columns)


def _read_parquet(path: PathLike) -> Program:
    import pyarrow.parquet as pq

    check_claims(path, _DAMAGED)
    with (
        parsing(FormatError, f"{path} is not a readable Parquet file", _DAMAGED),
        pq.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        stored = file.metadata.metadata or {}
        header = json.loads(stored.get(b"strop", b"{}"))
        if not isinstance(header, dict):
            raise FormatError(f"The strop metadata of {path} is not an object.", _DAMAGED)
        check_format(header.get("format"), "program", FORMAT, path)
        table = file.read()
    with parsing(FormatError, f"{path} does not hold programs", _DAMAGED):
        columns = {name: _flatten_column(table[name]) for name in _LISTS}
        lengths = torch.tensor(table["length"].to_pylist())
        quality = table["quality"].to_pylist() if "quality" in table.column_names else [None]
        program = _assembled(header, lengths, table["name"].to_pylist(), quality, path, **columns)
    # Pages have checksums; header and footer have none. Files of strop 0.1.0 have no digest.
    if "digest" in header and stored.get(_DIGEST) != _digest(program).encode():
        raise FormatError(f"The digest of {path} is wrong.", _DAMAGED)
    return program


Flat = tuple[Tensor, Tensor]
"""Lists of whole numbers as one tensor of all values, and the number of them in each list."""


def _flatten(lists: list[Any]) -> Flat:
    for values in lists:
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise TypeError(f"expected a list of whole numbers, found {values!r:.60}")
    values = torch.tensor([value for values in lists for value in values], dtype=torch.int64)
    return values, torch.tensor([len(values) for values in lists])


def _flatten_column(column: Any) -> Flat:
    import pyarrow as pa

    lists = column.combine_chunks()
    if (
        not pa.types.is_integer(lists.type.value_type)
        or lists.null_count
        or lists.values.null_count
    ):
        raise TypeError(f"expected lists of whole numbers, found {column.type}")
    values, offsets = lists.flatten().to_numpy(), lists.offsets.to_numpy()
    return torch.tensor(values, dtype=torch.int64), torch.tensor(np.diff(offsets)).long()


def _assembled(
    header: dict[str, Any],
    lengths: Tensor,
    names: list[Any],
    quality: list[Any],
    path: object,
    *,
    codes: Flat,
    rest: Flat,
    erased: Flat,
) -> Program:
    (active, counts), (inactive, spare), (holes, in_row) = codes, rest, erased
    capacity = int((counts + spare).max()) if len(counts) else 0
    if capacity > MAX_CODES:
        raise FormatError(
            f"A program in {path} has {capacity:,} codes, more than {MAX_CODES:,}.", _DAMAGED
        )
    if not torch.equal(counts, lengths) or bool((counts + spare != capacity).any()):
        raise FormatError(f"The rows of {path} do not agree in length.", _DAMAGED)
    if bool(((holes < 0) | (holes >= capacity)).any()):
        raise FormatError(f"A row of {path} has a hole outside it.", _DAMAGED)
    within = torch.arange(capacity) < lengths[:, None]
    matrix = torch.empty(len(lengths), capacity, dtype=torch.int64)
    matrix[within], matrix[~within] = active, inactive
    removed = torch.zeros_like(within)
    removed[torch.arange(len(lengths)).repeat_interleave(in_row), holes] = True
    known = None if None in quality else torch.tensor(quality, dtype=torch.float32)
    if known is not None and not torch.isfinite(known).all():
        raise FormatError(f"{path} holds a quality that is not finite.", _DAMAGED)
    try:
        return Program(
            codes=matrix,
            lengths=lengths,
            codebook_size=header["codebook_size"],
            model=str(header["model"]),
            erased=removed,
            names=tuple(map(str, names)) if all(name is not None for name in names) else (),
            quality=known,
        )
    except ProgramError as error:
        raise FormatError(f"{path} holds an impossible program. {error}", _DAMAGED) from error


def _digest(batch: Program) -> str:
    """The digest of everything that a file keeps of a batch."""
    parts = {"codes": batch.codes, "lengths": batch.lengths, "erased": batch.erased}
    if batch.quality is not None:
        parts["quality"] = batch.quality
    return digest(batch.codebook_size, batch.model, batch.names, of_tensors(parts))


def _text(program: Program) -> str:
    shown = [
        "·" if hole else str(code)
        for code, hole in zip(program.codes.tolist(), program.erased.tolist(), strict=True)
    ]
    return " ".join(shown[:24]) + (" ..." if len(shown) > 24 else "")


def _chips(program: Program) -> str:
    chips = []
    for code, hole in zip(program.codes.tolist(), program.erased.tolist(), strict=True):
        # Steps of the golden angle give neighbouring codes hues far apart.
        look = "opacity:.35;text-decoration:line-through;" if hole else ""
        chips.append(
            f'<span style="display:inline-block;margin:1px;padding:0 5px;border-radius:8px;'
            f"background:hsl({code * 137.508 % 360:.0f} 65% 84%);color:#222;{look}"
            f'font-family:monospace">{code}</span>'
        )
    return "".join(chips)


_DAMAGED = "It is damaged or was not written by strop; encode the images again."
