"""One of several processes of a run. Run by a test with what torchrun sets: RANK, WORLD_SIZE ...

Usage: distributed_run.py FOLDER [STEP]

With STEP, the first process exits there without a message, but not after a restart by torchrun.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import torch
from tiny_training import tiny_centred_config, tiny_fields, tiny_preset

from strop.training.callbacks import Callback
from strop.training.loop import train


@atexit.register  # it runs after those that are registered later, such as that of the group
def look_for_threads() -> None:
    """Threads of a group that something still holds would abort the process at exit, sometimes."""
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if any("gloo" in name for name in threads):
        os._exit(2)


class Exit(Callback):
    def on_log(self, run, metrics):
        first_run = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if first_run and run.step >= int(sys.argv[2]):
            os._exit(1)


torch.set_num_threads(1)
result = train(
    tiny_preset(model=tiny_centred_config(), steps=40),
    tiny_fields(60),
    out=sys.argv[1],
    resume=True,
    callbacks=[Exit()] if len(sys.argv) > 2 else [],
)
assert result.finished
