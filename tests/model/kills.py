"""Kill a process that replaces a model again and again, and look at what is left.

python tests/model/kills.py 1000 benchmarks/results/kills.json
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from strop.errors import StropError
from strop.files import _sweep, write_json
from strop.model.checkpoint import load_folder
from strop.model.tokenizer import Tokenizer


def kill_savers(
    models: list[Tokenizer],
    folder: Path,
    kills: int,
    seed: int = 0,
    note: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Counts: kills, kills in the middle of a save, models lost, most temporaries left at once.

    `note` is given the counts so far, now and then.
    """
    draw = random.Random(seed)
    states = [model.state_dict() for model in models]
    models[0].save_pretrained(folder)
    seconds = _seconds_of_a_save(models, folder)
    found = {"kills": 0, "unfinished": 0, "lost": 0, "temporaries": 0}
    whole = len(list(folder.iterdir()))
    for number in range(kills):
        if number % 50 == 0:
            note(found)
        child = os.fork()
        if child == 0:
            _sweep.cache_clear()  # as in a new process
            try:
                while True:
                    for model in models:
                        model.save_pretrained(folder)
            finally:
                os._exit(1)
        time.sleep(draw.uniform(0, 3 * seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = len(list(folder.iterdir())) - whole
        found["kills"] += 1
        found["unfinished"] += left > 0
        found["temporaries"] = max(found["temporaries"], left)
        try:
            loaded = load_folder(folder).state_dict()
            same = [all(torch.equal(loaded[k], state[k]) for k in state) for state in states]
            found["lost"] += not any(same)
        except StropError:
            found["lost"] += 1
    _sweep.cache_clear()
    models[0].save_pretrained(folder)
    found["left_by_the_next_save"] = len(list(folder.iterdir())) - whole
    return found


def _seconds_of_a_save(models: list[Tokenizer], folder: Path) -> float:
    begun = time.monotonic()
    for model in models:
        model.save_pretrained(folder)
    return (time.monotonic() - begun) / len(models)


def main() -> None:
    from strop.training.preset import load_preset

    torch.set_num_threads(1)  # threads do not survive a fork
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(Tokenizer(load_preset("strop-nano").model))
    with tempfile.TemporaryDirectory() as folder:
        write = partial(write_json, sys.argv[2], "benchmark", 1)
        write(kill_savers(models, Path(folder) / "model", int(sys.argv[1]), note=write))


if __name__ == "__main__":
    main()
