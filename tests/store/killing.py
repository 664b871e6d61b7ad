"""Kill encoders at random moments, let the same command go on, and compare the stores.

    python tests/store/killing.py --moments 50 --out benchmarks/results/corpus/kills.json

Drivers are forked from this process, which therefore never uses Lance or Ray itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

import strop
from strop.files import read_json, write_json
from strop.images import save_image
from strop.store.encode import encode_corpus
from strop.store.report import check

CLUSTER = (
    "import ray.cluster_utils as c;"
    "k = c.Cluster(initialize_head=True, head_node_args={'num_cpus': 2});"
    "print(k.address, flush=True); input(); k.shutdown()"
)
Job = Callable[[str], None]
"""Encodes the images into the store at a path."""


def undisturbed(job: Job, store: Path) -> tuple[dict[str, str], float]:
    """The rows of a store that one life writes, and how many seconds that takes."""
    start = time.monotonic()
    assert _live(job, store) == 0
    return rows_of(store), time.monotonic() - start


def kill_drivers(
    job: Job, folder: Path, moments: int, seconds: float, seed: int, until: float = math.inf
) -> tuple[list[Path], int]:
    """Kill `moments` encoders at moments drawn from `seconds`; each store is then finished.

    No more are killed after the time `until`. Returns the stores, and how often one was killed.
    """
    draws, stores, killed = random.Random(seed), [], 0
    while killed < moments and time.monotonic() < until:
        store = folder / f"{len(stores)}.lance"
        stores.append(store)
        born, process = time.monotonic(), _born(job, store)
        # A life is shorter if the lives before it have done a part of the work.
        while _dies(process, draws.uniform(0, seconds), lambda process=process: process):
            killed += 1
            if killed == moments or time.monotonic() > until:
                break
            process = _born(job, store)
        else:
            seconds = min(seconds, time.monotonic() - born)
        assert _live(job, store) == 0
    return stores, killed


def kill_workers(
    job: Job,
    folder: Path,
    moments: int,
    seconds: float,
    seed: int,
    workers: Callable[[int], list[int]],
    until: float = math.inf,
) -> tuple[list[Path], int]:
    """Kill one worker of each of `moments` encoders, which must then end by themselves.

    See `kill_drivers` for `until` and for what is returned.
    """
    draws, stores, killed = random.Random(seed), [], 0
    while killed < moments and time.monotonic() < until:
        store = folder / f"{len(stores)}.lance"
        stores.append(store)
        born, process = time.monotonic(), _born(job, store)

        def victim(process: int = process) -> int | None:
            found = workers(process)
            return draws.choice(found) if found else None

        dead = _dies(process, draws.uniform(0, seconds), victim, wait=False)
        _, status = os.waitpid(process, 0)
        killed += dead
        seconds = seconds if dead else min(seconds, time.monotonic() - born)
        assert status == 0, f"the encoder of {store} ended with status {status}"
    return stores, killed


def orphans() -> int:
    """Workers whose encoder is dead and that do not end by themselves within ten seconds."""
    until = time.monotonic() + 10
    while (found := _orphans()) and time.monotonic() < until:
        time.sleep(0.2)
    for process in found:
        os.kill(process, signal.SIGKILL)
    return len(found)


def compare(stores: list[Path], expected: dict[str, str]) -> dict[str, int]:
    """How many rows are lost, doubled or different, over all stores; and damaged stores."""
    found = {"stores": len(stores), "rows": len(expected), "lost": 0, "doubled": 0, "different": 0}
    found["damaged"] = 0
    for store in stores:
        rows = rows_of(store)
        found["lost"] += len(expected.keys() - rows.keys())
        found["doubled"] += sum("doubled" in value for value in rows.values())
        found["different"] += sum(expected.get(key) != value for key, value in rows.items())
        found["damaged"] += rows.get("problems", "none") != "none"
    return found


def rows_of(store: Path) -> dict[str, str]:
    """A digest of each row by its key, of rejects, and what `strop store check` complains of."""
    pipe, end = os.pipe()
    process = os.fork()
    if process == 0:
        opened = strop.open_store(store)
        digests: dict[str, str] = {}
        for row in opened.to_arrow().to_pylist():
            key = row["key"]
            digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
            digests[key] = f"doubled {digest}" if key in digests else digest
        digests["rejects"] = json.dumps(sorted(map(str, opened.rejects.to_pylist())))
        digests["problems"] = ", ".join(check(opened)["problems"]) or "none"
        with os.fdopen(end, "w") as file:
            json.dump(digests, file)
        os._exit(0)
    os.close(end)
    with os.fdopen(pipe) as file:
        found = json.load(file)
    os.waitpid(process, 0)
    return found


@contextmanager
def cluster() -> Iterator[tuple[str, Callable[[int], list[int]]]]:
    """A Ray cluster in a process of its own: its address, and what finds its workers."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        yield address, lambda driver: _named(process.pid, "ray::_encode_slice")
    finally:
        process.communicate("\n", timeout=60)


def write_data(folder: Path, count: int) -> None:
    """Small images of two colours, and two files that are none."""
    for number in range(count):
        colours = torch.rand(2, 3, generator=torch.Generator().manual_seed(number))
        image = colours[:, :, None].expand(2, 3, 40).permute(1, 0, 2).repeat_interleave(20, 1)
        save_image(folder / f"ü {number:03d}.png", image)
    for name in ("broken.jpg", "zero.png"):
        (folder / name).write_bytes(b"no image"[: len(name) - 8])


def _born(job: Job, store: Path) -> int:
    process = os.fork()
    if process == 0:
        with open(os.devnull, "w") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 2)
        job(str(store))
        os._exit(0)
    return process


def _live(job: Job, store: Path) -> int:
    return os.waitpid(_born(job, store), 0)[1]


def _dies(process: int, after: float, victim: Callable[[], int | None], wait: bool = True) -> bool:
    """Kill a victim after some seconds. False if the process has ended by then."""
    until = time.monotonic() + after
    while time.monotonic() < until or victim() is None:
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            if wait:
                os.waitpid(process, 0)
            return False
        time.sleep(0.002)
    found = victim()
    if found is None:
        return False
    try:
        os.kill(found, signal.SIGKILL)
    except ProcessLookupError:
        return False
    if wait:
        os.waitpid(process, 0)
    return True


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _orphans() -> set[int]:
    """The processes of this process group that are no longer its descendants."""
    group = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getpgid(int(folder.name)) == os.getpgid(0):
                group.add(int(folder.name))
    return group - {os.getpid(), *_named(os.getpid(), "")}


def _named(process: int, name: str) -> list[int]:
    """The descendants of a process whose command line begins with `name`."""
    found = []
    for child in _children(process):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        found += [child] if command.startswith(name) else []
        found += _named(child, name)
    return found


def measure(
    folder: Path,
    model: str,
    engines: list[str],
    moments: int,
    images: int,
    minutes: float = math.inf,
    seed: int = 0,
) -> dict[str, object]:
    """Kill drivers and workers of the engines: what was lost, doubled or different.

    An engine is given about so many `minutes`, half of them for each kind of victim.
    """
    data = folder / "data"
    write_data(data, images)
    tokenizer = strop.load(model, device="cpu")
    assert tokenizer.identity  # loads the teacher: drivers are killed at work, not at imports
    options = {"model": model, "tokenizer": tokenizer, "slice_size": 2}

    def local(store: str) -> None:
        encode_corpus(str(data), store, workers=2, **options)

    results: dict[str, object] = {"images": images}
    expected, seconds = undisturbed(local, folder / "whole.lance")

    def both(job: Job, workers: Callable[[int], list[int]]) -> dict[str, object]:
        def until() -> float:
            return time.monotonic() + 30 * minutes

        folders = [folder / f"{job.__name__}-{victim}" for victim in ("driver", "worker")]
        half = moments // 2
        stores, kills = kill_drivers(job, folders[0], half, seconds, seed, until())
        left = orphans()
        drivers = {"kills": kills, **compare(stores, expected), "orphans": left}
        stores, kills = kill_workers(
            job, folders[1], moments - half, seconds, seed, workers, until()
        )
        return {"driver": drivers, "worker": {"kills": kills, **compare(stores, expected)}}

    if "local" in engines:
        results["local"] = both(local, _children)
    if "ray" in engines:
        with cluster() as (address, ray_workers):

            def ray(store: str) -> None:
                encode_corpus(str(data), store, engine="ray", address=address, **options)

            for life in range(2):  # the first waits until the cluster has started
                rows, seconds = undisturbed(ray, folder / f"ray-{life}.lance")
                assert rows == expected, "the engines wrote different rows"
            results["ray"] = both(ray, ray_workers)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=50, help="of each engine")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each engine")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--engine", choices=["local", "ray"], action="append")
    parser.add_argument("--model", default="photos")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="add to the counts in the file")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.setpgid(0, 0)  # orphans are recognised by their process group
    engines = options.engine or ["local", "ray"]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder),
            options.model,
            engines,
            options.moments,
            options.images,
            options.minutes,
            options.seed,
        )
    known = read_json(options.out, "benchmark", 1) if options.out.is_file() else {}
    known.pop("format", None)
    if options.add:
        for engine in engines:
            for victim, counts in found[engine].items():
                earlier = known.get(engine, {}).get(victim, {})
                found[engine][victim] = {
                    name: count + earlier.get(name, 0) * (name != "rows")
                    for name, count in counts.items()
                }
    write_json(options.out, "benchmark", 1, {**known, **found})  # other engines keep their place


if __name__ == "__main__":
    main()
