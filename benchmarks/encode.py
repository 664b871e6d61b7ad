"""Speed of encoding from uint8 images on the device: STROP-S on DINOv3-S's shape, random weights.

    python benchmarks/encode.py throughput latency scaling others

throughput  images per second of `encode` and of the teacher alone, by batch
latency     percentiles of the time of one call with one image
scaling     time and memory with the length, the resolution and the size of the codebook
others      encoders of other tokenizers at their published shapes; see `shapes.py`

On a GPU models are compiled and recorded in CUDA graphs, in half precision. A CPU computes in fp32,
and its figures are only meaningful as ratios. Each part replaces its own results and keeps others.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from common import RESULTS, alone, device, machine, preparing, save, side_by_side
from shapes import others
from strop import Tokenizer
from strop.files import read_json
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig
from strop.recorded import Recorded
from strop.training.preset import load_preset

torch._dynamo.config.recompile_limit = 64  # one encoder in several sizes, several encoders
WHERE = device()
ON_GPU = WHERE.type == "cuda"
Calls = dict[Any, Callable[[], Any]]
SETTING = "STROP-S on DINOv3-S's shape, 256 px"


def main() -> None:
    parts = {"throughput": throughput, "latency": latency, "scaling": scaling, "others": beside}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=list(parts))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--calls", type=int, default=2000, help="of the latency")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of a CPU")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    path = RESULTS / f"encode_{WHERE.type}.json"
    found = read_json(path, "benchmark", 1) if path.is_file() else {}
    kept = {key: value for key, value in found.items() if key not in ("format", "machine")}
    if found.get("machine") != machine():
        kept = {}
    for part in arguments.parts:
        kept.update(parts[part](arguments))
        save(
            path.stem,
            {**kept, "setting": SETTING, "threads": torch.get_num_threads(), "graphs": ON_GPU},
        )
        gc.collect()
        torch.compiler.reset()  # a function keeps at most eight compiled versions


def model(**changes: Any) -> Tokenizer:
    """STROP-S with random weights."""
    torch.manual_seed(0)
    teacher = TeacherConfig(name="random:dinov3-s", width=384)
    config = replace(load_preset("strop-s-dinov3-s").model, teacher=teacher, **changes)
    return Tokenizer(config).to(WHERE).eval()


def images(batch: int, size: int = 256) -> Tensor:
    random = torch.Generator().manual_seed(0)
    shape = (batch, 3, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random).to(WHERE)


def fast(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """On a GPU compiled and recorded, in half precision, as `Tokenizer.compile` does it."""
    if not ON_GPU:
        return function
    compiled = torch.compile(function, fullgraph=True, dynamic=False)

    def run(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            return compiled(images)

    recorded: dict[torch.Size, Recorded[Tensor]] = {}
    return lambda x: recorded.setdefault(x.shape, Recorded(run, WHERE))(x)


@torch.no_grad()
def prepare(tokenizer: Tokenizer, batches: list[int], calls: Calls) -> None:
    """Compile and record what will be timed."""
    with preparing():
        start = time.perf_counter()
        if ON_GPU:
            tokenizer.compile(batch=max(batches), fullgraph=True, dynamic=False)
        for call in calls.values():
            for _ in range(5 if ON_GPU else 1):
                call()
        print(f"batches {batches}: prepared in {time.perf_counter() - start:.0f} s")


@torch.no_grad()
def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    tokenizer = model()
    teacher = fast(tokenizer.teacher)
    calls: Calls = {}
    for batch in arguments.batches:
        x = images(batch)
        calls["teacher", batch] = lambda x=x: teacher(x)
        calls["encode", batch] = lambda x=x, batch=batch: tokenizer.encode(x, batch=batch)
    prepare(tokenizer, arguments.batches, calls)
    rows = []
    for batch in arguments.batches:
        pair = {name: calls[name, batch] for name in ("teacher", "encode")}
        with alone():
            times = side_by_side(pair, repeat=arguments.repeat)
        # The minimum: other load only makes a call slower.
        teacher_s, encode_s = min(times["teacher"]), min(times["encode"])
        rows.append(
            {
                "batch": batch,
                "teacher_images_per_s": batch / teacher_s,
                "encode_images_per_s": batch / encode_s,
                "encode_over_teacher_time": encode_s / teacher_s,
            }
        )
        print(rows[-1])
    return {"rows": rows}


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    tokenizer = model()
    x = images(1)
    prepare(tokenizer, [1], {})
    times = []
    with alone():
        for _ in range(arguments.calls + 10):
            start = time.perf_counter()
            tokenizer.encode(x).to("cpu")
            times.append(time.perf_counter() - start)
    cuts = statistics.quantiles(times[10:], n=100)
    found = {"calls": arguments.calls, "p50_ms": 1e3 * cuts[49], "p99_ms": 1e3 * cuts[98]}
    print(found)
    return {"latency": found}


def scaling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time of a call relative to the first row of each kind, and its peak memory."""
    batch = 32 if ON_GPU else 1
    kinds: dict[str, list[tuple[int, dict[str, Any]]]] = {
        "length": [(k, {"max_length": k}) for k in (64, 32, 128, 256)],
        "resolution": [(side, {"image_size": side}) for side in (256, 128, 512)],
        "codebook": [
            (n, {"quantizer": QuantizerConfig(codes=n)}) for n in (1024, 256, 4096, 16384)
        ],
    }
    rows = []
    for kind, settings in kinds.items():
        models = {value: model(**changes) for value, changes in settings}
        calls = {}
        for value, tokenizer in models.items():
            if ON_GPU:
                tokenizer.compile(batch=batch)
            x = images(batch, tokenizer.config.image_size)
            calls[str(value)] = lambda t=tokenizer, x=x: t.encode(x, batch=batch)
        with alone():
            times = side_by_side(calls, repeat=arguments.repeat)
        first = min(times[str(settings[0][0])])
        for value in sorted(models):
            row: dict[str, Any] = {"kind": kind, "value": value}
            row["times"] = min(times[str(value)]) / first
            if ON_GPU:
                row["images_per_s"] = batch / min(times[str(value)])
            row["memory_mib"] = memory(calls[str(value)])
            rows.append(row)
            print(rows[-1])
        del models, calls
        gc.collect()
    return {"scaling": {"batch": batch, "rows": rows}}


def memory(call: Callable[[], Any]) -> float:
    """MiB that a call allocates at most on a GPU; on a CPU the peak of the process so far."""
    if not ON_GPU:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


@torch.no_grad()
def beside(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ours and the others, in turn."""
    rows = []
    encoders = {name: encoder.to(WHERE).eval() for name, encoder in others().items()}
    tokenizer = model()
    quick = {name: fast(encoder) for name, encoder in encoders.items()}
    batches = [each for each in arguments.batches if ON_GPU or each <= 8]
    calls: Calls = {}
    for batch in batches:
        x = images(batch)
        calls["STROP-S", batch] = lambda x=x, batch=batch: tokenizer.encode(x, batch=batch)
        calls |= {(name, batch): lambda x=x, run=run: run(x) for name, run in quick.items()}
    prepare(tokenizer, batches, calls)
    for batch in batches:
        these = {name: call for (name, size), call in calls.items() if size == batch}
        with alone():
            times = side_by_side(these, repeat=arguments.repeat)
        ours = min(times["STROP-S"])
        for name, samples in times.items():
            row: dict[str, Any] = {"encoder": name, "batch": batch, "times": min(samples) / ours}
            if ON_GPU:
                row["images_per_s"] = batch / min(samples)
            rows.append(row)
            print(row)
    parameters = {name: sum(p.numel() for p in e.parameters()) for name, e in encoders.items()}
    return {"others": {"parameters": parameters, "rows": rows}}


if __name__ == "__main__":
    main()
