"""The log of a table as arrays, for charts: the kind, time and size of each entry of each lane.

A history of 100,000 commits takes a while to read. So the newest entries of each lane are read first. Then a thread
reads a sample of the older entries, from which their density is estimated, and after that all of them, the newest
first. Entries that are committed later are read by the next `LaneHistory.update`. Entries are aggregated into cells
(lane, time, kind); there are never more cells than a screen can show.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weft.storage.core.names import TABLE_LANE, LaneName
from weft.storage.errors import TableError
from weft.storage.services.inspect.inspect import Inspection, TimelineEntry
from weft.streams.letters.plans import is_replay_lane
from weft.streams.ui.plan_spans import PlanSpan, PlanSpans

Ints = npt.NDArray[np.int64]

LABELS: Final[Mapping[str, str]] = {"plan": "while it runs", "ended": "ended without a result"}
"""Names in the legend that differ from those of `KINDS`."""
MEANINGS: Final[Mapping[str, str]] = {
    "commit": "a writer stored the events of one batch",
    "replay": "dead letters were replayed: they are stored now, in a separate lane",
    "claim": "a writer was started, and took over its lane",
    "compaction": "events of logs were merged into new base files, from which reads are quicker",
    "fold": "many small logs were merged into one",
    "clean": "files that are no longer needed were deleted",
    "savepoint": "a snapshot was given a name and is kept, or was released",
    "restore": "the table, or a stream, was set back to an earlier snapshot",
    "closing": "a lane was ended: its writer is not expected to come back, as after a replay of dead letters",
    "schema": "the table was created or its columns changed, or a writer got a lane",
    "plan": "a compaction or a fold began; a bar in this colour lasts until its result",
    "ended": "a compaction or a fold was aborted, or had nothing to do",
    "mark": "times before it are settled: what they show does not change any more",
}
"""The kinds that entries are drawn as, and what each kind means, for a reader who is new to weft."""
KINDS: Final = tuple(MEANINGS)
"""The kinds that entries are drawn as, in the order of the legend."""
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
_DATA_KINDS: Final = (_COMMIT, KINDS.index("replay"))
_FIRST_ENTRIES: Final = 600  # entries that are read before the page is shown, in all lanes together
_MIN_PER_LANE: Final = 5  # entries of each lane that are read before the page is shown, at least
_PAGE_ENTRIES: Final = 2_000  # entries that are read at once later, in all lanes together
_SAMPLES: Final = 12  # older entries of each lane that are read first, to estimate the times of the others
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

    def estimated(self) -> tuple[Ints, Ints]:
        """Return numbers and times that stand for the entries not read yet, spread evenly between the samples."""
        rows = self.rows()
        anchors = np.concatenate([self.samples[self.samples[:, 0] <= self.low], rows[:1, :2]])
        if not self.low or len(anchors) < 2:
            return _NO_ROWS[:, 0], _NO_ROWS[:, 1]
        numbers = np.arange(anchors[0, 0], self.low + 1)
        return numbers, np.interp(numbers, anchors[:, 0], anchors[:, 1]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Cells:
    """Entries of a span of time by lane, kind and part of the span; parallel columns.

    Attributes:
        begin_ms, end_ms: The span.
        lanes: Names of the lanes; "" is the table lane.
        lane, part, kind: Position of the cell's lane in ``lanes``, number of its part of the span, and position of its
            kind in `KINDS`.
        count, rows, seq: Number of the cell's entries, of their rows, and number of the last entry.
        guessed: 1 if the cell stands for entries that were not read yet, else 0.
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
    """The entries of the log that were read so far. Usable from any thread."""

    def __init__(self) -> None:
        """Begin without entries."""
        self._lanes: dict[LaneName, _Lane] = {}
        self._lock = threading.RLock()
        self._older: threading.Thread | None = None
        self._plans = PlanSpans()
        self._closes: dict[int, bool] = {}  # of INTENT entries by number: whether they close lanes
        self._opened: frozenset[str] = frozenset()
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop the thread that reads older entries."""
        self._closed.set()
        if (older := self._older) is not None:
            older.join()

    def update(self, inspection: Inspection) -> None:
        """Read the new entries of each lane, and start the thread that reads older ones.

        Raises:
            CorruptData: An entry is missing or damaged.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            heads = inspection.heads()
            share = max(_MIN_PER_LANE, _FIRST_ENTRIES // max(1, len(heads)))
            ranges = {}
            for name, head in heads.items():
                first = max(0, head - share)
                lane = self._lanes.setdefault(name, _Lane(first, first))
                if head > lane.high:
                    ranges[name] = (lane.high, head)
            for name, entries in inspection.entries(ranges).items():
                lane = self._lanes[name]
                lane.parts.append(self._rows(inspection, name, entries))
                lane.high = ranges[name][1]
            self._opened = inspection.open_plans()
            if self._older is None and not self._closed.is_set() and any(lane.low for lane in self._lanes.values()):
                self._older = threading.Thread(
                    target=self._read_older, args=(inspection,), name="weft-ui-history", daemon=True
                )
                self._older.start()

    def _read_older(self, inspection: Inspection) -> None:
        """Sample the older entries, and then read all of them, in all lanes side by side."""
        with contextlib.suppress(TableError):  # the next update tries again
            self._sample(inspection)
            while waiting := [(name, lane.low) for name, lane in list(self._lanes.items()) if lane.low]:
                if self._closed.is_set():
                    break
                share = max(1, _PAGE_ENTRIES // len(waiting))
                entries = inspection.entries({name: (max(0, low - share), low) for name, low in waiting})
                with self._lock:
                    for name, low in waiting:
                        lane = self._lanes[name]
                        if lane.low == low:  # `newest` has not read further meanwhile
                            lane.parts.insert(0, self._rows(inspection, name, entries[name]))
                            lane.low = max(0, low - share)
        self._older = None

    def _sample(self, inspection: Inspection) -> None:
        """Read `_SAMPLES` of the older entries of each lane, among them the first entry."""
        lows = {name: lane.low for name, lane in list(self._lanes.items()) if lane.low}
        for part in range(_SAMPLES):
            chosen = {name: low * part // _SAMPLES for name, low in lows.items()}
            sampled = inspection.entries({name: (after, after + 1) for name, after in chosen.items()})
            with self._lock:
                for name, entries in sampled.items():
                    lane = self._lanes[name]
                    pairs = np.array([(entry.seq, entry.committed_at_ms) for entry in entries], np.int64)
                    lane.samples = np.unique(np.concatenate([lane.samples, pairs.reshape(-1, 2)]), axis=0)

    def _rows(self, inspection: Inspection, lane: LaneName, entries: Sequence[TimelineEntry]) -> Ints:
        if lane == TABLE_LANE:
            self._plans.add(entries)
        return _rows(entries, [KINDS.index(kind) for kind in self.kinds(inspection, entries)])

    def kinds(self, inspection: Inspection, entries: Sequence[TimelineEntry]) -> list[str]:
        """Return how each entry is drawn: one of `KINDS`.

        Raises:
            CorruptData: An entry is missing or damaged.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            self._closes |= {entry.seq: entry.closes for entry in entries if entry.kind == "INTENT"}
            for seq in {entry.intent for entry in entries if entry.intent} - self._closes.keys():
                (intent,) = inspection.entries({TABLE_LANE: (seq - 1, seq)})[TABLE_LANE]
                self._closes[seq] = intent.closes
            return [self._kind(entry) for entry in entries]

    def _kind(self, entry: TimelineEntry) -> str:
        if entry.closes or self._closes.get(entry.intent):
            return "closing"
        return "replay" if entry.kind == "DATA" and is_replay_lane(entry.lane) else KIND_OF[entry.kind]

    def plans(self, begin_ms: int, end_ms: int, least_ms: int) -> Sequence[PlanSpan]:
        """Return the compactions and folds of a span of time; see `PlanSpans.between`."""
        with self._lock:
            return self._plans.between(begin_ms, end_ms, least_ms, self._opened)

    def newest(self, inspection: Inspection, count: int) -> list[TimelineEntry]:
        """Return the newest entries of all lanes with their details, the newest first. Requires a call of `update`.

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
                older = inspection.entries({name: (max(0, low - count), low) for name, low in short.items()})
                for name, low in short.items():
                    self._lanes[name].parts.insert(0, self._rows(inspection, name, older[name]))
                    self._lanes[name].low = max(0, low - count)
            ranges = {}
            for name, lane in self._lanes.items():
                selected = min(count, int((lane.rows()[:, 1] >= oldest).sum()))
                if selected:
                    ranges[name] = (lane.high - selected, lane.high)
        entries = list(itertools.chain.from_iterable(inspection.entries(ranges).values()))
        entries.sort(key=lambda entry: (entry.committed_at_ms, entry.seq), reverse=True)
        return entries[:count]

    @property
    def loaded(self) -> float:
        """The share of the entries that were read, from 0 to 1."""
        with self._lock:
            total = sum(lane.high for lane in self._lanes.values())
            return 1.0 if not total else sum(lane.high - lane.low for lane in self._lanes.values()) / total

    def span(self) -> tuple[int, int]:
        """Return the times of the first and the last entry that were read, Unix milliseconds; (0, 0) without any."""
        with self._lock:
            times = [lane.rows()[:, 1] for lane in self._lanes.values() if len(lane.rows())]
            times += [lane.samples[:, 1] for lane in self._lanes.values() if len(lane.samples)]
        return (0, 0) if not times else (int(min(t.min() for t in times)), int(max(t.max() for t in times)))

    def cells(self, begin_ms: int, end_ms: int, parts: int) -> Cells:
        """Aggregate the entries of a span of time.

        Args:
            begin_ms: Begin of the span, Unix milliseconds.
            end_ms: End of the span, inclusive.
            parts: Number of equal parts of the span.
        """
        width = max(1, end_ms - begin_ms + 1)
        with self._lock:
            lanes = {name: (lane.rows(), lane.estimated()) for name, lane in self._lanes.items()}
        arrays = [np.empty((0, 7), np.int64)]
        for position, (rows, (numbers, guesses)) in enumerate(lanes.values()):
            # Lane by lane, so that no second copy of all entries is in memory.
            for guessed, times in enumerate((rows[:, 1], guesses)):
                selected = slice(*np.searchsorted(times, (begin_ms, end_ms + 1)))  # times of a lane never decrease
                part = (times[selected] - begin_ms) * parts // width
                if guessed:
                    cells = _aggregate(part, _COMMIT, numbers[selected], None)
                else:
                    cells = _aggregate(part, rows[selected, 2], rows[selected, 0], rows[selected, 3])
                arrays.append(np.column_stack([np.full((len(cells), 2), (position, guessed)), cells]))
        lane_of, is_guessed, part_of, kind, count, total, last = np.concatenate(arrays).T.tolist()
        return Cells(begin_ms, end_ms, list(lanes), lane_of, part_of, kind, count, total, last, is_guessed)

    def rows_per_second(
        self, streams: Mapping[str, Sequence[str]], end_ms: int, seconds: int, parts: int
    ) -> dict[str, list[float]]:
        """Return the rows that were committed per second in each of ``parts`` equal parts of the time, by stream.

        Args:
            streams: The lanes of each stream.
            end_ms: End of the time, Unix milliseconds.
            seconds: Length of the time.
            parts: Number of parts.
        """
        begin = end_ms - seconds * 1000
        rates = {}
        for stream, lanes in streams.items():
            rows = np.concatenate([_NO_ROWS, *(self._rows_since(lane, begin) for lane in lanes)])
            chosen = rows[(rows[:, 1] < end_ms) & np.isin(rows[:, 2], _DATA_KINDS)]
            total, _ = np.histogram(chosen[:, 1], parts, (begin, end_ms), weights=chosen[:, 3])
            rates[stream] = (total * parts / seconds).tolist()
        return rates

    def claims(self, lane: str, since_ms: int) -> int:
        """Count the claims of a lane since a time; a writer claims its lane when it starts."""
        return int((self._rows_since(lane, since_ms)[:, 2] == KINDS.index("claim")).sum())

    def ignored(self, lane: str, since_ms: int) -> int:
        """Count the input rows of a lane since a time that changed nothing, in the entries that were read."""
        return int(self._rows_since(lane, since_ms)[:, 4].sum())

    def _rows_since(self, lane: str, since_ms: int) -> Ints:
        with self._lock:
            entries = self._lanes.get(LaneName(lane), _Lane(0, 0))
            rows = entries.rows()
        return rows[np.searchsorted(rows[:, 1], since_ms) :]  # times of a lane never decrease


def _rows(entries: Sequence[TimelineEntry], kinds: Sequence[int]) -> Ints:
    values: list[tuple[Any, ...]] = [
        (entry.seq, entry.committed_at_ms, kind, entry.rows or 0, entry.ignored)
        for entry, kind in zip(entries, kinds, strict=True)
    ]
    return np.array(values, np.int64).reshape(-1, _COLUMNS)


def _aggregate(part: Ints, kind: Ints | int, seq: Ints, rows: Ints | None) -> Ints:
    """Aggregate entries of a lane in order.

    Returns:
        Rows (part, kind, number of entries, their rows, number of the last entry), by part and kind.
    """
    code = part * len(KINDS) + kind
    count = np.bincount(code)
    total = np.zeros_like(count) if rows is None else np.bincount(code, rows).astype(np.int64)
    last = np.zeros_like(count)
    last[code] = seq  # of several entries of a cell the last one stays
    cells = np.flatnonzero(count)
    return np.column_stack([*np.divmod(cells, len(KINDS)), count[cells], total[cells], last[cells]])
