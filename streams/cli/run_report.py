"""Reports of ``weft run`` on standard error: parts that have stopped permanently, and messages that are not stored.

Each is reported once, with what to do. `weft.streams.cli.display` shows the numbers.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from weft.storage.errors import TableError
from weft.storage.plural import counted
from weft.streams.cli.arguments import open_location, stderr
from weft.streams.letters.recent import RecentLetters, recent_letters
from weft.streams.pipeline.file.letter_places import load_letter_places
from weft.streams.pipeline.file.pipeline import Pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.status_fields import unordered_words
from weft.streams.pipeline.run.supervisor import JobStatus, ending_of_all

_WAIT_SECONDS: Final = 5.0  # for a store that does not answer at the end of a run
_DATA_LOSS_ADVICE: Final = """\
Two ways on:
1. Go on with what the topic has now. The table keeps its rows. Messages that were not read before are lost.
   What was sent again is stored again: sums, counts and lists have it twice, other groups show the same.
     in {file}, writers.{writer}.source:  options: {{failOnDataLoss: false}}
     weft run {file}    (then remove the option again)
2. Start over with an empty table. The rows of all its streams are deleted, and the topics are read from their
   beginnings, as far as they still have messages.
     {remove}
     weft run {file}"""


def has_stored_nothing(status: JobStatus) -> bool:
    """Whether a writer has stored no row although it has read some: all are dead letters or lack an ordering value."""
    report = status.report
    return not report.rows and bool(report.dead_letters or report.rows_unordered)


class RunReport:
    """Reports failures and losses of one run, each once."""

    def __init__(self, pipeline: Pipeline, name: str, *, once: bool, exit_on_failure: bool) -> None:
        """Print nothing yet.

        Args:
            pipeline: The pipeline.
            name: The pipeline file as written on the command line.
            once: Whether the run ends by itself; then losses are reported at its end.
            exit_on_failure: Whether all parts are stopped when one has failed.
        """
        self._pipeline, self._file = pipeline, shlex.quote(name)
        self._once, self._exit_on_failure = once, exit_on_failure
        self._began_ms = time.time_ns() // 1_000_000
        self._reported_failures: set[str] = set()
        self._loss_threads: dict[str, threading.Thread] = {}

    def update(self, statuses: Sequence[JobStatus]) -> None:
        """Report new failures and losses while the run continues."""
        for status in statuses:
            if status.is_lost and status.name not in self._reported_failures:
                self._reported_failures.add(status.name)
                others = ""
                if not self._once and len(statuses) > 1:
                    others = ", all others are being stopped" if self._exit_on_failure else ", the others continue"
                self._print(f"{status.name} has stopped permanently{others}: {status.message}", "bold red")
                self._print_advice(status)
            report = status.report
            has_losses = report.dead_letters or report.rows_unordered
            if not self._once and has_losses and status.name not in self._loss_threads:
                # In a thread, because the store of the letters may be slow, and the caller supervises processes.
                thread = threading.Thread(target=self._print_losses, args=(status,), daemon=True)
                self._loss_threads[status.name] = thread
                thread.start()

    def end(self, statuses: Sequence[JobStatus]) -> Ending:
        """Report how the run has ended, and return its exit code."""
        for thread in self._loss_threads.values():
            thread.join(_WAIT_SECONDS)
        for status in statuses:
            if self._once:
                self._print_losses(status)
            if status.is_lost:
                self._print(f"{status.name} {status.phase}; its log: {status.log}", "red")
                for line in status.tail:
                    self._print(f"  {line}")
        ending = ending_of_all(statuses)
        failed = self._once and ending == Ending.DONE and any(map(has_stored_nothing, statuses))
        return Ending.FAILED if failed else ending

    def _print(self, text: str, style: str | None = None) -> None:
        stderr.print(text, style=style, soft_wrap=True, markup=False, highlight=False)

    def _print_losses(self, status: JobStatus) -> None:
        if lines := list(self._losses(status)):
            self._print("\n".join(lines), "yellow")

    def _losses(self, status: JobStatus) -> Iterator[str]:
        """Describe the messages of a writer that are not in the table, line by line."""
        report = status.report
        nothing = ", and none was stored" if has_stored_nothing(status) else ""
        if report.dead_letters:
            verb = "became a dead letter" if report.dead_letters == 1 else "became dead letters"
            yield f"{status.name}: {counted(report.dead_letters, 'message')} {verb}{nothing}"
            letters = self._recent_letters(status.name)
            for line in () if letters is None else letters.words:
                yield f"    {line}"
            yield f"    all of them: weft dead-letters list {self._file} --only {status.name}"
            yield f"    when the file is right (weft doctor {self._file}): weft dead-letters replay {self._file}"
        if report.rows_unordered:
            yield f"{status.name}: {unordered_words(report.rows_unordered)}{nothing}"
            yield f"    weft check {self._file} says which field has no value, and what to write instead"

    def _recent_letters(self, writer: str) -> RecentLetters | None:
        """Read the dead letters of this run; None if they cannot be read now."""
        with contextlib.suppress(TableError):
            location, places = load_letter_places(self._pipeline.path)
            for place in places:
                if place.writer == writer:
                    survey = place.open(open_location(location), location).survey()
                    return recent_letters(survey, self._began_ms)
        return None

    def _print_advice(self, status: JobStatus) -> None:
        """If a topic has lost messages that were not read, print how the writer can continue, and what is lost then."""
        if status.report.error_code != "DATA_LOSS":
            return
        uri, state = self._pipeline.table.uri, shlex.quote(str(self._pipeline.state))
        local = urlsplit(uri).scheme in {"", "file"}
        table = shlex.quote(uri.removeprefix("file://"))
        remove = f"rm -r {table} {state}" if local else f"rm -r {state}, and delete all objects below {uri}"
        self._print(_DATA_LOSS_ADVICE.format(file=self._file, writer=status.name, remove=remove), "dim")
