"""Requests that meet are served together, and nobody waits for another one's long study."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from strop.inspector.batching import Batcher


def test_what_waits_together_is_done_together():
    sizes, gate = [], threading.Event()

    def work(items):
        gate.wait()
        sizes.append(len(items))
        return [item * 10 for item in items]

    batcher = Batcher(work, most=4)
    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(batcher, number) for number in range(9)]
        time.sleep(0.2)  # one is taken, eight wait
        gate.set()
        assert [future.result(5) for future in futures] == [10 * n for n in range(9)]
    assert max(sizes) == 4
    assert len(sizes) <= 4


def test_a_bad_item_fails_alone():
    gate = threading.Event()

    def work(items):
        gate.wait()
        if "bad" in items:
            raise ValueError("bad")
        return items

    batcher = Batcher(work, most=8)
    with ThreadPoolExecutor(6) as pool:
        futures = {name: pool.submit(batcher, name) for name in ("a", "b", "bad", "c")}
        time.sleep(0.1)
        gate.set()
        assert [futures[name].result(5) for name in "abc"] == list("abc")
        with pytest.raises(ValueError, match="bad"):
            futures["bad"].result(5)
    assert batcher("after") == "after"


def test_a_short_question_does_not_wait_for_a_long_study():
    finished = []

    def work(items):
        time.sleep(0.01)
        return items

    batcher = Batcher(work, most=1)

    def long_study():
        for number in range(40):
            batcher(number)
        finished.append("long")

    study = threading.Thread(target=long_study)
    study.start()
    time.sleep(0.05)
    batcher("short")
    finished.append("short")
    study.join(10)
    assert finished == ["short", "long"]


def test_what_is_urgent_goes_first_and_alone():
    done, gate = [], threading.Event()

    def work(items):
        gate.wait()
        done.append(sorted(items))
        return items

    batcher = Batcher(work, most=8)
    with ThreadPoolExecutor(6) as pool:
        pool.submit(batcher, "first")
        time.sleep(0.1)  # taken, and held at the gate
        for item in ("study a", "study b"):
            pool.submit(batcher, item)
        time.sleep(0.1)
        for item in ("drag a", "drag b"):
            pool.submit(batcher, item, urgent=True)
        time.sleep(0.1)
        gate.set()
    assert done == [["first"], ["drag a", "drag b"], ["study a", "study b"]]
