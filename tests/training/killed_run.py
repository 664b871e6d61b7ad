"""A run killed with SIGKILL again and again, resumed each time. Run as a process by a test.

Usage: killed_run.py FOLDER STEP... : is killed before the checkpoint of each STEP, then finishes.
Each run is a separate process, forked so that torch is imported once.
"""

from __future__ import annotations

import os
import signal
import sys

import matplotlib.figure  # noqa: F401  (imported here once for all runs)
import torch
import torch._dynamo
from tiny_training import tiny_centred_config, tiny_fields, tiny_preset

from strop.training.callbacks import Callback
from strop.training.loop import train

torch.set_num_threads(1)


class Kill(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_log(self, run, metrics) -> None:
        if run.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: str, until: int) -> None:
    # Checkpoints hold all optional parts: means of positions, averages, momenta.
    every_step = {"log_every": 1, "checkpoint_every": 25_000, "optimizer": "muon"}
    preset = tiny_preset(model=tiny_centred_config(), weight_average=0.9, **every_step)
    train(preset, tiny_fields(60), out=folder, resume=True, callbacks=[Kill(until)])


def main() -> None:
    folder, *steps = sys.argv[1:]
    for step in [*map(int, steps), -1]:
        process = os.fork()
        if process == 0:
            run(folder, step)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        expected = signal.SIGKILL if step >= 0 else 0
        if status != expected:
            sys.exit(f"the run until step {step} ended with status {status}")


main()
