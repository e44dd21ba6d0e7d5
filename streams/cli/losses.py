"""What ``weft run`` says of messages that are not in the table: how many, why, an example, and what to do."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import TableError
from storage.plural import counted
from streams.cli.arguments import errors, open_location
from streams.letters.recent import RecentLetters, recent_letters
from streams.pipeline.letter_places import load_letter_places
from streams.pipeline.status_fields import unordered_words
from streams.pipeline.supervisor import JobStatus


def stored_nothing(status: JobStatus) -> bool:
    """Whether a writer has stored no row, and has lost messages: dead letters, or rows without an ordering value."""
    report = status.report
    return not report.rows and bool(report.dead_letters or report.rows_unordered)


class Losses:
    """Tells the user of one run about messages that are not in the table, on standard error."""

    def __init__(self, pipeline: Path) -> None:
        self._pipeline, self._began_ms = pipeline, time.time_ns() // 1_000_000
        self._told: set[str] = set()

    def tell_new(self, statuses: Iterable[JobStatus]) -> None:
        """Tell of each writer when it has its first ones."""
        for status in statuses:
            report = status.report
            if status.name not in self._told and (report.dead_letters or report.rows_unordered):
                self._told.add(status.name)
                self.tell(status)

    def tell(self, status: JobStatus) -> None:
        """Tell of the dead letters of a writer, and of its rows without an ordering value; nothing if it has none."""
        for line in self._lines(status):
            errors.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)

    def _lines(self, status: JobStatus) -> Iterator[str]:
        report, command = status.report, f"{shlex.quote(str(self._pipeline))}"
        nothing = ", and none was stored" if stored_nothing(status) else ""
        if report.dead_letters:
            verb = "became a dead letter" if report.dead_letters == 1 else "became dead letters"
            yield f"{status.name}: {counted(report.dead_letters, 'message')} {verb}{nothing}"
            found = self._recent(status.name)
            for line in () if found is None else found.words:
                yield f"    {line}"
            yield f"    all of them: weft dead-letters list {command} --only {status.name}"
            yield f"    when the file is right (weft doctor {command}): weft dead-letters replay {command}"
        if report.rows_unordered:
            yield f"{status.name}: {unordered_words(report.rows_unordered)}{nothing}"
            yield f"    weft check {command} says which field has no value, and what to write instead"

    def _recent(self, writer: str) -> RecentLetters | None:
        """The letters of this run; None if they cannot be read now."""
        with contextlib.suppress(TableError):
            location, places = load_letter_places(self._pipeline)
            for place in places:
                if place.writer == writer:
                    survey = place.open(open_location(location), location).survey()
                    return recent_letters(survey, self._began_ms)
        return None
