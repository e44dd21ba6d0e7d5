"""Garbage: what is in the store and nobody needs, found by listing, judged by name (rule C3).

Nothing is remembered from one clean to the next, so whoever dies in between leaves what the next one finds (C4, L3).
Only names that `storage.core.names` builds are judged; what else lies about is left alone and told of. One folder is in
memory at a time. Entries are read in logs of their own, and dropped: cleaning reads more of them than anybody needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.core.log.entries import Data, Unresolved, decode_entry
from storage.core.log.retention import (
    LaneEnd,
    Needed,
    contains,
    entry_may_come,
    kept_checkpoints,
    newest_heartbeat,
    paths_of,
    plan_may_publish,
)
from storage.core.log.table_state import Lane, TableState
from storage.core.names import (
    BASES,
    FOLD_FILES,
    FOLD_INDEXES,
    PROBES,
    SHADOWS,
    TABLE_INDEXES,
    TABLE_LANE,
    Kind,
    LaneName,
    ParsedPath,
    Path,
    checkpoint_folder,
    heartbeat_folder,
    log_folder,
    log_index_folder,
    parse_path,
    slot_path,
)
from storage.environment import Environment
from storage.errors import CorruptData
from storage.log.commit_log import CommitLog
from storage.log.pins import ListedPin
from storage.store.object_store import ObjectStore, normalise_errors

READ_AT_ONCE: Final = 256  # entries in memory
MAX_GAP: Final = 16  # entries that are read although no file was written for them, rather than in two goes
TEMPORARY: Final = "temporary"
"""Kind of what a write that died has left."""
FOREIGN: Final = "foreign"
"""Kind of what has a name that is none of ours."""

_OF_PLANS: Final = {
    BASES: Kind.BASE,
    SHADOWS: Kind.SHADOW,
    FOLD_FILES: Kind.FOLD,
    FOLD_INDEXES: Kind.FOLD_INDEX,
}


@dataclass(frozen=True, slots=True)
class Found:
    """An object: ``kind`` in words, and whether nobody needs it; None for a name that is none of ours."""

    path: Path
    size: int
    kind: str
    dead: bool | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What writes leave that do not end: temporary files (and what each was to become), and objects of probes.

    They say too little to be judged once. Those that are there when a clean begins and still there when it ends belong
    to nobody who is alive, or to somebody who fails and may try again.
    """

    temporary: frozenset[tuple[Path, Path]]
    probes: frozenset[tuple[Path, int]]

    @classmethod
    def of(cls, store: ObjectStore) -> Unfinished:
        probes = ((Path(f"{PROBES}/{name}"), size) for name, size in store.list(PROBES))
        return cls(frozenset(store.leftovers()), frozenset(probes))

    def also_in(self, before: Unfinished) -> Unfinished:
        return Unfinished(self.temporary & before.temporary, self.probes & before.probes)


@dataclass(frozen=True, slots=True)
class _Listed:
    path: Path
    size: int
    parsed: ParsedPath | None

    def judged(self, *, dead: bool) -> Found:
        if self.parsed is None:
            return Found(self.path, self.size, FOREIGN, None)
        return Found(self.path, self.size, self.parsed.kind, dead)


class Garbage:
    """Judges every object of a store but entries. Deletes nothing."""

    def __init__(
        self,
        env: Environment,
        state: TableState,
        needed: Needed,
        *,
        served: Collection[int],
        pins: Sequence[ListedPin],
        before: Unfinished,
    ) -> None:
        """Say what to judge by (rule C2).

        Args:
            env: The table's. Its clock tells which pins have expired, and nothing else.
            state: The state at the CLEAN_INTENT, or one that was read before the pins.
            needed: What is needed of it.
            served: Prefixes of the table lane that somebody still reads.
            pins: Read strictly after ``state``.
            before: Read when the clean began.
        """
        self._env, self._store, self._clock = env, env.store, env.clock
        self._state, self._needed = state, needed
        self._served, self._pins, self._before = served, pins, before
        self._merged = state.log_start()
        self._open = frozenset(plan.slot for plan in state.plans.values())
        self._ends: dict[LaneName, LaneEnd] = {}

    def found(self) -> Iterator[Found]:
        """Every object but entries, folder by folder."""
        for lane in self._state.lanes.values():
            yield from self._of_lane(lane)
        for folder, kind in _OF_PLANS.items():
            for own in self._listed(folder, kind):
                dead = own.path not in self._needed.files and not self._may_publish(own.parsed)
                yield own.judged(dead=dead)
        yield from self._of_table_lane()
        yield from self._checkpoints(TABLE_LANE)
        now = self._clock.now_ms()
        for pin in self._pins:
            expired = None if pin.pin is None else pin.pin.expires_at_ms <= now
            yield Found(pin.path, pin.size, Kind.PIN if pin.pin is not None else FOREIGN, expired)
        yield from self._unfinished()

    def _of_lane(self, lane: Lane) -> Iterator[Found]:
        files = [
            *self._listed(log_folder(lane.name), Kind.LOG),
            *self._listed(log_index_folder(lane.name), Kind.LOG_INDEX),
        ]
        beats = self._listed(heartbeat_folder(lane.name), Kind.HEARTBEAT)
        end = self._ends[lane.name] = self._end(lane)
        named = self._named(lane.name, {own.parsed.slot for own in files if own.parsed is not None}, end)
        for own in files:
            dead = own.path not in named and not (own.parsed is not None and entry_may_come(own.parsed, end))
            yield own.judged(dead=dead)
        newest = newest_heartbeat({own.path: own.parsed for own in beats if own.parsed is not None}, end)
        for own in beats:
            yield own.judged(dead=own.path != newest)
        yield from self._checkpoints(lane.name)

    def _end(self, lane: Lane) -> LaneEnd:
        log = self._log()
        head = lane.closed if lane.closed is not None else log.head(lane.name, self._merged.get(lane.name, 0))
        last = log.entry(lane.name, head) if head else None
        return LaneEnd(head, last.epoch if last is not None else 0)

    def _named(self, lane: LaneName, slots: Iterable[int], end: LaneEnd) -> set[Path]:
        """The files that needed entries in these slots name."""
        spans = self._needed.entries.get(lane, ())
        named: set[Path] = set()
        for after, until in _runs(sorted(seq for seq in slots if seq <= end.head and contains(spans, seq))):
            for entry in self._log().read_after(lane, after, until):
                if isinstance(entry, Data) and contains(spans, entry.seq):
                    named.update(path for file in entry.files for path in paths_of(file))
        return named

    def _of_table_lane(self) -> Iterator[Found]:
        """Lists that are too large for their entry: the one that the entry names is kept for ever, as the entry is."""
        listed = self._listed(TABLE_INDEXES, Kind.TABLE_INDEX)
        slots = sorted({own.parsed.slot for own in listed if own.parsed is not None and self._is_taken(own.parsed)})
        named: set[Path | None] = set()
        for start in range(0, len(slots), READ_AT_ONCE):
            chunk = slots[start : start + READ_AT_ONCE]
            with normalise_errors(slot_path(TABLE_LANE, chunk[0])):
                data = self._log().archives.read([(TABLE_LANE, seq) for seq in chunk])
            named.update(_sidecar(seq, part) for seq, part in zip(chunk, data, strict=True))
        for own in listed:
            yield own.judged(dead=own.parsed is not None and self._is_taken(own.parsed) and own.path not in named)

    def _checkpoints(self, lane: LaneName) -> Iterator[Found]:
        listed = self._listed(checkpoint_folder(lane), Kind.CHECKPOINT)
        heads = [own.parsed.slot for own in listed if own.parsed is not None]
        kept = kept_checkpoints(heads, () if lane else self._served)
        for own in listed:
            recent = not lane and own.parsed is not None and own.parsed.slot >= self._state.oldest_retained
            yield own.judged(dead=own.parsed is not None and own.parsed.slot not in kept and not recent)

    def _unfinished(self) -> Iterator[Found]:
        still = Unfinished.of(self._store).also_in(self._before)
        for path, size in still.probes:
            yield Found(path, size, Kind.PROBE, dead=True)
        for path, final in still.temporary:
            parsed = parse_path(final)
            if parsed is None:
                yield Found(path, 0, FOREIGN, None)
            else:
                yield Found(path, 0, TEMPORARY, dead=self._is_given_up(parsed))

    def _is_given_up(self, parsed: ParsedPath) -> bool:
        """Whether what a temporary file was to become cannot come any more; where no name tells, two looks do."""
        end = self._ends.get(parsed.lane, LaneEnd(0, 0))
        match parsed.kind:
            case Kind.LOG | Kind.LOG_INDEX:
                return not entry_may_come(parsed, end)
            case Kind.BASE | Kind.SHADOW | Kind.FOLD | Kind.FOLD_INDEX:
                return not self._may_publish(parsed)
            case Kind.ENTRY if parsed.lane:
                return parsed.slot <= end.head
            case Kind.ENTRY | Kind.TABLE_INDEX:
                return self._is_taken(parsed)
        return True

    def _may_publish(self, parsed: ParsedPath | None) -> bool:
        return parsed is not None and plan_may_publish(parsed, self._state.head, self._open)

    def _is_taken(self, parsed: ParsedPath) -> bool:
        """Whether a slot of the table lane is taken."""
        return parsed.slot <= self._state.head

    def _listed(self, folder: Path, kind: Kind) -> list[_Listed]:
        listed = []
        for name, size in self._store.list(folder):
            path = Path(f"{folder}/{name}")
            parsed = parse_path(path)
            listed.append(_Listed(path, size, parsed if parsed is not None and parsed.kind is kind else None))
        return listed

    def _log(self) -> CommitLog:
        """One that remembers nothing of what it has read before."""
        return CommitLog(self._env)


def _runs(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending slots as spans (after, up to) to be read at once; a span may hold a few others."""
    first = last = 0
    for seq in slots:
        if first and (seq - last > MAX_GAP or seq - first >= READ_AT_ONCE):
            yield first - 1, last
            first = 0
        first, last = first or seq, seq
    if first:
        yield first - 1, last


def _sidecar(seq: int, data: bytes | None) -> Path | None:
    """The sidecar that an entry of the table lane names, if it has one.

    Raises:
        CorruptData: The entry is damaged or missing: nothing can be said of its files.
    """
    if data is None:
        raise CorruptData(f"entry {seq} of the table lane is missing", hint="restore it from a copy of the store")
    entry = decode_entry(data, TABLE_LANE, seq)
    return entry.sidecar.path if isinstance(entry, Unresolved) else None
