"""The page of the CLEVR study is made from the rows that its other tests are made from."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation" / "clevr"))
