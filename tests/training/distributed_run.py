"""One of several processes of a run. Run by a test with what torchrun sets: RANK, WORLD_SIZE ...

Usage: distributed_run.py FOLDER
"""

from __future__ import annotations

import sys

import torch
from tiny_training import tiny_fields, tiny_preset

from strop.training.loop import train

torch.set_num_threads(1)
result = train(tiny_preset(steps=40), tiny_fields(60), out=sys.argv[1], resume=True)
assert result.finished
