"""The frame of every study: open the data, encode it once, ask the study, write what it found.

A study is a module of this package, named in `STUDIES`, with

    @dataclass(frozen=True, kw_only=True)
    class Options: ...                       # what a user may choose, each with a default

    def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings: ...

    STUDY = Study(run=run, options=Options, needs=("semantic",))

It is imported when it is asked for, and draws with `strop.figures`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from strop.config import from_dict, to_dict
from strop.data.record import Batch, Dataset, Record, first_readable
from strop.data.spec import open_dataset
from strop.data.stream import record_batches
from strop.errors import ConfigError, DataError, did_you_mean
from strop.figures import save_figure
from strop.files import PathLike, atomic_path, write_json, write_text
from strop.model.tokenizer import Tokenizer
from strop.program import Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1

STUDIES = {
    "erasure": "what each token of a program holds up in the field",
    "synergy": "what two tokens hold up together that neither holds up alone",
    "codes": "how the vocabulary is used, and a dictionary page to look at it",
    "readouts": "regions and classes without supervision, from fields, erasures and codes",
    "complexity": "program length against how much there is in the image",
    "contingency": "whether attributes live in single codes or in combinations of them",
    "controls": "how much order, prefix and place of a token matter",
    "llm": "scenes read from codes by a language model behind any OpenAI-compatible endpoint",
    "reader": "scenes read from codes by a small network that learnt it from pairs",
    "vqa": "questions about scenes, answered from codes",
    "grammar": "what comes next in a program, by counting and by an autoregressive prior",
}

Watch = Callable[[str, int, int], None]
"""Told what is being done, how many are done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A dataset as a model reads it.

    data         the spec it came from
    records      B images at the model's size, with masks, labels and scenes where there are any
    program      their programs, in the same order, on the CPU
    classes      names of the ids in semantic masks
    label_names  names of the entries of labels
    """

    data: str
    records: Batch
    program: Program
    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers and None (shown as a dash) under a header."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[str | int | float | None]]

    def markdown(self) -> str:
        """The table as Markdown, numbers to four digits."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        shown = ("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)
        return f"**{self.title}**\n\n" + "\n".join(shown)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a study found.

    numbers  anything JSON can hold; a NaN is written as null
    tables   what a reader should see of them
    figures  by name; NAME-figure.png is written
    files    further text or bytes by path inside the folder, such as a page of the study's own
    notes    sentences that say what was compared and what it does not show
    """

    numbers: Mapping[str, Any]
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    notes: Sequence[str] = ()


def _silent(what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Job:
    """Where a study may keep things while it runs, and whom it tells how far it is."""

    folder: Path
    watch: Watch = _silent


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: its function, its options, and the parts of a record it cannot do without.

    A need is `semantic`, `instance`, `labels`, `depth` or `scene`, or several of which one will
    do: `scene or labels`.
    """

    run: Callable[[Tokenizer, Encoded, Any, Job], Findings]
    options: type[Any]
    needs: tuple[str, ...] = ()


def find_study(name: str) -> Study:
    """The study that `name` names."""
    if name not in STUDIES:
        raise ConfigError(
            f"There is no study {name!r}.",
            f"{did_you_mean(name, STUDIES)}Choose one of {', '.join(STUDIES)}.",
        )
    return importlib.import_module(f"strop.structure.{name}").STUDY


_AT_LEAST_ONE = {
    *("curve", "depth", "draws", "epochs", "examples", "pages"),
    *("rounds", "samples", "scenes", "transplants", "width"),
}
"""Options that mean nothing at 0, in any study."""


def run_study(
    tokenizer: Tokenizer,
    name: str,
    data: str,
    out: PathLike,
    options: Mapping[str, Any] | None = None,
    *,
    batch: int = 32,
    workers: int = 0,
    watch: Watch = _silent,
) -> Findings:
    """Encode the dataset `data`, run the study `name` on it and write what it finds into `out`.

    `options` are values for the study's own options. `batch` images are encoded at a time and
    `workers` processes read them.
    """
    study = find_study(name)
    chosen: Any = from_dict(study.options, options or {}, name)
    check_options(chosen, name)
    dataset = open_dataset(data)
    check_needs(study.needs, first_readable(dataset), name, data)
    encoded = encode_dataset(tokenizer, dataset, data, batch=batch, workers=workers, watch=watch)
    findings = study.run(tokenizer, encoded, chosen, Job(Path(out), watch))
    setting = {
        "study": name,
        "model": tokenizer.identity.codes,
        "data": data,
        "images": len(encoded),
        "options": to_dict(chosen),
    }
    write_findings(out, setting, findings)
    return findings


def check_options(options: Any, name: str) -> None:
    """Refuse what would fail, or mean nothing, when all images are encoded."""
    for option, value in vars(options).items():
        least = int(option in _AT_LEAST_ONE)
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{name}.{option} is {value}.", f"Give at least {least}.")
    if not 0 < getattr(options, "test_share", 0.5) < 1:
        raise ConfigError(
            f"{name}.test_share is {options.test_share}.", "Give a share between 0 and 1."
        )
    if getattr(options, "memory", 1.0) <= 0:
        raise ConfigError(f"{name}.memory is {options.memory}.", "Give gigabytes above 0.")


def check_needs(needs: Sequence[str], record: Record, name: str, data: str) -> None:
    """Refuse data whose records lack what a study cannot do without."""
    for need in needs:
        if all(getattr(record, part) is None for part in need.split(" or ")):
            parts = [each.name for each in fields(record) if getattr(record, each.name) is not None]
            raise DataError(
                f"The study {name!r} needs {need}, which {data} has not: "
                f"its records have {', '.join(parts)}.",
                "Use scenes:, which has everything, or a dataset with such annotations.",
            )


def encode_dataset(
    tokenizer: Tokenizer,
    dataset: Dataset,
    data: str,
    *,
    batch: int = 32,
    workers: int = 0,
    watch: Watch = _silent,
) -> Encoded:
    """Read and encode a whole dataset once; broken records are left out."""
    config = tokenizer.config
    batches: list[Batch] = []
    programs: list[Program] = []
    for part in record_batches(
        dataset,
        size=config.image_size,
        fit=config.fit,
        batch=batch,
        device=tokenizer.device,
        workers=workers,
    ):
        batches.append(part)
        programs.append(tokenizer.encode(part.images, batch=batch).to("cpu"))
        watch("encoding", sum(map(len, batches)), len(dataset))
    records = _join(batches)
    return Encoded(
        data=data,
        records=records,
        program=Program.cat(programs).named(records.names),
        classes=dataset.classes,
        label_names=dataset.label_names,
    )


def teacher_fields(tokenizer: Tokenizer, encoded: Encoded, watch: Watch = _silent) -> Tensor:
    """The teacher's fields of all images, `(B, S, d_enc)`, on the CPU."""
    parts = []
    for start in range(0, len(encoded), 32):
        parts.append(tokenizer.field(encoded.records.images[start : start + 32]).cpu())
        watch("teacher's fields", start + len(parts[-1]), len(encoded))
    return torch.cat(parts)


def write_findings(out: PathLike, setting: Mapping[str, Any], findings: Findings) -> None:
    """Write figures and files, then NAME.md, then NAME.json, each whole or not at all."""
    folder, name = Path(out), setting["study"]
    for title, figure in findings.figures.items():
        save_figure(figure, folder / f"{name}-{title}.png")
    for inside, content in findings.files.items():
        with atomic_path(folder / inside) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    about = f"{setting['images']} images of `{setting['data']}`, model `{setting['model']}`."
    pictures = [f"![{title}]({name}-{title}.png)" for title in findings.figures]
    pages = [f"[{path}]({path})" for path in findings.files if path.endswith(".html")]
    parts = [f"# {name}", about, *(table.markdown() for table in findings.tables)]
    write_text(folder / f"{name}.md", "\n\n".join([*parts, *pictures, *pages, *findings.notes, ""]))
    tables = [to_dict(table) for table in findings.tables]
    shown = {"tables": tables, "figures": list(findings.figures), "notes": list(findings.notes)}
    payload = {**setting, **findings.numbers, **shown}
    write_json(folder / f"{name}.json", "study", FORMAT, payload)


def _join(batches: Sequence[Batch]) -> Batch:
    """Batches one after another; a part that one of them lacks is left out."""

    def part(name: str) -> Any:
        values = [getattr(batch, name) for batch in batches]
        if any(value is None for value in values):
            return None
        if isinstance(values[0], Tensor):
            return torch.cat(values)
        return tuple(item for value in values for item in value)

    return Batch(**{each.name: part(each.name) for each in fields(Batch)})


def _cell(value: str | float | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
