"""What the pages show, and how they are rendered: templates, with every value escaped."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from weft.storage import Table
from weft.storage.core.python_values import python_rows
from weft.storage.core.types import format_type
from weft.storage.errors import NotFound, StoreUnavailable, TableError
from weft.storage.plural import counted
from weft.streams.pipeline.file.model import CommandSettings
from weft.streams.pipeline.file.quantities import age, duration, moment, size
from weft.streams.pipeline.run.part_states import PartState
from weft.streams.read.plain_values import json_value
from weft.streams.ui.checks import Checks
from weft.streams.ui.lane_history import LaneHistory
from weft.streams.ui.letter_book import LetterBook
from weft.streams.ui.problems import Problem, find_problems
from weft.streams.ui.source_lag import SourceLag
from weft.streams.ui.spark_turn import SparkTurn
from weft.streams.ui.sql_box import SqlBox
from weft.streams.ui.stream_rows import StreamRow, stream_rows
from weft.streams.ui.watched_table import Look, WatchedTable

VIEWS: Final = (
    ("overview", "/", "Overview"),
    ("timeline", "/timeline", "Timeline"),
    ("files", "/files", "File groups"),
    ("data", "/data", "Data"),
    ("changes", "/changes", "Changes"),
    ("sql", "/sql", "SQL"),
    ("completeness", "/completeness", "Completeness"),
    ("letters", "/letters", "Dead letters"),
    ("checks", "/checks", "Checks"),
)
"""Name, address and title of each view, in the order of the menu."""
SITE: Final = "weft.site"
"""The site in the scope of a request, if the page shows several tables."""
PATHS: Final = {name: path for name, path, _ in VIEWS}
_CELL: Final = 300  # characters of a value in a grid


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around the content of each page.

    Attributes:
        name: Of the table, or of all tables.
        place: Where it is.
        root: What the addresses of its pages begin with, quoted; "" if the page shows one table alone.
        views: The menu: name, address below the root, and title.
        write: Whether pages may change something.
        pipeline: The pipeline file; None for a location.
        several: Whether the page shows several tables, which are listed at "/".
        seen: The state of the table that the page shows, as events tell it; "" if that is not known.
    """

    name: str
    place: str
    root: str = ""
    views: Sequence[tuple[str, str, str]] = VIEWS
    write: bool = False
    pipeline: str | None = None
    several: bool = False
    seen: str = ""


@dataclass
class Site:
    """Everything that the pages of a table need.

    Attributes:
        settings: Of the table, from the pipeline file or the command line.
        watched: The table.
        write: Whether pages may change something.
        pipeline: The pipeline file; None for a location.
        letters: Its dead letters; None for a location.
        lag: Measures how far its writers are behind; None for a location.
        root: What the addresses of its pages begin with, quoted; "" if the page shows this table alone.
        turn: When it may have a session of Spark.
        history: The log.
        sql: Queries in Spark SQL.
        checks: What ``weft doctor`` checks.
        ending: Set when the server is to stop, so that pages that follow the table do not keep it.
    """

    settings: CommandSettings
    watched: WatchedTable
    write: bool = False
    pipeline: str | None = None
    letters: LetterBook | None = None
    lag: SourceLag | None = None
    root: str = ""
    turn: SparkTurn = field(default_factory=SparkTurn)
    history: LaneHistory = field(default_factory=LaneHistory)
    sql: SqlBox = field(init=False)
    checks: Checks = field(init=False)
    _table: Table = field(init=False)
    _lock: threading.Lock = field(init=False)
    ending: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Nothing is started before the first query."""
        self._table, self._lock = self.watched.table, threading.Lock()
        self.sql = SqlBox(self.settings, self.turn)
        self.checks = Checks(self.watched.location, self.pipeline)

    @property
    def frame(self) -> Frame:
        """What is around its pages."""
        place = self.watched.table.uri
        several, seen = bool(self.root), self.watched.seen
        return Frame(self.watched.name, place, self.root, VIEWS, self.write, self.pipeline, several, seen)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for something that was begun here."""
        replay = None if self.letters is None else self.letters.replayed
        return any(each.open for each in self.sql.history()) or (replay is not None and replay.exit_code is None)

    def end(self) -> None:
        """End the pages that follow the table."""
        self.ending.set()

    def close(self) -> None:
        """End what runs in the background, too."""
        self.end()
        self.sql.close()
        self.history.close()
        if self.lag is not None:
            self.lag.close()

    def look(self) -> Look:
        """The table now; the history has all entries that this look knows."""
        found = self.watched.look()
        with self._lock:
            if found.table is not self._table:
                self._begin_again(found.table)
        self.history.update(found.inspection)
        return found

    def _begin_again(self, table: Table) -> None:
        """Forget what is known of a table that was deleted: another one is in its place."""
        past = self.history, self.sql
        self._table, self.history, self.sql = table, LaneHistory(), SqlBox(self.settings, self.turn)
        self.checks = Checks(self.watched.location, self.pipeline)
        if self.pipeline is not None:
            self.letters = LetterBook(self.pipeline, table, self.watched.location)
        for each in past:
            threading.Thread(target=each.close, name="weft-ui-close", daemon=True).start()

    def streams(self, look: Look) -> list[StreamRow]:
        """The streams now."""
        lags = {} if self.lag is None else self.lag.measure(look.lanes)
        outages = {} if self.lag is None else self.lag.outages()
        triggers = {} if self.lag is None else self.lag.triggers
        letters: Counter[str] | None = None
        if self.letters is not None:
            waiting = self.letters.counts().waiting
            letters = Counter()
            for place in self.letters.places:
                letters[place.stream] += waiting[place.writer]
        known = {lane.lane for lane in look.lanes}
        streams = {} if self.lag is None else self.lag.streams
        unread = {streams[lane]: lag for lane, lag in lags.items() if lane not in known}
        return stream_rows(look, self.history, lags, outages, triggers, letters, unread)

    def problems(self, look: Look, streams: Sequence[StreamRow]) -> list[Problem]:
        """What is wrong now, the worst first."""
        checked = self.checks.last
        findings = (checked and checked.findings) or ()
        return find_problems(look, streams, "" if self.lag is None else self.lag.problem, findings, self.parts())

    def parts(self) -> list[PartState]:
        """What the parts of the pipeline do; empty for a location, and before the streams were looked at."""
        return [] if self.lag is None else self.lag.parts()


def site_of(request: Request) -> Site:
    """The site of the table that a request asks for."""
    found: Site = request.scope.get(SITE) or request.app.state.site
    return found


def frame_of(request: Request) -> Frame:
    """What is around the page of a request: of its table, or of the list of all tables."""
    listed: Frame | None = getattr(request.app.state, "frame", None)
    return site_of(request).frame if listed is None else listed


def render(request: Request, template: str, status: int = HTTPStatus.OK, **values: Any) -> Response:
    """A page; for a request of htmx, which renews a part of a page, that part alone, unless it selects it itself."""
    frame = frame_of(request)
    found = _templates().get_template(template)
    text = found.render(
        layout="part.html" if _renews_part(request) else "page.html",
        frame=frame,
        root=frame.root,
        here=quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else ""),
        pipeline=frame.pipeline,
        write=frame.write,
        **values,
    )
    return HTMLResponse(text, status)


def _renews_part(request: Request) -> bool:
    return "HX-Request" in request.headers and request.headers.get("HX-Target") != "main"


def render_error(request: Request, error: Exception) -> Response:
    """An error of weft as a page, or as JSON for a chart."""
    assert isinstance(error, TableError)
    if isinstance(error, NotFound):
        status = HTTPStatus.NOT_FOUND
    elif isinstance(error, StoreUnavailable):
        status = HTTPStatus.SERVICE_UNAVAILABLE
    else:
        status = HTTPStatus.BAD_REQUEST
    if request.url.path.endswith(".json"):
        return JSONResponse({"error": error.message, "hint": error.hint, "guide": error.guide}, status)
    if _renews_part(request):
        # htmx leaves a page as it is after an error; here the message is to be shown instead of the part.
        # A whole page may stay, with what was entered: its script says what failed.
        return render(request, "error_part.html", error=error)
    return render(request, "error.html", status, error=error, waits=_waits(request))


def _waits(request: Request) -> bool:
    """Whether the page of an error is to be asked for again once the table can be read."""
    site: Site | None = request.scope.get(SITE) or getattr(request.app.state, "site", None)
    return site is not None and site.watched.failed


def fields_of(request: Request) -> dict[str, list[str]]:
    """The fields of the address."""
    return {name: request.query_params.getlist(name) for name in request.query_params}


def key_query(key: Mapping[str, Any], as_of: str = "") -> str:
    """The query of the page of a row."""
    given = [("key", f"{name}={_key_text(value)}") for name, value in key.items()]
    return urlencode([*given, ("as_of", as_of)] if as_of else given)


def _key_text(value: Any) -> str:
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def cell_text(value: Any) -> str:
    """A value in a grid. A time is without its zone, which is UTC in all of the page."""
    if isinstance(value, dt.datetime):
        parts = "auto" if value.microsecond % 1000 else "milliseconds" if value.microsecond else "seconds"
        return value.isoformat(" ", parts).removesuffix("+00:00")
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def mark_text(value: Any) -> str:
    """A watermark; a time to the second, in UTC."""
    try:
        moment_then = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return cell_text(value)
    if "-" not in value:  # a number
        return str(value)
    if moment_then.time() == dt.time.min and len(value) == len("2026-11-20"):
        return str(value)
    zoned = moment_then if moment_then.tzinfo is not None else moment_then.replace(tzinfo=dt.UTC)
    return zoned.astimezone(dt.UTC).isoformat(" ", "seconds").removesuffix("+00:00")


def short_text(value: Any) -> str:
    """A value in a grid, cut if it is long."""
    text = cell_text(value)
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _per_second(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:,.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("weft.streams.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        age=age,
        cell=short_text,
        whole=cell_text,
        duration=duration,
        iso=_iso,
        mark=mark_text,
        moment=moment,
        number=_number,
        percent=_percent,
        per_second=_per_second,
        plural=counted,
        size=size,
        type=format_type,
    )
    made.globals.update(python_rows=python_rows, key_of=_key_of, key_query=key_query, paths=PATHS, urlencode=_encoded)
    return made


def _key_of(names: Sequence[str], row: Sequence[Any], key: Sequence[str]) -> dict[str, Any]:
    return {name: row[names.index(name)] for name in key}


def _iso(milliseconds: int) -> str:
    moment_then = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return moment_then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(pairs: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    return urlencode(list(pairs.items()) if isinstance(pairs, Mapping) else list(pairs))
