"""Garbage: objects that no retained snapshot needs, found by listing and judged by their names (PROTOCOL.md, C3).

A clean needs no state of earlier cleans: it also finds what an interrupted clean has left (C4). Only objects with
names that `weft.storage.core.names` builds are judged; others are reported and not deleted. The objects of all lanes
are listed together, so that the number of requests does not grow with the number of lanes. Entries are read without a
cache, because cleaning reads many that no other operation needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.storage.core.log.checkpoint_codec import decode_table
from weft.storage.core.log.cut import highest
from weft.storage.core.log.entries import Data, Header
from weft.storage.core.log.entry_codec import Unresolved, decode_entry
from weft.storage.core.log.features import OVERLAYS as OVERLAY_FEATURE
from weft.storage.core.log.needed_files import (
    LaneEnd,
    Needed,
    contains,
    entry_may_come,
    kept_checkpoints,
    newest_heartbeat,
    plan_may_publish,
)
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import (
    BASES,
    DELTA_LOG,
    FOLD_FILES,
    FOLD_INDEXES,
    HEARTBEATS,
    LANE_CHECKPOINTS,
    LANE_INDEXES,
    LANE_LOGS,
    OVERLAYS,
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
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.pins import ListedPin
from weft.storage.store.object_store import ObjectStore, list_by_folder, normalise_errors

Names: TypeAlias = Sequence[tuple[str, int]]
"""(path relative to a folder, size in bytes) of the objects below it."""

READ_AT_ONCE: Final = 256  # number of entries in memory
MAX_GAP: Final = 16  # number of unneeded entries that are read to save a request
TEMPORARY: Final = "temporary"
"""Kind of temporary files of unfinished writes."""
FOREIGN: Final = "foreign"
"""Kind of objects with names that weft does not use."""

_OF_PLANS: Final = {
    BASES: Kind.BASE,
    SHADOWS: Kind.SHADOW,
    OVERLAYS: Kind.OVERLAY,
    FOLD_FILES: Kind.FOLD,
    FOLD_INDEXES: Kind.FOLD_INDEX,
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a store. ``garbage``: whether it may be deleted; None if weft does not use its name."""

    path: Path
    size: int
    kind: str
    garbage: bool | None


@dataclass(frozen=True, slots=True)
class UnfinishedWrites:
    """Objects of unfinished writes: temporary files, each with its final path, and probe objects.

    One listing is not enough, because a write may be in progress. Objects that exist when a clean begins and still
    exist when it ends belong to a process that is dead, or whose write will fail and may be repeated.
    """

    temporary: frozenset[tuple[Path, Path]]
    probes: frozenset[tuple[Path, int]]

    @classmethod
    def of(cls, store: ObjectStore) -> UnfinishedWrites:
        probes = ((Path(f"{PROBES}/{name}"), size) for name, size in store.list(PROBES))
        return cls(frozenset(store.leftovers()), frozenset(probes))

    def also_in(self, other: UnfinishedWrites) -> UnfinishedWrites:
        return UnfinishedWrites(self.temporary & other.temporary, self.probes & other.probes)


@dataclass(frozen=True, slots=True)
class _ListedObject:
    """An object with a name that weft uses."""

    path: Path
    size: int
    parsed: ParsedPath

    def with_verdict(self, *, garbage: bool) -> StoredObject:
        return StoredObject(self.path, self.size, self.parsed.kind, garbage)


class Garbage:
    """Judges every object of a store except entries and archives. Deletes nothing.

    Attributes:
        listed_count: Number of the objects that were listed so far.
    """

    def __init__(
        self,
        env: Environment,
        log: CommitLog,
        state: TableState,
        needed: Needed,
        *,
        prefixes: Collection[int],
        pins: Sequence[ListedPin],
        unfinished: UnfinishedWrites,
        was_retired: Callable[[LaneName], bool],
    ) -> None:
        """Collect the information by which objects are judged (rule C2).

        Args:
            env: The table's environment. Its clock only decides which pins have expired.
            log: The table's lanes.
            state: The state at the CLEAN_INTENT, or a state that was read before the pins.
            needed: The files and entries that snapshots need.
            prefixes: Prefixes of the table lane that are still read: the oldest retained one, and held snapshots.
            pins: The pins, listed strictly after ``state``.
            unfinished: Unfinished writes at the beginning of the clean.
            was_retired: Whether a lane that ``state`` does not list was retired; otherwise it was added later.
        """
        self._log, self._store, self._clock = log, env.store, env.clock
        self._state, self._needed = state, needed
        self._prefixes, self._pins, self._unfinished, self._was_retired = prefixes, pins, unfinished, was_retired
        self._open = frozenset(plan.slot for plan in state.plans.values())
        self._ends: dict[LaneName, LaneEnd] = {}
        self._foreign: list[StoredObject] = []
        self.listed_count = 0

    def judge_all(self) -> Iterator[StoredObject]:
        """Every object except entries and archives, folder by folder.

        Raises:
            CorruptData: An entry is damaged or missing, so the files that it names are unknown.
            StoreUnavailable: The store does not answer.
        """
        # List files strictly before reading the ends of lanes: the entry of a file that no entry names yet may still be
        # published.
        logs, indexes, heartbeats, checkpoints = (
            list_by_folder(self._store, parent) for parent in (LANE_LOGS, LANE_INDEXES, HEARTBEATS, LANE_CHECKPOINTS)
        )
        files = {name: self._files_of(name, logs.pop(name, ()), indexes.pop(name, ())) for name in self._state.lanes}
        self._ends = self._find_ends()
        slots = {name: {file.parsed.slot for file in lane_files} for name, lane_files in files.items()}
        named_paths = self._find_named(slots)
        for name, lane_files in files.items():
            for log_file in lane_files:
                may_come = entry_may_come(log_file.parsed, self._ends[name])
                yield log_file.with_verdict(garbage=log_file.path not in named_paths and not may_come)
            yield from self._judge_heartbeats(name, heartbeats.pop(name, ()))
            yield from self._judge_checkpoints(name, checkpoints.pop(name, ()))
        yield from self._judge_retired(logs, indexes, heartbeats, checkpoints)
        for folder, kind in _OF_PLANS.items():
            if kind is Kind.OVERLAY and OVERLAY_FEATURE not in self._state.writer_features:
                continue  # the table has never had any
            for file in self._parse(folder, kind, self._store.list(folder)):
                garbage = file.path not in self._needed.files and not self._may_publish(file.parsed)
                yield file.with_verdict(garbage=garbage)
        yield from self._judge_table_sidecars()
        yield from self._judge_checkpoints(TABLE_LANE, self._store.list(checkpoint_folder(TABLE_LANE)))
        now_ms = self._clock.now_ms()
        for pin in self._pins:
            if pin.pin is None:
                yield StoredObject(pin.path, pin.size, FOREIGN, None)
            else:
                yield StoredObject(pin.path, pin.size, Kind.PIN, pin.pin.expires_at_ms <= now_ms)
        yield from self._judge_unfinished()
        yield from self._foreign

    def _judge_retired(
        self,
        logs: Mapping[str, Names],
        indexes: Mapping[str, Names],
        heartbeats: Mapping[str, Names],
        checkpoints: Mapping[str, Names],
    ) -> Iterator[StoredObject]:
        """Objects of retired lanes, which nothing needs. Lanes that were added meanwhile are left out."""
        lanes = sorted(map(LaneName, {*logs, *indexes, *heartbeats, *checkpoints}))
        for lane in filter(self._was_retired, lanes):
            objects = self._files_of(lane, logs.get(lane, ()), indexes.get(lane, ()))
            for folder, kind, names in (
                (heartbeat_folder(lane), Kind.HEARTBEAT, heartbeats.get(lane, ())),
                (checkpoint_folder(lane), Kind.CHECKPOINT, checkpoints.get(lane, ())),
            ):
                objects += self._parse(folder, kind, names)
            yield from (stored_object.with_verdict(garbage=True) for stored_object in objects)

    def _files_of(self, lane: LaneName, logs: Names, indexes: Names) -> list[_ListedObject]:
        """The log files of a lane and their indexes."""
        objects = self._parse(log_folder(lane), Kind.LOG, logs)
        return objects + self._parse(log_index_folder(lane), Kind.LOG_INDEX, indexes)

    def _find_ends(self) -> dict[LaneName, LaneEnd]:
        log = self._uncached_log()
        known_heads = highest(self._state.log_start(), self._state.seen)
        closed_at = {name: lane.closed for name, lane in self._state.lanes.items() if lane.closed is not None}
        closed_tails = log.read_tails({name: (end - 1, end) for name, end in closed_at.items() if end})
        newest_entries: dict[LaneName, Header | None] = {name: entry for name, (entry,) in closed_tails.items()}
        open_lanes = [name for name in self._state.lanes if name not in closed_at]
        newest_entries |= log.last_entries({name: known_heads.get(name, 0) for name in open_lanes})
        ends = {}
        for name in self._state.lanes:
            entry = newest_entries.get(name)
            if entry is None and known_heads.get(name, 0):
                raise CorruptData(
                    f"entry {known_heads[name]} of lane {name!r} is missing",
                    hint="restore it from a copy of the store; weft verify finds more",
                )
            ends[name] = LaneEnd(entry.seq, entry.epoch) if entry is not None else LaneEnd(0, 0)
        return ends

    def _find_named(self, slots: Mapping[LaneName, Collection[int]]) -> set[Path]:
        """Files that the needed entries in these slots name."""
        runs = []
        for lane, lane_slots in slots.items():
            spans, head = self._needed.entries.get(lane, ()), self._ends[lane].head
            needed = sorted(seq for seq in lane_slots if seq <= head and contains(spans, seq))
            runs.append([(lane, run) for run in _runs(needed)])
        named_paths: set[Path] = set()
        for nth_runs in itertools.zip_longest(*runs):  # a read takes one run of each lane
            for batch in _batches([lane_run for lane_run in nth_runs if lane_run is not None]):
                for lane, lane_entries in self._uncached_log().read_tails(batch).items():
                    for entry in lane_entries:
                        if isinstance(entry, Data) and contains(self._needed.entries[lane], entry.seq):
                            named_paths.update(stored_file.path for file in entry.files for stored_file in file.objects)
        return named_paths

    def _judge_heartbeats(self, lane: LaneName, names: Names) -> Iterator[StoredObject]:
        objects = self._parse(heartbeat_folder(lane), Kind.HEARTBEAT, names)
        newest = newest_heartbeat({heartbeat.path: heartbeat.parsed for heartbeat in objects}, self._ends[lane])
        for heartbeat in objects:
            yield heartbeat.with_verdict(garbage=heartbeat.path != newest)

    def _judge_table_sidecars(self) -> Iterator[StoredObject]:
        """Sidecars of the table lane. A sidecar that an entry names is never garbage, because entries never are."""
        objects = self._parse(TABLE_INDEXES, Kind.TABLE_INDEX, self._store.list(TABLE_INDEXES))
        slots = sorted({sidecar.parsed.slot for sidecar in objects if self._is_taken(sidecar.parsed)})
        named_paths: set[Path | None] = set()
        for start in range(0, len(slots), READ_AT_ONCE):
            chunk = slots[start : start + READ_AT_ONCE]
            with normalise_errors(slot_path(TABLE_LANE, chunk[0])):
                data = self._uncached_log().archives.read([(TABLE_LANE, seq) for seq in chunk])
            named_paths.update(_sidecar(seq, part) for seq, part in zip(chunk, data, strict=True))
        for sidecar in objects:
            yield sidecar.with_verdict(garbage=self._is_taken(sidecar.parsed) and sidecar.path not in named_paths)

    def _judge_checkpoints(self, lane: LaneName, names: Names) -> Iterator[StoredObject]:
        objects = self._parse(checkpoint_folder(lane), Kind.CHECKPOINT, names)
        slots = [checkpoint.parsed.slot for checkpoint in objects]
        kept_slots = kept_checkpoints(slots, () if lane else self._prefixes)
        for checkpoint in objects:
            slot = checkpoint.parsed.slot
            is_recent = not lane and slot >= self._state.oldest_retained
            is_unneeded = slot not in kept_slots and not is_recent
            yield checkpoint.with_verdict(garbage=is_unneeded or (not lane and self._has_rewritten_folds(checkpoint)))

    def _has_rewritten_folds(self, checkpoint: _ListedObject) -> bool:
        """Whether a checkpoint of the table lane has folds, and so key ranges, from before a BASE that rewrites rows.

        A checkpoint that cannot be decoded, for example of another version, counts as one that has.
        """
        if not checkpoint.parsed.slot < self._state.rewritten <= self._state.oldest_retained:
            return False
        with normalise_errors(checkpoint.path):
            data = self._store.get(checkpoint.path)
        if data is None:
            return False
        state = decode_table(data)
        return state is None or bool(state.folds)

    def _judge_unfinished(self) -> Iterator[StoredObject]:
        leftovers = UnfinishedWrites.of(self._store).also_in(self._unfinished)
        for path, size in leftovers.probes:
            yield StoredObject(path, size, Kind.PROBE, garbage=True)
        for path, final in leftovers.temporary:
            parsed = parse_path(final)
            if parsed is None:
                yield StoredObject(path, 0, FOREIGN, None)
            else:
                yield StoredObject(path, 0, TEMPORARY, garbage=self._cannot_come(parsed))

    def _cannot_come(self, parsed: ParsedPath) -> bool:
        """Whether the object that a temporary file would become cannot be written any more.

        Also true if the name does not tell: the file has been listed twice, so its writer is dead.
        """
        end = self._ends.get(parsed.lane, LaneEnd(0, 0))
        match parsed.kind:
            case Kind.LOG | Kind.LOG_INDEX:
                return not entry_may_come(parsed, end)
            case Kind.BASE | Kind.SHADOW | Kind.OVERLAY | Kind.FOLD | Kind.FOLD_INDEX:
                return not self._may_publish(parsed)
            case Kind.ENTRY if parsed.lane:
                return parsed.slot <= end.head
            case Kind.ENTRY | Kind.TABLE_INDEX:
                return self._is_taken(parsed)
        return True

    def _may_publish(self, parsed: ParsedPath) -> bool:
        """Whether the plan of a file may still publish it."""
        return plan_may_publish(parsed, self._state.head, self._open)

    def _is_taken(self, parsed: ParsedPath) -> bool:
        """Whether a slot of the table lane is taken."""
        return parsed.slot <= self._state.head

    def _uncached_log(self) -> CommitLog:
        return self._log.uncached()

    def _parse(self, folder: Path, kind: Kind, names: Names) -> list[_ListedObject]:
        """Objects of a folder whose names are of a kind. Others are foreign, except the log of a Delta table."""
        objects = []
        for name, size in names:
            path = Path(f"{folder}/{name}")
            parsed = parse_path(path)
            if parsed is not None and parsed.kind is kind:
                objects.append(_ListedObject(path, size, parsed))
            elif not path.startswith(f"{DELTA_LOG}/"):
                self._foreign.append(StoredObject(path, size, FOREIGN, None))
        self.listed_count += len(names)
        return objects


def _runs(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Group ascending slots into spans (after, up to), each read at once. A span may contain a few other slots."""
    first = last = 0
    for seq in slots:
        if first and (seq - last > MAX_GAP or seq - first >= READ_AT_ONCE):
            yield first - 1, last
            first = 0
        first, last = first or seq, seq
    if first:
        yield first - 1, last


def _batches(runs: Sequence[tuple[LaneName, tuple[int, int]]]) -> Iterator[dict[LaneName, tuple[int, int]]]:
    """Group runs of distinct lanes into batches of about `READ_AT_ONCE` entries, each read at once."""
    batch: dict[LaneName, tuple[int, int]] = {}
    entries = 0
    for lane, (after, until) in runs:
        batch[lane] = (after, until)
        entries += until - after
        if entries >= READ_AT_ONCE:
            yield batch
            batch, entries = {}, 0
    if batch:
        yield batch


def _sidecar(seq: int, data: bytes | None) -> Path | None:
    """Path of the sidecar of an entry of the table lane; None if it has none.

    Raises:
        CorruptData: The entry is damaged or missing, so the files that it names are unknown.
    """
    if data is None:
        raise CorruptData(f"entry {seq} of the table lane is missing", hint="restore it from a copy of the store")
    entry = decode_entry(data, TABLE_LANE, seq)
    return entry.sidecar.path if isinstance(entry, Unresolved) else None
