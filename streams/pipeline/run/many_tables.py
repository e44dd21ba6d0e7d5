"""Schedules the rounds of many tables in one process, with fair turns. For ``weft services``.

A round of a table (`weft.streams.pipeline.run.table_rounds`) is divided into steps that read some file groups.
`weft.streams.pipeline.run.fair_turns` decides which table runs the next step, so small tables wait for one turn of a
huge table, not for its whole round. The PLAN of a round stays open between its steps, and results are published as in
any compaction.

An error ends only the round of its table, which is tried again after a growing pause, without a limit. To bound
memory, at most `MAX_LARGE` tables have rounds of more than one turn at the same time, because a round in progress keeps
the plan of its table; tables whose work fits into one turn do not wait for them. At most `MAX_OPEN` tables stay open
between rounds.

Nothing here waits: `weft.streams.pipeline.run.serve_tables` runs the steps in a thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weft.storage.errors import TableError
from weft.storage.services.steps.steps import Steps, cancel
from weft.streams.pipeline.run.error_kinds import describe, is_outage
from weft.streams.pipeline.run.fair_turns import FairTurns
from weft.streams.pipeline.run.outage import pause_seconds, store_name
from weft.streams.pipeline.run.services import MAX_BACK_OFF_SECONDS
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_rounds import Load, OpenedTable, RoundOptions, TableRounds, open_table
from weft.streams.pipeline.run.table_watch import TableView

MIB: Final = 1024 * 1024
TURN_BYTES: Final = 64 * MIB  # some seconds of work
STEP_BYTES: Final = MIB  # minimum cost of a step: requests, entries
MAX_LARGE: Final = 8
MAX_OPEN: Final = 64


@dataclass(slots=True)
class _Entry:
    """The schedule of one table. Times are those of the clock of `ManyTables`.

    Attributes:
        name: Name of the table.
        rounds: The rounds of the table.
        steps: The steps of the round in progress; None between rounds.
        opening: The table, while another thread opens it for the next round; None otherwise.
        is_large: Whether the round takes more than one turn.
        is_postponed: Whether the round has not begun because too many large rounds are in progress.
        next_at: Earliest start of the next round.
        began_at: Start of the last round.
        failures: Failed rounds in a row.
        error: The message of the last failure.
        ended_rounds: Number of rounds that have ended, successfully or not.
        phase: Phase of the table in the status.
    """

    name: str
    rounds: TableRounds
    steps: Steps[None] | None = None
    opening: Future[OpenedTable] | None = None
    is_large: bool = False
    is_postponed: bool = False
    next_at: float = 0.0
    began_at: float = 0.0
    failures: int = 0
    error: str = ""
    ended_rounds: int = 0
    phase: Phase = Phase.RUNNING

    @property
    def due_bytes(self) -> int:
        """Stored bytes that the round has to read for compaction; 0 if the table is not compacted."""
        settings = self.rounds.settings
        return (self.rounds.report.due_bytes or 0) if settings is not None and settings.compaction else 0

    @property
    def status(self) -> JobStatus:
        """The status of the table, as if it was a job."""
        return JobStatus(
            name=self.name,
            phase=self.phase,
            pid=os.getpid(),
            restarts=0,
            report=self.rounds.report,
            message=self.error if self.phase is Phase.FAILED else "",
            log=Path(),
            tail=(),
            next_start_seconds=None,
            background=True,
            failures=self.failures,
        )


class ManyTables:
    """Runs the services of many tables, one step at a time. Used by one thread; others may only read `statuses`."""

    def __init__(
        self,
        tables: Mapping[str, Load],
        *,
        once: bool = False,
        turn_bytes: int = TURN_BYTES,
        max_large: int = MAX_LARGE,
        max_open: int = MAX_OPEN,
        opener: Executor | None = None,
        publisher: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_view: Callable[[str, TableView], None] | None = None,
    ) -> None:
        """Read nothing yet; the first `step` does.

        Args:
            tables: Loaders of the tables' settings, by name.
            once: Run only one round of each table.
            turn_bytes: Stored bytes that a table may read in one turn; the last step of a turn may exceed this.
            max_large: Maximum number of rounds of more than one turn at the same time.
            max_open: Maximum number of tables that stay open between rounds; others are opened for each round.
            opener: Opens tables, which takes seconds if a store does not answer; None: the thread that calls `step`
                does.
            publisher: Publishes tables, likewise.
            clock: Returns monotonic seconds; replaced by tests.
            on_view: Called with the location and the measures of a table at the start of each round; None: nothing is
                measured.
        """
        options = RoundOptions(once=once, publisher=publisher, on_view=on_view, clock=clock)
        self._entries = {name: _Entry(name, TableRounds(load, options)) for name, load in tables.items()}
        self._turns = FairTurns(tables, turn_bytes)
        self._once, self._turn_bytes, self._max_large, self._max_open = once, turn_bytes, max_large, max_open
        self._opener, self._clock = opener, clock

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """Status of each table, in order."""
        return tuple(entry.status for entry in self._entries.values())

    @property
    def finished(self) -> bool:
        """Whether each table has had its round; False unless ``once``."""
        return self._once and all(entry.ended_rounds for entry in self._entries.values())

    @property
    def open_tables(self) -> int:
        """Number of tables that are open."""
        return sum(entry.rounds.table is not None for entry in self._entries.values())

    def step(self) -> str | None:
        """Run one step of the table whose turn it is.

        Returns:
            Name of the table; None if no table has anything to do now.
        """
        now, is_room = self._clock(), self._large_rounds() < self._max_large
        name = self._turns.next(lambda name: self._has_work(self._entries[name], now, is_room=is_room))
        if name is None:
            return None
        entry, cost = self._entries[name], 0
        try:
            cost = self._advance(entry)
        except Exception as error:  # ends the round of this table only
            self._fail(entry, error)
        self._turns.charge(name, max(cost, STEP_BYTES))
        return name

    def wait_seconds(self) -> float:
        """Seconds until the next round may begin."""
        return max(0.0, min((entry.next_at for entry in self._entries.values()), default=0.0) - self._clock())

    def stop(self) -> None:
        """Cancel all rounds in progress. What they have published remains; unpublished files are deleted."""
        for entry in self._entries.values():
            if entry.steps is not None:
                with contextlib.suppress(TableError):  # then a later clean aborts the plan
                    cancel(entry.steps)
                entry.steps, entry.is_large = None, False
            if entry.phase is Phase.RUNNING:
                entry.phase = Phase.STOPPED

    def _has_work(self, entry: _Entry, now: float, *, is_room: bool) -> bool:
        if entry.steps is not None:
            return True
        if entry.opening is not None:
            return entry.opening.done()
        return entry.next_at <= now and (is_room or not entry.is_postponed) and not (self._once and entry.ended_rounds)

    def _large_rounds(self) -> int:
        return sum(entry.is_large for entry in self._entries.values())

    def _advance(self, entry: _Entry) -> int:
        """Run a step of a table, and return its cost in bytes."""
        if entry.steps is None:
            opened = self._open(entry)
            if opened is None:
                return 0
            entry.began_at, entry.is_postponed = self._clock(), False
            entry.steps = entry.rounds.begin(opened)
        try:
            cost = next(entry.steps)
        except StopIteration:
            self._succeed(entry)
            return 0
        if not entry.is_large and entry.due_bytes > self._turn_bytes:
            if self._large_rounds() < self._max_large:
                entry.is_large = True
            else:
                self._postpone(entry, entry.steps)
        return cost

    def _open(self, entry: _Entry) -> OpenedTable | None:
        """Open a table; None if another thread has begun to open it."""
        rounds = entry.rounds
        if self._opener is None:
            return open_table(rounds.load, rounds.settings, rounds.table)
        if entry.opening is None:
            entry.opening = self._opener.submit(open_table, rounds.load, rounds.settings, rounds.table)
            return None
        opening, entry.opening = entry.opening, None
        return opening.result()

    def _postpone(self, entry: _Entry, steps: Steps[None]) -> None:
        """End a round that has only planned its work, and has published nothing."""
        steps.close()
        entry.steps, entry.is_postponed = None, True
        text = f"{entry.due_bytes / 1e6:.1f} MB are due, and wait until fewer large tables are in progress"
        entry.rounds.update(doing="idle", message=text)

    def _succeed(self, entry: _Entry) -> None:
        """End a successful round."""
        rounds = entry.rounds
        assert rounds.settings is not None, "a round begins with the settings"
        message = "" if rounds.report.message == entry.error else rounds.report.message
        progress = rounds.report.progress + 1
        rounds.update(doing="idle", message=message, waiting_for="", waiting_since_ms=None, progress=progress)
        entry.failures, entry.error = 0, ""
        self._end(entry, entry.began_at + rounds.settings.every)
        if self.open_tables > self._max_open:
            rounds.close()

    def _fail(self, entry: _Entry, error: Exception) -> None:
        """End a failed round: report it, and schedule another try."""
        entry.failures += 1
        rounds, now_ms = entry.rounds, time.time_ns() // 1_000_000
        if is_outage(error) and rounds.settings is not None:
            pause, entry.error = pause_seconds(entry.failures), describe(error)
            since_ms = rounds.report.waiting_since_ms or now_ms
            waiting = {"waiting_for": store_name(rounds.settings.location.uri), "waiting_since_ms": since_ms}
        else:
            pause = min(2.0 ** min(entry.failures, 20), MAX_BACK_OFF_SECONDS)
            entry.error = describe(error) + ("" if self._once else f"; next try in {pause:.0f} s")
            waiting = {"waiting_for": "", "waiting_since_ms": None}
        rounds.update(doing="waiting", message=entry.error, **waiting)
        self._end(entry, self._clock() + pause)
        rounds.forget()

    def _end(self, entry: _Entry, next_at: float) -> None:
        entry.steps, entry.is_large = None, False
        entry.ended_rounds += 1
        entry.next_at = next_at
        if self._once:
            entry.phase = Phase.FAILED if entry.failures else Phase.DONE
