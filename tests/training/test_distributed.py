"""Two processes at half the batch against one."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from tiny_training import tiny_centred_config, tiny_fields, tiny_preset

from strop.errors import ConfigError
from strop.training import distributed
from strop.training.distributed import Workers
from strop.training.loop import _device, train
from strop.training.run_checkpoint import checkpoint_paths, read_checkpoint

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def two_processes(script: str, folder: Path, port: int, **more: str) -> list[subprocess.Popen]:
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(folder)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **more,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def wait_for(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        _, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems[-2000:]


def test_two_gloo_processes_equal_one_codebook_included(tmp_path):
    processes = two_processes("distributed_run.py", tmp_path / "two", free_port())
    train(
        tiny_preset(model=tiny_centred_config(), steps=40),
        tiny_fields(60),
        out=tmp_path / "one",
    )
    wait_for(processes)
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_two_processes_train_several_runs_and_get_the_same_results(tmp_path):
    # As under torchrun, whose store outlives a group.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    wait_for(two_processes("distributed_sweep.py", tmp_path, store.port, **agent))
    first, second = (json.loads((tmp_path / rank / "known.json").read_text()) for rank in "01")
    assert [run["name"] for run in first["sweep"]] == ["seed=0", "seed=1"]
    assert "r2_centred" in first["metrics"]
    assert second == first
    assert (tmp_path / "sweep/seed=1/model/config.json").is_file()
    models = [load_file(tmp_path / rank / "model.safetensors") for rank in "01"]
    different = [name for name in models[0] if not torch.equal(models[0][name], models[1][name])]
    assert not different


def test_torchrun_restarts_a_run_whose_process_died_from_its_last_checkpoint(tmp_path):
    # There is a checkpoint every 8 steps; the first process exits at step 25.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    command += [str(HERE / "distributed_run.py"), str(tmp_path / "two"), "25"]
    run = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    train(
        tiny_preset(model=tiny_centred_config(), steps=40),
        tiny_fields(60),
        out=tmp_path / "one",
    )
    _, problems = run.communicate(timeout=300)
    assert run.returncode == 0, problems[-6000:]
    assert "exitcode: 1" in problems  # the first process exited
    assert_same_run(tmp_path / "one", tmp_path / "two")


def assert_same_run(first: Path, second: Path) -> None:
    """All weights, averages and moments, within rounding."""
    one, two = (
        read_checkpoint(checkpoint_paths(run / "checkpoints")[0]).tensors for run in (first, second)
    )
    for name, value in one.items():
        if not name.startswith("rng."):
            assert torch.allclose(value, two[name], rtol=1e-4, atol=1e-5), name


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "join", lambda device: Workers(0, 3))
    with pytest.raises(ConfigError, match="3 processes"):
        train(tiny_preset(), tiny_fields(60))


def test_processes_wait_for_one_that_computes_the_fields_of_a_large_dataset(monkeypatch):
    asked = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(
        distributed, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), 1, 2)])
    )
    monkeypatch.setattr(dist, "init_process_group", lambda _, **options: asked.update(options))
    monkeypatch.setattr(atexit, "register", lambda _: None)
    assert distributed.join(torch.device("cpu")) == Workers(1, 2)
    assert asked["timeout"] >= timedelta(hours=12)


def test_each_process_has_a_gpu_also_where_cuda_is_asked_for(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setenv("LOCAL_RANK", "3")
    for asked in (None, "cuda", torch.device("cuda")):
        assert _device(asked) == torch.device("cuda:3")
    assert _device("cuda:1") == torch.device("cuda:1")
    assert _device("cpu") == torch.device("cpu")
    monkeypatch.delenv("LOCAL_RANK")
    current.append(2)  # by the caller
    assert _device("cuda") == torch.device("cuda:2")


def test_shares_cover_the_batch():
    rows = torch.arange(12)
    parts = [rows[Workers(rank, 3).share(12)] for rank in range(3)]
    assert torch.equal(torch.cat(parts), rows)
