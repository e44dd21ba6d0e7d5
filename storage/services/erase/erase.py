"""Erase: removes keys physically while writers and compactions run (PROTOCOL.md, "Erase", X1 to X5).

    refuse, or  ─▶ PLAN ─▶ find the files ─▶ BASE(rewrites) ─▶ CLEAN_INTENT ─▶ delete ─▶ redact the log ─▶ read all
    SCHEMA         (keeps   with the keys     slices without    (expires what            (`redact_log`)    objects back
    (feature)      files)   (`key_search`)    the keys          had them)                                  (`proof`)

Every step looks at what is stored, not at what an earlier step did. So an erase that died is completed by running it
again, and two erases at the same time both end.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.features import ERASE, REWRITTEN
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import LiveSavepoint, TableState
from weft.storage.core.names import ParsedPath, Path
from weft.storage.core.plan.slices import FileSlice
from weft.storage.errors import Conflict, MissingFile, NotFound, StillRetained
from weft.storage.log import snapshot_cut
from weft.storage.log.pins import Pin, unexpired, unpin
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog
from weft.storage.plural import counted
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.plan.pruning import KeyRows
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.clean.clean import CleanResult, CurrentNeeds, Tally, find_needed, run_clean
from weft.storage.services.compaction.compaction import CompactionResult, Rewriting, rewrite
from weft.storage.services.erase.key_search import KeySearch
from weft.storage.services.erase.proof import Boundary, Remains, is_needed, prove
from weft.storage.services.erase.redact_log import redact_log
from weft.storage.services.history.savepoints import find_dependent, release_savepoint
from weft.storage.services.service_reports import remove_service_reports
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.steps.row_change import WithoutKeys
from weft.storage.services.steps.service_plan import abort_plan, open_plan, retry_on_newest
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown

MAX_ROUNDS: Final = 10  # each round is lost only to a clean
_KEEP_ALL: Final = dt.timedelta(days=200 * 365)


@dataclass(frozen=True, slots=True)
class EraseResult(Shown):
    """What an erase did, and what it found when it read the table back.

    Attributes:
        keys: Number of distinct keys.
        cut: All events of the keys in commits up to this cut were erased.
        entry: Slot of the newest BASE without the keys; 0 if no file that readers use had one of the keys.
        file_groups: Number of file groups that were rewritten, in all attempts.
        released: Savepoints that were released, because they had the keys.
        broken: What needed these savepoints and cannot be read any more: savepoints of other tables, published tables.
        unpinned: Owners of pins that were removed, because their snapshots had the keys or had expired.
        aborted: Ids of compactions and folds that were aborted, because their snapshots had the keys.
        deleted: Files that were deleted, by kind.
        redacted: Number of log entries whose key ranges were removed.
        checkpoints: Number of checkpoints that were deleted because of their key ranges.
        read: Objects that were read back, by kind.
        remains: Objects that still have a key, or could not be read. If there are any, run the erase again.
        newer: Objects with one of the keys that were committed after the cut, or are not committed yet.
        unread: Objects in the table's folder that do not belong to the table.
        seconds: Wall-clock time.
    """

    keys: int
    cut: str
    entry: int
    file_groups: int
    released: tuple[str, ...]
    broken: tuple[str, ...]
    unpinned: tuple[str, ...]
    aborted: tuple[str, ...]
    deleted: Mapping[str, Tally]
    redacted: int
    checkpoints: int
    read: Mapping[str, Tally]
    remains: tuple[Remains, ...]
    newer: tuple[Path, ...]
    unread: tuple[Path, ...]
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether no object of the table has one of the keys, except new data."""
        return not self.remains


def erase(
    table_log: TableLog,
    keys: KeyRows,
    *,
    expire_snapshots: bool = False,
    release_savepoints: bool = False,
    note: str = "",
    execute: Execute = one_by_one,
    progress: OnStage = unobserved,
) -> EraseResult:
    """Remove keys physically, see `weft.Table.erase`."""
    start_time = time.monotonic()
    search = KeySearch.of(table_log.env, table_log.refresh().schema, keys, progress)
    holders = _find_key_holders(table_log, search)
    holders.refuse(expire_snapshots=expire_snapshots, release_savepoints=release_savepoints)
    add_feature(table_log, ERASE, REWRITTEN)
    description = f"erase of {counted(len(search), 'key')}" + (f": {note}" if note else "")
    outcome = _rewrite(table_log, search, description, execute, progress)
    released = tuple(name for name in holders.savepoints if _release(table_log, name))
    for pin in (*holders.pins, *holders.late_pins):
        unpin(table_log.store, pin)
    aborted = tuple(_abort_plans(table_log, search))
    clean_result = _clean(table_log, progress, expire=expire_snapshots)
    remove_service_reports(table_log.store)
    redaction = redact_log(table_log, search, find_needed(table_log))
    needs = find_needed(table_log)
    boundary = Boundary(outcome.cut.lanes, max(outcome.entry, outcome.cut.table), table_log.was_retired)
    explain = functools.partial(_explain_remains, needs)
    proof = prove(table_log.store, search.without_results(), boundary, explain, progress)
    return EraseResult(
        keys=len(search),
        cut=str(outcome.cut),
        entry=outcome.entry,
        file_groups=len(outcome.groups),
        released=released,
        broken=tuple(dependent for name in released if (dependent := find_dependent(holders.savepoints[name]))),
        unpinned=tuple(pin.owner for pin in (*holders.pins, *holders.late_pins)),
        aborted=aborted,
        deleted=clean_result.deleted,
        redacted=redaction.entries,
        checkpoints=redaction.checkpoints,
        read=proof.read,
        remains=proof.remains,
        newer=proof.newer,
        unread=proof.unread,
        seconds=time.monotonic() - start_time,
    )


@dataclass(frozen=True, slots=True)
class _KeyHolders:
    """What keeps files with the keys, besides the newest snapshot.

    Attributes:
        savepoints: Savepoints by name.
        pins: Pins that have not expired.
        late_pins: Pins that were written after their snapshots had expired. They only keep log entries.
        retained_from: The oldest retained prefix of the table lane if retained snapshots have the keys, else 0.
    """

    savepoints: Mapping[str, LiveSavepoint]
    pins: tuple[Pin, ...]
    late_pins: tuple[Pin, ...]
    retained_from: int

    def refuse(self, *, expire_snapshots: bool, release_savepoints: bool) -> None:
        """Refuse the erase if something would break that the caller did not allow to break (rule X1).

        Raises:
            StillRetained: Savepoints, pins or retained snapshots need files with the keys.
        """
        parts, hints = [], []
        savepoints = {} if release_savepoints else self.savepoints
        pins = () if expire_snapshots else self.pins
        retained_from = 0 if expire_snapshots else self.retained_from
        if savepoints:
            descriptions = [
                f"{name} ({dependent} needs it)" if (dependent := find_dependent(savepoint)) else name
                for name, savepoint in savepoints.items()
            ]
            parts.append(f"savepoints {', '.join(descriptions)}")
            hints.append("release the savepoints, or allow it: release_savepoints (--release-savepoints)")
        if pins:
            parts.append(f"pins of {', '.join(pin.owner for pin in pins)}")
        if retained_from:
            parts.append(
                f"snapshots from entry {retained_from} of the table lane on, which are retained for time travel"
            )
        if pins or retained_from:
            hints.append("expire them: expire_snapshots (--expire-snapshots)")
        if parts:
            raise StillRetained(
                f"files with the keys are needed by {'; by '.join(parts)}",
                hint="; ".join(hints),
                savepoints=tuple(savepoints),
                pins=tuple(pin.owner for pin in pins),
                snapshots=bool(retained_from),
            )


def _find_key_holders(table_log: TableLog, search: KeySearch) -> _KeyHolders:
    """Find what needs files with the keys. Starts again if a clean deletes such a file meanwhile."""
    for _ in range(MAX_ROUNDS):
        state, cut, _ = snapshot_cut.newest_cut(table_log)
        try:
            return _key_holders_at(table_log, search, state, cut)
        except MissingFile:
            if table_log.refresh().oldest_retained == state.oldest_retained:
                raise  # no clean has deleted it
    raise Conflict(
        f"cleaning expired snapshots while they were read, in each of {MAX_ROUNDS} attempts", hint="run it again"
    )


def _key_holders_at(table_log: TableLog, search: KeySearch, state: TableState, cut: Cut) -> _KeyHolders:
    # A retained snapshot has a key only if the oldest one, read with all later commits, has it.
    oldest = replace(table_log.at(state.oldest_retained), lanes=state.lanes)
    is_retained = search.in_snapshot(table_log, oldest, cut.lanes) or search.in_snapshot(table_log, state, cut.lanes)
    savepoints = {name: item for name, item in state.savepoints.items() if _has_keys(table_log, search, item.at)}
    pins = [(pin, _has_keys(table_log, search, pin.at)) for pin in unexpired(table_log.store, table_log.clock)]
    return _KeyHolders(
        savepoints,
        pins=tuple(pin for pin, has_keys in pins if has_keys),
        late_pins=tuple(pin for pin, has_keys in pins if has_keys is None),
        retained_from=state.oldest_retained if is_retained else 0,
    )


def _has_keys(table_log: TableLog, search: KeySearch, cut: Cut) -> bool | None:
    """Whether a snapshot needs files with the keys; None if its files were deleted, so that nobody can read it."""
    try:
        return search.in_snapshot(table_log, table_log.at(cut.table), cut.lanes)
    except MissingFile:
        if table_log.refresh().keeps(cut):
            raise
        return None  # of a late pin, or of a plan that has ended


@dataclass(frozen=True, slots=True)
class _RewriteOutcome:
    """The published slices without the keys (X3).

    Attributes:
        cut: Cut of the snapshot of the last attempt. No event of the keys up to this cut remains.
        entry: Slot of the newest BASE; 0 if none was published.
        groups: File groups that were rewritten in any attempt.
    """

    cut: Cut
    entry: int
    groups: frozenset[FileGroup]


def _rewrite(
    table_log: TableLog, search: KeySearch, description: str, execute: Execute, progress: OnStage
) -> _RewriteOutcome:
    """Publish slices without the keys, in several attempts if another service publishes first (X3)."""
    newest_entry, groups = 0, set[FileGroup]()

    def attempt(snapshot: Snapshot, reserve_ms: int) -> bool | None:
        nonlocal newest_entry
        attempt_outcome = _rewrite_once(table_log, snapshot, search, description, execute, reserve_ms, progress)
        if attempt_outcome is None:
            return True
        result, entry = attempt_outcome
        newest_entry = entry or newest_entry
        groups.update(result.done)
        return True if entry and not result.skipped else None

    snapshot, _ = retry_on_newest(table_log, attempt)
    return _RewriteOutcome(snapshot.cut, newest_entry, frozenset(groups))


def _rewrite_once(
    table_log: TableLog,
    snapshot: Snapshot,
    search: KeySearch,
    description: str,
    execute: Execute,
    reserve_ms: int,
    progress: OnStage,
) -> tuple[CompactionResult, int] | None:
    """Rewrite once; returns the result and the slot of the BASE (0 if none), or None if no file has the keys."""
    with open_plan(table_log, snapshot.cut, len(snapshot.slices), reserve_ms) as plan:
        with explain_missing_file(table_log.env, snapshot.cut):
            file_slices = _choose(table_log, snapshot, search)
        if not file_slices:
            abort_plan(table_log, plan.plan_id, "no file of the snapshot has the keys")
            return None
        rewriting = Rewriting(description, WithoutKeys(search.vector))
        outcome = rewrite(table_log, snapshot, plan, file_slices, rewriting, execute=execute, progress=progress)
    return outcome.result, outcome.entry


def _choose(table_log: TableLog, snapshot: Snapshot, search: KeySearch) -> list[FileSlice]:
    """Choose the file groups to rewrite.

    A file with a key can be deleted only if nothing refers to it. So all file groups in a base or shadow file with a
    key are rewritten. If a log file has a key, all file groups with log files are rewritten, because log files are
    deleted up to `TableState.covered`, one cut for all file groups.
    """
    paths = frozenset(search.in_slices(snapshot.state))
    in_logs = bool(search.in_logs(table_log, snapshot.state, snapshot.cut.lanes))
    file_slices = [part for part in snapshot.slices if (in_logs and len(part.rows)) or _is_in(part, paths)]
    if in_logs and not file_slices:
        file_slices = list(snapshot.slices[:1])  # all rows are in slices already; only `covered` has to advance
    return file_slices


def _is_in(file_slice: FileSlice, paths: frozenset[Path]) -> bool:
    slice_file = file_slice.slice
    return slice_file is not None and any(file.path in paths for file in slice_file.objects)


def _release(table_log: TableLog, name: str) -> bool:
    try:
        release_savepoint(table_log, name)
    except NotFound:
        return False  # released meanwhile
    return True


def _abort_plans(table_log: TableLog, search: KeySearch) -> Iterator[str]:
    """Abort compactions and folds whose snapshots have the keys: they began before the keys were erased."""
    for plan_id, plan in table_log.refresh().plans.items():
        if _has_keys(table_log, search, plan.at) and abort_plan(table_log, plan_id, "it reads erased keys"):
            yield plan_id


def _clean(table_log: TableLog, progress: OnStage, *, expire: bool) -> CleanResult:
    retain = dt.timedelta(0) if expire else _KEEP_ALL
    return run_clean(table_log, retain, None, None, dry_run=False, progress=progress)


def _explain_remains(needs: CurrentNeeds, path: Path, parsed: ParsedPath) -> str:
    """Explain why an object with an erased key still exists."""
    if not is_needed(needs.needed, path, parsed):
        return "a process that was ended still wrote it, or has not released it: run the erase again"
    names = ", ".join(f"{holder.what} {holder.name}" for holder in needs.holders)
    return f"a snapshot needs it that was taken or kept meanwhile{': ' + names if names else ''}: run the erase again"
