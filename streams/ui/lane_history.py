"""The log of a table as arrays, for charts: the kind, time and size of each entry of each lane.

A history of 100,000 commits takes a while to read. So the newest entries of each lane are read first; then a thread
reads a sample of the older ones, from which their density is estimated, and then all of them, the newest first. What
changes later is read with the next question. Entries are aggregated here into cells (lane, time, kind), of which there
are at most as many as a screen can show.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weft.storage.core.names import TABLE_LANE, LaneName
from weft.storage.errors import TableError
from weft.storage.services.inspect.inspect import Inspection, TimelineEntry
from weft.streams.letters.plans import is_replay_lane
from weft.streams.ui.plan_spans import PlanSpan, PlanSpans

Ints = npt.NDArray[np.int64]

LABELS: Final[Mapping[str, str]] = {"plan": "while it runs", "ended": "ended without a result"}
"""Names in the legend, where they are not those of `KINDS`."""
MEANINGS: Final[Mapping[str, str]] = {
    "commit": "a writer stored the events of one batch",
    "replay": "dead letters were stored after all, from a lane of their own",
    "claim": "a writer was started, and took over its lane",
    "compaction": "events of logs were merged into new base files, from which reads are quicker",
    "fold": "many small logs were merged into one",
    "clean": "files that nobody needs any more were deleted",
    "savepoint": "a snapshot was given a name and is kept, or was released",
    "restore": "the table, or a stream, was set back to an earlier snapshot",
    "closing": "a lane was ended: its writer is not expected to come back, as after a replay of dead letters",
    "schema": "the table was created or its columns changed, or a writer got a lane",
    "plan": "a compaction or a fold began; a bar in this colour lasts until its result",
    "ended": "a compaction or a fold was given up, or had nothing to do",
    "mark": "times before it are settled: what they show does not change any more",
}
"""What entries are drawn as, and what that means, for those who see it for the first time."""
KINDS: Final = tuple(MEANINGS)
"""What entries are drawn as, in the order of the legend."""
KIND_OF: Final[Mapping[str, str]] = {
    "DATA": "commit",
    "CLAIM": "claim",
    "BASE": "compaction",
    "FOLD": "fold",
    "CLEAN_INTENT": "clean",
    "CLEAN_DONE": "clean",
    "RETIRE": "clean",
    "SAVEPOINT": "savepoint",
    "RELEASE": "savepoint",
    "INTENT": "restore",
    "DONE": "restore",
    "CREATE": "schema",
    "SCHEMA": "schema",
    "LANE_ADD": "schema",
    "PLAN": "plan",
    "ABORT": "ended",
    "MARK": "mark",
}
_COMMIT: Final = KINDS.index("commit")
_STORES: Final = (_COMMIT, KINDS.index("replay"))
_FIRST: Final = 600  # entries of all lanes that are read before the page is shown
_LEAST: Final = 5  # of each lane
_PAGE: Final = 2_000  # entries of all lanes that are read at once later
_SAMPLES: Final = 12  # older entries of each lane, from which the others are estimated
_COLUMNS: Final = 5  # seq, time, kind, rows, rows that changed nothing
_NO_ROWS: Final = np.empty((0, _COLUMNS), np.int64)


@dataclass(slots=True)
class _Lane:
    """Entries after ``low`` and up to ``high``, as rows of `_COLUMNS`.

    Attributes:
        samples: Pairs (seq, time) of some entries up to ``low``, ascending.
    """

    low: int
    high: int
    parts: list[Ints] = field(default_factory=list)
    samples: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def rows(self) -> Ints:
        if len(self.parts) != 1:
            self.parts = [np.concatenate(self.parts) if self.parts else _NO_ROWS]
        return self.parts[0]

    def estimated(self) -> Ints:
        """The entries that were not read yet, as commits without rows that are evenly spread between samples."""
        rows = self.rows()
        known = np.concatenate([self.samples[self.samples[:, 0] <= self.low], rows[:1, :2]])
        if not self.low or len(known) < 2:
            return rows[:0]
        guesses = np.zeros((self.low + 1 - known[0, 0], _COLUMNS), np.int64)
        guesses[:, 0] = np.arange(known[0, 0], self.low + 1)
        guesses[:, 1] = np.interp(guesses[:, 0], known[:, 0], known[:, 1])
        guesses[:, 2] = _COMMIT
        return guesses


@dataclass(frozen=True, slots=True)
class Cells:
    """Entries of a span of time by lane, kind and part of the span; parallel columns.

    Attributes:
        begin_ms, end_ms: The span.
        lanes: Names of the lanes; "" is the table lane.
        lane, part, kind: Of each cell: position of its lane, number of the part of the span, position in `KINDS`.
        count, rows, seq: Its entries, their rows, and the last entry.
        guessed: 1 if it stands for entries that were not read yet, else 0.
    """

    begin_ms: int
    end_ms: int
    lanes: Sequence[str]
    lane: list[int]
    part: list[int]
    kind: list[int]
    count: list[int]
    rows: list[int]
    seq: list[int]
    guessed: list[int]


class LaneHistory:
    """What was read of the log so far. Usable from any thread."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._lanes: dict[LaneName, _Lane] = {}
        self._lock = threading.RLock()
        self._older: threading.Thread | None = None
        self._plans = PlanSpans()
        self._closes: dict[int, bool] = {}  # of INTENT entries by number: whether they close lanes
        self._opened: frozenset[str] = frozenset()
        self._closed = threading.Event()

    def close(self) -> None:
        """End the reading of older entries."""
        self._closed.set()
        if (older := self._older) is not None:
            older.join()

    def update(self, inspection: Inspection) -> None:
        """Read what is new in each lane, and begin to read older entries in a thread.

        Raises:
            CorruptData: An entry is missing or damaged.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            heads = inspection.heads()
            share = max(_LEAST, _FIRST // max(1, len(heads)))
            wanted = {}
            for lane, head in heads.items():
                first = max(0, head - share)
                known = self._lanes.setdefault(lane, _Lane(first, first))
                if head > known.high:
                    wanted[lane] = (known.high, head)
            for lane, entries in inspection.entries(wanted).items():
                known = self._lanes[lane]
                known.parts.append(self._rows(inspection, lane, entries))
                known.high = wanted[lane][1]
            self._opened = inspection.open_plans()
            if self._older is None and not self._closed.is_set() and any(lane.low for lane in self._lanes.values()):
                self._older = threading.Thread(
                    target=self._read_older, args=(inspection,), name="weft-ui-history", daemon=True
                )
                self._older.start()

    def _read_older(self, inspection: Inspection) -> None:
        """Sample the older entries, and then read them all, those of all lanes side by side."""
        with contextlib.suppress(TableError):  # the next update tries again
            self._sample(inspection)
            while waiting := [(name, lane.low) for name, lane in list(self._lanes.items()) if lane.low]:
                if self._closed.is_set():
                    break
                share = max(1, _PAGE // len(waiting))
                found = inspection.entries({name: (max(0, low - share), low) for name, low in waiting})
                with self._lock:
                    for name, low in waiting:
                        lane = self._lanes[name]
                        if lane.low == low:  # `newest` has not read further meanwhile
                            lane.parts.insert(0, self._rows(inspection, name, found[name]))
                            lane.low = max(0, low - share)
        self._older = None

    def _sample(self, inspection: Inspection) -> None:
        """Read `_SAMPLES` of the older entries of each lane, the first one among them."""
        lows = {name: lane.low for name, lane in list(self._lanes.items()) if lane.low}
        for part in range(_SAMPLES):
            chosen = {name: low * part // _SAMPLES for name, low in lows.items()}
            found = inspection.entries({name: (after, after + 1) for name, after in chosen.items()})
            with self._lock:
                for name, entries in found.items():
                    lane = self._lanes[name]
                    pairs = np.array([(entry.seq, entry.committed_at_ms) for entry in entries], np.int64)
                    lane.samples = np.unique(np.concatenate([lane.samples, pairs.reshape(-1, 2)]), axis=0)

    def _rows(self, inspection: Inspection, lane: LaneName, entries: Sequence[TimelineEntry]) -> Ints:
        if lane == TABLE_LANE:
            self._plans.add(entries)
        return _rows(entries, [KINDS.index(kind) for kind in self.kinds(inspection, entries)])

    def kinds(self, inspection: Inspection, entries: Sequence[TimelineEntry]) -> list[str]:
        """What entries are drawn as: one of `KINDS` each.

        Raises:
            CorruptData: An entry is missing or damaged.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            self._closes |= {entry.seq: entry.closes for entry in entries if entry.kind == "INTENT"}
            for begun in {entry.intent for entry in entries if entry.intent} - self._closes.keys():
                (intent,) = inspection.entries({TABLE_LANE: (begun - 1, begun)})[TABLE_LANE]
                self._closes[begun] = intent.closes
            return [self._kind(entry) for entry in entries]

    def _kind(self, entry: TimelineEntry) -> str:
        if entry.closes or self._closes.get(entry.intent):
            return "closing"
        return "replay" if entry.kind == "DATA" and is_replay_lane(entry.lane) else KIND_OF[entry.kind]

    def plans(self, begin_ms: int, end_ms: int, least_ms: int) -> Sequence[PlanSpan]:
        """Compactions and folds of a span of time; see `PlanSpans.between`."""
        with self._lock:
            return self._plans.between(begin_ms, end_ms, least_ms, self._opened)

    def newest(self, inspection: Inspection, count: int) -> list[TimelineEntry]:
        """The newest entries of all lanes with their details, the newest first. Call `update` before.

        Raises:
            CorruptData: An entry is missing or damaged.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            while True:
                times = np.concatenate([lane.rows()[-count:, 1] for lane in self._lanes.values()])
                oldest = int(np.sort(times)[-count]) if len(times) >= count else -1
                short = {
                    name: lane.low
                    for name, lane in self._lanes.items()
                    if lane.low and len(lane.rows()) < count and lane.rows()[0, 1] >= oldest
                }
                if not short:
                    break
                found = inspection.entries({name: (max(0, low - count), low) for name, low in short.items()})
                for name, low in short.items():
                    self._lanes[name].parts.insert(0, self._rows(inspection, name, found[name]))
                    self._lanes[name].low = max(0, low - count)
            wanted = {}
            for name, lane in self._lanes.items():
                shown = min(count, int((lane.rows()[:, 1] >= oldest).sum()))
                if shown:
                    wanted[name] = (lane.high - shown, lane.high)
        entries = [entry for found in inspection.entries(wanted).values() for entry in found]
        entries.sort(key=lambda entry: (entry.committed_at_ms, entry.seq), reverse=True)
        return entries[:count]

    @property
    def loaded(self) -> float:
        """The share of the entries that was read."""
        with self._lock:
            there = sum(lane.high for lane in self._lanes.values())
            return 1.0 if not there else sum(lane.high - lane.low for lane in self._lanes.values()) / there

    def span(self) -> tuple[int, int]:
        """Times of the first and the last entry that was read; (0, 0) if there is none."""
        with self._lock:
            times = [lane.rows()[:, 1] for lane in self._lanes.values() if len(lane.rows())]
            times += [lane.samples[:, 1] for lane in self._lanes.values() if len(lane.samples)]
        return (0, 0) if not times else (int(min(t.min() for t in times)), int(max(t.max() for t in times)))

    def cells(self, begin_ms: int, end_ms: int, parts: int) -> Cells:
        """Aggregate the entries of a span of time.

        Args:
            begin_ms: Its begin, Unix milliseconds.
            end_ms: Its end, inclusive.
            parts: Number of equal parts of the span.
        """
        width = max(1, end_ms - begin_ms + 1)
        with self._lock:
            lanes = {name: (lane.rows(), lane.estimated()) for name, lane in self._lanes.items()}
        found = [np.empty((0, 6), np.int64)]
        for position, both in enumerate(lanes.values()):
            for guessed, rows in enumerate(both):
                low, high = np.searchsorted(rows[:, 1], (begin_ms, end_ms + 1))  # times of a lane never decrease
                seq, times, kind, events, _ = rows[low:high].T
                part = (times - begin_ms) * parts // width
                fixed = np.full((2, len(seq)), [[position], [guessed]])
                found.append(np.column_stack((*fixed, part, kind, seq, events)))
        keys = ["lane", "guessed", "part", "kind"]
        columns = zip([*keys, "seq", "rows"], np.concatenate(found).T, strict=True)
        entries = pa.table({name: pa.array(column) for name, column in columns})
        cells = (
            entries.group_by(keys, use_threads=False)
            .aggregate([("seq", "count"), ("rows", "sum"), ("seq", "max")])
            .rename_columns({"seq_count": "count", "rows_sum": "rows", "seq_max": "seq"})
            .sort_by([(key, "ascending") for key in keys])
        )
        return Cells(begin_ms, end_ms, list(lanes), **cells.to_pydict())

    def rows_per_second(
        self, streams: Mapping[str, Sequence[str]], end_ms: int, seconds: int, parts: int
    ) -> dict[str, list[float]]:
        """Rows that were committed per second, by stream, in equal parts of the time before ``end_ms``."""
        begin = end_ms - seconds * 1000
        found = {}
        for stream, lanes in streams.items():
            rows = np.concatenate([_NO_ROWS, *(self._rows_since(lane, begin) for lane in lanes)])
            chosen = rows[(rows[:, 1] < end_ms) & np.isin(rows[:, 2], _STORES)]
            total, _ = np.histogram(chosen[:, 1], parts, (begin, end_ms), weights=chosen[:, 3])
            found[stream] = (total * parts / seconds).tolist()
        return found

    def claims(self, lane: str, since_ms: int) -> int:
        """Claims of a lane since a time: each is a start of its writer."""
        return int((self._rows_since(lane, since_ms)[:, 2] == KINDS.index("claim")).sum())

    def ignored(self, lane: str, since_ms: int) -> int:
        """Input rows of a lane since a time that changed nothing, of the entries that were read."""
        return int(self._rows_since(lane, since_ms)[:, 4].sum())

    def _rows_since(self, lane: str, since_ms: int) -> Ints:
        with self._lock:
            known = self._lanes.get(LaneName(lane))
            rows = known.rows() if known is not None else _NO_ROWS
        return rows[rows[:, 1] >= since_ms]


def _rows(entries: Sequence[TimelineEntry], kinds: Sequence[int]) -> Ints:
    made: list[tuple[Any, ...]] = [
        (entry.seq, entry.committed_at_ms, kind, entry.rows or 0, entry.ignored)
        for entry, kind in zip(entries, kinds, strict=True)
    ]
    return np.array(made, np.int64).reshape(-1, _COLUMNS)
