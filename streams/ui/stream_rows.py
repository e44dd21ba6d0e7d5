"""The streams of a table as the page lists them: rate, lag, freshness, last commit, restarts and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage.services.inspect.inspect import LaneReport
from weft.streams.pipeline.run.lag import Lag
from weft.streams.ui.lane_history import LaneHistory
from weft.streams.ui.watched_table import Look

RATE_SECONDS: Final = 60
_RECENT_MS: Final = 900_000
_NEW_MS: Final = 600_000
_WORST_FIRST: Final = ("silent", "live", "closed", "never")


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream. None means unknown.

    Attributes:
        name: Its name.
        lanes: Its open lanes.
        closed_lanes: Number of lanes without a writer: closed, or finished.
        writer: State of its writers, the worst one: see `weft.storage.services.inspect.inspect.LaneReport`.
        heartbeat_at_ms: Last heartbeat of that writer.
        rate: Rows per second in the last `RATE_SECONDS`.
        committed_at_ms: Time of the last commit.
        idle_seconds: Time since then.
        rows_waiting: Rows that are not compacted.
        starts: Number of starts of its writers: claims of its open lanes.
        recent_starts: Number of restarts in the last 15 minutes; the first start ever is not counted.
        lag: Upper bound of the messages that are in the source and not in the table.
        freshness: The table has everything that the source had this many seconds ago.
        dead_letters: Letters that can be replayed.
        late: Events below the watermark so far.
        ignored: Rows that changed nothing: without an ordering value, or deletes that the stream ignores.
        unordered: Rows without an ordering value in the last 10 minutes; 0 if the stream ignores deletes, because the
            log does not distinguish ignored deletes from such rows.
        trigger_seconds: Longest time that its writers leave between the starts of two batches; 0 if unknown.
        outage: Why the broker does not answer; "" if it does.
    """

    name: str
    lanes: tuple[str, ...]
    closed_lanes: int
    writer: str
    heartbeat_at_ms: int | None
    rate: float
    committed_at_ms: int | None
    idle_seconds: float | None
    rows_waiting: int
    starts: int
    recent_starts: int
    lag: int | None
    freshness: float | None
    dead_letters: int | None
    late: int
    ignored: int
    unordered: int
    trigger_seconds: float
    outage: str


def stream_rows(
    look: Look,
    history: LaneHistory,
    lags: Mapping[str, Lag],
    outages: Mapping[str, str],
    triggers: Mapping[str, float],
    letters: Counter[str] | None,
    unread: Mapping[str, Lag] | None = None,
) -> list[StreamRow]:
    """Describe every stream of the schema, in the order of the schema.

    Args:
        look: The table.
        history: Its log, up to date.
        lags: Measured lags, by lane.
        outages: Why brokers do not answer, by lane.
        triggers: Seconds from the start of one batch to the next, by lane.
        letters: Dead letters by stream; None without a pipeline.
        unread: Lags of writers that have never committed, by stream.
    """
    by_stream: dict[str, list[LaneReport]] = {}
    for lane in look.lanes:
        by_stream.setdefault(lane.stream, []).append(lane)
    names = [stream.name for stream in look.overview.schema.streams]
    rates = history.rows_per_second(
        {name: [lane.lane for lane in by_stream.get(name, [])] for name in names}, look.at_ms, RATE_SECONDS, 1
    )
    rows = []
    for name in names:
        lanes = by_stream.get(name, [])
        opened = [lane for lane in lanes if not (lane.closed or lane.finished)]
        # Every call of `write_batch` claims its lane, which is not a start of a writer.
        started = [lane for lane in opened if not lane.for_batch]
        worst = min(opened, key=lambda lane: _WORST_FIRST.index(lane.writer), default=None)
        committed = max((lane.committed_at_ms for lane in lanes if lane.committed_at_ms is not None), default=None)
        measured = [lags[lane.lane] for lane in opened if lane.lane in lags]
        measured += [unread[name]] if unread is not None and name in unread else []
        complete = [lag.complete_at_ms for lag in measured if lag.complete_at_ms is not None]
        deletes_ignored = look.overview.schema.stream(name).on_delete == "ignore"
        recent = sum(
            min(history.claims(lane.lane, look.at_ms - _RECENT_MS), max(0, lane.epoch - 1)) for lane in started
        )
        rows.append(
            StreamRow(
                name=name,
                lanes=tuple(lane.lane for lane in opened),
                closed_lanes=len(lanes) - len(opened),
                writer="never" if worst is None else worst.writer,
                heartbeat_at_ms=None if worst is None else worst.heartbeat_at_ms,
                rate=rates[name][0],
                committed_at_ms=committed,
                idle_seconds=None if committed is None else max(0, look.at_ms - committed) / 1000,
                rows_waiting=sum(lane.rows_waiting for lane in lanes),
                starts=sum(lane.epoch for lane in started),
                recent_starts=recent,
                lag=sum(lag.waiting for lag in measured) if measured else None,
                freshness=max(0, look.at_ms - min(complete)) / 1000 if complete else None,
                dead_letters=None if letters is None else letters[name],
                late=sum(lane.late for lane in lanes),
                ignored=sum(history.ignored(lane.lane, 0) for lane in lanes),
                unordered=0
                if deletes_ignored
                else sum(history.ignored(lane.lane, look.at_ms - _NEW_MS) for lane in lanes),
                trigger_seconds=max((triggers.get(lane.lane, 0.0) for lane in opened), default=0.0),
                outage=next((outages[lane.lane] for lane in opened if lane.lane in outages), ""),
            )
        )
    return rows
