"""Verify: checks everything that can be checked from storage, and reports all problems, not only the first.

    table lane ─▶ slots of all lanes ─▶ existing files ─▶ table lane again ─▶ lanes, commit by commit ─▶ slices, folds
    (state, schemas,  (what is written     (a missing file    (what retained           (log files)
     checkpoints)      later is ignored)    is a finding)      snapshots need)

This order avoids false findings while writers run: the objects that an entry names existed before the entry. Verify
changes nothing and uses no cache. It does not rely on the code of readers: it computes entries, checksums, file
groups of keys, orders, statistics and checkpoints itself. It shares only the definitions of statistics with writers.
Rules such as S2 are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from pathlib import Path as LocalPath
from typing import Any, Final

from weft.storage.core.log.cut import Cut, Seqs, only
from weft.storage.core.log.entries import CleanIntent, LaneAdd, TableEntry
from weft.storage.core.log.file_refs import FileGroup, LogFile, SliceFile
from weft.storage.core.log.needed_files import LaneEnd
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import TABLE_LANE, TIMELINE, LaneName, Path, describe_lane, slot_path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import open_environment
from weft.storage.errors import NotFound, TableError
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.log.heartbeat import SILENT_AFTER_MS, newest_heartbeats
from weft.storage.log.table_log import TableLog
from weft.storage.services.clean.clean import run_clean
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.steps.tasks import Execute, Shared, one_by_one
from weft.storage.services.verify.check_lanes import Arrivals, LaneChecker, MergedEntries
from weft.storage.services.verify.check_references import check_references
from weft.storage.services.verify.check_slots import check_archives, list_slots
from weft.storage.services.verify.check_table_lane import (
    NOT_REPLAYED,
    TableLane,
    TableLaneReader,
    check_fencing_barriers,
)
from weft.storage.services.verify.contents import ContentChecks, SliceToCheck
from weft.storage.services.verify.findings import Findings, VerifyReport
from weft.storage.services.verify.required_files import NamedSnapshot, RetainedSnapshots, StoredFiles, find_retained

_KEEP_ALL: Final = dt.timedelta(days=200 * 365)  # retention of a clean that expires nothing
_UNCOMMITTED: Final = (
    "nothing, if its writer is running; if the writer died before its commit: restart it, or fence the lane and clean; "
    "entries that were removed from the end of a lane look the same: restore those from a copy of the store"
)


def verify_table(
    uri: str | LocalPath,
    *,
    storage_options: Mapping[str, Any] | None = None,
    deep: bool = True,
    progress: OnStage = unobserved,
    execute: Execute | None = None,
) -> VerifyReport:
    """Verify a table that may be too damaged to open; otherwise as `weft.Table.verify`.

    Raises:
        NotFound: There is neither a table nor a part of one.
        StoreUnavailable: The store does not answer.
    """
    env = open_environment(uri, storage_options)
    return run_verify(TableLog.of(env), deep=deep, progress=progress, execute=execute)


def run_verify(table_log: TableLog, *, deep: bool, progress: OnStage, execute: Execute | None = None) -> VerifyReport:
    """Verify a table.

    Args:
        table_log: Location and clock of the table; its cached state is not used.
        deep: Whether to read the contents of files; otherwise only their sizes are compared with the entries.
        progress: Called during the work.
        execute: Runs the checks of contents; None for in this process, one file at a time.

    Raises:
        NotFound: The table does not exist.
        StoreUnavailable: The store does not answer.
    """
    start_time = time.monotonic()
    findings = Findings(progress)
    cut = _Verification(table_log, findings, execute or one_by_one, deep=deep).run()
    findings.finish()
    return VerifyReport(
        uri=table_log.store.uri,
        cut=str(cut),
        deep=deep,
        findings=findings.by_severity,
        omitted=findings.omitted,
        checked=dict(findings.checked),
        seconds=time.monotonic() - start_time,
    )


class _Verification:
    def __init__(self, table_log: TableLog, findings: Findings, execute: Execute, *, deep: bool) -> None:
        self._table_log, self._env, self._store = table_log, table_log.env, table_log.store
        self._findings, self._deep = findings, deep
        self._contents = ContentChecks(self._store, findings, execute)
        self._files = StoredFiles(self._store, findings)
        self._lanes: dict[LaneName, LaneChecker] = {}

    def run(self) -> Cut:
        """Verify the table; returns the snapshot that was verified."""
        first = self._findings.at(slot_path(TABLE_LANE, 1))
        slots = list_slots(self._env, TABLE_LANE, self._findings)
        if not slots:
            if not self._table_log.lacks_first():
                hint = "check the path, or create it: weft create PIPELINE, or Table.create"
                raise NotFound(f"there is no table at {self._store.uri}", hint=hint)
            text = "the table lane is missing, but writers' lanes exist: the table cannot be opened or checked"
            first.damage("S2", text)
            return Cut(0, {})
        self._findings.expect(len(slots))
        table = self._read_table_lane(slots)
        if table.state is None:
            first.damage("S2", "no state of the table can be read: its files cannot be checked")
        lanes = self._list_lanes(table)
        self._files.list()
        heads = {lane: lane_slots[-1] if lane_slots else 0 for lane, lane_slots in lanes.items()}
        retained = find_retained(self._env, table, slots, heads, self._files)
        self._check_lanes(table, lanes, retained)
        if table.is_complete:
            claims = {name: lane.claims for name, lane in self._lanes.items()}
            check_fencing_barriers(table, claims, self._findings)
        if table.state is not None:
            self._check_followed(table, table.state)
            self._check_reach(table, retained)
            if self._deep:
                self._check_contents(table, retained)
        self._contents.finish()
        if table.state is not None:
            self._describe_open_work(table.state)
            check_references(self._table_log, table.state, self._findings)
            for lane in table.state.archived:
                check_archives(self._env, lane, self._findings)
        self._drop_expired(table)
        self._describe_garbage()
        return Cut(table.head, {name: lane.head for name, lane in self._lanes.items()})

    def _read_table_lane(self, slots: Sequence[int]) -> TableLane:
        reader = TableLaneReader(self._env, slots, self._findings)
        lane, checkpoints = reader.lane, reader.checkpoints
        for _, state in reader.states():
            if state is not None:
                checkpoints.compare(state, exact=lane.is_complete)
        checkpoints.finish(lane.head, is_complete=lane.is_complete)
        if lane.state is not None and not lane.is_current:
            text = f"the table's state after entry {lane.state.head} is not known; it was checked up to there"
            self._findings.at("the table lane").info(text, "repair the entry, and verify again")
        return lane

    def _list_lanes(self, table: TableLane) -> dict[LaneName, list[int]]:
        """List the slots of every lane of the table. All lanes are listed before any of their entries is read."""
        all_lanes = {**table.retired, **table.state.lanes} if table.state is not None else {}
        lanes = {lane: list_slots(self._env, lane, self._findings) for lane in all_lanes if lane != TABLE_LANE}
        self._findings.count("lanes", len(lanes))
        self._findings.expect(sum(map(len, lanes.values())))
        if table.is_current:
            folder = f"{TIMELINE}/lanes"
            folder_names = {name.partition("/")[0] for name, _ in self._store.list(Path(folder))}
            known_names = {*lanes, *(entry.name for entry in self._later_entries(table) if isinstance(entry, LaneAdd))}
            for name in sorted(folder_names - known_names):
                text = "its entries are of a lane that the table does not have: they are ignored"
                self._findings.at(f"{folder}/{name}").violation("S5", text)
        return lanes

    def _later_entries(self, table: TableLane) -> list[TableEntry]:
        """Entries of the table lane that were published during the verification."""
        return read_table_lane(CommitLog(self._env), table.head)

    def _check_lanes(
        self, table: TableLane, lanes: Mapping[LaneName, Sequence[int]], retained: RetainedSnapshots
    ) -> None:
        state = table.state
        merged_entries = (
            MergedEntries(self._store, state, deep=self._deep) if state is not None and table.is_current else None
        )
        all_lanes = {**table.retired, **state.lanes} if state is not None else {}
        for lane in (all_lanes[name] for name in lanes):
            checker = LaneChecker(self._env, table, lane, lanes[lane.name], merged_entries, self._findings)
            self._lanes[lane.name] = checker
            for entry in checker.commits():
                if retained.needs(lane.name, entry.seq):
                    user = f"snapshots with entry {entry.seq} of lane {lane.name!r}"
                    self._files.check(entry.files, user)
                if self._deep and any(snapshot.needs(lane.name, entry.seq) for snapshot in retained.snapshots):
                    self._check_log_files(table.schema_at(entry.table_rev), entry.files)

    def _check_log_files(
        self,
        schema: TableSchema | None,
        files: Sequence[LogFile],
        registers_of: Shared[Arrivals] | None = None,
        ends: Seqs | None = None,
    ) -> None:
        for file in files:
            if schema is not None and self._files.have(file.file):
                self._contents.add_log_file(schema, file, registers_of, ends)

    def _check_followed(self, table: TableLane, state: TableState) -> None:
        """Check that the entries of the table lane that commits follow exist: no reader sees other commits (S31)."""
        head = table.head
        if any(lane.followed for lane in self._lanes.values()):
            head += len(self._later_entries(table))
        hidden: dict[LaneName, tuple[int, int]] = {}
        for name, lane in self._lanes.items():
            missed = [(seq, seen) for seq, seen in lane.followed if seen > head]
            if missed:
                hidden[name] = missed[0]
        ends = {name: lane.head for name, lane in self._lanes.items()}
        ends |= {name: seq - 1 for name, (seq, _) in hidden.items()}
        visible = Cut(head, only(ends, state.lanes))  # a cut for restore names no retired lane
        for name, (seq, seen) in hidden.items():
            text = f"commits from entry {seq} on follow entry {seen} of the table lane, which ends at {head}"
            self._findings.at(describe_lane(name)).damage(
                "S31",
                f"{text}: no reader sees them",
                f"if this is a copy of a table: weft restore URI '{visible}'; sources send these commits again",
            )

    def _check_reach(self, table: TableLane, retained: RetainedSnapshots) -> None:
        """Check R3: no snapshot, slice or fold extends beyond the end of a lane; and S32, for retired lanes."""
        heads = {name: lane.head for name, lane in self._lanes.items()}
        for snapshot in retained.snapshots:
            self._check_has_retired(table, snapshot)
            for lane, seq in snapshot.lanes.items():
                if seq > heads.get(lane, 0):
                    text = f"{snapshot.name} ends at entry {seq}, but the lane ends at {heads.get(lane, 0)}"
                    self._findings.at(describe_lane(lane)).damage("S4", f"{text}: entries were removed")
            reaches: list[tuple[str, Seqs]]
            reaches = [(f"slice of {group}", file.cut) for group, file in snapshot.state.slices.items()]
            reaches += [(f"fold of entry {fold.slot} of the table lane", fold.to) for fold in snapshot.state.folds]
            for where, reach in reaches:
                place = self._findings.at(where)
                for lane, seq in only(reach, snapshot.state.lanes).items():
                    if seq <= snapshot.lanes.get(lane, 0):
                        continue
                    if seq > heads.get(lane, 0):
                        text = f"it contains lane {lane!r} up to entry {seq}, but the lane ends at {heads.get(lane, 0)}"
                        place.damage("S4", f"{text}: entries were removed")
                    else:
                        text = f"it contains entry {seq} of lane {lane!r}, which {snapshot.name} does not have"
                        place.violation("S8", text)

    def _check_has_retired(self, table: TableLane, snapshot: NamedSnapshot) -> None:
        state = snapshot.state
        for name, lane in table.retired.items():
            if name in state.lanes:
                has_all = state.covered.get(name, 0) >= (lane.closed or 0)
            else:
                has_all = lane.lane_id < state.next_lane_id  # else the lane was added later
            if not has_all:
                text = f"lane {name!r} was retired, and the slices of {snapshot.name} do not have all its rows"
                self._findings.at(describe_lane(name)).violation("S32", text)

    def _check_contents(self, table: TableLane, retained: RetainedSnapshots) -> None:
        """Check the slices and folds of all retained snapshots, each once."""
        checked_keys: set[object] = set()
        for snapshot in retained.snapshots:
            arrivals = Shared(Arrivals(snapshot.state, table.retired, self._lanes))
            for group, file in sorted(snapshot.state.slices.items(), key=_by_base_file):
                key = (group, tuple(sorted(file.cut.items())), *(stored_file.path for stored_file in file.objects))
                schema = table.schema_at(file.rev)
                if key not in checked_keys and schema is not None and self._files.have(*file.objects):
                    checked_keys.add(key)
                    self._findings.count("slices")
                    self._contents.add_slice(SliceToCheck(schema, file, arrivals))
            for fold in snapshot.state.folds:
                if fold.slot not in checked_keys:
                    checked_keys.add(fold.slot)
                    # A file may also have rows of file groups that the FOLD left out, as another was published first.
                    self._check_log_files(table.fold_schemas.get(fold.slot), fold.files, arrivals, fold.to)

    def _drop_expired(self, table: TableLane) -> None:
        """Drop findings about missing files if a clean expired snapshots during the verification."""
        if not self._findings.by_severity:
            return
        try:
            later_entries = self._later_entries(table)
        except TableError:
            return
        if any(isinstance(entry, CleanIntent) for entry in later_entries):
            missing_paths = self._files.find_missing()
            if count := self._findings.drop(lambda finding: finding.where in missing_paths):
                text = f"a clean made {count} files expire during the verification"
                self._findings.at("the table").info(text, "verify again")

    def _describe_open_work(self, state: TableState) -> None:
        now_ms, place_of = self._table_log.clock.now_ms(), self._findings.at
        for plan_id, plan in state.plans.items():
            text = f"a compaction or fold began {_ago(now_ms - plan.committed_at_ms)} and has not ended"
            place_of(f"plan {plan_id}").info(f"{text}; it keeps its files", "if it has died: clean with abandon_after")
        if state.intent is not None:
            text = f"a restore, undo or close began {_ago(now_ms - state.intent.committed_at_ms)} and is not complete"
            place_of(f"entry {state.intent.seq} of the table lane").info(
                text, "the next writer or service completes it"
            )
        open_lanes = {lane for lane in state.lanes if state.lanes[lane].closed is None}
        ends = {name: LaneEnd(lane.head, lane.epoch) for name, lane in self._lanes.items() if name in open_lanes}
        for lane, count in self._files.count_uncommitted(ends).items():
            text = f"{count} log files are for entries after {ends[lane].head}, which is its last"
            place_of(describe_lane(lane)).info(text, _UNCOMMITTED)
        for lane, heartbeat in newest_heartbeats(self._store).items():
            if lane in open_lanes and now_ms - heartbeat.at_ms > SILENT_AFTER_MS:
                text = f"the last heartbeat of its writer was {_ago(now_ms - heartbeat.at_ms)}"
                place_of(describe_lane(lane)).info(text, "if it has died: restart it, or fence the lane")

    def _describe_garbage(self) -> None:
        """Report what a clean that expires no snapshot would delete, and objects that weft did not write."""
        place = self._findings.at("the table")
        try:
            result = run_clean(self._table_log, _KEEP_ALL, None, None, dry_run=True)
        except NOT_REPLAYED as error:
            reason = error.message if isinstance(error, TableError) else f"its schema cannot be read: {error}"
            place.info(f"its garbage is not known: {reason}", "repair the rest first")
            return
        if result.files:
            kinds = ", ".join(f"{tally.files:,} {kind}" for kind, tally in sorted(result.deleted.items()))
            text = f"{result.files:,} unneeded files, {result.bytes:,} bytes: {kinds}"
            place.info(text, "clean deletes them")
        if result.foreign_files:
            examples = ", ".join(result.foreign[:3])
            text = f"{result.foreign_files:,} objects have names that weft does not use: {examples}"
            place.info(text, "they are ignored; delete them, unless you need them")


def _by_base_file(item: tuple[FileGroup, SliceFile]) -> tuple[str, FileGroup]:
    """Sort key that puts slices of the same base file next to each other, so that its row groups are decoded once."""
    group, file = item
    return file.base.path if file.base is not None else "", group


def _ago(milliseconds: int) -> str:
    return f"{dt.timedelta(seconds=max(0, milliseconds) // 1000)} ago"
