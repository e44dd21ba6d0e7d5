"""Garbage: objects that no retained snapshot needs, found by listing and judged by their names (rule C3).

A clean needs no state of earlier cleans: it also finds what a clean that died has left (C4, L3). Only objects with
names that `storage.core.names` builds are judged; others are reported and not deleted. One folder is in memory at a
time. Entries are read without a cache, because cleaning reads many that no other operation needs.
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
MAX_GAP: Final = 16  # entries that are read although they are not needed, because a further request costs more
TEMPORARY: Final = "temporary"
"""Kind of temporary files that unfinished writes have left."""
FOREIGN: Final = "foreign"
"""Kind of objects with names that weft does not use."""

_OF_PLANS: Final = {
    BASES: Kind.BASE,
    SHADOWS: Kind.SHADOW,
    FOLD_FILES: Kind.FOLD,
    FOLD_INDEXES: Kind.FOLD_INDEX,
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a store; ``garbage``: whether it may be deleted; None if weft does not use its name."""

    path: Path
    size: int
    kind: str
    garbage: bool | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What unfinished writes leave: temporary files (and the path that each was meant for), and probe objects.

    One look at them is not enough, because their write may be in progress. Those that exist when a clean begins and
    still exist when it ends belong to a process that is dead, or that fails and may try again.
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
    """An object with a name that weft uses."""

    path: Path
    size: int
    parsed: ParsedPath

    def judged(self, *, garbage: bool) -> StoredObject:
        return StoredObject(self.path, self.size, self.parsed.kind, garbage)


class Garbage:
    """Judges every object of a store except entries and archives. Deletes nothing."""

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
        """Collect the information by which objects are judged (rule C2).

        Args:
            env: The table's environment. Its clock decides which pins have expired, and nothing else.
            state: The state at the CLEAN_INTENT, or one that was read before the pins.
            needed: The files and entries that are needed.
            served: Prefixes of the table lane that are still read: the oldest retained one, and held snapshots.
            pins: Listed strictly after ``state``.
            before: Listed when the clean began.
        """
        self._env, self._store, self._clock = env, env.store, env.clock
        self._state, self._needed = state, needed
        self._served, self._pins, self._before = served, pins, before
        self._merged = state.log_start()
        self._open = frozenset(plan.slot for plan in state.plans.values())
        self._ends: dict[LaneName, LaneEnd] = {}

    def judge_all(self) -> Iterator[StoredObject]:
        """Every object except entries and archives, folder by folder.

        Raises:
            CorruptData: An entry is damaged or missing, so that it is not known which files it names.
            StoreUnavailable: The store does not answer.
        """
        for lane in self._state.lanes.values():
            yield from self._judge_lane(lane)
        for folder, kind in _OF_PLANS.items():
            files, foreign = self._list(folder, kind)
            yield from foreign
            for file in files:
                garbage = file.path not in self._needed.files and not self._may_publish(file.parsed)
                yield file.judged(garbage=garbage)
        yield from self._judge_table_sidecars()
        yield from self._judge_checkpoints(TABLE_LANE)
        now = self._clock.now_ms()
        for pin in self._pins:
            if pin.pin is None:
                yield StoredObject(pin.path, pin.size, FOREIGN, None)
            else:
                yield StoredObject(pin.path, pin.size, Kind.PIN, pin.pin.expires_at_ms <= now)
        yield from self._judge_unfinished()

    def _list(self, folder: Path, kind: Kind) -> tuple[list[_Listed], list[StoredObject]]:
        """The objects of a kind in a folder, and those whose names weft does not use there."""
        listed, foreign = [], []
        for name, size in self._store.list(folder):
            path = Path(f"{folder}/{name}")
            parsed = parse_path(path)
            if parsed is not None and parsed.kind is kind:
                listed.append(_Listed(path, size, parsed))
            else:
                foreign.append(StoredObject(path, size, FOREIGN, None))
        return listed, foreign

    def _judge_lane(self, lane: Lane) -> Iterator[StoredObject]:
        logs, foreign_logs = self._list(log_folder(lane.name), Kind.LOG)
        indexes, foreign_indexes = self._list(log_index_folder(lane.name), Kind.LOG_INDEX)
        heartbeats, foreign_heartbeats = self._list(heartbeat_folder(lane.name), Kind.HEARTBEAT)
        yield from (*foreign_logs, *foreign_indexes, *foreign_heartbeats)
        files = [*logs, *indexes]
        end = self._ends[lane.name] = self._find_end(lane)  # strictly after the files were listed
        named = self._find_named(lane.name, {file.parsed.slot for file in files}, end)
        for file in files:
            yield file.judged(garbage=file.path not in named and not entry_may_come(file.parsed, end))
        newest = newest_heartbeat({heartbeat.path: heartbeat.parsed for heartbeat in heartbeats}, end)
        for heartbeat in heartbeats:
            yield heartbeat.judged(garbage=heartbeat.path != newest)
        yield from self._judge_checkpoints(lane.name)

    def _find_end(self, lane: Lane) -> LaneEnd:
        log = self._uncached_log()
        head = lane.closed if lane.closed is not None else log.head(lane.name, self._merged.get(lane.name, 0))
        last = log.entry(lane.name, head) if head else None
        return LaneEnd(head, last.epoch if last is not None else 0)

    def _find_named(self, lane: LaneName, slots: Iterable[int], end: LaneEnd) -> set[Path]:
        """The files that needed entries in these slots name."""
        spans = self._needed.entries.get(lane, ())
        named: set[Path] = set()
        for after, until in _runs(sorted(seq for seq in slots if seq <= end.head and contains(spans, seq))):
            for entry in self._uncached_log().read_after(lane, after, until):
                if isinstance(entry, Data) and contains(spans, entry.seq):
                    named.update(path for file in entry.files for path in paths_of(file))
        return named

    def _judge_table_sidecars(self) -> Iterator[StoredObject]:
        """Sidecars of the table lane: those that an entry names are never garbage, as entries are not."""
        listed, foreign = self._list(TABLE_INDEXES, Kind.TABLE_INDEX)
        yield from foreign
        slots = sorted({sidecar.parsed.slot for sidecar in listed if self._is_taken(sidecar.parsed)})
        named: set[Path | None] = set()
        for start in range(0, len(slots), READ_AT_ONCE):
            chunk = slots[start : start + READ_AT_ONCE]
            with normalise_errors(slot_path(TABLE_LANE, chunk[0])):
                data = self._uncached_log().archives.read([(TABLE_LANE, seq) for seq in chunk])
            named.update(_sidecar(seq, part) for seq, part in zip(chunk, data, strict=True))
        for sidecar in listed:
            yield sidecar.judged(garbage=self._is_taken(sidecar.parsed) and sidecar.path not in named)

    def _judge_checkpoints(self, lane: LaneName) -> Iterator[StoredObject]:
        listed, foreign = self._list(checkpoint_folder(lane), Kind.CHECKPOINT)
        yield from foreign
        kept = kept_checkpoints([checkpoint.parsed.slot for checkpoint in listed], () if lane else self._served)
        for checkpoint in listed:
            slot = checkpoint.parsed.slot
            recent = not lane and slot >= self._state.oldest_retained
            yield checkpoint.judged(garbage=slot not in kept and not recent)

    def _judge_unfinished(self) -> Iterator[StoredObject]:
        still = Unfinished.of(self._store).also_in(self._before)
        for path, size in still.probes:
            yield StoredObject(path, size, Kind.PROBE, garbage=True)
        for path, final in still.temporary:
            parsed = parse_path(final)
            if parsed is None:
                yield StoredObject(path, 0, FOREIGN, None)
            else:
                yield StoredObject(path, 0, TEMPORARY, garbage=self._cannot_come(parsed))

    def _cannot_come(self, parsed: ParsedPath) -> bool:
        """Whether the object that a temporary file was meant for cannot be written any more.

        True if its name does not show that: then two looks at the temporary file decide.
        """
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

    def _may_publish(self, parsed: ParsedPath) -> bool:
        """Whether the plan that a file was written for may still publish it."""
        return plan_may_publish(parsed, self._state.head, self._open)

    def _is_taken(self, parsed: ParsedPath) -> bool:
        """Whether a slot of the table lane is taken."""
        return parsed.slot <= self._state.head

    def _uncached_log(self) -> CommitLog:
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
    """The sidecar that an entry of the table lane names, None if it has none.

    Raises:
        CorruptData: The entry is damaged or missing, so that it is not known which files it names.
    """
    if data is None:
        raise CorruptData(f"entry {seq} of the table lane is missing", hint="restore it from a copy of the store")
    entry = decode_entry(data, TABLE_LANE, seq)
    return entry.sidecar.path if isinstance(entry, Unresolved) else None
