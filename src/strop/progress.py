"""The progress callback of long jobs. The command line draws it as bars."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, how many items are done and how many there are.

Text after a colon is the status of a task: "training: loss 0.31" belongs to the task "training".
"""


def no_progress(task: str, done: int, total: int) -> None:
    """Report nothing."""
