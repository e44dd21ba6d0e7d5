"""What the pages of a table need, and how pages are rendered: by templates that escape every value."""

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
"""Key of the site in the scope of a request, if the page shows several tables."""
PATHS: Final = {name: path for name, path, _ in VIEWS}
_CELL: Final = 300  # characters of a value in a grid


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the content of each page.

    Attributes:
        name: Name of the table, or "All tables".
        place: Location of the table or tables.
        root: Prefix of the addresses of its pages, quoted; "" if there is only one table.
        views: The menu: name, address below the root, and title.
        write: Whether pages may change something.
        pipeline: The pipeline file; None for a location.
        several: Whether there are several tables, which "/" lists.
        cut: The cut of the table that the page shows, as in events; "" if the table was not read yet.
    """

    name: str
    place: str
    root: str = ""
    views: Sequence[tuple[str, str, str]] = VIEWS
    write: bool = False
    pipeline: str | None = None
    several: bool = False
    cut: str = ""


@dataclass
class Site:
    """Everything that the pages of a table need.

    Attributes:
        settings: Settings of the table, from the pipeline file or the command line.
        watched: The table.
        write: Whether pages may change something.
        pipeline: The pipeline file; None for a location.
        letters: Its dead letters; None for a location.
        lag: Measures how far its writers are behind; None for a location.
        root: Prefix of the addresses of its pages, quoted; "" if this is the only table.
        turn: Decides when it may have the session of Spark.
        history: The log.
        sql: Queries in Spark SQL.
        checks: The checks of ``weft doctor``.
        ending: Set when the server stops, so that event streams end and do not delay it.
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
        """Make the parts of the page; nothing is started before it is needed."""
        self._table, self._lock = self.watched.table, threading.Lock()
        self.sql = SqlBox(self.settings, self.turn)
        self.checks = Checks(self.watched.location, self.pipeline)

    @property
    def frame(self) -> Frame:
        """The frame of its pages."""
        place = self.watched.table.uri
        several, cut = bool(self.root), self.watched.last_cut
        return Frame(self.watched.name, place, self.root, VIEWS, self.write, self.pipeline, several, cut)

    @property
    def busy(self) -> bool:
        """Whether a query or a replay of this page has not ended."""
        replay = None if self.letters is None else self.letters.replayed
        return any(answer.open for answer in self.sql.history()) or (replay is not None and replay.exit_code is None)

    def end(self) -> None:
        """End the event streams of its pages."""
        self.ending.set()

    def close(self) -> None:
        """End the event streams, and everything that runs in the background."""
        self.end()
        self.sql.close()
        self.history.close()
        if self.lag is not None:
            self.lag.close()

    def look(self) -> Look:
        """Look at the table, and read its new log entries into the history."""
        look = self.watched.look()
        with self._lock:
            if look.table is not self._table:
                self._begin_again(look.table)
        self.history.update(look.inspection)
        return look

    def _begin_again(self, table: Table) -> None:
        """Begin with a new table that is in the place of one that was deleted."""
        backgrounds = self.history, self.sql
        self._table, self.history, self.sql = table, LaneHistory(), SqlBox(self.settings, self.turn)
        self.checks = Checks(self.watched.location, self.pipeline)
        if self.pipeline is not None:
            self.letters = LetterBook(self.pipeline, table, self.watched.location)
        for background in backgrounds:
            threading.Thread(target=background.close, name="weft-ui-close", daemon=True).start()

    def streams(self, look: Look) -> list[StreamRow]:
        """Describe the streams of a look, with lag and dead letters."""
        lags = {} if self.lag is None else self.lag.measure(look.lanes)
        outages = {} if self.lag is None else self.lag.outages()
        triggers = {} if self.lag is None else self.lag.triggers
        letters: Counter[str] | None = None
        if self.letters is not None:
            waiting = self.letters.counts().waiting
            letters = Counter()
            for place in self.letters.places:
                letters[place.stream] += waiting[place.writer]
        table_lanes = {lane.lane for lane in look.lanes}
        streams = {} if self.lag is None else self.lag.streams
        unread = {streams[lane]: lag for lane, lag in lags.items() if lane not in table_lanes}
        return stream_rows(look, self.history, lags, outages, triggers, letters, unread)

    def problems(self, look: Look, streams: Sequence[StreamRow]) -> list[Problem]:
        """Find the problems of a look, the worst first."""
        checked = self.checks.last
        findings = (checked and checked.findings) or ()
        return find_problems(look, streams, "" if self.lag is None else self.lag.problem, findings, self.parts())

    def parts(self) -> list[PartState]:
        """Return the states of the parts of the pipeline.

        The list is empty if there is no pipeline file, or if `streams` was not called yet.
        """
        return [] if self.lag is None else self.lag.parts()


def site_of(request: Request) -> Site:
    """Return the site of the table that a request names."""
    site: Site = request.scope.get(SITE) or request.app.state.site
    return site


def frame_of(request: Request) -> Frame:
    """Return the frame of the page that a request names: of its table, or of the list of all tables."""
    listed: Frame | None = getattr(request.app.state, "frame", None)
    return site_of(request).frame if listed is None else listed


def render(request: Request, template: str, status: int = HTTPStatus.OK, **values: Any) -> Response:
    """Render a page. A request of htmx that renews a part of a page gets that part, unless htmx selects it itself."""
    frame = frame_of(request)
    page = _templates().get_template(template)
    text = page.render(
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
    """Render an error of weft as a page, or as JSON for a chart."""
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
        # htmx does not change a page after an error status. The part is replaced by the message, so the status is 200.
        # A whole page keeps what the user entered; its script shows the failure.
        return render(request, "error_part.html", error=error)
    return render(request, "error.html", status, error=error, waits=_waits(request))


def _waits(request: Request) -> bool:
    """Whether the browser should request the page again once the table can be read."""
    site: Site | None = request.scope.get(SITE) or getattr(request.app.state, "site", None)
    return site is not None and site.watched.failed


def fields_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of the query of the address."""
    return {name: request.query_params.getlist(name) for name in request.query_params}


def key_query(key: Mapping[str, Any], as_of: str = "") -> str:
    """Return the query part of the address of a row's page."""
    pairs = [("key", f"{name}={_key_text(value)}") for name, value in key.items()]
    return urlencode([*pairs, ("as_of", as_of)] if as_of else pairs)


def _key_text(value: Any) -> str:
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def cell_text(value: Any) -> str:
    """Format a value for a grid. Times have no zone: the whole page shows UTC."""
    if isinstance(value, dt.datetime):
        parts = "auto" if value.microsecond % 1000 else "milliseconds" if value.microsecond else "seconds"
        return value.isoformat(" ", parts).removesuffix("+00:00")
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def mark_text(value: Any) -> str:
    """Format a watermark; a time is in UTC, to the second."""
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
    """Format a value for a grid, cut if it is long."""
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
    environment = Environment(
        loader=PackageLoader("weft.streams.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
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
    environment.globals.update(
        python_rows=python_rows, key_of=_key_of, key_query=key_query, paths=PATHS, urlencode=_encoded
    )
    return environment


def _key_of(names: Sequence[str], row: Sequence[Any], key: Sequence[str]) -> dict[str, Any]:
    return {name: row[names.index(name)] for name in key}


def _iso(milliseconds: int) -> str:
    moment_then = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return moment_then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(pairs: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    return urlencode(list(pairs.items()) if isinstance(pairs, Mapping) else list(pairs))
