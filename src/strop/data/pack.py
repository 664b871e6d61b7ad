"""Decode a dataset once and write it as a packed dataset."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from strop.data.layout import found
from strop.data.loader import Loader
from strop.data.packed import KIND, META, OFFSETS, RECORDS, TYPES, VERSION, PackedDataset
from strop.data.record import PARTS, Batch
from strop.data.spec import open_dataset
from strop.errors import DataError, parsing
from strop.files import LOCK, PathLike, exclusive, read_json, write_json
from strop.identity import of_dataset
from strop.images import Fit
from strop.listing import expand
from strop.progress import Progress, no_progress

_PROGRESS = "progress.json"
_PROGRESS_FORMAT = ("packing", 1)
_SAVE_EVERY = 4096  # records between two points from which a run can resume


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `pack_dataset` wrote, and the reasons for records that it skipped, by index."""

    path: Path
    count: int
    size: int
    parts: tuple[str, ...]
    bytes: int
    broken: dict[int, str]


def pack_dataset(
    spec: str,
    out: PathLike,
    size: int = 256,
    fit: Fit = "squash",
    workers: int = 0,
    progress: Progress = no_progress,
) -> PackReport:
    """Write the dataset of `spec` to the folder `out`, at `size` by `size`.

    The files are written to `OUT.partial`, which is renamed to `out` at the end. An interrupted
    run resumes if it is started with the same arguments, and refuses other arguments. Broken
    records are skipped and named in the report.
    """
    target = expand(out)
    work = target.with_name(target.name + ".partial")
    with exclusive(work):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DataError(
                f"{target} already exists ({found(target)}).",
                "Give a new folder, or remove this one.",
            )
        dataset = open_dataset(spec)
        records = len(dataset)
        settings = {"spec": spec, "size": size, "fit": fit, "records": records}
        settings["files"] = of_dataset(dataset)
        done = _resume(work, settings)
        saved = done["position"]
        # "exact" gives the pixels that encoding the file gives.
        loader = Loader(
            dataset,
            batch_size=64,
            size=size,
            fit=fit,
            resize="exact",
            workers=workers,
            pin_memory=False,
        )
        loader.restore({"epoch": 0, "position": saved, "records": records})
        loader.broken.update({int(index): reason for index, reason in done["broken"].items()})
        with closing(_Writer(work, done)) as writer:
            for batch in loader:
                writer.write(batch)
                position = loader.position if loader.epoch == 0 else records
                if position - saved >= _SAVE_EVERY:
                    writer.save(
                        {"settings": settings, "position": position, "broken": loader.broken}
                    )
                    saved = position
                progress("packing", position, records)
        if not writer.parts:
            raise DataError(
                f"{spec} has no record that could be packed.", "Run `strop data check`."
            )
        with (work / RECORDS).open("rb") as lines:
            offsets = np.cumsum([0, *map(len, lines)])
        offsets.astype("<i8").tofile(work / OFFSETS)
        meta = {
            **settings,
            "name": dataset.name,
            "count": len(offsets) - 1,
            "parts": writer.parts,
            "classes": list(dataset.classes),
            "label_names": list(dataset.label_names),
            "broken": loader.broken,
        }
        write_json(work / META, KIND, VERSION, meta)
        if target.exists():
            target.rmdir()
        work.rename(target)
        (target / LOCK).unlink()
        (target / _PROGRESS).unlink()  # last: it marks the folder as a packing folder
    total = sum(entry.stat().st_size for entry in target.iterdir())
    count = len(PackedDataset(target))
    return PackReport(target, count, size, tuple(writer.parts), total, loader.broken)


def _resume(work: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The saved progress of an earlier run with these settings; `work` is marked.

    A folder of an earlier run is removed only if that run had saved no records.
    """
    progress = work / _PROGRESS
    content = [entry for entry in work.iterdir() if entry.name != LOCK]
    if content:
        if not progress.is_file():
            raise DataError(
                f"{work} already exists ({found(work)}) and has no {_PROGRESS}.",
                "Packing needs that folder: move it away, or choose another output.",
            )
        done = read_json(progress, *_PROGRESS_FORMAT)
        with parsing(DataError, f"{progress} is damaged", f"Remove {work} to start over."):
            earlier, position = dict(done["settings"]), int(done["position"])
            _ = done["parts"], done["sizes"], done["broken"]
        if earlier == settings:
            return done
        if position:
            other = [
                f"{name} {earlier.get(name)!r}, not {value!r}"
                for name, value in settings.items()
                if earlier.get(name) != value
            ]
            raise DataError(
                f"{work} holds {position} records of an unfinished run with {'; '.join(other)}.",
                "Finish that run with its own settings, or remove the folder to start over.",
            )
        for entry in content:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    done = {"position": 0, "parts": [], "sizes": {}, "broken": {}}
    write_json(progress, *_PROGRESS_FORMAT, {"settings": settings, **done})
    return done


class _Writer:
    """Appends batches to the raw files of a packed folder, after what an earlier run had saved."""

    def __init__(self, work: Path, done: dict[str, Any]) -> None:
        self.parts: list[str] = list(done["parts"])
        self._work = work
        self._saved = done["sizes"]
        self._files: dict[str, BinaryIO] = {}

    def write(self, batch: Batch) -> None:
        """Append a batch. The first batch determines the parts."""
        arrays = {"image": batch.images, **{part: getattr(batch, part) for part in PARTS}}
        arrays = {part: value.numpy() for part, value in arrays.items() if value is not None}
        self.parts = self.parts or list(arrays)
        missing = [part for part in self.parts if part not in arrays]
        if missing:
            raise DataError(
                f"Some of {batch.names[0]} to {batch.names[-1]} have no {', '.join(missing)}, "
                "which earlier records have.",
                "All records of a packed dataset have the same parts; pack the two separately.",
            )
        for part in self.parts:
            kept = arrays[part].astype(TYPES[part][0])
            if part == "instance" and (kept != arrays[part]).any():
                raise DataError(
                    f"An instance mask among {batch.names[0]} ... has ids above 65535.",
                    "Number the objects of an image from 1.",
                )
            self._file(f"{part}.bin").write(kept.tobytes())
        for row, name in enumerate(batch.names):
            scene = {} if batch.scenes is None else {"scene": batch.scenes[row]}
            # Bytes of a file name that are not UTF-8 become JSON's \u escapes.
            line = json.dumps({"name": name, **scene}, ensure_ascii=False) + "\n"
            self._file(RECORDS).write(line.encode(errors="backslashreplace"))

    def save(self, progress: dict[str, Any]) -> None:
        """Save the progress, so that a later run can resume here."""
        self._sync()
        sizes = {name: file.tell() for name, file in self._files.items()}
        content = {**progress, "parts": self.parts, "sizes": sizes}
        write_json(self._work / _PROGRESS, *_PROGRESS_FORMAT, content)

    def close(self) -> None:
        """Close the files."""
        self._sync()
        for file in self._files.values():
            file.close()

    def _sync(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = (self._work / name).open("ab")
            self._files[name].truncate(self._saved.get(name, 0))
        return self._files[name]
