"""Shows the progress of work on a terminal: a bar with rate and remaining time.

The bar is drawn on standard error, so that standard output contains only results. No bar is drawn in a pipe or file,
with `--quiet`, with NO_COLOR set, or on a terminal that cannot move its cursor (TERM=dumb).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from weft.storage.services.steps.progress import OnStage, Stage
from weft.streams.cli.arguments import stderr
from weft.streams.pipeline.file.quantities import size

BAR_WIDTH: Final = 20  # with the numbers beside it, a line fits into 80 columns
POLL_SECONDS: Final = 0.5

Quiet = Annotated[bool, typer.Option("--quiet", "--no-progress", help="Show no progress on the terminal.")]


def is_shown(*, quiet: bool) -> bool:
    """Whether progress is shown on standard error."""
    if quiet or os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in {"dumb", "unknown"}:
        return False
    return stderr.file.isatty()  # rich takes a pipe for a terminal if FORCE_COLOR is set


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[OnStage]:
    """Show the progress of a block until it ends. The block must not print anything.

    Args:
        what: The work, such as ``reading orders``; shown until the first stage.
        quiet: Show nothing.

    Yields:
        A callback that takes the current stage of the work. Several threads may call it, at any rate: the bar is drawn
        ten times a second.
    """
    if not is_shown(quiet=quiet):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(BAR_WIDTH), _Numbers())
    # Standard output is left alone: rich would send it to the console of the bar.
    with Progress(*columns, console=stderr, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None, unit="")
        description, lock = what, threading.Lock()

        def show(stage: Stage) -> None:
            nonlocal description
            with lock:
                if stage.what != description:
                    description = stage.what
                    bar.reset(task, description=description)
            # None makes rich draw a moving bar, which is right for a total of 0, too.
            bar.update(task, completed=stage.done, total=stage.total or None, unit=stage.unit)

        yield show


@contextmanager
def poll_progress(what: str, poll: Callable[[], Stage | None], *, quiet: bool) -> Iterator[None]:
    """Show the progress of a block that does not report its stages: ask for them regularly.

    Args:
        what: The work, such as ``running``.
        poll: Returns the current stage, or None if it is unknown. Called every half a second, in another thread.
        quiet: Show nothing.
    """
    if not is_shown(quiet=quiet):
        yield
        return
    ended = threading.Event()
    with progress(what, quiet=False) as show:

        def run() -> None:
            while not ended.wait(POLL_SECONDS):
                stage = poll()
                if stage is not None:
                    show(stage)

        thread = threading.Thread(target=run, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(POLL_SECONDS)  # bounded, because `poll` may wait for a server that does not answer


class _Numbers(ProgressColumn):
    """Work that is done, total, rate and remaining time; the elapsed time if the remaining time is unknown."""

    def render(self, task: Task) -> Text:
        elapsed, done = task.elapsed or 0.0, task.completed
        if not task.fields["unit"]:
            return Text(_format_seconds(elapsed), "dim")
        rate = done / elapsed if elapsed > 0 else 0.0
        if task.fields["unit"] == "bytes":
            parts = [size(done) if task.total is None else f"{size(done)} of {size(task.total)}", f"{size(rate)}/s"]
        else:
            number = f"{done:,.0f}" if task.total is None else f"{done:,.0f} of {task.total:,.0f}"
            parts = [f"{number} {task.fields['unit']}", f"{rate:,.0f}/s"]
        if task.total is not None and rate > 0:
            parts.append(f"{_format_seconds((task.total - done) / rate)} left")
        else:
            parts.append(_format_seconds(elapsed))
        return Text(", ".join(parts), "dim")


def _format_seconds(total: float) -> str:
    minutes, seconds = divmod(int(max(0.0, total)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
