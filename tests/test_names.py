"""No two public classes and no two modules of the package have one name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import strop

SOURCE = Path(strop.__file__).parent
INTERFACE = {"Options"}
"""Every analysis has a class of this name."""


def test_public_classes_have_distinct_names() -> None:
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 100
    assert {name for name, count in names.items() if count > 1} == INTERFACE


def test_modules_have_distinct_names() -> None:
    """Modules of the command line have the names of commands."""
    names = Counter(
        path.stem
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli" and path.stem != "__init__"
    )
    assert not [name for name, count in names.items() if count > 1]
