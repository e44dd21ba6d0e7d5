"""Rounds of all services of one table, in steps: compact, fold, expire, clean and publish what is due.

`weft.streams.pipeline.run.many_tables` decides when a round of a table begins and when its next step runs. This module
knows what a round consists of, and keeps what the next round needs: the open table, and when each service last ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from weft.storage import DuePolicy, Snapshot, Table
from weft.storage.services.steps.steps import Steps
from weft.storage.store.open_store import check_reachable
from weft.streams.letters.retention import Retention
from weft.streams.pipeline.file.model import CleanSection, CompactionSection, PublishSection, TableLocation, TtlSection
from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.pipeline.run.publishing import ANSWER_SECONDS, Publisher, PublishRound
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.service_rounds import clean_round, compaction_steps, expiry_steps
from weft.streams.pipeline.run.table_watch import SAMPLE_SECONDS, TableView

FILE_BYTES: Final = 64 * 1024  # cost of cleaning a file
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of the services of a table.

    Attributes:
        location: Location of the table.
        compaction: When to compact and fold; None: never.
        clean: When to clean, and what to keep; None: never clean.
        ttl: When to look for what is older than the table's time to live; None: never.
        letters: Returns the retentions of the writers' dead letters, which cleaning applies.
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
        return min((section.every for section in sections if section is not None), default=_DAY_SECONDS)


Load = Callable[[], TableSettings]
"""Reads the settings of a table, such as those in a pipeline file."""


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """Settings of a table, and either the open table or why it cannot be opened."""

    settings: TableSettings
    table: Table | None = None
    error: Exception | None = None


def open_table(load: Load, settings: TableSettings | None, table: Table | None) -> OpenedTable:
    """Read the settings and open the table, unless that was done before, and check that the store answers.

    Raises:
        TableError: The settings cannot be read. Errors of the table are part of the result.
    """
    if settings is None:
        settings = load()
    location = settings.location
    try:
        check_reachable(location.uri, location.storage_options)  # the SDKs of stores would retry for minutes
        if table is None:
            table = Table.open(location.uri, storage_options=location.storage_options)
    except Exception as error:
        return OpenedTable(settings, error=error)
    return OpenedTable(settings, table)


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Options of the rounds of all tables.

    Attributes:
        once: Each table has one round only, which waits for its publication and fails if that fails.
        publisher: Runs publications; None: the thread of the round does.
        on_view: Called with the location and the measures of a table at the start of each round; None: nothing is
            measured.
        clock: Returns monotonic seconds.
    """

    once: bool = False
    publisher: Executor | None = None
    on_view: Callable[[str, TableView], None] | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class TableRounds:
    """The rounds of one table. They report like a service (`weft.streams.pipeline.run.service_rounds.Reports`).

    Attributes:
        load: Reads the settings.
        options: Options of the rounds.
        report: What the services of the table report.
        settings: The last loaded settings; None before the first round, and after a failed one.
        table: The open table; None if it is not open.
    """

    load: Load
    options: RoundOptions
    report: Report = field(default_factory=Report)
    settings: TableSettings | None = None
    table: Table | None = None
    _cleaned_at: float | None = None
    _expired_at: float | None = None
    _sampled_at: float | None = None
    _view: TableView = field(default_factory=TableView)
    _letters: list[Retention] | None = None  # remember the files that they have read
    _publisher: Publisher | None = None  # remembers what it has published
    _publication: Future[PublishRound] | None = None

    def update(self, **changes: Any) -> None:
        """Change some fields of the report."""
        self.report = replace(self.report, **changes, reported_at_ms=time.time_ns() // 1_000_000)

    def begin(self, opened: OpenedTable) -> Steps[None]:
        """Begin a round.

        Returns:
            Its steps; each yields how many bytes it read.

        Raises:
            Exception: The table could not be opened.
        """
        self.settings, self.table = opened.settings, opened.table
        if opened.table is None:
            raise opened.error or AssertionError("a table or an error")
        return self._steps(opened.settings, opened.table)

    def close(self) -> None:
        """Close the table after a round; the next round opens it again."""
        self.table = self._letters = None

    def forget(self) -> None:
        """Forget settings and table after a failed round, so that a repaired file or table needs no restart."""
        if self.options.on_view is not None and self.settings is not None:
            self.options.on_view(self.settings.location.uri, TableView())
        self.close()
        self.settings, self._sampled_at, self._view = None, None, TableView()

    def _steps(self, settings: TableSettings, table: Table) -> Steps[None]:
        uri, compaction = settings.location.uri, settings.compaction
        if compaction is not None:
            policy = compaction.policy
            yield from compaction_steps(
                table, compaction, self, on_plan=lambda snapshot: self._measure(uri, snapshot, policy)
            )
        elif self.options.on_view is not None:
            self._measure(uri, table.snapshot(references=False), None)
        if settings.ttl is not None and self._is_due(self._expired_at, settings.ttl.every):
            self._expired_at = self.options.clock()
            if table.schema.ttl is not None:
                yield from expiry_steps(table, self)
        if settings.clean is not None and self._is_due(self._cleaned_at, settings.clean.every):
            self._cleaned_at = self.options.clock()
            yield FILE_BYTES * clean_round(table, settings.clean, self, lambda: self._load_letters(settings, table))
        if settings.publish is not None:
            self._publish(settings.location, settings.publish)

    def _load_letters(self, settings: TableSettings, table: Table) -> list[Retention]:
        if self._letters is None:
            self._letters = settings.letters(table)
        return self._letters

    def _publish(self, location: TableLocation, section: PublishSection) -> None:
        """Publish in another thread, so that a catalog that does not answer stops neither this table nor others.

        The next round reports the result. The round succeeds even if the publication fails, unless ``once`` is set.
        """
        once, executor = self.options.once, self.options.publisher
        if self._publisher is None or self._publisher.section != section:
            self._publisher = Publisher(section, answer_seconds=None if once else ANSWER_SECONDS)
        if once or executor is None:
            result = _publish(self._publisher, location)
            self.update(**result.report(self.report))
            if once and result.errors:
                raise result.errors[0]
            return
        if self._publication is not None and self._publication.done():
            finished, self._publication = self._publication, None
            try:
                self.update(**finished.result().report(self.report))
            except Exception as error:  # the table could not be opened, for example
                self.update(publish_problem=describe(error))
        if self._publication is None:
            self._publication = executor.submit(_publish, self._publisher, location)

    def _measure(self, uri: str, snapshot: Snapshot, policy: DuePolicy | None) -> None:
        """Measure the table for metrics. Samples and watermarks, which take more requests, are read more rarely."""
        if self.options.on_view is None:
            return
        is_sampled = self._is_due(self._sampled_at, SAMPLE_SECONDS)
        self._view = self._view.of(snapshot, policy, take_sample=is_sampled, watermarks=is_sampled)
        if is_sampled:
            self._sampled_at = self.options.clock()
        self.options.on_view(uri, self._view)

    def _is_due(self, last: float | None, every: float) -> bool:
        return last is None or self.options.clock() - last >= every


def _publish(publisher: Publisher, location: TableLocation) -> PublishRound:
    """Run a round of a publisher, with a table of its own, because it works in another thread than compaction."""
    return publisher.publish(Table.open(location.uri, storage_options=location.storage_options))
