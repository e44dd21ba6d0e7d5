"""Clean: expires old snapshots and deletes files that no retained snapshot needs (PROTOCOL.md, "Clean").

    ABORT of abandoned ─▶ CLEAN_INTENT      ─▶ read pins ─▶ list and judge ─▶ delete ─▶ archive ─▶ CLEAN_DONE
    plans                 (oldest_retained)    (strictly    (by the state of                (`archive_log`)
    (policy, by age)      (ordered with         after it)    the CLEAN_INTENT)
                           SAVEPOINT, PLAN,
                           INTENT)

How long snapshots are retained is policy, and may use clocks; whether a file is garbage never depends on a clock. No
process waits for a clean. Two cleans at the same time divide the work, and the next clean deletes what an interrupted
clean has left.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import CleanDone, CleanIntent
from weft.storage.core.log.needed_files import Needed
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, Path
from weft.storage.log.holders import Holder, find_holders
from weft.storage.log.pins import ListedPin, list_pins
from weft.storage.log.table_log import TableLog
from weft.storage.services.clean.archive_log import archive_log
from weft.storage.services.clean.garbage import Garbage, StoredObject, UnfinishedWrites
from weft.storage.services.clean.retention_policy import (
    WINDOW,
    abort_abandoned,
    check_arguments,
    choose_oldest_retained,
    close_silent_queries,
    fence_dead_batches,
    read_window,
)
from weft.storage.services.clean.retire_lanes import retire_lanes
from weft.storage.services.steps.progress import OnStage, counted, unobserved
from weft.storage.shown import Shown

DELETE_AT_ONCE: Final = 1_000  # number of objects: the maximum of one S3 request
MAX_FOREIGN: Final = 100  # maximum number of names in a result; the others are only counted


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of files and their bytes. Temporary files count as 0 bytes, because their size is unknown."""

    files: int = 0
    bytes: int = 0

    def plus(self, size: int) -> Tally:
        return Tally(self.files + 1, self.bytes + size)


@dataclass(frozen=True, slots=True)
class CleanResult(Shown):
    """What a clean did, or would do.

    Attributes:
        dry_run: Nothing was published or deleted.
        oldest_retained: Snapshots of shorter prefixes of the table lane have expired.
        oldest_retained_before: ``oldest_retained`` before this clean.
        reason: Why no more snapshots expire.
        deleted: What was deleted, by kind of file.
        kept: What remains, by kind of file.
        archived: Number of log entries that were moved from their slots to archives.
        archives: Number of archives that were created from them.
        retired: Closed lanes that the table does not list any more.
        held: What keeps the files of expired snapshots.
        aborted: Ids of the plans that were aborted.
        foreign: First `MAX_FOREIGN` objects in the table's folders whose names weft does not use.
        foreign_files: Number of all such objects.
        listed: In a dry run, what would be deleted; otherwise empty.
        seconds: Wall-clock time.
    """

    dry_run: bool
    oldest_retained: int
    oldest_retained_before: int
    reason: str
    deleted: Mapping[str, Tally]
    kept: Mapping[str, Tally]
    archived: int
    archives: int
    retired: tuple[LaneName, ...]
    held: tuple[Holder, ...]
    aborted: tuple[str, ...]
    foreign: tuple[Path, ...]
    foreign_files: int
    listed: tuple[Path, ...]
    seconds: float

    @property
    def files(self) -> int:
        """Number of files that were deleted."""
        return sum(tally.files for tally in self.deleted.values())

    @property
    def bytes(self) -> int:
        """Stored bytes of the files that were deleted."""
        return sum(tally.bytes for tally in self.deleted.values())


def run_clean(
    table_log: TableLog,
    retain: dt.timedelta,
    versions: int | None,
    abandon_after: dt.timedelta | None,
    *,
    close_after: dt.timedelta | None = None,
    dry_run: bool,
    progress: OnStage = unobserved,
) -> CleanResult:
    """Clean a table.

    Args:
        table_log: The table's log.
        retain: Snapshots that were the newest one at any time in the last ``retain`` stay readable; 0: only the newest.
        versions: Snapshots of this many last compactions stay readable, too; None: only the snapshots of ``retain``.
        abandon_after: Compactions and folds that began longer ago count as dead and are aborted; None: abort nothing.
        close_after: Lanes of query ids without a commit or heartbeat for this long are closed; None: close no lane.
        dry_run: Only find out what would be done.
        progress: Called during the work, with the objects that were judged, and deleted if they are garbage.

    Raises:
        InvalidInput: An argument is out of range; nothing was done.
        CorruptData: An entry or archive is damaged or missing, so the files that it names are unknown.
        StoreUnavailable: The store did not list or delete objects; the next clean continues.
    """
    check_arguments(retain, versions, abandon_after, close_after)
    start_time = time.monotonic()
    unfinished = UnfinishedWrites.of(table_log.store)
    state, aborted_ids = abort_abandoned(table_log, abandon_after, dry_run=dry_run)
    if not dry_run:
        fence_dead_batches(table_log, state, abandon_after)
        close_silent_queries(table_log, state, close_after)
    oldest_retained_before = state.oldest_retained
    oldest_retained, reason = choose_oldest_retained(table_log, state, retain, versions)
    if dry_run:
        intent, state = 0, replace(state, oldest_retained=oldest_retained)
    else:
        intent, state = _publish_intent(table_log, state, oldest_retained)
    pins = list(list_pins(table_log.store))  # strictly after the CLEAN_INTENT (rule C2)
    holders = _find_expired_holders(table_log, state, pins)
    needed = _find_needed(table_log, state, [cut for _, cut in holders])
    garbage = Garbage(
        table_log.env,
        table_log.commit_log,
        state,
        needed,
        prefixes=[state.oldest_retained, *(cut.table for _, cut in holders)],
        pins=pins,
        unfinished=unfinished,
        was_retired=table_log.was_retired,
    )
    sweep = _Sweep(table_log, dry_run=dry_run)
    sweep.run(counted(garbage.judge_all(), progress, "cleaning", lambda: garbage.listed_count))
    archive_result = archive_log(table_log, state, needed, [cut for _, cut in holders], dry_run=dry_run)
    retired_lanes = retire_lanes(table_log, state, needed, dry_run=dry_run)
    result = CleanResult(
        dry_run=dry_run,
        oldest_retained=state.oldest_retained,
        oldest_retained_before=oldest_retained_before,
        reason=reason,
        deleted=sweep.deleted,
        kept=sweep.kept,
        archived=archive_result.entries,
        archives=archive_result.archives,
        retired=tuple(retired_lanes),
        held=tuple(holder for holder, _ in holders),
        aborted=aborted_ids,
        foreign=tuple(sweep.foreign),
        foreign_files=sweep.foreign_files,
        listed=tuple(sweep.listed),
        seconds=time.monotonic() - start_time,
    )
    if result.files and not dry_run:
        table_log.publish(
            lambda newest: CleanDone(**table_log.header(newest), intent=intent, files=result.files, bytes=result.bytes)
        )
    return result


@dataclass(frozen=True, slots=True)
class CurrentNeeds:
    """What retained and held snapshots need now (rule C2).

    Attributes:
        needed: The files and entries. Later entries may need more.
        table: Last entry of the table lane that was read.
        holders: Savepoints, plans and pins that keep expired snapshots.
    """

    needed: Needed
    table: int
    holders: tuple[Holder, ...]


def find_needed(table_log: TableLog) -> CurrentNeeds:
    """Find what retained and held snapshots need now."""
    state = table_log.refresh()
    holders = _find_expired_holders(table_log, state, list(list_pins(table_log.store)))
    needed = _find_needed(table_log, state, [cut for _, cut in holders])
    return CurrentNeeds(needed, state.head, tuple(holder for holder, _ in holders))


def _publish_intent(table_log: TableLog, state: TableState, oldest_retained: int) -> tuple[int, TableState]:
    """Publish the CLEAN_INTENT (rule C1); returns its slot, 0 if no more snapshots expire, and the state at it."""
    newest_state = state

    def build(newest: TableState) -> CleanIntent | None:
        nonlocal newest_state
        newest_state = newest
        if oldest_retained <= newest.oldest_retained:
            return None
        return CleanIntent(**table_log.header(newest), oldest_retained=oldest_retained)

    entry = table_log.publish(build)
    if entry is None:
        return 0, newest_state
    return entry.seq, table_log.at(entry.seq)


def _find_expired_holders(
    table_log: TableLog, state: TableState, pins: Sequence[ListedPin]
) -> list[tuple[Holder, Cut]]:
    """Holders that keep files of expired snapshots, with their cuts; sorted by entry of the table lane."""
    now_ms = table_log.clock.now_ms()
    valid = [item.pin for item in pins if item.pin is not None and item.pin.expires_at_ms > now_ms]
    expired_holders = [(holder, cut) for holder, cut in find_holders(state, valid) if cut.table < state.oldest_retained]
    return sorted(expired_holders, key=lambda item: item[1].table)


def _find_needed(table_log: TableLog, head_state: TableState, held_cuts: Iterable[Cut]) -> Needed:
    """Files and entries that retained snapshots, held snapshots and an open restore need (rule C2)."""
    needed = Needed()
    state = table_log.at(head_state.oldest_retained)
    needed.add_state(state)
    for after in range(head_state.oldest_retained, head_state.head, WINDOW):
        for entry in read_window(table_log, after, min(after + WINDOW, head_state.head)):
            following = apply_entries(state, [entry])
            assert following is not None, "a further entry does not end a table"
            state = following
            needed.add_entry(entry, state)
    needed.add_target(head_state)
    for cut in held_cuts:
        if state.head != cut.table:
            state = table_log.at(cut.table)
        needed.add_snapshot(state, cut.lanes)
    return needed


class _Sweep:
    """Counts stored objects, and deletes those that are garbage."""

    def __init__(self, table_log: TableLog, *, dry_run: bool) -> None:
        self._store, self._dry_run = table_log.store, dry_run
        self.deleted: dict[str, Tally] = {}
        self.kept: dict[str, Tally] = {}
        self.foreign: list[Path] = []
        self.foreign_files = 0
        self.listed: list[Path] = []

    def run(self, objects: Iterable[StoredObject]) -> None:
        garbage: list[Path] = []
        for stored_object in objects:
            if stored_object.garbage is None:
                self.foreign_files += 1
                if len(self.foreign) < MAX_FOREIGN:
                    self.foreign.append(stored_object.path)
                continue
            tallies = self.deleted if stored_object.garbage else self.kept
            tallies[stored_object.kind] = tallies.get(stored_object.kind, Tally()).plus(stored_object.size)
            if stored_object.garbage:
                garbage.append(stored_object.path)
            if len(garbage) == DELETE_AT_ONCE:
                self._delete(garbage)
                garbage = []
        self._delete(garbage)

    def _delete(self, paths: Sequence[Path]) -> None:
        if self._dry_run:
            self.listed.extend(paths)
        elif paths:
            self._store.delete_many(paths)
