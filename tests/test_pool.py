"""Worker processes end with their parent, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strop.pool import Pool

LARGE = 3_000_000  # bytes, more than a pipe holds
SCRIPT = """
import time
from strop.pool import Pool
pool = Pool(abs, 3)
list(pool.map([1, 2, 3], 3))
print(*(process.pid for process in pool._processes), flush=True)
time.sleep(60)
"""


def alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="forked workers, and /proc")
def test_workers_of_a_killed_process_end():
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 3
    assert all(map(alive, workers))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    until = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def test_large_tasks_and_large_results_do_not_block_each_other():
    pool = Pool(bytes, 2)
    tasks = (bytes([number]) * LARGE for number in range(12))
    assert [result[:1] for result in pool.map(tasks, 8)] == [bytes([n]) for n in range(12)]
    pool.close()
