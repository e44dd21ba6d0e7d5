"""Shows the progress of work in steps: a bar on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import time
from typing import Final, TypeVar

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from storage.engine import PlannedWork, finish
from streams.cli.arguments import errors

T = TypeVar("T")

LINE_SECONDS: Final = 10.0
"""Time between two lines where the output is no terminal."""


def finish_shown(what: str, work: PlannedWork[T], *, quiet: bool = False) -> T:
    """Run work to its end and show its progress on standard error, by the bytes that are read.

    Args:
        what: Says what is done, such as "compacting".
        work: The work.
        quiet: Show nothing.
    """
    if quiet or not work.bytes:
        return finish(work.steps)
    if not errors.is_terminal:
        return finish(work.steps, _Lines(what, work.bytes).add)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(what, total=work.bytes)
        return finish(work.steps, lambda size: bar.advance(task, size))


class _Lines:
    """Prints a line every `LINE_SECONDS`."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._printed = time.monotonic()

    def add(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            errors.print(f"{self._what}: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB read", soft_wrap=True)
