"""The pages about the table and its streams: overview, timeline, file groups and completeness."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weft.storage.core.names import TABLE_LANE, lane_name
from weft.storage.errors import InvalidInput, NotComplete, NotFound
from weft.storage.services.inspect.file_groups import group_files
from weft.streams.ui.lane_history import KINDS, LABELS, MEANINGS
from weft.streams.ui.mark_picture import draw_marks, is_behind
from weft.streams.ui.page_times import page_value
from weft.streams.ui.problems import Problem, Severity
from weft.streams.ui.site import mark_text, render, site_of
from weft.streams.ui.watched_table import Look

_RATE_PARTS: Final = 120
_NEWEST: Final = 50
_MAX_PARTS: Final = 2_000
_LEAST_MS: Final = 1_000  # the shortest span of time for which the axis has labels


def overview(request: Request) -> Response:
    """Show the problems, the streams, and the table."""
    site = site_of(request)
    look = site.look()
    streams = site.streams(look)
    return render(
        request,
        "overview.html",
        view="overview",
        look=look,
        table=look.overview,
        measures=look.measures,
        streams=streams,
        problems=site.problems(look, streams),
        parts=site.parts(),
        severity=Severity,
        minutes=_minutes(request),
    )


def rates(request: Request) -> Response:
    """Send the rows per second of each stream, for the chart."""
    site, minutes = site_of(request), _minutes(request)
    look = site.look()
    lanes: dict[str, list[str]] = {stream.name: [] for stream in look.overview.schema.streams}
    for lane in look.lanes:
        lanes.setdefault(lane.stream, []).append(lane.lane)
    seconds = minutes * 60
    step = max(1.0, seconds / _RATE_PARTS)
    # Parts begin at multiples of their length, so that a chart that is renewed does not tremble.
    end = int(look.at_ms / 1000 // step * step)
    rates_by_stream = site.history.rows_per_second(lanes, end * 1000, seconds, _RATE_PARTS)
    times = [end - seconds + seconds * part / _RATE_PARTS for part in range(_RATE_PARTS)]
    return JSONResponse({"times": times, "streams": list(rates_by_stream), "rates": list(rates_by_stream.values())})


def _minutes(request: Request) -> int:
    return _parse_number(request, "minutes", 15, 1, 60 * 24 * 7)


def timeline(request: Request) -> Response:
    """Show the log as swim-lanes, and its newest entries."""
    site = site_of(request)
    look = site.look()
    entries = site.history.newest(look.inspection, _NEWEST)
    return render(
        request,
        "timeline.html",
        view="timeline",
        look=look,
        entries=list(zip(entries, site.history.kinds(look.inspection, entries), strict=True)),
        kinds=KINDS,
        labels=LABELS,
        meanings=MEANINGS,
    )


def timeline_cells(request: Request) -> Response:
    """Send the entries of a span of time, aggregated for the width of the screen."""
    site = site_of(request)
    site.look()
    first, last = site.history.span()
    begin = _parse_number(request, "begin", first, 0, 1 << 53)
    end = _parse_number(request, "end", max(last, begin + _LEAST_MS), 0, 1 << 53)
    if end < begin:
        raise InvalidInput("the end of the timeline is before its begin", hint="zoom out")
    parts = _parse_number(request, "parts", 600, 1, _MAX_PARTS)
    cells = site.history.cells(begin, end, parts)
    plans = site.history.plans(begin, end, (end - begin) // parts)
    streams = {str(lane): lane_state.stream for lane, lane_state in site.watched.look().snapshot.state.lanes.items()}
    return JSONResponse(
        {
            "first": first,
            "last": last,
            "begin": begin,
            "end": end,
            "parts": parts,
            "kinds": KINDS,
            "loaded": site.history.loaded,
            "lanes": [{"name": lane, "stream": streams.get(lane, "")} for lane in cells.lanes],
            "cells": [cells.lane, cells.part, cells.kind, cells.count, cells.rows, cells.seq, cells.guessed],
            "plans": [[plan.begin_ms, plan.end_ms, plan.kind, plan.seq, plan.open] for plan in plans],
        }
    )


def timeline_entry(request: Request) -> Response:
    """Show an entry with all its details."""
    site = site_of(request)
    look = site.look()
    lane = request.query_params.get("lane", "")
    seq = _parse_number(request, "seq", 0, 1, 1 << 53)
    name = TABLE_LANE if lane == TABLE_LANE else lane_name(lane)
    head = look.inspection.heads().get(name, 0)
    if seq > head:
        raise NotFound(f"lane {lane or 'of the table'} has {head:,} entries, not {seq:,}", hint="reload the page")
    entries = look.inspection.entries({name: (seq - 1, seq)})[name]
    (entry,), (kind,) = entries, site.history.kinds(look.inspection, entries)
    return render(request, "timeline_entry.html", entry=entry, kind=kind, table_lane=TABLE_LANE)


def files(request: Request) -> Response:
    """Show the file groups as a heat map, and list those with the largest logs in proportion to their base files."""
    look = site_of(request).look()
    groups = sorted(look.files, key=lambda file: (-_ratio(file.log_bytes, file.base_bytes), file.file_group))
    return render(
        request,
        "files.html",
        view="files",
        look=look,
        files=groups[:_NEWEST],
        total=len(groups),
        measures=look.measures,
        ratio=_ratio,
        waiting_since=look.waiting_since,
    )


def _ratio(log_bytes: int, base_bytes: int) -> float:
    """Return log bytes divided by bytes of the base file, which count as 1 without a base file."""
    return log_bytes / max(1, base_bytes)


def file_cells(request: Request) -> Response:
    """Send all file groups as columns, for the heat map."""
    look = site_of(request).look()
    since = look.waiting_since
    now = time.time_ns() // 1_000_000
    groups = look.files
    return JSONResponse(
        {
            "names": [file.file_group for file in groups],
            "rows": [file.base_rows + file.log_rows for file in groups],
            "base": [file.base_bytes + file.shadow_bytes for file in groups],
            "log": [file.log_bytes for file in groups],
            "commits": [file.commits for file in groups],
            "age": [
                round((now - since[file.file_group]) / 1000) if file.file_group in since else None for file in groups
            ],
        }
    )


def file_group(request: Request) -> Response:
    """Show the files of a file group."""
    look = site_of(request).look()
    name = request.query_params.get("name", "")
    return render(request, "file_group.html", name=name, files=group_files(look.snapshot, name))


def completeness(request: Request) -> Response:
    """Show the watermarks, and which streams are not complete through a value."""
    look = site_of(request).look()
    text = request.query_params.get("through", "").strip()
    through = page_value(text)
    complete_groups = [name for name in request.query_params.getlist("complete_groups") if name]
    marks = look.inspection.streams()
    chosen = [mark for mark in marks if not complete_groups or mark.group in complete_groups]
    verdict = _verdict(look, through, complete_groups)
    missing = []
    if verdict is not None and verdict.severity is Severity.WARNING:
        missing = [mark for mark in chosen if is_behind(mark, through)]
        verdict = replace(verdict, title=f"Not complete through {mark_text(through)}") if missing else verdict
    return render(
        request,
        "completeness.html",
        view="completeness",
        marks=marks,
        pictures=draw_marks(chosen, through, look.at_ms),
        groups=[group.name for group in look.overview.schema.groups],
        references=look.overview.references,
        through=text,
        complete_groups=complete_groups,
        verdict=verdict,
        missing=missing,
    )


def _verdict(look: Look, through: str, complete_groups: list[str]) -> Problem | None:
    """Say whether the table is complete through a value, and what it lacks; None if ``through`` is empty."""
    if not through:
        return None
    try:
        try:
            look.snapshot.check_complete(through, complete_groups or None)
        except InvalidInput:  # of times without a zone
            look.snapshot.check_complete(through.removesuffix("+00:00"), complete_groups or None)
    except NotComplete as error:
        return Problem(Severity.WARNING, error.message, error.hint)
    except (InvalidInput, NotFound) as error:
        return Problem(Severity.CRITICAL, error.message, error.hint)
    return Problem(
        Severity.NOTE, f"Complete through {mark_text(through)}: no stream will send such events any more", ""
    )


def _parse_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(f"{name} is {text[:40]!r}", hint=f"give a whole number from {least:,} to {most:,}")
    return int(text)


ROUTES: Final[list[Any]] = [
    Route("/", overview),
    Route("/overview/rates.json", rates),
    Route("/timeline", timeline),
    Route("/timeline/cells.json", timeline_cells),
    Route("/timeline/entry", timeline_entry),
    Route("/files", files),
    Route("/files/cells.json", file_cells),
    Route("/files/group", file_group),
    Route("/completeness", completeness),
]
