"""Shows the progress of work: a bar with rate and remaining time on a terminal, nothing elsewhere.

It is drawn on standard error, so results in standard output stay as they are. It is for people: there is none in pipes
and files, with `--quiet`, with NO_COLOR set, and on terminals that cannot move their cursor (TERM=dumb).
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
from weft.streams.cli.arguments import errors
from weft.streams.pipeline.file.quantities import size

BAR_WIDTH: Final = 20  # with the facts beside it a bar fits into 80 columns
POLL_SECONDS: Final = 0.5

Quiet = Annotated[bool, typer.Option("--quiet", "--no-progress", help="Show no progress on the terminal.")]


def is_shown(*, quiet: bool) -> bool:
    """Whether progress is shown on standard error."""
    if quiet or os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in {"dumb", "unknown"}:
        return False
    return errors.file.isatty()  # rich takes a pipe for a terminal if FORCE_COLOR is set


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[OnStage]:
    """Show the progress of a block, until it ends. Nothing may be printed meanwhile.

    Args:
        what: Says what is done, until a stage says more.
        quiet: Show nothing.

    Yields:
        Takes the stages of the work; may be called from several threads, and as often as one likes: the bar is drawn
        ten times a second.
    """
    if not is_shown(quiet=quiet):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(BAR_WIDTH), _Facts())
    # Standard output is left alone: rich would send it to the console of the bar.
    with Progress(*columns, console=errors, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None, unit="")
        shown, lock = what, threading.Lock()

        def show(stage: Stage) -> None:
            nonlocal shown
            with lock:
                if stage.what != shown:
                    shown = stage.what
                    bar.reset(task, description=shown)
            # rich draws a total of 0 as a bar that moves, as it does one that is not known.
            bar.update(task, completed=stage.done, total=stage.total or None, unit=stage.unit)

        yield show


@contextmanager
def watched(what: str, look: Callable[[], Stage | None], *, quiet: bool) -> Iterator[None]:
    """Show the progress of a block that reports none, by asking for it.

    Args:
        what: Says what is done.
        look: Asks; called from another thread every half a second. None: nothing is known.
        quiet: Show nothing.
    """
    if not is_shown(quiet=quiet):
        yield
        return
    ended = threading.Event()
    with progress(what, quiet=False) as show:

        def ask() -> None:
            while not ended.wait(POLL_SECONDS):
                stage = look()
                if stage is not None:
                    show(stage)

        asking = threading.Thread(target=ask, name="progress", daemon=True)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join(POLL_SECONDS)  # what it asks may not answer


class _Facts(ProgressColumn):
    """What is done, of how much, how fast, and the remaining time; the elapsed time if that is not known."""

    def render(self, task: Task) -> Text:
        elapsed, done = task.elapsed or 0.0, task.completed
        if not task.fields["unit"]:
            return Text(_clock(elapsed), "dim")
        rate = done / elapsed if elapsed > 0 else 0.0
        if task.fields["unit"] == "bytes":
            parts = [size(done) if task.total is None else f"{size(done)} of {size(task.total)}", f"{size(rate)}/s"]
        else:
            number = f"{done:,.0f}" if task.total is None else f"{done:,.0f} of {task.total:,.0f}"
            parts = [f"{number} {task.fields['unit']}", f"{rate:,.0f}/s"]
        if task.total is not None and rate > 0:
            parts.append(f"{_clock((task.total - done) / rate)} left")
        else:
            parts.append(_clock(elapsed))
        return Text(", ".join(parts), "dim")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
