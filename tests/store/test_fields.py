"""Reading fields from a store: what is yielded, shares of processes and workers, going on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed
from torch.utils.data import DataLoader

import strop
from strop.errors import StoreError
from strop.store.encode import encode_corpus
from strop.store.fields import part_of
from strop.store.store import Store

from .conftest import write_images


@pytest.fixture(scope="module")
def target(model: str, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of 28 images with the columns `caption` and `label`."""
    folder = tmp_path_factory.mktemp("fields")
    images = [path.read_bytes() for path in sorted(photos.rglob("ü*.png"))]
    numbers = range(len(images))
    captions = [f"caption {number}" for number in numbers]
    table = pa.table({"image": images, "caption": captions, "label": list(numbers)})
    pq.write_table(table, folder / "photos.parquet")
    out = str(folder / "photos.lance")
    data = str(folder / "photos.parquet")
    encode_corpus(data, out, model=model, keep=["caption", "label"], workers=0, slice_size=9)
    return out


@pytest.fixture
def store(target: str) -> Store:
    return strop.open_store(target)


def labels(batches: object) -> list[int]:
    return list(chain.from_iterable(batch["label"].tolist() for batch in batches))


def test_fields_are_what_the_model_interprets(store):
    batches = list(store.fields(batch=8))
    assert [len(batch["key"]) for batch in batches] == [8, 8, 8, 4]
    assert list(chain.from_iterable(batch["key"] for batch in batches)) == store.keys
    expected = store.model.interpret(store[:])
    torch.testing.assert_close(torch.cat([batch["field"] for batch in batches]), expected)
    assert set(batches[0]) == {"field", "key", "caption", "label"}
    assert batches[0]["caption"][3] == "caption 3"
    assert batches[0]["label"].dtype == torch.int64

    fields = store.fields()
    some = fields[[20, 3]]
    torch.testing.assert_close(some["field"], expected[[20, 3]])
    assert some["label"].tolist() == [20, 3]
    one = fields[-1]
    torch.testing.assert_close(one["field"], expected[-1])
    assert (one["key"], one["caption"], one["label"].item()) == (store.keys[-1], "caption 27", 27)
    assert labels([fields[2:5]]) == [2, 3, 4]


def test_epochs_are_shuffled_and_repeatable(store):
    fields = store.fields(batch=5, shuffle=True, seed=3)
    first, second = labels(fields), labels(fields)
    assert sorted(first) == sorted(second) == list(range(28))
    assert first != second
    assert fields.epoch == 2
    fields.set_epoch(0)
    assert labels(fields) == first
    assert labels(store.fields(batch=3, shuffle=True, seed=3, workers=1)) == first
    assert labels(store.fields(shuffle=True, seed=4)) != first


@given(st.integers(0, 200), st.integers(1, 9), st.none() | st.integers(0, 5))
def test_parts_are_a_partition(count: int, parts: int, seed: int | None):
    given_seed = None if seed is None else (seed, 1)
    each = [list(part_of(count, part, parts, seed=given_seed)) for part in range(parts)]
    assert sorted(chain.from_iterable(each)) == list(range(count))
    assert max(map(len, each)) - min(map(len, each)) <= 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_interrupted_epoch_goes_on(target, shuffle):
    def fields() -> object:
        return strop.open_store(target).fields(batch=6, shuffle=shuffle, seed=1)

    whole = fields()
    expected = [batch["key"] for batch in chain(whole, whole)]
    for stop in (0, 1, 3, 5, 7):
        stopped = fields()
        seen = [batch["key"] for batch in islice(chain(stopped, stopped), stop)]
        state = stopped.state_dict()
        rest = fields()
        rest.load_state_dict(state)
        seen += [batch["key"] for batch in rest]
        seen += [batch["key"] for batch in rest] if state["epoch"] == 0 else []
        assert seen == expected
    with pytest.raises(StoreError, match="batch = 6, not 7"):
        strop.open_store(target).fields(batch=7).load_state_dict(state)


def test_rows_written_meanwhile_follow_in_a_new_epoch(tmp_path, model):
    write_images(tmp_path / "data", range(6))
    out = str(tmp_path / "out.lance")
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    fields = strop.open_store(out).fields(batch=2)
    first = next(iter(fields))["key"]
    state = fields.state_dict()
    write_images(tmp_path / "data", range(9))
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    grown = strop.open_store(out).fields(batch=2)
    grown.load_state_dict(state)
    keys = [*first, *chain.from_iterable(batch["key"] for batch in grown)]
    assert keys == strop.open_store(out).keys[:6]
    assert sum(len(batch["key"]) for batch in grown) == 9
    with pytest.raises(StoreError, match="store of 9 rows"):
        fields.load_state_dict({**state, "rows": 9})


def test_a_loader_must_not_make_batches_of_batches(store):
    fields = store.fields(batch=8)
    with pytest.raises(StoreError, match="batch_size=None"):
        next(iter(DataLoader(fields, batch_size=2)))
    (first, *_) = DataLoader(fields, batch_size=None)
    assert len(first["key"]) == 8


def test_single_rows_and_masks_pick_fields(store):
    fields, key = store.fields(batch=8), store.keys[3]
    assert fields[key]["key"] == key
    assert torch.equal(fields[key]["field"], fields[3]["field"])
    mask = np.arange(len(store)) < 2
    assert fields[mask]["key"] == store.keys[:2]


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", [False, True])
def test_workers_of_a_loader_share_the_rows(store, drop_last):
    fields = store.fields(batch=4, shuffle=True, drop_last=drop_last)
    # Lance may not be used after a fork.
    loader = DataLoader(
        fields, batch_size=None, num_workers=2, multiprocessing_context="forkserver"
    )
    seen = labels(loader)
    assert len(seen) == len(set(seen)) == (24 if drop_last else 28)


def _keys_of_rank(rank: int, target: str, rendezvous: str, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    keys = [batch["key"] for batch in strop.open_store(target).fields(batch=4)]
    (Path(folder) / str(rank)).write_text("\n".join(chain.from_iterable(keys)))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_share_the_rows(target, tmp_path):
    arguments = (target, str(tmp_path / "meet"), str(tmp_path))
    torch.multiprocessing.spawn(_keys_of_rank, arguments, nprocs=2)
    parts = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    assert [parts[row % 2][row // 2] for row in range(28)] == strop.open_store(target).keys


def test_the_model_may_be_given(target, make_tokenizer: Callable[..., strop.Tokenizer]):
    with pytest.raises(StoreError, match="written by the model"):
        strop.open_store(target, model=make_tokenizer(seed=9)).fields()
