"""No two modules of the package have one name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import strop

SOURCE = Path(strop.__file__).parent


def test_modules_have_distinct_names() -> None:
    """Modules of the command line have the names of commands."""
    names = Counter(
        path.stem
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli" and path.stem != "__init__"
    )
    assert not [name for name, count in names.items() if count > 1]
