"""Corpora: engines, stores, search, and what other codes of fields take. See docs/corpus.md.

    python benchmarks/corpus.py engines --images FOLDER     # a folder of 2,000 JPEGs

Each measurement writes `results/corpus/NAME.json`. Photographs come from `STROP_SHARED`. Timings on
a CPU are only meaningful as ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import strop
from common import RESULTS, device, in_processes, save, side_by_side
from strop.data import open_dataset
from strop.device import choose_device
from strop.files import atomic_path, read_json
from strop.identity import digest
from strop.metrics import r2_centred
from strop.model.length_rule import LengthRule, allocated_lengths
from strop.pool import cores
from strop.program import Program
from strop.store.corpus import Corpus
from strop.store.encode import ENGINES, describe, encode_corpus, job_of
from strop.store.engines import Job
from strop.store.index import Descriptor, Index, build_index, create_table, find_index, pool
from strop.store.report import summary
from strop.store.search import CANDIDATES, Window, inside, match_region
from strop.store.store import Store
from strop.store.writer import Writer

SHARED = Path(os.environ.get("STROP_SHARED", Path(__file__).parents[2] / "shared")) / "data"
COCO = SHARED / "coco-shards"
HELD_OUT = COCO / "coco2017-256-val-000.tar"
"""1,024 photographs that the bundled model was not trained on."""

Arguments = argparse.Namespace


def keep(name: str, tokenizer: strop.Tokenizer, found: dict[str, Any]) -> None:
    """Write `results/corpus/NAME.json` with the identity of the model."""
    identity = {"codes": tokenizer.identity.codes, "lengths": tokenizer.identity.lengths}
    save(f"corpus/{name}", {"model": identity, **found})
    print(found)


def teacher_fields(data: Sequence[str], tokenizer: strop.Tokenizer, cache: Path) -> Tensor:
    """The teacher's fields of images, (B, S, d) float16.

    They are kept in the folder `cache`, because several measurements use them.
    """
    path = cache / f"{digest(list(data), tokenizer.teacher.digest)}.safetensors"
    if not path.is_file():
        corpus, job = _reader(tokenizer, data)
        parts = []
        for start in range(0, len(corpus), 32):
            read = job.read(corpus.items(range(start, min(start + 32, len(corpus)))))
            parts.append(tokenizer.field(torch.from_numpy(read.images)).half().cpu())
        with atomic_path(path) as temporary:
            save_file({"field": torch.cat(parts)}, temporary)
    return load_file(path)["field"]


def encoded(fields: Tensor, tokenizer: strop.Tokenizer) -> Program:
    """The programs of fields."""
    parts = [tokenizer.to_program(tokenizer.analyse_field(part)) for part in fields.split(64)]
    return Program.cat(parts).to("cpu")


def held_out(tokenizer: strop.Tokenizer, arguments: Arguments) -> Tensor:
    """The teacher's fields of photographs that the model was not trained on."""
    return teacher_fields([str(HELD_OUT)], tokenizer, arguments.cache)


def store_of(
    path: Path, arguments: Arguments, tokenizer: strop.Tokenizer, program: Program
) -> Store:
    """A store of programs that were computed already."""
    info = describe(tokenizer, arguments.model, LengthRule())
    Writer(str(path), info).append(_rows(program))
    return strop.open_store(path, model=tokenizer)


def _reader(tokenizer: strop.Tokenizer, data: Sequence[str]) -> tuple[Corpus, Job]:
    corpus = Corpus(data)
    return corpus, job_of(corpus, tokenizer, "", LengthRule())


def _rows(program: Program, keys: Sequence[str] = ()) -> pa.Table:
    count = len(program)
    codes = zip(program.codes.tolist(), program.lengths.tolist(), strict=True)
    columns = {
        "key": keys or [f"photo {number:09d}.jpg" for number in range(count)],
        "codes": pa.array([row[:length] for row, length in codes], pa.list_(pa.uint16())),
        "length": pa.array(program.lengths.numpy(), pa.uint16()),
        "quality": pa.nulls(count, pa.float32()),
        "width": pa.array([640] * count, pa.int32()),
        "height": pa.array([480] * count, pa.int32()),
        "source": ["/data/photos"] * count,
    }
    return pa.table(columns)


# Engines.


def engines(arguments: Arguments) -> None:
    """Images per second of each engine, beside decoding alone and the bare encode loop.

    They take turns, each in a process of its own and on a part of the images, so that other load
    affects all alike. CPU seconds depend on it less: they show the overhead of an engine, but not
    how well it keeps the cores busy.
    """
    tokenizer = strop.load(arguments.model, device="cpu")
    files = sorted(Path(arguments.images).iterdir())[: arguments.count]
    spent = {name: np.zeros(3) for name in arguments.only}  # images, seconds, CPU seconds
    turns: dict[str, list[float]] = {name: [] for name in arguments.only}
    environment = {**os.environ, "RAY_worker_niceness": "0"}  # as nice as other workers
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(arguments.rounds):
            folder = Path(scratch) / f"{turn}"
            folder.mkdir()
            for file in files[turn :: arguments.rounds]:
                (folder / file.name).symlink_to(file.resolve())
            for name in arguments.only:
                options = ["--only", name, "--images", str(folder), "--model", arguments.model]
                done = subprocess.run(
                    [sys.executable, __file__, "engine", *options, "--slice", f"{arguments.slice}"],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    env=environment,
                )
                each = np.array(json.loads(done.stdout.splitlines()[-1]))
                spent[name] += each
                turns[name].append(each[0] / each[1])
                print(f"{name}: {each[0] / each[1:]} images/s", flush=True)
            found = {
                "images": sum(len(files[n :: arguments.rounds]) for n in range(turn + 1)),
                "rounds": turn + 1,
                "load": os.getloadavg()[2],
                "rates": {name: each[0] / each[1] for name, each in spent.items()},
                "images_per_cpu_second": {name: each[0] / each[2] for name, each in spent.items()},
                "rates_of_turns": turns,
            }
            keep("engines", tokenizer, found)


def engine(arguments: Arguments) -> None:
    """Print how many images one engine took, and the seconds and CPU seconds after its start."""
    (name,) = arguments.only
    tokenizer = strop.load(arguments.model, device="cpu")
    count = len(Corpus([arguments.images]))
    corpus, job = _reader(tokenizer, [arguments.images])
    if name in ENGINES:
        with tempfile.TemporaryDirectory() as scratch:
            marks = _engine_marks(name, tokenizer, arguments, Path(scratch))
    else:
        squares = torch.from_numpy(job.read(corpus.items(range(count))).images)
        tokenizer.encode(squares[:8])
        marks = [_mark(0)]
        if name == "decode":
            in_processes(lambda index: job.read(corpus.items([index])), count)
        elif name == "loops":
            in_processes(lambda row: tokenizer.encode(squares[8 * row : 8 * row + 8]), count // 8)
            count = count // 8 * 8
        else:
            torch.set_num_threads(cores())
            tokenizer.encode(squares)
        marks.append(_mark(count))
    print(json.dumps((marks[-1] - marks[0]).tolist()))


def _engine_marks(
    name: str, tokenizer: strop.Tokenizer, arguments: Arguments, scratch: Path
) -> list[np.ndarray]:
    """Marks from when each core has finished its first part, so that processes have started.

    The results of the first parts come together: a clock that began at the very first would count
    the others as done in no time.
    """
    marks: list[np.ndarray] = []
    encode_corpus(
        arguments.images,
        scratch / f"{name}.lance",
        model=arguments.model,
        tokenizer=tokenizer,
        engine=name,
        slice_size=arguments.slice,
        progress=lambda task, done, total: marks.append(_mark(done)),
    )
    return marks[cores() - 1 :]


def _mark(done: int) -> np.ndarray:
    """What is done, the time, and the CPU time of this process and all its descendants."""
    return np.array([done, time.perf_counter(), _cpu_seconds(os.getpid())])


def _cpu_seconds(process: int) -> float:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        threads = [each.name for each in Path(f"/proc/{process}/task").iterdir()]
        children = "".join(
            Path(f"/proc/{process}/task/{each}/children").read_text(encoding="utf-8")
            for each in threads
        )
    except OSError:
        return 0.0  # it has ended
    ticks = sum(map(int, text.rpartition(")")[2].split()[11:15]))  # own and of reaped children
    own = ticks / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_seconds(int(child)) for child in children.split())


# The store.


def reading(arguments: Arguments) -> None:
    """Bytes per image, rows per second, and fields per second beside the teacher."""
    tokenizer = strop.load(arguments.model, device="cpu")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"programs": arguments.count}
    with tempfile.TemporaryDirectory() as scratch:
        real = real_store(Path(scratch) / "real.lance", arguments, tokenizer)
        store = synthetic(arguments, real, arguments.count)
        found["bytes_per_image"] = summary(store)["bytes_per_image"]
        nameless = synthetic(arguments, real, arguments.count, keys=False)
        found["bytes_per_image_without_keys"] = summary(nameless)["bytes_per_image"]
        found["mean_length"] = summary(store)["length"]["mean"]
        config = tokenizer.config
        found["raw_bytes_per_image"] = 2 * config.grid**2 * config.teacher.width
        build_index(real)
        if find_index(store) is None:
            write_synthetic_index(store, Index(real), Index(real).vectors(np.arange(len(real))))
        found["index_bytes_per_image"] = _index_bytes(store)
        found["parquet_bytes_per_image"] = _parquet_bytes(store, Path(scratch)) / len(store)
        start = time.perf_counter()
        known = Writer(store.path, store.info).missing(store.keys)
        found["resume_seconds"] = time.perf_counter() - start
        assert not known.any()
        store.read([0])  # the first read of a fragment verifies it
        start = time.perf_counter()
        rows = sum(len(batch) for batch in store.batches(["codes", "length"]))
        found["rows_per_second"] = rows / (time.perf_counter() - start)
        picks = np.random.default_rng(0).integers(0, len(store), (20, 1024))
        start = time.perf_counter()
        for pick in picks:
            store.read(pick, columns=["codes", "length"])
        found["random_rows_per_second"] = picks.size / (time.perf_counter() - start)
        fields = real.fields(batch=32, workers=1)
        images = torch.randint(0, 256, (32, 3, *[tokenizer.config.image_size] * 2)).byte()
        times = side_by_side(
            {
                "store": lambda: list(islice(fields, 2)),
                "teacher": lambda: tokenizer.field(images),
            },
            repeat=5,
        )
        ratio = (min(times["teacher"]) / 32) / (min(times["store"]) / 64)
        found["fields_per_second_over_teacher"] = ratio
    keep("reading", tokenizer, found)


def interpreting(arguments: Arguments) -> None:
    """Fields per second, from a Parquet file of programs to fields on the device.

    For machines without Lance: `strop store export` writes the file.
    """
    where = device()
    tokenizer = strop.load(arguments.model, device=where)
    start = time.perf_counter()
    file = pq.ParquetFile(arguments.programs)
    fields, batch = 0, arguments.batch
    warm = Program.load(arguments.programs)[:batch]
    tokenizer.interpret(warm, batch=batch)
    _synchronize(where)
    start = time.perf_counter()
    for rows in file.iter_batches(batch_size=batch, columns=["codes", "length"]):
        lengths = torch.from_numpy(rows["length"].to_numpy().astype(np.int64))
        codes = torch.zeros(len(rows), tokenizer.config.max_length, dtype=torch.int64)
        active = torch.arange(codes.shape[1]) < lengths[:, None]
        codes[active] = torch.from_numpy(rows["codes"].flatten().to_numpy().astype(np.int64))
        program = Program(
            codes=codes,
            lengths=lengths,
            codebook_size=tokenizer.config.quantizer.codes,
            check=False,
        )
        fields += len(tokenizer.interpret(program, batch=batch))
    _synchronize(where)
    rate = fields / (time.perf_counter() - start)
    found = {"fields": fields, "fields_per_second": rate}
    keep(f"interpreting-{where.type}", tokenizer, found)


def _synchronize(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


def real_store(path: Path, arguments: Arguments, tokenizer: strop.Tokenizer) -> Store:
    """A store of 512 held-out photographs."""
    fields = held_out(tokenizer, arguments)[:512]
    return store_of(path, arguments, tokenizer, encoded(fields, tokenizer))


def synthetic(arguments: Arguments, real: Store, count: int, *, keys: bool = True) -> Store:
    """A store of synthetic programs, which is kept in the folder `cache`."""
    path = arguments.cache / f"{count}-{'names' if keys else 'numbers'}.lance"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_synthetic(unfinished, real, count, keys=keys)
        unfinished.rename(path)
    return strop.open_store(path, model=real.model)


def write_synthetic(path: Path, real: Store, count: int, *, keys: bool = True) -> None:
    """A store of programs with the lengths of real ones, and their codes at each position."""
    info, program = real.info, real[:]
    draws = np.random.default_rng(0)
    writer = Writer(str(path), info)
    codes, lengths = program.codes.numpy(), program.lengths.numpy()
    for start in range(0, count, 1 << 16):
        size = min(1 << 16, count - start)
        length = draws.choice(lengths, size)
        drawn = np.empty((size, info.capacity), dtype=np.int64)
        for position in range(info.capacity):
            seen = codes[lengths > position, position]
            seen = seen if len(seen) else codes[:, 0]
            drawn[:, position] = draws.choice(seen, size)
        made = Program(
            codes=torch.from_numpy(drawn),
            lengths=torch.from_numpy(length),
            codebook_size=info.codebook_size,
            check=False,
        )
        numbers = range(start, start + size)
        # Without names, keys are as short as they can be.
        names = [f"photo {n:09d}.jpg" if keys else np.base_repr(n, 36) for n in numbers]
        writer.append(_rows(made, names))


def _parquet_bytes(store: Store, scratch: Path) -> int:
    path = scratch / "codes.parquet"
    pq.write_table(store.to_arrow(["codes", "length"]), path, compression="zstd")
    return path.stat().st_size


def _index_bytes(store: Store) -> float:
    """Bytes of the vectors of an image and of the approximate index over them."""
    import lance

    folder = Path(store.path, "index")
    fragments = lance.dataset(folder).get_fragments()
    size = sum(file.file_size_bytes for each in fragments for file in each.metadata.files)
    size += sum(file.stat().st_size for file in folder.glob("_indices/*/*"))
    return size / len(store)


def memory(arguments: Arguments) -> None:
    """Peak memory of the driver for stores of growing size: tiny JPEGs and a tiny model."""
    rows = []
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [sys.executable, __file__, "memory-of-one", "--counts", str(count)],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "TMPDIR": scratch},
            )
        rows.append({"images": count, "peak_mib": float(done.stdout)})
        print(rows[-1], flush=True)
    save("corpus/memory", {"rows": rows})


def memory_of_one(arguments: Arguments) -> None:
    """Encode `counts` images and print the peak memory of this process in MiB."""
    (count,) = arguments.counts
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        write_tiny_jpegs(folder, count)
        model = write_tiny_model(Path(scratch))
        encode_corpus(str(folder), f"{scratch}/out.lance", model=model, workers=cores())
        assert len(strop.open_store(f"{scratch}/out.lance")) == count
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    print(int(peak.split()[1]) / 1024)


def write_tiny_jpegs(folder: Path, count: int) -> None:
    """JPEGs of 32 x 32 pixels: hard links to a hundred."""
    from strop.images import save_image

    folder.mkdir(parents=True)
    for number in range(count):
        path = folder / f"{number:07d}.jpg"
        if number < 100:
            save_image(path, torch.rand(3, 32, 32))
        else:
            path.hardlink_to(folder / f"{number % 100:07d}.jpg")


def write_tiny_model(folder: Path) -> str:
    """A model with random weights that encodes images of 32 x 32 pixels quickly."""
    from dataclasses import replace

    import transformers

    from strop.training.preset import load_preset

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    teacher = transformers.DINOv3ViTConfig(**shape, intermediate_size=32, image_size=32)
    transformers.DINOv3ViTModel(teacher).save_pretrained(folder / "teacher")
    config = load_preset("strop-xs").model
    small = {"width": 32, "depth": 1, "heads": 2, "feedforward": 32}
    config = replace(
        config,
        teacher=replace(config.teacher, name=str(folder / "teacher"), width=32),
        image_size=32,
        max_length=8,
        generator=replace(config.generator, **small),
        interpreter=replace(config.interpreter, **small),
        decoder=None,
    )
    strop.Tokenizer(config).save_pretrained(folder / "model")
    return str(folder / "model")


# Search.


def latency(arguments: Arguments) -> None:
    """Search in stores of growing size, of synthetic programs.

    Their vectors are those of real photographs with noise, of which the latency does not depend
    much; interpreting so many programs needs a GPU. The stores take turns.
    """
    tokenizer = strop.load(arguments.model, device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        real = real_store(Path(scratch) / "real.lance", arguments, tokenizer)
        build_index(real)
        known = Index(real).vectors(np.arange(len(real)))
        stores, rows = [], []
        for count in arguments.counts:
            store = synthetic(arguments, real, count)
            shutil.rmtree(Path(store.path, "index"), ignore_errors=True)
            seconds = write_synthetic_index(store, Index(real), known)
            row = {"programs": count, "index_seconds": seconds}
            stores.append(store)
            rows.append({**row, "recall_at_10": _synthetic_recall(store, real)})
            print(rows[-1], flush=True)
        for row, times in zip(rows, _latencies(stores, real), strict=True):
            row |= {f"{name}_ms": 1000 * statistics.median(each) for name, each in times.items()}
        keep("latency", tokenizer, {"rows": rows})


def write_synthetic_index(store: Store, like: Index, known: Tensor) -> float:
    """Index a store with noisy copies of known vectors; CPU seconds of building the index."""
    generator = torch.Generator().manual_seed(0)
    index = create_table(store, like.descriptor)
    for start in range(0, len(store), 1 << 16):
        rows = range(start, min(start + (1 << 16), len(store)))
        picked = known[torch.randint(len(known), (len(rows),), generator=generator)]
        noise = torch.randn(picked.shape, generator=generator) / math.sqrt(picked.shape[1])
        index.append(rows, F.normalize(picked + noise, dim=-1).half())
    begun = time.process_time()
    index.build()
    return time.process_time() - begun


def _synthetic_recall(store: Store, real: Store) -> float:
    """The share of the ten nearest vectors that the index finds."""
    index = Index(store)
    queries = index.descriptor(real.model.interpret(real[:50]))
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    for start in range(0, len(store), 1 << 17):
        rows = np.arange(start, min(start + (1 << 17), len(store)))
        scores, places = (queries @ index.vectors(rows).T).topk(10)
        for each, score, place in zip(best, scores.tolist(), places.tolist(), strict=True):
            each += zip(score, (start + row for row in place), strict=True)
    exact = [{row for _, row in sorted(each)[-10:]} for each in best]
    found = [set(index.nearest(query, 10)[0].tolist()) for query in queries]
    return statistics.mean(len(a & b) / 10 for a, b in zip(exact, found, strict=True))


def _latencies(stores: Sequence[Store], real: Store) -> list[dict[str, list[float]]]:
    """Seconds of each kind of search in each store."""
    picture = torch.rand(3, 256, 256)
    queries = Index(real).descriptor(real.model.interpret(real[:50]))
    indexes = {store.path: Index(store) for store in stores}
    kinds: dict[str, tuple[int, Callable[[Store, int], Any]]] = {
        "nearest": (50, lambda store, turn: indexes[store.path].nearest(queries[turn], 10)),
        "search": (25, lambda store, turn: store.search(real[turn : turn + 1], k=20)),
        "region": (3, lambda store, turn: store.search(picture, region=(64, 64, 96, 96))),
        "codes": (9, lambda store, turn: store.search(codes=f"{turn} and not 3")),
    }
    times: list[dict[str, list[float]]] = [{name: [] for name in kinds} for _ in stores]
    for name, (turns, search) in kinds.items():
        for turn in range(-1, turns):  # the first is not counted
            for store, found in zip(stores, times, strict=True):
                start = time.perf_counter()
                search(store, max(turn, 0))
                if turn >= 0:
                    found[name].append(time.perf_counter() - start)
        print(name, [statistics.median(found[name]) for found in times], flush=True)
    return times


def likeness(arguments: Arguments) -> None:
    """Overlap of the ten nearest photographs with those by the teacher's own fields."""
    tokenizer = strop.load(arguments.model, device=choose_device(None))
    photos = held_out(tokenizer, arguments)
    program = encoded(photos, tokenizer)
    pooled = torch.cat([pool(part) for part in photos.split(64)])
    means = pooled.chunk(2, dim=1)[0]
    exact = {
        "mean, centred": _top10(F.normalize(means - means.mean(dim=0), dim=1)),
        "mean and standard deviation, as in the index": _top10(
            Descriptor.fit(pooled, pooled.shape[1]).vectors(pooled)
        ),
    }
    found: dict[str, Any] = {"images": len(pooled), "overlap_at_10": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, made in {"all": program.with_lengths(program.capacity), "own": program}.items():
            store = store_of(Path(scratch) / f"{name}.lance", arguments, tokenizer, made)
            build_index(store)
            near = _top10(Index(store).vectors(np.arange(len(store))))
            overlap = {kind: _overlap(near, other) for kind, other in exact.items()}
            found["overlap_at_10"][name] = overlap
            found[f"mean_length_{name}"] = store[:].lengths.float().mean().item()
            print(name, overlap, flush=True)
        found["recall_at_10"] = _recall_of_index(store)
    keep("likeness", tokenizer, found)


def _top10(vectors: Tensor) -> Tensor:
    scores = vectors @ vectors.T
    return scores.fill_diagonal_(-math.inf).topk(10).indices


def _overlap(found: Tensor, exact: Tensor) -> float:
    return (found[:, :, None] == exact[:, None, :]).any(dim=-1).float().mean().item()


def _recall_of_index(store: Store) -> float:
    """Recall of the approximate index on real photographs, which are too few to need one."""
    from strop.store import index as module

    least, module.LEAST_ROWS = module.LEAST_ROWS, 1000
    try:
        build_index(store, rebuild=True)
    finally:
        module.LEAST_ROWS = least
    index = Index(store)
    vectors = index.vectors(np.arange(len(store)))
    hits = [
        set(index.nearest(query, 10)[0].tolist()) & set((vectors @ query).topk(10).indices.tolist())
        for query in vectors[::6]
    ]
    return statistics.mean(len(each) / 10 for each in hits)


def regions(arguments: Arguments) -> None:
    """Mean average precision of regions of the same class on VOC val.

    A query is the box around a class in an image, an image is right if it has the class. The store
    compares the patches of `CANDIDATES` images that are nearest by their vectors, which come
    before the others. The teacher's own patches are compared in the same way, in all images.
    """
    tokenizer = strop.load(arguments.model, device=choose_device(None))
    spec = f"voc:{SHARED / 'voc2012'}?split={arguments.split}"
    data = open_dataset(spec)
    classes = [
        _patch_classes(data[index].semantic, tokenizer.config.grid) for index in range(len(data))
    ]
    photos = teacher_fields([spec], tokenizer, arguments.cache)
    chance: list[float] = []
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made = encoded(photos, tokenizer)
        store = store_of(Path(scratch) / "voc.lance", arguments, tokenizer, made)
        build_index(store)
        own = store.model.interpret(store[:])
        sides = {
            "store": _Regions(Index(store).descriptor, own, CANDIDATES),
            "store, all candidates": _Regions(Index(store).descriptor, own, len(own)),
            "teacher": _Regions(Descriptor.fit(pool(photos)), photos.float(), len(own)),
        }
    for row, kinds in enumerate(classes):
        for window, kind in kinds:
            right = np.array([any(k == kind for _, k in each) for each in classes])
            right[row] = False
            if not right.any():
                continue
            chance.append(right.sum() / (len(right) - 1))
            for name, side in sides.items():
                order = side.order(row, window)
                precision = _average_precision(right[order[order != row]])
                scores.setdefault(name, []).append(precision)
        if row % 50 == 0:
            print(row, {name: statistics.mean(each) for name, each in scores.items()}, flush=True)
    found: dict[str, Any] = {name: statistics.mean(each) for name, each in scores.items()}
    found["relative"] = found["store"] / found["teacher"]
    found |= {"random": statistics.mean(chance), "candidates": CANDIDATES}
    keep("regions", tokenizer, {"images": len(classes), "queries": len(chance), **found})


class _Regions:
    """Orders images by a region of one of them, as `search` does."""

    def __init__(self, descriptor: Descriptor, fields: Tensor, candidates: int) -> None:
        self.descriptor, self.fields, self.candidates = descriptor, fields, candidates
        self.vectors, self.patches = descriptor(fields), descriptor.patches(fields)

    def order(self, row: int, window: Window) -> np.ndarray:
        """All images, the nearest first."""
        vector = self.descriptor(inside(self.fields[row : row + 1], window))[0]
        order = (self.vectors @ vector).argsort(descending=True)
        first, rest = order[: self.candidates], order[self.candidates :]
        region = inside(self.patches[row : row + 1], window)[0]
        shape = window[1] - window[0], window[3] - window[2]
        scores, _ = match_region(self.patches[first], region, shape)
        return torch.cat([first[scores.argsort(descending=True)], rest]).numpy()


def _patch_classes(mask: Tensor | None, grid: int) -> list[tuple[Window, int]]:
    """The window of patches around each class that takes 1 % of the image or more."""
    assert mask is not None
    height, width = mask.shape
    found = []
    for kind in mask.unique().tolist():
        share = (mask == kind).float().mean().item()
        if kind in (0, 255) or share < 0.01:
            continue
        rows, columns = (mask == kind).nonzero(as_tuple=True)
        sides = []
        for places, size in ((rows, height), (columns, width)):
            first = min(round(places.min().item() / size * grid), grid - 1)
            last = max(round((places.max().item() + 1) / size * grid), first + 1)
            sides += [first, min(last, grid)]
        found.append(((sides[0], sides[1], sides[2], sides[3]), kind))
    return found


def _average_precision(right: np.ndarray) -> float:
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    return float((precision * right).sum() / right.sum())


# Bytes at equal quality.


def rate(arguments: Arguments) -> None:
    """Bytes an image of other codes of the fields, at the R² centred that programs reach.

    Programs have the lengths of the model, lengths of the same mean that spend each token where it
    explains most, and equal lengths. Their bytes include those of a length.
    """
    tokenizer = strop.load(arguments.model, device=choose_device(None))
    held = held_out(tokenizer, arguments).float()
    rows = _program_points(tokenizer, held)
    print(rows, flush=True)
    curves = {}
    for name, curve in _other_codes(arguments, tokenizer, held):
        curves[name] = curve
        print(name, curve, flush=True)
    for row in rows:
        each = {code: _bytes_at(curve, row["r2_centred"]) for code, curve in curves.items()}
        row["bytes_at_equal_r2"] = each
        reached = [size for size in each.values() if size is not None]
        row["relative_to_best"] = row["bytes"] / min(reached) if reached else None
    keep(
        "rate",
        tokenizer,
        {
            "images": len(held),
            "fitted": arguments.fit,
            "teacher": tokenizer.teacher.digest,
            "programs": rows,
            "curves": curves,
        },
    )


def _other_codes(
    arguments: Arguments, tokenizer: strop.Tokenizer, held: Tensor
) -> Iterator[tuple[str, list[list[float]]]]:
    """Names of other codes of the fields, and their [bytes, R²]. No model changes them."""
    earlier = RESULTS / "corpus" / "rate.json"
    found = read_json(earlier, "benchmark", 1) if earlier.is_file() else {}
    now = {"images": len(held), "fitted": arguments.fit, "teacher": tokenizer.teacher.digest}
    if {key: found.get(key) for key in now} == now:
        yield from found["curves"].items()
        return
    fitted = torch.zeros(0, dtype=torch.float16)
    for path in sorted(COCO.glob("coco2017-256-train-*.tar")):
        if len(fitted) < arguments.fit:
            fields = teacher_fields([str(path)], tokenizer, arguments.cache)
            fitted = torch.cat([fitted, fields])[: arguments.fit]
    if len(fitted) < arguments.fit:
        raise SystemExit(f"There are {len(fitted)} photographs to fit on: give a smaller --fit.")
    mean = fitted.float().mean(dim=0)
    around = fitted - mean.half()
    yield "pca", _pca_curve(around, held, mean)
    for kind, side, sizes in LAYOUTS:
        yield f"{kind} {side} x {side}", _faiss_curve(kind, side, sizes, around, held, mean)


def _program_points(tokenizer: strop.Tokenizer, held: Tensor) -> list[dict[str, Any]]:
    """Bytes and R² of programs of fields, by how their lengths are chosen."""
    parts = [tokenizer.analyse_field(part) for part in held.split(64)]
    own = Program.cat([tokenizer.to_program(part) for part in parts]).to("cpu")
    mean_length = own.lengths.float().mean().item()
    lengths = {"own": own.lengths}
    if all(part.log_error is not None for part in parts):
        errors = torch.cat([part.log_error[:, 1].cpu().exp() for part in parts])
        lengths["allocated"] = allocated_lengths(errors, mean_length)
    lengths |= {f"{n}": torch.full((len(own),), n) for n in (16, 32, 48, 64) if n <= own.capacity}
    rows = []
    for name, chosen in lengths.items():
        program = own.with_lengths(chosen)
        made = torch.cat([tokenizer.interpret(part).cpu() for part in _batches(program)])
        bits = program.bits.mean().item() + math.log2(program.capacity)
        value = r2_centred(made, held).item()
        rows.append(
            {
                "lengths": name,
                "mean_length": chosen.float().mean().item(),
                "bytes": bits / 8,
                "r2_centred": value,
            }
        )
    return rows


def _batches(program: Program) -> Iterator[Program]:
    return (program[start : start + 64] for start in range(0, len(program), 64))


def _pca_curve(around: Tensor, held: Tensor, mean: Tensor) -> list[list[float]]:
    """[bytes, R²] of quantized PCA of whole fields; the better of joint and separable PCA."""
    from strop.analysis.baselines.pca import Transform, _allocate, _interpret, joint, separable

    choosing, fitted = around[:256].float(), around[256:].float()
    total = (held - held.mean(dim=(0, 1))).double().square().sum()
    energy = (held - mean).double().square().sum()
    best: dict[int, float] = {}
    for make in (separable, joint):
        transform = make(fitted)
        spread = transform.forward(choosing).square().mean(dim=0).sqrt()
        true = transform.forward(held - mean)
        # Both transforms are orthonormal: errors are those of the coefficients, and the rest.
        rest = energy - true.double().square().sum()
        same = Transform(transform.name, lambda c: c, lambda c: c)
        for size in (24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128):
            given = _allocate(spread.square(), 8 * size)
            kept = given.nonzero().flatten()
            made = _interpret(true, transform=same, spread=spread, given=given, kept=kept)
            error = rest + (made - true).double().square().sum()
            best[size] = max(best.get(size, 0.0), (1 - error / total).item())
        print(transform.name, best, flush=True)
    return [[size, value] for size, value in best.items()]


LAYOUTS = (
    ("rq", 4, (4, 6, 8)),
    ("opq", 4, (8, 12, 16)),
    ("rq", 8, (12, 16, 24, 32)),
    ("opq", 2, (2, 3, 4)),
    ("rq", 2, (1, 2, 3)),
    ("opq", 8, (16, 24, 32, 48)),
    ("opq", 1, (1, 2)),
)
"""Kind, side of the blocks, and bytes of a block."""

TRAINING_BLOCKS = 20_000
WIDTH = {1: 192, 2: 192, 4: 192, 8: 384}
"""Principal components in which blocks of a side are coded; OPQ divides them by its bytes."""


def _faiss_curve(
    kind: str, side: int, sizes: Sequence[int], around: Tensor, held: Tensor, mean: Tensor
) -> list[list[float]]:
    """[bytes, R²] of a quantizer of blocks of `side` x `side` patches in principal components."""
    import faiss

    from strop.analysis.baselines.kmeans import from_blocks, to_blocks

    grid = math.isqrt(held.shape[1])
    count, width = (grid // side) ** 2, min(WIDTH[side], side**2 * held.shape[2])
    some = around[:: max(1, len(around) * count // (4 * TRAINING_BLOCKS))]
    blocks = to_blocks(some.float(), side)
    basis = torch.svd_lowrank(blocks[::8], width)[2]  # fewer where there are fewer blocks
    width = basis.shape[1]
    train = (blocks[:: max(1, len(blocks) // TRAINING_BLOCKS)] @ basis).numpy()
    tested = (to_blocks(held - mean, side) @ basis).numpy()
    codebooks = None
    if kind == "rq":
        # The codebooks of a residual quantizer are the first of one with more of them.
        largest = faiss.ResidualQuantizer(width, max(sizes), 8)
        largest.max_beam_size = 4
        largest.cp.niter = 10
        largest.train(train)
        codebooks = faiss.vector_to_array(largest.codebooks)
    curve = []
    for size in sizes:
        if kind == "rq":
            quantizer = faiss.ResidualQuantizer(width, size, 8)
            quantizer.max_beam_size = 8
            faiss.copy_array_to_vector(codebooks[: size * 256 * width], quantizer.codebooks)
            quantizer.is_trained = True
            made = quantizer.decode(quantizer.compute_codes(tested))
        else:
            rotation = faiss.OPQMatrix(width, size)
            rotation.niter = 10
            rotation.train(train)
            product = faiss.ProductQuantizer(width, size, 8)
            product.train(rotation.apply(train))
            codes = product.compute_codes(rotation.apply(tested))
            made = rotation.reverse_transform(product.decode(codes))
        back = from_blocks(torch.from_numpy(made) @ basis.T, side, held)
        curve.append([size * count, r2_centred(back + mean, held).item()])
    return curve


def _bytes_at(curve: list[list[float]], goal: float) -> float | None:
    """Bytes at which a curve reaches an R², interpolated in the logarithm of bytes."""
    for (low, before), (high, after) in pairwise(curve):
        if before <= goal <= after:
            share = (goal - before) / (after - before)
            return float(math.exp(math.log(low) + share * math.log(high / low)))
    return float(curve[0][0]) if curve and curve[0][1] >= goal else None


# A head from the store.


def head(arguments: Arguments) -> None:
    """What `examples/probe_from_store.py` prints for VOC 2012, or for rendered scenes."""
    script = Path(__file__).parents[1] / "examples" / "probe_from_store.py"
    scenes = arguments.model == "scenes"
    options = [] if scenes else ["--voc", str(SHARED / "voc2012")]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "head.json"
        options += ["--seeds", "3", "--json", str(out)]
        subprocess.run([sys.executable, script, *options], check=True)
        rows = read_json(out, "probe", 1)["rows"]
    tokenizer = strop.load(arguments.model, device="cpu")
    keep("head", tokenizer, {"data": "scenes" if scenes else "voc", "rows": rows})


MEASUREMENTS: dict[str, Callable[[Arguments], None]] = {
    "engines": engines,
    "engine": engine,
    "reading": reading,
    "interpreting": interpreting,
    "memory": memory,
    "memory-of-one": memory_of_one,
    "latency": latency,
    "likeness": likeness,
    "regions": regions,
    "rate": rate,
    "head": head,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument("--model", default="photos")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "strop-corpus")
    parser.add_argument("--images", help="engines: a folder or glob of JPEGs")
    parser.add_argument("--only", nargs="+", default=["decode", "loops", "local", "ray"])
    parser.add_argument("--slice", type=int, default=64, help="engines: images in a slice")
    parser.add_argument("--rounds", type=int, default=4, help="engines: turns of each")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--programs", help="interpreting: a Parquet file")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument(
        "--fit", type=int, default=8192, help="rate: images that codes are fitted on"
    )
    parser.add_argument("--split", default="val", help="regions: of VOC")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    MEASUREMENTS[arguments.name](arguments)


if __name__ == "__main__":
    main()
