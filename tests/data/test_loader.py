"""Batches: order, shares, resuming, workers, broken records."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.data import (
    Batch,
    Loader,
    Record,
    ScenesDataset,
    concat,
    epoch_order,
    image_batches,
    open_dataset,
    pack_dataset,
    record_batches,
    stack,
)
from strop.data.loader import checked_images
from strop.data.subset import Subset
from strop.errors import ConfigError, DataError
from strop.images import save_image
from strop.pool import default_context


class Numbers:
    """Record `i` is an image of the value `i`; it may fail in several ways."""

    name = "numbers"
    classes = ("a", "b")
    label_names = ("x", "y", "z")

    def __init__(self, length: int, bad: dict[int, str] | None = None, side: int = 4) -> None:
        self.length = length
        self.bad = bad or {}
        self.side = side

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Record:
        kind = self.bad.get(index)
        if kind == "broken":
            raise DataError(f"file {index} is broken.", "Fetch it again.")
        if kind == "exit":
            os._exit(7)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "bug":
            raise ZeroDivisionError("a bug")
        if kind == "slow":
            time.sleep(0.05)
        side = self.side
        return Record(
            image=torch.full((3, side, side), index % 256, dtype=torch.uint8),
            name=f"n{index}",
            semantic=torch.full((side, side), index % 2),
            instance=torch.full((side, side), 300 + index),
            labels=torch.tensor([index % 2 == 0, index % 3 == 0, True]),
            depth=torch.full((side, side), index / 8),
            scene={"objects": [], "image_index": index},
        )


def seen(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch.indices.tolist()]


# --- order


@given(length=st.integers(0, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_an_epoch_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    order = epoch_order(length, seed, epoch)
    assert sorted(order.tolist()) == list(range(length))
    assert order.tolist() == epoch_order(length, seed, epoch).tolist()


def test_the_order_never_changes() -> None:
    # Written down once: a change would break the resuming of every run.
    assert epoch_order(10, 0, 0).tolist() == ORDER_0_0
    assert epoch_order(10, 7, 3).tolist() == ORDER_7_3


def test_orders_differ_and_look_random() -> None:
    orders = [epoch_order(1000, seed, epoch) for seed in range(4) for epoch in range(4)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).mean() < 0.02
    ranks = np.mean([np.argsort(order) for order in orders], axis=0)
    assert abs(np.corrcoef(ranks, np.arange(1000))[0, 1]) < 0.1


shapes = {
    "length": st.integers(1, 60),
    "batch": st.integers(1, 9),
    "world": st.integers(1, 4),
    "seed": st.integers(0, 5),
    "epoch": st.integers(0, 3),
}


@settings(max_examples=80, deadline=None)
@given(**shapes, drop=st.booleans())
def test_processes_share_out_an_epoch(
    length: int, batch: int, world: int, seed: int, epoch: int, drop: bool
) -> None:
    data = Numbers(length, side=1)
    if drop and length < batch * world:
        with pytest.raises(DataError, match="not one full batch"):
            Loader(data, batch_size=batch, size=1, drop_last=True, world=world)
        return
    shares = []
    for rank in range(world):
        loader = Loader(
            data, batch_size=batch, size=1, seed=seed, shuffle=True, drop_last=drop,
            rank=rank, world=world,
        )  # fmt: skip
        loader.restore({"epoch": epoch, "position": 0, "records": length})
        batches = list(loader)
        assert len(batches) == len(loader)
        assert loader.state() == {"epoch": epoch + 1, "position": 0, "records": length}
        if drop:
            assert all(len(b) == batch for b in batches)
        shares.append(batches)
    together = [i for share in shares for i in seen(share)]
    assert len(together) == len(set(together))
    if not drop:
        assert sorted(together) == list(range(length))
    # A step of all processes is the step of one process with the whole batch.
    single = Loader(data, batch_size=batch * world, size=1, seed=seed, shuffle=True, drop_last=drop)
    single.restore({"epoch": epoch, "position": 0, "records": length})
    for step, whole in enumerate(single):
        parts = [i for share in shares for i in seen(share[step : step + 1])]
        assert parts == whole.indices.tolist()


@settings(max_examples=80, deadline=None)
@given(**shapes, drop=st.booleans(), stop=st.integers(0, 40), rank=st.integers(0, 3))
def test_resuming_continues_where_it_stopped(
    length: int, batch: int, world: int, seed: int, epoch: int, drop: bool, stop: int, rank: int
) -> None:
    if (drop and length < batch * world) or rank >= world or (not drop and length <= rank):
        return
    data = Numbers(length, side=1)

    def make() -> Loader:
        return Loader(
            data, batch_size=batch, size=1, seed=seed, shuffle=True, drop_last=drop,
            rank=rank, world=world,
        )  # fmt: skip

    whole = make().forever()
    expected = [next(whole).indices.tolist() for _ in range(stop + 6)]
    first = make()
    running = first.forever()
    got = [next(running).indices.tolist() for _ in range(stop)]
    second = make()
    second.restore(first.state())
    rest = second.forever()
    got += [next(rest).indices.tolist() for _ in range(6)]
    assert got == expected


def test_a_state_of_other_data_is_refused() -> None:
    loader = Loader(Numbers(10), batch_size=2, size=4)
    with pytest.raises(DataError, match="dataset of 9 records"):
        loader.restore({"epoch": 0, "position": 2, "records": 9})
    with pytest.raises(DataError, match="outside the data"):
        loader.restore({"epoch": 0, "position": 11, "records": 10})
    with pytest.raises(DataError, match="no 'position'"):
        loader.restore({"epoch": 0, "records": 10})


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"size": 0}, {"workers": -1}, {"world": 0}, {"rank": 2, "world": 2}],
)
def test_impossible_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises((ConfigError, DataError), match=next(iter(arguments))):
        Loader(Numbers(10), **{"batch_size": 2, "size": 4, **arguments})


# --- batches


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_what_the_records_hold(workers: int) -> None:
    data = Numbers(43)
    loader = Loader(data, batch_size=20, size=4, workers=workers)
    batches = list(loader)
    assert [len(b) for b in batches] == [20, 20, 3]
    expected = stack([data[i] for i in range(20)], range(20))
    assert_same(batches[0], expected)
    assert batches[0].images.dtype == torch.uint8
    assert batches[0].semantic is not None
    assert batches[0].semantic.dtype == torch.int64
    assert batches[2].names == ("n40", "n41", "n42")
    assert seen(batches) == list(range(43))


def assert_same(one: Batch, other: Batch) -> None:
    for part in ("images", "indices", "semantic", "instance", "labels", "depth"):
        a, b = getattr(one, part), getattr(other, part)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b), part
    assert one.names == other.names
    assert one.scenes == other.scenes


def test_workers_change_nothing(voc_root: Path) -> None:
    data = Numbers(100, {13: "broken", 40: "slow", 77: "broken"})
    runs = []
    for workers in (0, 1, 3):
        loader = Loader(data, batch_size=16, size=4, workers=workers, shuffle=True, seed=3)
        runs.append([list(loader), list(loader)])
        assert loader.broken.keys() == {13, 77}
    for run in runs[1:]:
        for epoch, reference in zip(run, runs[0], strict=True):
            assert len(epoch) == len(reference)
            for one, other in zip(epoch, reference, strict=True):
                assert_same(one, other)


def test_a_batch_is_the_callers_own() -> None:
    """A later batch must not be written over an earlier one."""
    loader = Loader(Numbers(60), batch_size=4, size=4, workers=2)
    batches = list(loader)
    for batch in batches:
        assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()


def test_parts_are_stacked_only_if_all_records_have_them() -> None:
    class Patchy(Numbers):
        def __getitem__(self, index: int) -> Record:
            record = super().__getitem__(index)
            return Record(image=record.image, name=record.name) if index == 5 else record

    first, second = Loader(Patchy(8), batch_size=4, size=4)
    assert first.depth is not None
    assert second.depth is None
    assert second.scenes is None


def test_images_are_fitted(voc_root: Path) -> None:
    data = open_dataset(f"voc:{voc_root}")
    for fit in ("squash", "crop"):
        (batch,) = Loader(data, batch_size=2, size=24, fit=fit)  # type: ignore[arg-type]
        assert batch.images.shape == (2, 3, 24, 24)
        assert batch.semantic is not None
        assert batch.semantic.shape == (2, 24, 24)


def test_spawned_workers(voc_root: Path) -> None:
    data = open_dataset(f"voc:{voc_root}")
    context = multiprocessing.get_context("spawn")
    (expected,) = Loader(data, batch_size=2, size=16)
    loader = Loader(data, batch_size=2, size=16, workers=1, context=context)
    (batch,) = loader
    assert_same(batch, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all are spawned")
def test_workers_on_a_gpu_are_never_forked() -> None:
    assert default_context().get_start_method() == "fork"
    assert default_context(torch.device("cuda", 0)).get_start_method() == "spawn"


def test_breaking_off_and_starting_again() -> None:
    loader = Loader(Numbers(100), batch_size=4, size=4, workers=2)
    for batch in loader:
        if batch.indices[0] >= 8:
            break
    assert loader.state()["position"] == 12  # what was read ahead does not count
    assert seen(loader) == list(range(12, 100))
    assert seen(loader) == list(range(100))


def test_two_iterations_at_once_are_refused() -> None:
    loader = Loader(Numbers(100), batch_size=4, size=4, workers=1)
    one = iter(loader)
    next(one)
    next(iter(loader))
    with pytest.raises(DataError, match="newer iteration"):
        list(one)


def test_moving_a_batch() -> None:
    (batch,) = Loader(Numbers(3), batch_size=3, size=4)
    moved = batch.to("meta")
    assert moved.images.device.type == "meta"
    assert moved.depth is not None
    assert moved.depth.device.type == "meta"
    assert moved.names == batch.names


# --- broken records


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_records_are_skipped_counted_and_named(workers: int) -> None:
    data = Numbers(10, {3: "broken", 8: "broken"})
    loader = Loader(data, batch_size=4, size=4, workers=workers)
    assert [b.indices.tolist() for b in loader] == [[0, 1, 2], [4, 5, 6, 7], [9]]
    assert loader.broken.keys() == {3, 8}
    report = loader.report()
    assert report is not None
    assert "2 of 10 records" in report
    assert "file 3 is broken" in report
    assert Loader(Numbers(3), batch_size=1, size=1).report() is None


@pytest.mark.parametrize("workers", [0, 2])
def test_training_batches_keep_their_shape(workers: int) -> None:
    data = Numbers(12, {1: "broken", 4: "broken", 5: "broken"})
    loader = Loader(data, batch_size=4, size=4, workers=workers, drop_last=True)
    batches = [b.indices.tolist() for b in loader]
    assert batches == [[0, 2, 3, 0], [6, 7, 6, 7], [8, 9, 10, 11]]


def test_a_dataset_that_cannot_be_read_at_all() -> None:
    data = Numbers(6, dict.fromkeys(range(6), "broken"))
    with pytest.raises(DataError, match="No record of numbers"):
        list(Loader(data, batch_size=2, size=4))
    with pytest.raises(DataError, match="None of the 2 records"):
        list(Loader(data, batch_size=2, size=4, drop_last=True))


def test_broken_files_among_good_ones(tmp_path: Path, write_image: Callable[..., Path]) -> None:
    for i in range(6):
        write_image(tmp_path / f"{i}.jpg", i)
    (tmp_path / "2.jpg").write_bytes((tmp_path / "2.jpg").read_bytes()[:200])
    (tmp_path / "4.jpg").write_bytes(b"")
    loader = Loader(open_dataset(str(tmp_path)), batch_size=6, size=16, workers=2)
    (batch,) = loader
    assert batch.names == ("0.jpg", "1.jpg", "3.jpg", "5.jpg")
    assert "2.jpg" in loader.broken[2]
    assert "4.jpg" in loader.broken[4]


# --- workers that die


@pytest.mark.parametrize(("kind", "how"), [("exit", "exit code 7"), ("kill", "-9, SIGKILL")])
def test_a_dead_worker_is_reported(kind: str, how: str) -> None:
    loader = Loader(Numbers(200, {150: kind}), batch_size=10, size=4, workers=2)
    began = time.monotonic()
    with pytest.raises(DataError, match=how):
        list(loader)
    assert time.monotonic() - began < 20
    # The loader starts new workers for what can still be read.
    loader.restore({"epoch": 0, "position": 160, "records": 200})
    assert seen(loader) == list(range(160, 200))


def test_a_bug_in_a_dataset_is_not_a_broken_file() -> None:
    with pytest.raises(DataError, match="ZeroDivisionError: a bug"):
        list(Loader(Numbers(20, {5: "bug"}), batch_size=4, size=4, workers=1))
    with pytest.raises(ZeroDivisionError):
        list(Loader(Numbers(20, {5: "bug"}), batch_size=4, size=4))


def test_workers_stop_with_the_iteration() -> None:
    loader = Loader(Numbers(50), batch_size=5, size=4, workers=2)
    running = iter(loader)
    next(running)
    children = {child.pid for child in multiprocessing.active_children()}
    assert len(children) >= 2
    del running
    left = {child.pid for child in multiprocessing.active_children()}
    assert not children & left


def test_workers_leave_signals_to_the_parent() -> None:
    loader = Loader(Numbers(50), batch_size=5, size=4, workers=1)
    running = iter(loader)
    next(running)
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
    assert len(list(running)) == 9


# --- datasets that make whole batches


@pytest.mark.parametrize("workers", [0, 1])
def test_packed_batches(tmp_path: Path, voc_root: Path, workers: int) -> None:
    pack_dataset(f"voc:{voc_root}", tmp_path / "p", size=16)
    data = open_dataset(f"packed:{tmp_path}/p")
    (whole,) = Loader(data, batch_size=2, size=16, workers=workers)
    assert_same(whole, stack([data[0], data[1]], [0, 1]))
    (resized,) = Loader(data, batch_size=2, size=8, workers=workers)  # decoded one by one
    assert resized.images.shape == (2, 3, 8, 8)
    part = Subset(data, [1])
    (one,) = Loader(part, batch_size=2, size=16, workers=workers)
    assert one.names == (data[1].name,)
    assert one.indices.tolist() == [0]


def test_scenes_are_rendered_in_chunks() -> None:
    data = open_dataset("scenes:?n=3&seed=1&size=24")
    (batch,) = Loader(data, batch_size=4, size=24)
    assert batch.scenes is not None
    assert len(batch.scenes) == 3
    assert torch.equal(batch.images[2], data[2].image)


ORDER_0_0 = [4, 8, 0, 1, 7, 6, 2, 5, 3, 9]
ORDER_7_3 = [9, 6, 2, 3, 8, 4, 7, 0, 5, 1]


# --- all batches of a dataset


@pytest.fixture
def scenes():
    return ScenesDataset(5, size=32, seed=3)


def test_all_images_in_order(scenes):
    batches = list(image_batches(scenes, size=32, fit="squash", batch=2))
    assert [len(part) for part in batches] == [2, 2, 1]
    expected = torch.stack([scenes[index].image for index in range(5)])
    assert torch.equal(torch.cat(batches), expected)


def test_records_keep_their_parts(scenes):
    batches = list(record_batches(scenes, size=32, fit="squash", batch=3))
    assert [len(part) for part in batches] == [3, 2]
    assert batches[1].scenes[0] == scenes[3].scene
    assert torch.equal(batches[0].depth[2], scenes[2].depth)


def test_broken_records_are_left_out_and_named(tmp_path):
    for name in ("a", "c"):
        save_image(tmp_path / f"{name}.png", torch.rand(3, 32, 32))
    (tmp_path / "b.png").write_bytes(b"no picture")
    dataset = open_dataset(f"folder:{tmp_path}")
    with pytest.warns(UserWarning, match=r"b\.png"):
        (batch,) = record_batches(dataset, size=32, fit="squash")
    assert batch.indices.tolist() == [0, 2]


def test_a_dataset_without_an_image_is_refused(scenes):
    with pytest.raises(DataError, match=r"holds no image\. Name a dataset that holds some"):
        next(image_batches(Subset(scenes, []), size=32, fit="squash"))


def test_a_tensor_is_let_through_if_it_holds_images(scenes):
    images = torch.stack([scenes[index].image for index in range(5)])
    assert checked_images(images, 32) is images
    for wrong in (images / 255, images[0], images[:0], images[..., :16], torch.tensor(3)):
        with pytest.raises(DataError, match=r"uint8 of shape \(n, 3, 32, 32\), at least one"):
            checked_images(wrong, 32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_renders_the_same_scenes(scenes):
    there = list(record_batches(scenes, size=32, fit="squash", batch=3, device="cuda"))
    here = list(record_batches(scenes, size=32, fit="squash", batch=3))
    for a, b in zip(there, here, strict=True):
        assert a.images.device.type == "cpu"
        assert a.names == b.names
        assert (a.images.float() - b.images.float()).abs().mean() < 1
        assert (a.instance == b.instance).float().mean() > 0.99


def test_a_dataset_is_read_as_one_batch(scenes):
    whole = concat(list(record_batches(scenes, size=32, fit="squash", batch=2)))
    assert whole.names == tuple(scenes[index].name for index in range(5))
    assert torch.equal(whole.indices, torch.arange(5))
    assert torch.equal(whole.depth[4], scenes[4].depth)
    assert whole.scenes[3] == scenes[3].scene


def test_concat_drops_a_part_that_a_batch_lacks(scenes):
    first, second = record_batches(scenes, size=32, fit="squash", batch=3)
    without = replace(second, depth=None, scenes=None)
    joined = concat([first, without])
    assert joined.depth is None
    assert joined.scenes is None
    assert torch.equal(joined.instance, torch.cat([first.instance, second.instance]))


def test_take_selects_records(scenes):
    batch = concat(list(record_batches(scenes, size=32, fit="squash")))
    some = batch.take([4, 0, 4])
    assert some.names == (batch.names[4], batch.names[0], batch.names[4])
    assert some.indices.tolist() == [4, 0, 4]
    assert torch.equal(some.images, batch.images[[4, 0, 4]])
    assert some.valid is None
    assert some.scenes[1] == batch.scenes[0]


def test_the_state_after_the_last_batch_is_that_of_the_next_epoch() -> None:
    loader = Loader(Numbers(8), batch_size=4, size=4)
    batches = loader.forever()
    next(batches)
    next(batches)
    assert loader.state() == {"epoch": 1, "position": 0, "records": 8}
