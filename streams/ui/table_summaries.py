"""What the list of tables shows of each: read in rounds while somebody looks, so that many tables cost a bounded load.

1. A round lists the folders, and reads each table once; at most `PARALLEL` tables are read at the same time.
2. The next round begins after `EVERY_SECONDS`, and after `PAUSE` times what the last one took.
3. `IDLE_SECONDS` after the last request for the list no more rounds begin.
4. At most `MOST_KEPT` tables stay open between rounds; others are opened in each round. Those that stay open are opened
   again after `REOPEN_SECONDS`, which finds another table in the place of one that was deleted.
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
from weft.streams.ui.listed_tables import Shown, TableList
from weft.streams.ui.problems import Problem, Severity, find_problems
from weft.streams.ui.stream_rows import StreamRow, stream_rows
from weft.streams.ui.watched_table import Look, WatchedTable

EVERY_SECONDS: Final = 5.0
PAUSE: Final = 2.0
IDLE_SECONDS: Final = 30.0
PARALLEL: Final = 4
MOST_KEPT: Final = 100
REOPEN_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Summary:
    """One table at one moment. None means unknown.

    Attributes:
        at_ms: When it was read.
        problems: What is wrong, the worst first.
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
        """Read nothing yet."""
        self._tables = tables
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._thread: threading.Thread | None = None
        self._found: dict[str, Summary] = {}
        self._kept: dict[str, tuple[WatchedTable, float]] = {}
        self.rounds = 0
        """Rounds that have ended."""
        self.problem: TableError | None = None
        """Why the folders could not be listed in the last round."""

    def ask(self) -> Mapping[str, Summary]:
        """What was read so far, by name; rounds go on for a while."""
        with self._lock:
            self._asked = time.monotonic()
            if self._thread is None and not self._tables.ending.is_set():
                self._thread = threading.Thread(target=self._read_rounds, name="weft-ui-tables", daemon=True)
                self._thread.start()
            return dict(self._found)

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
            wanted = time.monotonic() - self._asked < IDLE_SECONDS and not self._tables.ending.is_set()
            if not wanted:
                self._thread = None
            return wanted

    def _read_round(self, pool: ThreadPoolExecutor) -> None:
        try:
            self._tables.list_again()
            self.problem = None
        except TableError as error:
            self.problem = error
        known = dict(self._tables.known)
        with self._lock:
            for gone in self._found.keys() - known.keys():
                del self._found[gone]
            for gone in self._kept.keys() - known.keys():
                del self._kept[gone]
        for _ in pool.map(self._read, known, known.values()):
            if self._tables.ending.is_set():
                break

    def _read(self, name: str, shown: Shown) -> None:
        if self._tables.ending.is_set():
            return
        try:
            found = self._summary(name, shown)
        except TableError as error:
            found = Summary(_now_ms(), [Problem(Severity.CRITICAL, error.message, error.hint, guide=error.guide)])
            if isinstance(error, NotFound | CorruptData):  # opened again, it may be another table of the same name
                self._kept.pop(name, None)
                self._tables.close_site(name)
        except Exception as error:  # one table must not hide the others
            title = f"it could not be read: {type(error).__name__}: {error}"
            found = Summary(_now_ms(), [Problem(Severity.CRITICAL, title, "please report it")])
        with self._lock:
            self._found[name] = found

    def _summary(self, name: str, shown: Shown) -> Summary:
        watched = self._watched(name, shown)
        if shown.pipeline is not None:
            self._tables.site(name)  # which measures its lag, and counts its dead letters
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

    def _watched(self, name: str, shown: Shown) -> WatchedTable:
        """The table, open; the one that is there now, or was `REOPEN_SECONDS` ago."""
        known, at = self._kept.get(name, (None, 0.0))
        if known is not None and time.monotonic() - at < REOPEN_SECONDS and not self._tables.has_vanished(shown):
            return known
        found = WatchedTable(shown.settings.table, None, REOPEN_SECONDS)
        with self._lock:  # other threads keep tables at the same time
            if name in self._kept or len(self._kept) < MOST_KEPT:
                self._kept[name] = found, time.monotonic()
        return found


def summarize(look: Look, streams: Sequence[StreamRow], problems: Sequence[Problem]) -> Summary:
    """A table in a line, from its streams and what is wrong."""
    committed = max((each.committed_at_ms for each in streams if each.committed_at_ms is not None), default=None)
    measures = look.measures
    return Summary(
        at_ms=look.at_ms,
        problems=problems,
        rows=measures.base_rows,
        events=measures.events_waiting,
        stored_bytes=measures.base_bytes + measures.log_bytes,
        committed_at_ms=committed,
        idle_seconds=None if committed is None else max(0, look.at_ms - committed) / 1000,
        freshness=max((each.freshness for each in streams if each.freshness is not None), default=None),
    )


def worst_first(names: Iterable[str], found: Mapping[str, Summary]) -> list[tuple[str, Summary | None]]:
    """The tables and their summaries, the worst first, then by name; None for one that was not read yet."""

    def place(name: str) -> tuple[int, str]:
        summary = found.get(name)
        worst = len(Severity) if summary is None or not summary.problems else summary.problems[0].severity
        return worst, name

    return [(name, found.get(name)) for name in sorted(names, key=place)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
