"""The summaries in the list of tables. They are read in rounds while the list is open, so that the load is bounded.

1. A round lists the folders, and reads each table once; at most `PARALLEL` tables are read at the same time.
2. The next round begins after `EVERY_SECONDS`, or after `PAUSE` times the duration of the last one if that is longer.
3. `IDLE_SECONDS` after the last request for the list no more rounds begin.
4. At most `MAX_KEPT` tables stay open between rounds; others are opened in each round. A table that stays open is
   opened again after `REOPEN_SECONDS`, in case it was deleted and another table is in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from weft.storage.errors import CorruptData, NotFound, TableError
from weft.streams.ui.lane_history import LaneHistory
from weft.streams.ui.listed_tables import TableList, Target
from weft.streams.ui.problems import Problem, Severity, find_problems
from weft.streams.ui.stream_rows import StreamRow, stream_rows
from weft.streams.ui.watched_table import Look, WatchedTable

EVERY_SECONDS: Final = 5.0
PAUSE: Final = 2.0
IDLE_SECONDS: Final = 30.0
PARALLEL: Final = 4
MAX_KEPT: Final = 100
REOPEN_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Summary:
    """A table at one moment. None means unknown.

    Attributes:
        at_ms: When it was read.
        problems: Its problems, the worst first.
        rows: Rows in base files.
        events: Rows in logs that are in no base file yet.
        stored_bytes: Bytes of base files and logs.
        committed_at_ms: Time of the last commit.
        idle_seconds: Time since then.
        freshness: The table has everything that its sources had this many seconds ago.
    """

    at_ms: int
    problems: Sequence[Problem]
    rows: int | None = None
    events: int | None = None
    stored_bytes: int | None = None
    committed_at_ms: int | None = None
    idle_seconds: float | None = None
    freshness: float | None = None


class TableSummaries:
    """The summaries of a list of tables. Usable from any thread."""

    def __init__(self, tables: TableList) -> None:
        """Remember the list; `ask` starts the rounds."""
        self._tables = tables
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._summaries: dict[str, Summary] = {}
        self._open_tables: dict[str, tuple[WatchedTable, float]] = {}
        self.rounds = 0
        """Rounds that have ended."""
        self.problem: TableError | None = None
        """Why the folders could not be listed in the last round."""

    def ask(self) -> Mapping[str, Summary]:
        """Return the summaries read so far, by name, and keep the rounds going for another `IDLE_SECONDS`."""
        with self._lock:
            self._asked_at = time.monotonic()
            if self._thread is None and not self._tables.ending.is_set():
                self._thread = threading.Thread(target=self._read_rounds, name="weft-ui-tables", daemon=True)
                self._thread.start()
            return dict(self._summaries)

    def _read_rounds(self) -> None:
        next_at = float("-inf")
        with ThreadPoolExecutor(PARALLEL, "weft-ui-table") as pool:
            while self._is_wanted():
                began = time.monotonic()
                if began < next_at:
                    self._tables.ending.wait(_STEP_SECONDS)
                    continue
                self._read_round(pool)
                self.rounds += 1
                next_at = max(began + EVERY_SECONDS, time.monotonic() + PAUSE * (time.monotonic() - began))

    def _is_wanted(self) -> bool:
        with self._lock:
            is_wanted = time.monotonic() - self._asked_at < IDLE_SECONDS and not self._tables.ending.is_set()
            if not is_wanted:
                self._thread = None
            return is_wanted

    def _read_round(self, pool: ThreadPoolExecutor) -> None:
        try:
            self._tables.list_again()
            self.problem = None
        except TableError as error:
            self.problem = error
        targets = dict(self._tables.by_name)
        with self._lock:
            for vanished in self._summaries.keys() - targets.keys():
                del self._summaries[vanished]
            for vanished in self._open_tables.keys() - targets.keys():
                del self._open_tables[vanished]
        for _ in pool.map(self._read, targets, targets.values()):
            if self._tables.ending.is_set():
                break

    def _read(self, name: str, target: Target) -> None:
        if self._tables.ending.is_set():
            return
        try:
            summary = self._summary(name, target)
        except TableError as error:
            summary = Summary(_now_ms(), [Problem(Severity.CRITICAL, error.message, error.hint, guide=error.guide)])
            if isinstance(error, NotFound | CorruptData):  # there may be another table of the same name now: open it
                self._open_tables.pop(name, None)
                self._tables.close_site(name)
        except Exception as error:  # one table must not hide the others
            title = f"the table could not be read: {type(error).__name__}: {error}"
            summary = Summary(_now_ms(), [Problem(Severity.CRITICAL, title, "please report it")])
        with self._lock:
            self._summaries[name] = summary

    def _summary(self, name: str, target: Target) -> Summary:
        watched = self._open_watched(name, target)
        if target.pipeline is not None:
            self._tables.site(
                name
            )  # a table of a pipeline has an open site, which measures lag and counts dead letters
        site = self._tables.open_sites().get(name)
        if site is None:
            look = watched.look()
            streams = stream_rows(look, LaneHistory(), {}, {}, {}, None)
            return summarize(look, streams, find_problems(look, streams))
        if site.watched.look().snapshot.state.table_id != watched.look().snapshot.state.table_id:
            self._tables.close_site(name)
            site = self._tables.site(name)
        look = site.watched.look()
        streams = site.streams(look)
        return summarize(look, streams, site.problems(look, streams))

    def _open_watched(self, name: str, target: Target) -> WatchedTable:
        """Return the open table; it is opened again if it was opened more than `REOPEN_SECONDS` ago."""
        watched, at = self._open_tables.get(name, (None, 0.0))
        if watched is not None and time.monotonic() - at < REOPEN_SECONDS and not self._tables.has_vanished(target):
            return watched
        opened = WatchedTable(target.settings.table, None, REOPEN_SECONDS)
        with self._lock:  # other threads keep tables at the same time
            if name in self._open_tables or len(self._open_tables) < MAX_KEPT:
                self._open_tables[name] = opened, time.monotonic()
        return opened


def summarize(look: Look, streams: Sequence[StreamRow], problems: Sequence[Problem]) -> Summary:
    """Summarize a table from a look, its streams and its problems."""
    committed = max((stream.committed_at_ms for stream in streams if stream.committed_at_ms is not None), default=None)
    measures = look.measures
    return Summary(
        at_ms=look.at_ms,
        problems=problems,
        rows=measures.base_rows,
        events=measures.events_waiting,
        stored_bytes=measures.base_bytes + measures.log_bytes,
        committed_at_ms=committed,
        idle_seconds=None if committed is None else max(0, look.at_ms - committed) / 1000,
        freshness=max((stream.freshness for stream in streams if stream.freshness is not None), default=None),
    )


def worst_first(names: Iterable[str], summaries: Mapping[str, Summary]) -> list[tuple[str, Summary | None]]:
    """Sort tables by their worst problem, then by name; the summary is None for a table that was not read yet."""

    def place(name: str) -> tuple[int, str]:
        summary = summaries.get(name)
        worst = len(Severity) if summary is None or not summary.problems else summary.problems[0].severity
        return worst, name

    return [(name, summaries.get(name)) for name in sorted(names, key=place)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
