"""Queries in Spark SQL for the page: a session that starts with the first query, and ends when it was idle for long.

One thread owns the session, and runs queries one after the other. The last `MAX_ANSWERS` answers stay as Arrow tables.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError
from weft.streams.pipeline.file.model import CommandSettings
from weft.streams.ui.page_times import page_point
from weft.streams.ui.spark_turn import SparkTurn

if TYPE_CHECKING:
    from weft.streams.read.sql_query import SqlSession

MAX_ANSWERS: Final = 20
MAX_ROWS: Final = 10_000
MAX_DOWNLOADED_ROWS: Final = 1_000_000
"""Largest number of rows of an answer that is downloaded as a file; only the last such answer is kept."""
MAX_QUERY_CHARS: Final = 100_000  # characters of a query
IDLE_SECONDS: Final = 900.0
_CANCEL_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.5
_WAITING: Final = 5  # queries that may wait for others


class Phase(StrEnum):
    """How far a query is."""

    WAITING = "waiting"
    STARTING = "starting Spark"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class SqlAnswer:
    """A query and its answer.

    Attributes:
        number: Its number.
        sql: The query.
        as_of: Snapshot of the table; "" for now.
        limit: Largest number of rows.
        phase: How far it is.
        asked_at: When it was asked, in seconds of the monotonic clock.
        seconds: How long it ran.
        rows: The answer; None before it is done, and for a statement without one.
        more: Whether there are more rows.
        error, hint, guide: Why it failed, what to do, and where that is explained.
    """

    number: int
    sql: str
    as_of: str
    limit: int
    phase: Phase = Phase.WAITING
    asked_at: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    rows: pa.Table | None = None
    more: bool = False
    error: str = ""
    hint: str = ""
    guide: str = ""

    @property
    def whole(self) -> bool:
        """Whether the answer is for a file, not for the page."""
        return self.limit > MAX_ROWS

    @property
    def open(self) -> bool:
        """Whether the query has not ended."""
        return self.phase in {Phase.WAITING, Phase.STARTING, Phase.RUNNING}

    @property
    def waited(self) -> float:
        """Seconds since it was asked."""
        return time.monotonic() - self.asked_at


class SqlBox:
    """The queries of the page. Usable from any thread."""

    def __init__(self, settings: CommandSettings, turn: SparkTurn) -> None:
        """Start nothing yet: the first query starts Spark."""
        self._settings, self._turn = settings, turn
        self._numbers = itertools.count(1)
        self._answers: dict[int, SqlAnswer] = {}
        self._queue: queue.Queue[SqlAnswer | None] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._session: SqlSession | None = None
        self._running: SqlAnswer | None = None

    @property
    def started(self) -> bool:
        """Whether Spark runs."""
        return self._session is not None

    def ask(self, sql: str, as_of: str, limit: int) -> SqlAnswer:
        """Queue a query.

        Raises:
            InvalidInput: There is no query, or it is too long, or ``as_of`` is not a snapshot.
            Conflict: Too many others wait.
        """
        if not sql.strip():
            raise InvalidInput("there is no query", hint="enter one, for example SELECT * FROM t")
        if len(sql) > MAX_QUERY_CHARS:
            raise InvalidInput("the query is too long", hint=f"use at most {MAX_QUERY_CHARS:,} characters")
        page_point(as_of)
        with self._lock:
            if sum(answer.open for answer in self._answers.values()) > _WAITING:
                raise Conflict("too many queries wait", hint="cancel one, or wait")
            if limit > MAX_ROWS:
                for answer in self._answers.values():
                    answer.rows = None if answer.whole else answer.rows
            answer = SqlAnswer(next(self._numbers), sql.strip().rstrip(";"), as_of, limit)
            self._answers[answer.number] = answer
            for number in [number for number, answer in self._answers.items() if not answer.open][:-MAX_ANSWERS]:
                del self._answers[number]
            self._queue.put(answer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="weft-ui-sql", daemon=True)
                self._thread.start()
        return answer

    def answer(self, number: int) -> SqlAnswer:
        """Return a query by its number.

        Raises:
            NotFound: It is not kept any more.
        """
        answer = self._answers.get(number)
        if answer is None:
            raise NotFound(f"the answer of query {number} is not kept any more", hint="run it again")
        return answer

    def wait(self, item: SqlAnswer) -> str:
        """Say what a query that has not ended waits for."""
        with self._lock:
            session, running = self._session, self._running
            ahead = next((answer for answer in self._answers.values() if answer.open), item)
        match item.phase:
            case Phase.WAITING if ahead is not item:
                return f"Query {ahead.number} is first: queries run one after the other."
            case Phase.WAITING if session is None and self._turn.is_taken:
                return "Spark serves another table of this page: it is free as soon as the query there has ended."
            case Phase.STARTING:
                return "The first query starts Spark, which takes some seconds; the next ones do not wait for it."
            case Phase.RUNNING if session is not None and running is item:
                tasks = session.progress()
                if tasks is None or not tasks.total:
                    return "Spark plans the query: it finds the files to read."
                return f"Spark reads and computes: {tasks.done:,} of {tasks.total:,} tasks have ended."
        return ""

    def history(self) -> list[SqlAnswer]:
        """Return the last queries, newest first."""
        with self._lock:
            return list(reversed(self._answers.values()))

    def cancel(self, number: int) -> SqlAnswer:
        """Cancel a query; nothing happens if it has ended."""
        answer = self.answer(number)
        with self._lock:
            running = self._running is answer
            if answer.open:
                answer.phase = Phase.CANCELLED
        if running:
            threading.Thread(target=self._stop, args=(answer,), name="weft-ui-cancel", daemon=True).start()
        return answer

    def _stop(self, item: SqlAnswer) -> None:
        """Cancel the jobs of a query repeatedly until it has ended: a query that has just begun has no job yet."""
        while True:
            with self._lock:  # so that no other query begins, whose jobs this would cancel
                if self._running is not item or self._session is None:
                    return
                self._session.cancel()
            time.sleep(_CANCEL_SECONDS)

    def close(self) -> None:
        """End the session."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            for answer in self.history():
                with contextlib.suppress(Exception):  # Spark may be gone already
                    self.cancel(answer.number)
            thread.join(10)

    def _serve(self) -> None:
        """Run the queries of the queue until it stays empty."""
        first = self._queue.get()
        while first is not None:
            with self._turn.take(partial(getattr, first, "open")) as mine:
                if mine and self._progress(first, Phase.STARTING):
                    self._run_session(first)
            with self._lock:
                if self._queue.empty():
                    self._thread = None
                    return
            first = self._queue.get()

    def _run_session(self, first: SqlAnswer) -> None:
        try:
            with self._new_session() as session:
                self._session = session
                self._run_all(session, first)
        except Exception as error:
            self._fail(first, error)
        finally:
            self._session = None

    def _run_all(self, session: SqlSession, first: SqlAnswer) -> None:
        """Run a query and the following ones until `_next` returns None."""
        item: SqlAnswer | None = first
        while item is not None:
            self._run(session, item)
            item = self._next()

    def _next(self) -> SqlAnswer | None:
        """Wait for the next query; None after `IDLE_SECONDS`, if another table waits for Spark, or after `close`."""
        end = time.monotonic() + IDLE_SECONDS
        while True:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=_LOOK_SECONDS)
            if self._turn.is_awaited or time.monotonic() >= end:
                return None

    @contextlib.contextmanager
    def _new_session(self) -> Iterator[SqlSession]:
        from weft.streams.catalog.table_session import table_session

        with table_session(self._settings) as session:
            yield session

    def _run(self, session: SqlSession, item: SqlAnswer) -> None:
        from weft.streams.read.read_options import ReadOptions

        with self._lock:
            if item.phase is Phase.CANCELLED:
                return
            item.phase, self._running = Phase.RUNNING, item
        began = time.monotonic()
        try:
            session.look_at(ReadOptions(as_of=page_point(item.as_of)))
            with session.query(item.sql) as query:
                columns = query.frame.columns
                _check_names(columns)
                rows = query.arrow(item.limit + 1) if columns else None
            if rows is not None:
                item.rows, item.more = rows.slice(0, item.limit), len(rows) > item.limit
            self._progress(item, Phase.DONE)
        except Exception as error:
            self._fail(item, error)
        finally:
            with self._lock:
                self._running = None
            item.seconds = time.monotonic() - began

    def _progress(self, item: SqlAnswer, phase: Phase) -> bool:
        """Set the phase of a query; return False if it was cancelled."""
        with self._lock:
            if item.phase is Phase.CANCELLED:
                return False
            item.phase = phase
            return True

    def _fail(self, item: SqlAnswer, error: Exception) -> None:
        from weft.streams.spark.sql_text import error_text

        if not item.open:
            return
        if isinstance(error, TableError):
            item.error, item.hint, item.guide = error.message, error.hint, error.guide
        else:
            item.error = error_text(error)
        self._progress(item, Phase.FAILED)


def _check_names(columns: Sequence[str]) -> None:
    repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
    if repeated:
        raise InvalidInput(
            f"the answer has several columns called {repeated[0]!r}",
            hint="rename them: SELECT a.x AS x, b.x AS other_x",
        )
