"""The progress callback of long jobs. The command line draws it as bars."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, the number of finished items and their total."""


def no_progress(task: str, done: int, total: int) -> None:
    """Report nothing."""
