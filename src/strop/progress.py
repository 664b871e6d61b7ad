"""The progress of long jobs: a callback, and bars that draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, how many items are done and how many there are.

Text after a colon is the status of a task: "training: loss 0.31" belongs to the task "training".
"""


def no_progress(task: str, done: int, total: int) -> None:
    """Report nothing."""


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """A `Progress` that draws a bar for each task, with count, rate and time left."""
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[rate]}", style="progress.data.speed"),
        rich.TimeRemainingColumn(),
    )
    drawn = rich.Progress(*columns, console=console, transient=True)
    tasks: dict[str, rich.TaskID] = {}

    def report(task: str, done: int, total: int) -> None:
        drawn.start()  # at the first report: of the processes of a training run only one reports
        name = task.partition(":")[0]
        if name not in tasks:
            tasks[name] = drawn.add_task(task, total=total, rate="")
        speed = drawn.tasks[drawn.task_ids.index(tasks[name])].speed
        rate = f"{speed:.1f}/s" if speed else ""
        drawn.update(tasks[name], description=task, completed=done, total=total, rate=rate)

    try:
        yield report
    finally:
        if tasks:
            drawn.stop()


@contextmanager
def shown(progress: Progress | bool, *, quiet: bool) -> Iterator[Progress]:
    """`progress` if it is a function. True is bars, where stderr can show them, unless `quiet`."""
    if not isinstance(progress, bool):
        yield progress
        return
    from rich.console import Console

    console = Console(stderr=True)
    if progress and not quiet and (console.is_terminal or console.is_jupyter):
        with bars(console) as report:
            yield report
    else:
        yield no_progress
