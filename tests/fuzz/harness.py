"""Feed damaged inputs to a target, in a child process that is watched for time and memory.

A target is given a seed and the folder of the child, makes one input, and feeds it. It returns
whether the input was accepted, or raises an error of strop. Anything else is a finding: another
exception, a wrong answer (an AssertionError), a death, more than `SECONDS`, more than `BYTES`.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from strop.errors import StropError

SECONDS = 10
BYTES = 2 * 2**30

Feed = Callable[[random.Random], bool]
"""Makes one input and feeds it: True if it was accepted."""
Target = Callable[[Path], Feed]
"""Prepares what all inputs share, in an empty folder."""


@dataclass
class Tally:
    """What became of the inputs of a target, and the seeds and reasons of findings."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    deaths: int = 0
    slowest: float = 0.0
    most_bytes: int = 0
    findings: list[dict[str, object]] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def fuzz(
    target: Target, first: int, seconds: float, most: int = 2**62, *, may_die: bool = False
) -> Tally:
    """Feed seeds from `first` on until the time is over, in as many children as it takes.

    With `may_die`, an input that ends the process is counted and is no finding.
    """
    tally = Tally()
    end = time.monotonic() + seconds
    with mmap.mmap(-1, 40) as watched, tempfile.TemporaryFile() as log:
        seed = first
        while time.monotonic() < end and seed < first + most and len(tally.findings) < 20:
            watched[:] = struct.pack("<qdqqq", seed - 1, time.monotonic(), 0, 0, 0)
            child = os.fork()
            if child == 0:
                _run(target, seed, first + most, end, watched, log.fileno())
            finding = _watch(child, watched)
            last, _, *counts = struct.unpack("<qdqqq", watched)
            seed = last + 1
            for name, count in zip(("inputs", "accepted", "refused"), counts, strict=True):
                setattr(tally, name, getattr(tally, name) + count)
            if finding and may_die and finding.startswith("killed"):
                tally.deaths += 1
            elif finding:
                tally.findings.append({"seed": seed - 1, "finding": finding})
        log.seek(0)
        for line in log.read().splitlines():
            _add(tally, json.loads(line))
    return tally


def _add(tally: Tally, part: dict[str, object]) -> None:
    for name in ("slowest", "most_bytes"):
        setattr(tally, name, max(getattr(tally, name), part[name]))
    tally.findings += part["findings"]


def _watch(child: int, watched: mmap.mmap) -> str:
    """Wait for a child; kill it if one input takes too long. What went wrong, or nothing.

    Time in which this process does not run either, as on a machine that sleeps, does not count.
    """
    seed, waited, last = None, 0.0, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            signalled = os.WIFSIGNALED(status)
            return f"killed by signal {os.WTERMSIG(status)}" if signalled else ""
        now, running = time.monotonic(), struct.unpack_from("<qd", watched)
        waited = waited + min(now - last, 1) if running == seed else 0.0
        seed, last = running, now
        if waited > 6 * SECONDS and running[1]:  # other work may slow the machine
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"still running after {6 * SECONDS} s"
        time.sleep(0.02)


def _run(target: Target, seed: int, last: int, end: float, watched: mmap.mmap, log: int) -> None:
    """The child: one input after another, until the time or its memory is used up."""
    part = Tally()
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            silent = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):  # libtiff and Rust write there themselves
                os.dup2(silent, stream)
            os.chdir(folder)
            feed = target(Path(folder))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            base = _peak()
            while seed < last and (time.monotonic() < end or not part.inputs):
                counts = part.inputs, part.accepted, part.refused
                watched[:] = struct.pack("<qdqqq", seed, time.monotonic(), *counts)
                begun = time.process_time()
                finding = _one(feed, seed, part)
                taken = time.process_time() - begun
                if taken > SECONDS:
                    finding = finding or f"took {taken:.1f} s"
                grown = _peak() - base
                if grown > BYTES:
                    finding = finding or f"took {grown / 2**30:.1f} GiB"
                part.slowest = max(part.slowest, round(taken, 3))
                part.most_bytes = max(part.most_bytes, grown)
                if finding:
                    part.findings.append({"seed": seed, "finding": finding})
                seed += 1
                if grown > BYTES or len(part.findings) >= 20:
                    break
            counts = part.inputs, part.accepted, part.refused
            watched[:] = struct.pack("<qdqqq", seed - 1, 0.0, *counts)
    except BaseException:
        part.findings.append({"seed": seed, "finding": traceback.format_exc()[-1200:]})
    os.write(log, json.dumps(part.as_dict()).encode() + b"\n")
    os._exit(0)


def _one(feed: Feed, seed: int, part: Tally) -> str:
    part.inputs += 1
    try:
        part.accepted += bool(feed(random.Random(seed)))
    except StropError as error:
        part.refused += 1
        return "" if error.problem and error.remedy else f"without a remedy: {error!r}"
    except BaseException:
        return traceback.format_exc()[-1200:]
    return ""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
