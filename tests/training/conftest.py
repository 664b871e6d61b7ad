"""Makes `tiny_training` importable, here and in the scripts that tests run as processes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
