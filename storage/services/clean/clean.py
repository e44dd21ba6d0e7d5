"""Clean: give old snapshots up, and delete what nobody needs any more (PROTOCOL.md, C1 to C4; S16, S17, L3).

    ABORT of abandoned plans ─▶ CLEAN_INTENT(oldest_retained) ─▶ read pins ─▶ list and judge ─▶ delete ─▶ CLEAN_DONE
    (policy, by age)            (serialises with       (strictly     (by the state of the CLEAN_INTENT)
                                 SAVEPOINT, PLAN,       after it)
                                 INTENT)                                                 then: archive (`archive.py`)

How long snapshots are kept is policy, and may use clocks; whether a file is dead never does. Nobody waits for a
cleaner, two at once only find less to do, and one that dies leaves what the next one finds.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage.clock import MAX_AHEAD_MS
from storage.core.log.cut import Cut
from storage.core.log.entries import Base, CleanDone, CleanIntent, TableEntry
from storage.core.log.retention import Needed, changes_files
from storage.core.log.table_state import TableState, fold_table
from storage.core.names import Path
from storage.errors import InvalidInput, SnapshotExpired
from storage.log.commit_log import CommitLog, read_table_lane
from storage.log.pins import ListedPin, list_pins
from storage.log.table_log import TableLog
from storage.read.time_travel import cut_at
from storage.services.archive_log import archive_log
from storage.services.clean.garbage import Found, Garbage, Unfinished
from storage.services.service_plan import abort_plan

DEFAULT_RETENTION: Final = dt.timedelta(hours=24)  # whoever noticed a mistake the day after can go back
DEFAULT_ABANDON: Final = dt.timedelta(hours=24)  # no compaction takes so long; one that does starts again
DELETE_AT_ONCE: Final = 1_000  # objects: as many as one request of an S3 store may name
WINDOW: Final = 16  # entries of the table lane in memory: each may hold the slices of all file groups
MAX_FOREIGN: Final = 100  # names that are told; more are counted
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of files, and their bytes (0 for temporary files: nobody knows)."""

    files: int = 0
    bytes: int = 0

    def plus(self, size: int) -> Tally:
        return Tally(self.files + 1, self.bytes + size)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps a snapshot that would be given up otherwise.

    Attributes:
        what: ``savepoint``, ``compaction`` (or a fold) or ``pin``.
        name: Of the savepoint, id of the plan, owner of the pin.
        cut: Text of the snapshot.
    """

    what: str
    name: str
    cut: str


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What a clean did, or would do.

    Attributes:
        dry_run: Nothing was published or deleted.
        oldest_retained: Snapshots of shorter prefixes of the table lane are given up.
        oldest_retained_before: That was so before.
        reason: Why it is ``oldest_retained`` and not more.
        deleted: Per kind of file.
        kept: Per kind of file.
        archived: Entries of the log that now stand in archives, and no longer in objects of their own.
        archives: How many archives were made of them.
        held: Who keeps more than ``oldest_retained`` asks for.
        aborted: Ids of the plans that were given up.
        foreign: Names in the table's folders that are none of weft's; the first `MAX_FOREIGN` of them.
        foreign_files: How many there are.
        listed: Of a dry run, what would be deleted.
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
    held: tuple[Holder, ...]
    aborted: tuple[str, ...]
    foreign: tuple[Path, ...]
    foreign_files: int
    listed: tuple[Path, ...]
    seconds: float

    @property
    def files(self) -> int:
        """How many files were deleted."""
        return sum(own.files for own in self.deleted.values())

    @property
    def bytes(self) -> int:
        """How many bytes they had."""
        return sum(own.bytes for own in self.deleted.values())


def run_clean(
    table_log: TableLog,
    retain: dt.timedelta,
    versions: int | None,
    abandon_after: dt.timedelta | None,
    *,
    dry_run: bool,
) -> CleanResult:
    """Clean a table.

    Args:
        table_log: The table's.
        retain: Snapshots that were newest at any time since so long ago stay readable; none for 0 but the newest.
        versions: As do those of the last so many compactions.
        abandon_after: Compactions that began longer ago are taken for dead; None: none is.
        dry_run: Say what would be done.

    Raises:
        InvalidInput: An argument is out of range; nothing was done.
        StoreUnavailable: The store did not list or delete; the next clean goes on.
    """
    _check_arguments(retain, versions, abandon_after)
    started = time.monotonic()
    before = Unfinished.of(table_log.store)
    state, aborted = _abort_abandoned(table_log, abandon_after, dry_run=dry_run)
    oldest_retained_before = state.oldest_retained
    oldest_retained, reason = _plan_oldest_retained(table_log, state, retain, versions)
    if dry_run:
        intent, state = 0, replace(state, oldest_retained=oldest_retained)
    else:
        intent, state = _publish_oldest_retained(table_log, state, oldest_retained)
    pins = list(list_pins(table_log.store))  # strictly after (rule C2)
    held = _held(table_log, state, pins)
    needed = _needed(table_log, state, [at for _, at in held])
    garbage = Garbage(
        table_log.env,
        state,
        needed,
        served=[state.oldest_retained, *(at.table for _, at in held)],
        pins=pins,
        before=before,
    )
    sweep = _Sweep(table_log, dry_run=dry_run)
    sweep.run(garbage.found())
    archived = archive_log(table_log, state, needed, [at for _, at in held], dry_run=dry_run)
    result = CleanResult(
        dry_run=dry_run,
        oldest_retained=state.oldest_retained,
        oldest_retained_before=oldest_retained_before,
        reason=reason,
        deleted=sweep.deleted,
        kept=sweep.kept,
        archived=archived.entries,
        archives=archived.archives,
        held=tuple(holder for holder, _ in held),
        aborted=aborted,
        foreign=tuple(sweep.foreign),
        foreign_files=sweep.foreign_files,
        listed=tuple(sweep.listed),
        seconds=time.monotonic() - started,
    )
    if result.files and not dry_run:
        table_log.publish(
            lambda newest: CleanDone(**table_log.header(newest), intent=intent, files=result.files, bytes=result.bytes)
        )
    return result


def _check_arguments(retain: dt.timedelta, versions: int | None, abandon_after: dt.timedelta | None) -> None:
    zero = dt.timedelta(0)
    if retain < zero:
        raise InvalidInput(f"retain={retain} lies in the future", hint="0 keeps only the newest snapshot")
    if versions is not None and versions < 1:
        raise InvalidInput(f"versions={versions} keeps nothing", hint="give 1 or more, or None")
    if abandon_after is not None and abandon_after < zero:
        raise InvalidInput(f"abandon_after={abandon_after} lies in the future", hint="None gives up no compaction")


def _abort_abandoned(
    table_log: TableLog, abandon_after: dt.timedelta | None, *, dry_run: bool
) -> tuple[TableState, tuple[str, ...]]:
    """Close the plans of compactors that are taken for dead. One that was only slow publishes nothing any more (K3)."""
    state = table_log.refresh()
    if abandon_after is None:
        return state, ()
    limit = table_log.clock.now_ms() - abandon_after // _MILLISECOND
    # 0 means all, also those whose maker's clock was ahead of ours.
    dead = [own for own, plan in state.plans.items() if not abandon_after or plan.committed_at_ms <= limit]
    if dry_run:
        return replace(state, plans={own: plan for own, plan in state.plans.items() if own not in dead}), tuple(dead)
    reason = f"abandoned: begun more than {abandon_after} ago"
    aborted = tuple(plan_id for plan_id in dead if abort_plan(table_log, plan_id, reason))
    return table_log.refresh(), aborted


def _plan_oldest_retained(
    table_log: TableLog, state: TableState, retain: dt.timedelta, versions: int | None
) -> tuple[int, str]:
    """The prefix of the table lane from which on snapshots are kept, and why it is not a longer one."""
    wanted, reason = state.head, "only the newest snapshot is kept"
    if retain:
        wanted = _newest_at(table_log, state, retain)
        reason = f"what was newest {str(retain).removesuffix(', 0:00:00')} ago is kept"
        ahead_ms = state.committed_at_ms - table_log.clock.now_ms()
        if ahead_ms > MAX_AHEAD_MS:
            reason += (
                "; the table's newest entry was written by a clock that is "
                f"{dt.timedelta(milliseconds=ahead_ms)} ahead of this one, and until that time has come nothing counts "
                "as old: clean with retain 0 and versions, and set the clocks of all machines"
            )
    if versions is not None:
        last = _last_compaction(table_log, state, versions)
        if last < wanted:
            wanted, reason = last, f"the last {versions} compactions are kept"
    # Of all prefixes that need the same files the shortest: nothing is given up for nothing.
    for entry in _newest_first(table_log, state.oldest_retained, wanted):
        if changes_files(entry):
            return entry.seq, reason
    return state.oldest_retained, f"nothing can be given up: {reason}"


def _newest_at(table_log: TableLog, state: TableState, retain: dt.timedelta) -> int:
    """T of the snapshot that ``as_of`` that time gives. Of a later time it gives no smaller one."""
    limit = table_log.clock.now_ms() - retain // _MILLISECOND
    if limit <= 0:
        return state.oldest_retained
    try:
        at = cut_at(table_log, dt.datetime.fromtimestamp(limit / 1000, dt.UTC)).at
    except (InvalidInput, SnapshotExpired):  # before the table existed, or given up already
        return state.oldest_retained
    return max(at.table, state.oldest_retained)


def _last_compaction(table_log: TableLog, state: TableState, versions: int) -> int:
    """The prefix that ends with the end of the last-but-so-many compaction."""
    found = 0
    for entry in _newest_first(table_log, state.oldest_retained, state.head):
        if isinstance(entry, Base) and entry.last:
            found += 1
            if found == versions:
                return entry.seq
    return state.oldest_retained


def _newest_first(table_log: TableLog, after: int, until: int) -> Iterator[TableEntry]:
    for last in range(until, after, -WINDOW):
        yield from reversed(_read(table_log, max(after, last - WINDOW), last))


def _read(table_log: TableLog, after: int, until: int) -> list[TableEntry]:
    """A window of the table lane, which nobody remembers."""
    return read_table_lane(CommitLog(table_log.env), after, until)


def _publish_oldest_retained(table_log: TableLog, state: TableState, oldest_retained: int) -> tuple[int, TableState]:
    """Rule C1: the slot of the CLEAN_INTENT (0 if nothing more is given up), and the state to judge by."""
    judged = state

    def build(newest: TableState) -> CleanIntent | None:
        nonlocal judged
        judged = newest
        if oldest_retained <= newest.oldest_retained:
            return None
        return CleanIntent(**table_log.header(newest), oldest_retained=oldest_retained)

    published = table_log.publish(build)
    if published is None:
        return 0, judged
    return published.seq, table_log.at(published.seq)


def _held(table_log: TableLog, state: TableState, pins: Sequence[ListedPin]) -> list[tuple[Holder, Cut]]:
    """Snapshots below ``oldest_retained`` that stay; what is above is kept anyway."""
    now = table_log.clock.now_ms()
    held = [
        *(("savepoint", name, kept.at) for name, kept in state.savepoints.items()),
        *(("compaction", plan_id, plan.at) for plan_id, plan in state.plans.items()),
        *(("pin", own.pin.owner, own.pin.at) for own in pins if own.pin is not None and own.pin.expires_at_ms > now),
    ]
    below = [(Holder(what, name, str(at)), at) for what, name, at in held if at.table < state.oldest_retained]
    return sorted(below, key=lambda own: own[1].table)


def _needed(table_log: TableLog, judged: TableState, held: Iterable[Cut]) -> Needed:
    """Rule C2: all that is needed, judged by one state."""
    needed = Needed()
    state = table_log.at(judged.oldest_retained)
    needed.add_state(state)
    for after in range(judged.oldest_retained, judged.head, WINDOW):
        for entry in _read(table_log, after, min(after + WINDOW, judged.head)):
            following = fold_table(state, [entry])
            assert following is not None, "a further entry does not end a table"
            state = following
            needed.add_entry(entry, state)
    needed.add_target(judged)
    for at in held:
        if state.head != at.table:
            state = table_log.at(at.table)
        needed.add_snapshot(state, at.lanes)
    return needed


class _Sweep:
    """Counts what was found, and deletes what is dead."""

    def __init__(self, table_log: TableLog, *, dry_run: bool) -> None:
        self._store, self._dry_run = table_log.store, dry_run
        self.deleted: dict[str, Tally] = {}
        self.kept: dict[str, Tally] = {}
        self.foreign: list[Path] = []
        self.foreign_files = 0
        self.listed: list[Path] = []

    def run(self, found: Iterable[Found]) -> None:
        dead: list[Path] = []
        for own in found:
            if own.dead is None:
                self.foreign_files += 1
                if len(self.foreign) < MAX_FOREIGN:
                    self.foreign.append(own.path)
                continue
            tallies = self.deleted if own.dead else self.kept
            tallies[own.kind] = tallies.get(own.kind, Tally()).plus(own.size)
            if own.dead:
                dead.append(own.path)
            if len(dead) == DELETE_AT_ONCE:
                self._delete(dead)
                dead = []
        self._delete(dead)

    def _delete(self, paths: Collection[Path]) -> None:
        if self._dry_run:
            self.listed.extend(paths)
        elif paths:
            self._store.delete_many(list(paths))
