"""Encode a corpus into a store or a file. A call that was interrupted continues when repeated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from strop.config import in_range
from strop.errors import FormatError, StoreError
from strop.files import LOCK, PathLike, exclusive, read_json, write_json
from strop.identity import digest, of_dataset
from strop.model.checkpoint import list_models, load
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.program import SUFFIXES, Program
from strop.progress import Progress, no_progress
from strop.squares import reading_workers
from strop.store.corpus import Corpus
from strop.store.engines import Done, Job, Reject, encode_locally, encode_with_ray, slices_of
from strop.store.schema import VERSIONS, StoreInfo, below
from strop.store.writer import Writer

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")
SLICE = 1024
"""Images in a slice: what is lost at most when an encoder is killed."""

_KEPT = ("slice", 1)
_SETTINGS = "settings.json"

MAX_REJECTS = 100
"""How many rejects a report lists. The store lists all."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `encode_corpus` did.

    store          where the programs are
    images         in the data
    encoded        images whose programs are new in the store
    rejected       images that could not be read this time
    rejects        the first of these: `key`, `source` and `reason`
    below_quality  how many of the encoded are not expected to reach the quality, or do not reach it
    known          images whose keys the store had already, or had rejected
    elsewhere      of the known, one key that the store has from another source, or None
    """

    store: str
    images: int
    encoded: int
    rejected: int
    rejects: list[Reject]
    below_quality: int
    known: int
    elsewhere: str | None


def encode_corpus(
    data: PathLike | Iterable[PathLike],
    store: PathLike,
    *,
    model: str | None = None,
    tokenizer: Tokenizer | None = None,
    device: str | None = None,
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    keep: Sequence[str] = (),
    prefix: str = "",
    version: str | None = None,
    overwrite: bool = False,
    retry: bool = False,
    slice_size: int = SLICE,
    batch: int = 32,
    rule: LengthRule | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Encode the images of `data` that the store does not have yet.

    data        one or several inputs; see `strop.store.corpus.Corpus`
    model       name, folder or hub id; recorded in the store. By default `photos`
    tokenizer   the model, if it is loaded already; give its name as `model`
    engine      "local" for this machine, "ray" for the machines of a cluster at `address`
    workers     processes of the local engine
    keep        columns of the data that the store keeps
    prefix      put before each key
    version     add programs of another model to the store
    overwrite   replace existing programs
    retry       try to read rejected images again
    slice_size  images in a slice, which is committed as a whole
    rule        how lengths are chosen
    """
    rule = LengthRule() if rule is None else rule
    if rule.mean_length is not None:
        raise StoreError(
            "A mean length depends on all images at once, so a store cannot grow with it.",
            "Give a quality, or a length.",
        )
    if engine not in ENGINES:
        raise StoreError(f"There is no engine {engine!r}.", f"Choose one of {', '.join(ENGINES)}.")
    slice_size, batch = in_range(slice_size, "slice_size", 1), in_range(batch, "batch", 1)
    workers = None if workers is None else in_range(workers, "workers", 0)
    _check_target(str(store))
    path = str(store) if version is None else below(str(store), f"{VERSIONS}/{version}")
    corpus = Corpus(data, keep, prefix)
    if tokenizer is not None:
        check_tokenizer(tokenizer)
        if model is None:  # who opens the store loads the model by its name
            raise StoreError("The tokenizer has no name.", "Give model=, its name or folder.")
    model = model or "photos"
    if tokenizer is None:
        tokenizer = load(model, device="cpu" if engine == "ray" else device)
    if model not in list_models() and (folder := Path(model).expanduser()).is_dir():
        model = str(folder.resolve())  # which holds in another working directory, too
    rule.check(tokenizer.config)
    job = job_of(corpus, tokenizer, model, rule, batch)
    # A second encoder fails at once. At a URL both may run: their commits exclude each other.
    with nullcontext() if "://" in path else exclusive(path):
        info = describe(tokenizer, model, rule)
        writer = Writer(path, info, corpus.kept, overwrite=overwrite, retry=retry)
        rows = np.flatnonzero(writer.missing(corpus.keys))
        known = len(corpus) - len(rows)
        elsewhere = writer.from_elsewhere(corpus.keys, corpus.places)
        slices = slices_of(rows, slice_size)
        done = _reported(progress, known, len(corpus))
        if engine == "ray":
            parts = encode_with_ray(job, slices, address=address, done=done)
        else:
            parts = encode_locally(job, tokenizer, slices, workers=workers, done=done)
        encoded = rejected = short = 0
        goal = rule.goal(tokenizer.config) or 0
        rejects: list[Reject] = []
        for part in parts:
            # Rejects come first: if this process ends between the two, they are noted again.
            writer.reject(part.rejects)
            encoded += writer.append(job.table(part.rows))
            rejected += len(part.rejects)
            quality = [row["quality"] for row in part.rows if row["quality"] is not None]
            short += int((np.array(quality, np.float32) < goal).sum())
            rejects += part.rejects[: MAX_REJECTS - len(rejects)]
        writer.clean()
    return Report(
        store=path,
        images=len(corpus),
        encoded=encoded,
        rejected=rejected,
        rejects=rejects,
        below_quality=short,
        known=known,
        elsewhere=elsewhere,
    )


def encode_to_program(
    corpus: Corpus,
    tokenizer: Tokenizer,
    rule: LengthRule,
    *,
    output: Path | None = None,
    loads_as: str = "",
    workers: int | None = None,
    batch: int = 32,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Program | None, dict[str, str]]:
    """Encode a corpus to one program, and write it. Also the names of unreadable images, and why.

    output    a file of programs. Until it is written, finished slices are kept beside it
    loads_as  what `strop.load` takes for the model, recorded in the file
    say       called with what is to be told about slices of an earlier call
    """
    job = job_of(corpus, tokenizer, loads_as, rule, batch)
    # With a mean length, the length of each program depends on all images.
    size = SLICE if rule.mean_length is None else len(corpus)
    slices = list(slices_of(range(len(corpus)), size))
    folder = None
    if output is not None and len(slices) > 1:
        folder = output.with_name(f"{output.name}.partial")
    with nullcontext() if folder is None else exclusive(folder):
        kept = {} if folder is None else _kept(folder, _settings(job, tokenizer), say)
        left = [part for number, part in enumerate(slices) if number not in kept]
        done = _reported(progress, len(corpus) - sum(map(len, left)), len(corpus))
        if workers is None:
            workers = reading_workers(len(corpus))
        encoded = encode_locally(job, tokenizer, left, workers=workers, done=done)
        names = dict(zip(corpus.keys, corpus.names, strict=True))
        programs: list[Program] = []
        rejects: dict[str, str] = {}
        for number in range(len(slices)):
            if number in kept:
                program, broken = kept[number]
            else:
                part = next(encoded)
                broken = {names[each["key"]]: each["reason"] for each in part.rejects}
                program = job.program(part.rows) if part.rows else None
                if program is not None:
                    program = program.named([names[key] for key in program.names])
                if folder is not None and output is not None:
                    path = folder / f"{number:08d}{output.suffix}"
                    if program is not None:
                        program.save(path)
                    file = None if program is None else path.name
                    about = {"file": file, "rejects": broken}
                    write_json(path.with_suffix(".json"), *_KEPT, about)
            programs += [] if program is None else [program]
            rejects |= broken
        program = Program.cat(programs) if programs else None
        if output is not None and program is not None:
            program.save(output, loads_as=loads_as)
        if folder is not None:
            shutil.rmtree(folder)
    return program, rejects


def _kept(
    folder: Path, settings: dict[str, Any], say: Callable[[str], None]
) -> dict[int, tuple[Program | None, dict[str, str]]]:
    """The slices that an earlier call with these settings has left, by number."""
    before, parts = None, sorted(folder.glob("0*.json"))
    with suppress(FormatError, OSError):  # there is none
        before = read_json(folder / _SETTINGS, *_KEPT)
    if before != settings:
        if parts:
            say(f"{folder} held programs of another run: starting over.")
        for path in folder.iterdir():
            if path.name != LOCK:
                path.unlink()
        write_json(folder / _SETTINGS, *_KEPT, settings)
        return {}
    kept: dict[int, tuple[Program | None, dict[str, str]]] = {}
    for path in parts:
        with suppress(FormatError, OSError):  # it is damaged
            about = read_json(path, *_KEPT)
            program = Program.load(folder / about["file"]) if about["file"] else None
            kept[int(path.stem)] = program, about["rejects"]
    if kept:
        say(f"Resuming with the programs in {folder}.")
    return kept


def _settings(job: Job, tokenizer: Tokenizer) -> dict[str, Any]:
    """What programs depend on: slices of a call with other settings are of no use."""
    datasets = [of_dataset(dataset) for _, dataset in job.corpus.sources]
    return {
        "model": job.codes,
        "lengths": tokenizer.identity.lengths,
        "rule": repr(job.rule),
        "images": digest(job.corpus.names, datasets),
        "part": SLICE,
    }


def _reported(progress: Progress, before: int, total: int) -> Done:
    """Reports each image that is done after those `before`."""
    seen = before

    def done(count: int) -> None:
        nonlocal seen
        seen += count
        progress("encoding", seen, total)

    return done


def _check_target(path: str) -> None:
    """Refuse a folder that holds something else, and the name of a file of programs."""
    folder = Path(path)
    if folder.suffix.lower() in SUFFIXES:
        raise StoreError(
            f"{path} is the name of a file, and a store is a folder.",
            "Name it NAME.lance. `Program.save` writes files.",
        )
    if "://" in path or not folder.exists():
        return
    names = {each.name for each in folder.iterdir()} if folder.is_dir() else {""}
    if names - {VERSIONS, ".strop-lock"} and "_versions" not in names:
        raise StoreError(
            f"{path} exists and is not a store.",
            "Name a file ending in .parquet or .jsonl, or a new store ending in .lance.",
        )


def job_of(
    corpus: Corpus, tokenizer: Tokenizer, model: str, rule: LengthRule, batch: int = 32
) -> Job:
    """The job of encoding a corpus with a model of this name."""
    codes, config = tokenizer.identity.codes, tokenizer.config
    return Job(corpus=corpus, model=model, codes=codes, config=config, rule=rule, batch=batch)


def describe(tokenizer: Tokenizer, model: str, rule: LengthRule) -> StoreInfo:
    """What a store says about programs of this tokenizer with lengths by this rule."""
    return StoreInfo(
        model=model,
        codes=tokenizer.identity.codes,
        lengths=tokenizer.identity.lengths,
        codebook_size=tokenizer.config.quantizer.codes,
        capacity=tokenizer.config.max_length,
        length_rule=json.dumps(_options(rule)),
    )


def _options(rule: LengthRule) -> dict[str, Any]:
    """The options of `Tokenizer.encode` that make this rule, as JSON can hold them."""
    given = {
        name: value
        for name, value in sorted(vars(rule).items())
        if value is not None and value is not False
    }
    if isinstance(length := given.get("length"), Tensor):
        if length.ndim:
            raise StoreError("A store takes no lengths by image.", "Give one length, or a quality.")
        given["length"] = int(length)
    return given
