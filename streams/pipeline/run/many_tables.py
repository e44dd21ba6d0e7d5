"""Compaction, folding, expiry and cleaning of many tables by one process, with fair turns. For ``weft services``.

A round of a table compacts, folds, expires and cleans what is due. A round is divided into steps that read some file
groups. `weft.streams.pipeline.run.fair_turns` decides which table runs the next step, so small tables wait for one turn
of a huge table, not for its whole round. The PLAN of a round stays open between its steps, and results are published as
in any compaction.

An error ends only the round of its table, which is tried again after a growing pause, without a limit. Other threads
open the tables, because a store that does not answer takes seconds. To bound memory, at most `MAX_LARGE` tables have
rounds of more than one turn at the same time, because a round in progress keeps the plan of its table; tables whose
work fits into one turn do not wait for them. At most `MAX_OPEN` tables stay open between rounds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from weft.storage import DuePolicy, Snapshot, Table
from weft.storage.errors import TableError
from weft.storage.services.steps.steps import Steps, cancel
from weft.storage.store.open_store import check_reachable
from weft.streams.letters.retention import Retention
from weft.streams.pipeline.file.model import CleanSection, CompactionSection, PublishSection, TableLocation, TtlSection
from weft.streams.pipeline.run.error_kinds import describe, is_outage
from weft.streams.pipeline.run.fair_turns import FairTurns
from weft.streams.pipeline.run.outage import pause_seconds, store_name
from weft.streams.pipeline.run.publishing import ANSWER_SECONDS, Publisher, PublishRound
from weft.streams.pipeline.run.services import MAX_BACK_OFF_SECONDS, clean_round, compaction_steps, expiry_steps
from weft.streams.pipeline.run.status import Report
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_watch import SAMPLE_SECONDS, TableView

MIB: Final = 1024 * 1024
TURN_BYTES: Final = 64 * MIB  # some seconds of work
STEP_BYTES: Final = MIB  # minimum cost of a step: requests, entries
FILE_BYTES: Final = 64 * 1024  # cost of cleaning a file
MAX_LARGE: Final = 8
MAX_OPEN: Final = 64
STATUS_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 1.0  # a round begins at most this late
_BUSY_SECONDS: Final = 0.05  # pause between two checks of tables that are being opened
MAX_OPENING: Final = 8  # tables that are opened at the same time
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of the services of a table.

    Attributes:
        location: Location of the table.
        compaction: When to compact and fold; None: never.
        clean: When to clean, and what to keep; None: never clean.
        ttl: When to look for what is older than the table's time to live; None: never.
        letters: Returns the retention of the dead letters of each writer, which cleaning applies.
        publish: What to publish after compactions; None: nothing.
    """

    location: TableLocation
    compaction: CompactionSection | None
    clean: CleanSection | None
    ttl: TtlSection | None = None
    letters: Callable[[Table], list[Retention]] = lambda _: []
    publish: PublishSection | None = None

    @property
    def every(self) -> float:
        """Seconds from the start of one round to the start of the next."""
        sections = (self.compaction, self.clean, self.ttl, self.publish)
        return min((each.every for each in sections if each is not None), default=_DAY_SECONDS)


Load = Callable[[], TableSettings]
"""Reads the settings of a table; called again after an error."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The settings of a table, and the open table or the error."""

    settings: TableSettings
    table: Table | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Entry:
    """A table, and its state in this process.

    Attributes:
        settings: Settings as last read; None before the first read and after an error.
        table: The open table; None if it is not open.
        round: Steps of the round in progress; None between rounds.
        opening: The table while another thread opens it for the next round; None otherwise.
        large: Whether the round in progress takes more than one turn.
        postponed: Whether the round has to wait until fewer large ones are in progress.
        next_at: Earliest start of the next round, by the loop's clock.
        began_at: Start of the last round.
        cleaned_at: Start of the last clean; None before the first.
        expired_at: Start of the last expiry; None before the first.
        sampled_at: Time of the last sample for metrics; None before the first.
        view: The last view of the table, for metrics.
        letters: Retention of dead letters, which remembers the files that it has read; None before the first clean.
        publisher: Publishes the table, and remembers what it has published; None before the first time.
        publishing: A publication that another thread works on; None otherwise.
        failures: Failed rounds in a row.
        error: The message of the last failure.
        rounds: Number of rounds that have ended, successfully or not.
    """

    name: str
    load: Load
    report: Report = field(default_factory=Report)
    settings: TableSettings | None = None
    table: Table | None = None
    round: Steps[None] | None = None
    opening: Future[_Opened] | None = None
    large: bool = False
    postponed: bool = False
    next_at: float = 0.0
    began_at: float = 0.0
    cleaned_at: float | None = None
    expired_at: float | None = None
    sampled_at: float | None = None
    view: TableView = field(default_factory=TableView)
    letters: list[Retention] | None = None
    publisher: Publisher | None = None
    publishing: Future[PublishRound] | None = None
    failures: int = 0
    error: str = ""
    rounds: int = 0
    phase: Phase = Phase.RUNNING

    def update(self, **changes: Any) -> None:
        self.report = replace(self.report, **changes, reported_at_ms=time.time_ns() // 1_000_000)


def _open(load: Load, settings: TableSettings | None, table: Table | None) -> _Opened:
    """Read the settings and open the table unless they are given, and check that the store answers."""
    if settings is None:
        settings = load()
    location = settings.location
    try:
        check_reachable(location.uri, location.storage_options)  # the SDKs of stores would retry for minutes
        if table is None:
            table = Table.open(location.uri, storage_options=location.storage_options)
    except Exception as error:
        return _Opened(settings, error=error)
    return _Opened(settings, table)


def _publish(publisher: Publisher, location: TableLocation) -> PublishRound:
    """One round of a publisher, with a table of its own, because it works in another thread than compaction."""
    return publisher.publish(Table.open(location.uri, storage_options=location.storage_options))


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
        """Reads nothing; the first `step` does.

        Args:
            tables: Loaders of the tables' settings, by name.
            once: Run only one round of each table.
            turn_bytes: Stored bytes that a table may read in one turn; the last step of a turn may exceed this.
            max_large: Maximum number of rounds of more than one turn at the same time.
            max_open: Maximum number of tables that stay open between rounds; others are opened for each round.
            opener: Opens tables; None: the thread that calls `step` does.
            publisher: Publishes tables, likewise.
            clock: Returns monotonic seconds; replaced by tests.
            on_view: Called with the location and the measures of a table at the start of each round; None: nothing is
                measured.
        """
        self._on_view = on_view
        self._entries = {name: _Entry(name, load) for name, load in tables.items()}
        self._turns = FairTurns(tables, turn_bytes)
        self._once, self._turn_bytes, self._max_large, self._max_open = once, turn_bytes, max_large, max_open
        self._opener, self._publisher, self._clock = opener, publisher, clock

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """Status of each table, in order."""
        return tuple(_status(entry) for entry in self._entries.values())

    @property
    def finished(self) -> bool:
        """Whether each table has had its round; False unless ``once``."""
        return self._once and all(entry.rounds for entry in self._entries.values())

    def step(self) -> str | None:
        """Do one step of the table whose turn it is.

        Returns:
            Name of the table; None if no table has anything to do now.
        """
        now, room = self._clock(), self._large() < self._max_large
        name = self._turns.next(lambda name: self._has_work(self._entries[name], now, room=room))
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
            if entry.round is not None:
                with contextlib.suppress(TableError):  # then a later clean aborts the plan
                    cancel(entry.round)
                entry.round, entry.large = None, False
            if entry.phase is Phase.RUNNING:
                entry.phase = Phase.STOPPED

    def _has_work(self, entry: _Entry, now: float, *, room: bool) -> bool:
        if entry.round is not None:
            return True
        if entry.opening is not None:
            return entry.opening.done()
        return entry.next_at <= now and (room or not entry.postponed) and not (self._once and entry.rounds)

    def _large(self) -> int:
        return sum(entry.large for entry in self._entries.values())

    def _advance(self, entry: _Entry) -> int:
        """Run a step of a table, and return its cost in bytes."""
        if entry.round is None:
            if self._opener is not None and entry.opening is None:
                entry.opening = self._opener.submit(_open, entry.load, entry.settings, entry.table)
                return 0
            opening, entry.opening = entry.opening, None
            opened = _open(entry.load, entry.settings, entry.table) if opening is None else opening.result()
            entry.settings, entry.table = opened.settings, opened.table
            if opened.table is None:
                raise opened.error or AssertionError("a table or an error")
            entry.began_at, entry.postponed = self._clock(), False
            entry.round = self._round(entry, opened.settings, opened.table)
        try:
            cost = next(entry.round)
        except StopIteration:
            self._end(entry)
            return 0
        due = (entry.report.due_bytes or 0) if entry.settings and entry.settings.compaction else 0
        if not entry.large and due > self._turn_bytes:
            if self._large() < self._max_large:
                entry.large = True
            else:
                entry.round.close()  # the work has not begun, and nothing is published
                entry.round, entry.postponed = None, True
                waits = f"{due / 1e6:.1f} MB are due, and wait until fewer large tables are in progress"
                entry.update(doing="idle", message=waits)
        return cost

    def _round(self, entry: _Entry, settings: TableSettings, table: Table) -> Steps[None]:
        """One round in steps."""
        uri, compaction = settings.location.uri, settings.compaction
        if compaction is not None:
            policy = compaction.policy
            yield from compaction_steps(
                table, compaction, entry, on_plan=lambda snapshot: self._show(entry, uri, snapshot, policy)
            )
        elif self._on_view is not None:
            self._show(entry, uri, table.snapshot(references=False), None)
        if settings.ttl is not None and self._is_due(entry.expired_at, settings.ttl.every):
            entry.expired_at = self._clock()
            if table.schema.ttl is not None:
                yield from expiry_steps(table, entry)
        if settings.clean is not None and self._is_due(entry.cleaned_at, settings.clean.every):
            entry.cleaned_at = self._clock()
            if entry.letters is None:
                entry.letters = settings.letters(table)
            yield FILE_BYTES * clean_round(table, settings.clean, entry, entry.letters)
        if settings.publish is not None:
            self._publish(entry, settings.location, settings.publish)

    def _publish(self, entry: _Entry, location: TableLocation, section: PublishSection) -> None:
        """Publish in another thread, so that a catalog that does not answer stops neither this table nor others.

        What a publication has done is reported by the next round. A failure is no failure of the round, unless each
        table has one round only.
        """
        if entry.publisher is None or entry.publisher.section != section:
            entry.publisher = Publisher(section, answer_seconds=None if self._once else ANSWER_SECONDS)
        if self._once or self._publisher is None:
            done = _publish(entry.publisher, location)
            entry.update(**done.report(entry.report))
            if self._once and done.errors:
                raise done.errors[0]
            return
        if entry.publishing is not None and entry.publishing.done():
            finished, entry.publishing = entry.publishing, None
            try:
                entry.update(**finished.result().report(entry.report))
            except Exception as error:  # the table could not be opened, for example
                entry.update(publish_problem=describe(error))
        if entry.publishing is None:
            entry.publishing = self._publisher.submit(_publish, entry.publisher, location)

    def _show(self, entry: _Entry, uri: str, snapshot: Snapshot, policy: DuePolicy | None) -> None:
        """Measure a table for metrics. What takes requests for each lane, or reads files, is done more rarely."""
        if self._on_view is None:
            return
        rarely = self._is_due(entry.sampled_at, SAMPLE_SECONDS)
        entry.view = entry.view.of(snapshot, policy, sampled=rarely, watermarks=rarely)
        if rarely:
            entry.sampled_at = self._clock()
        self._on_view(uri, entry.view)

    def _is_due(self, last: float | None, every: float) -> bool:
        return last is None or self._clock() - last >= every

    def _end(self, entry: _Entry) -> None:
        """End a successful round."""
        assert entry.settings is not None, "a round begins with the settings"
        message = "" if entry.report.message == entry.error else entry.report.message
        entry.update(
            doing="idle", message=message, waiting_for="", waiting_since_ms=None, progress=entry.report.progress + 1
        )
        entry.failures, entry.error = 0, ""
        self._close(entry, entry.began_at + entry.settings.every)
        if sum(other.table is not None for other in self._entries.values()) > self._max_open:
            entry.table = entry.letters = None

    def _fail(self, entry: _Entry, error: Exception) -> None:
        """End a failed round: report it, and schedule another try."""
        entry.failures += 1
        now_ms = time.time_ns() // 1_000_000
        if is_outage(error) and entry.settings is not None:
            pause, entry.error = pause_seconds(entry.failures), describe(error)
            since_ms = entry.report.waiting_since_ms or now_ms
            waiting = {"waiting_for": store_name(entry.settings.location.uri), "waiting_since_ms": since_ms}
        else:
            pause = min(2.0 ** min(entry.failures, 20), MAX_BACK_OFF_SECONDS)
            entry.error = describe(error) + ("" if self._once else f"; next try in {pause:.0f} s")
            waiting = {"waiting_for": "", "waiting_since_ms": None}
        entry.update(doing="waiting", message=entry.error, **waiting)
        self._close(entry, self._clock() + pause)
        if self._on_view is not None and entry.settings is not None:
            self._on_view(entry.settings.location.uri, TableView())
        # Settings and table are loaded again, so a repaired file or table needs no restart of this process.
        entry.settings = entry.table = entry.letters = None
        entry.sampled_at, entry.view = None, TableView()

    def _close(self, entry: _Entry, next_at: float) -> None:
        entry.round, entry.large = None, False
        entry.rounds += 1
        entry.next_at = next_at
        if self._once:
            entry.phase = Phase.FAILED if entry.failures else Phase.DONE


def serve_tables(
    tables: ManyTables, stop: threading.Event, on_status: Callable[[Sequence[JobStatus]], None] = lambda _: None
) -> None:
    """Run all tables in a thread until ``stop`` is set or all rounds are done. The current step is finished first.

    Args:
        tables: The tables.
        stop: Set to stop.
        on_status: Called about twice a second, and at the end, with the status of each table.
    """
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set() and not tables.finished:
                if tables.step() is None:
                    stop.wait(max(_BUSY_SECONDS, min(tables.wait_seconds(), _IDLE_SECONDS)))
            tables.stop()
        except BaseException as error:  # raised in the other thread
            failures.append(error)

    # A daemon: a second Ctrl-C ends the process without waiting for the step.
    thread = threading.Thread(target=work, name="weft-tables", daemon=True)
    thread.start()
    while thread.is_alive():
        on_status(tables.statuses)
        thread.join(STATUS_SECONDS)
    on_status(tables.statuses)
    if failures:
        raise failures[0]


def _status(entry: _Entry) -> JobStatus:
    return JobStatus(
        name=entry.name,
        phase=entry.phase,
        pid=os.getpid(),
        restarts=0,
        report=entry.report,
        message=entry.error if entry.phase is Phase.FAILED else "",
        log=Path(),
        tail=(),
        next_start_seconds=None,
        background=True,
        failures=entry.failures,
    )
