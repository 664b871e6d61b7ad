"""One of several processes that train one run after another. Run by a test as `distributed_run.py`.

Usage: distributed_sweep.py FOLDER

Writes the results of a sweep, the metrics of a run, and its model with averaged weights.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from tiny_training import tiny_fields, tiny_preset

from strop.training.loop import train
from strop.training.sweep import sweep

torch.set_num_threads(1)
folder, fields = Path(sys.argv[1]), tiny_fields(60)
results = sweep(tiny_preset(steps=4), fields, {"training.seed": [0, 1]}, out=folder / "sweep")
last = train(tiny_preset(steps=4, weight_average=0.9), fields)
last.tokenizer.save_pretrained(folder / os.environ["RANK"])
known = {"sweep": results, "metrics": last.metrics}
(folder / os.environ["RANK"] / "known.json").write_text(json.dumps(known))
