"""Encoders that are killed, on one machine and on a Ray cluster, lose and double no row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strop.files import read_json
from strop.store.encode import encode_corpus

from .conftest import write_images

SCRIPT = Path(__file__).parent / "killing.py"


def kill(tmp_path: Path, model: str, moments: int, *options: str) -> dict[str, dict]:
    out = tmp_path / "kills.json"
    arguments = ["--moments", str(moments), "--model", model, "--out", str(out), *options]
    # In a process of its own, because encoders are forked.
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=1800
    )
    assert not done.returncode, done.stderr
    return read_json(out, "benchmark", 1)


def assert_nothing_is_lost(found: dict[str, int]) -> None:
    assert found["stores"] > 0
    assert found["rows"] > 10
    wrong = ("lost", "doubled", "different", "damaged", "orphans")
    assert [found.get(name, 0) for name in wrong] == [0] * 5


@pytest.mark.parametrize("moments", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_local_encoders_that_are_killed_lose_nothing(tmp_path, model, moments):
    found = kill(tmp_path, model, moments, "--engine", "local", "--images", "24")
    for victim in ("driver", "worker"):
        assert_nothing_is_lost(found["local"][victim])


@pytest.mark.slow
def test_encoders_on_a_cluster_that_are_killed_lose_nothing(tmp_path, model):
    found = kill(tmp_path, model, 6, "--engine", "ray", "--images", "24")
    for victim in ("driver", "worker"):
        assert_nothing_is_lost(found["ray"][victim])


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_same_command_goes_on(photos, tmp_path, model):
    """A limit on the size of files stands for the full disk."""
    import strop

    store = tmp_path / "out.lance"
    command = [sys.executable, "-m", "strop", "encode", str(photos), "-o", str(store)]
    command += ["-m", model, "--slice", "8", "--workers", "0"]
    limited = ["bash", "-c", 'ulimit -f 2; exec "$@"', "bash", *command]  # blocks of 1 KiB
    done = subprocess.run(limited, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Wrote" in done.stderr
    encode_corpus(str(photos), tmp_path / "whole.lance", model=model, workers=0)
    ours, theirs = (strop.open_store(path) for path in (store, tmp_path / "whole.lance"))
    assert sorted(ours.to_arrow().to_pylist(), key=lambda row: row["key"]) == sorted(
        theirs.to_arrow().to_pylist(), key=lambda row: row["key"]
    )


def test_ray_writes_the_rows_of_one_process(photos, tmp_path, model):
    """The real engine, with images that cannot be read."""
    import strop

    ray = pytest.importorskip("ray")
    paths = [str(tmp_path / f"{name}.lance") for name in ("ray", "local")]
    try:
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        report = encode_corpus(str(photos), paths[0], model=model, engine="ray", slice_size=8)
    finally:
        ray.shutdown()
    encode_corpus(str(photos), paths[1], model=model, workers=0)
    assert (report.encoded, report.rejected) == (28, 2)
    ours, theirs = map(strop.open_store, paths)
    assert ours.to_arrow() == theirs.to_arrow()
    assert ours.rejects == theirs.rejects


@pytest.mark.slow
def test_a_node_that_goes_away_changes_no_row(tmp_path, model):
    """Three nodes, of which one is removed while it works."""
    from ray.cluster_utils import Cluster

    import strop

    ray = pytest.importorskip("ray")
    write_images(tmp_path / "data", range(90))
    paths = [str(tmp_path / f"{name}.lance") for name in ("ray", "local")]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    removed = []

    def remove(task: str, done: int, total: int) -> None:
        if done >= total // 3 and not removed:
            removed.append(done)
            cluster.remove_node(others[1], allow_graceful=False)

    try:
        cluster.wait_for_nodes()
        options = {"model": model, "slice_size": 3, "address": cluster.address}
        encode_corpus(str(tmp_path / "data"), paths[0], engine="ray", progress=remove, **options)
        alive = sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert removed
    assert alive == 2
    encode_corpus(str(tmp_path / "data"), paths[1], model=model, workers=0)
    ours, theirs = map(strop.open_store, paths)
    assert ours.to_arrow() == theirs.to_arrow()
