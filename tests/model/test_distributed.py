"""Two real processes keep one codebook and one set of means: bit-equal, and those of one process
on the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.model.quantizer import Quantizer, QuantizerConfig

N, CODE, ROWS, K, STEPS = 16, 8, 40, 16, 12


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens `(40, 16, 8)` and a prefix mask; the first rows are long, the last ones short."""
    random = torch.Generator().manual_seed(step)
    z = F.normalize(torch.randn(ROWS, K, CODE, generator=random), dim=-1)
    lengths = torch.linspace(K, 1, ROWS).round()
    return z, torch.arange(K) < lengths[:, None]


def train(rows: slice) -> dict[str, Tensor]:
    """What a trainer does to the codebook with these rows; every stage of it is kept."""
    torch.manual_seed(0)
    config = QuantizerConfig(codes=N, code_width=CODE, centred=True)
    quantizer = Quantizer(config, width=4, length=K)
    uniform = torch.Generator().manual_seed(1)
    states = {}
    for step in range(STEPS):
        z, active = (part[rows] for part in batch(step))
        if step == 0:
            quantizer.initialise(z, active, torch.rand(N, generator=uniform))
        codes = (z @ quantizer.codebook.T).argmax(dim=-1)
        quantizer.update(z, codes, active)
        quantizer.recentre(z)
        if step % 5 == 4:
            quantizer.reseed(z, active, torch.rand(N, generator=uniform), below=5.0)
        for name in ("codebook", "counts", "sums", "centre"):
            states[f"{step:02}.{name}"] = getattr(quantizer, name).clone()
    return states


def main(rank: int, meeting_point: str, out: str) -> None:
    """One of the two processes."""
    dist.init_process_group("gloo", f"file://{meeting_point}", rank=rank, world_size=2)
    half = ROWS // 2
    save_file(train(slice(rank * half, (rank + 1) * half)), out)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> list[dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("processes")
    outs = [folder / f"{rank}.safetensors" for rank in range(2)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, Path(__file__), str(rank), folder / "meeting", out],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        errors = [process.communicate(timeout=90)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], errors
    return [load_file(out) for out in outs]


def test_codebooks_and_means_stay_bit_equal(two_processes):
    first, second = two_processes
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_and_equal_one_process_on_the_joined_batch(two_processes):
    alone = train(slice(None))
    for name, value in two_processes[0].items():
        assert torch.equal(alone[name], value), name


def test_the_exchange_matters(two_processes):
    """Guards the tests above: half the batch by itself ends elsewhere, and codes were reseeded."""
    half = train(slice(0, ROWS // 2))
    assert not torch.allclose(half["11.codebook"], two_processes[0]["11.codebook"], atol=0.1)
    assert (two_processes[0]["04.counts"] == 1).any()
    assert not torch.allclose(half["11.centre"], two_processes[0]["11.centre"], atol=0.005)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
