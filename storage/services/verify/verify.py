"""Verify: checks everything that can be checked from storage, and reports all problems, not only the first.

    table lane ─▶ slots of all lanes ─▶ existing files ─▶ table lane again ─▶ lanes, commit by commit ─▶ slices, folds
    (state, schemas,  (what is written     (a missing file    (what retained           (log files)
     checkpoints)      later is ignored)    is a finding)      snapshots need)

In this order, a table that is written to during the verification shows no false problem: whatever an entry names
existed before the entry. Nothing is changed and no cache is used. Readers' code is not trusted: entries, checksums,
file groups of keys, orders, statistics and checkpoints are computed again.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from typing import Final

from storage.core.log import cut
from storage.core.log.cut import Cut
from storage.core.log.entries import CleanIntent, LaneAdd, TableEntry
from storage.core.log.file_refs import FileGroup, LogFile, SliceFile
from storage.core.log.table_state import TableState
from storage.core.names import TABLE_LANE, TIMELINE, LaneName, Path, slot_path
from storage.core.schema.table_schema import TableSchema
from storage.errors import NotFound, TableError
from storage.log.commit_log import CommitLog, read_table_lane
from storage.log.heartbeat import SILENT_AFTER_MS, newest_heartbeats
from storage.log.table_log import TableLog
from storage.services.clean.clean import run_clean
from storage.services.verify.check_checkpoints import TableCheckpoints
from storage.services.verify.check_lanes import Arrivals, LaneChecker, LaneFacts, Merged
from storage.services.verify.check_log_files import LogFileChecker
from storage.services.verify.check_rows import OnArrivals
from storage.services.verify.check_slices import SliceChecker, SliceFiles
from storage.services.verify.check_slots import check_archives, list_slots
from storage.services.verify.check_table_lane import TableLane, TableLaneReader, check_fencing_barriers
from storage.services.verify.findings import Finding, Findings, Progress, VerifyReport, damage, info, violation
from storage.services.verify.required_files import Retained, StoredFiles, find_retained

_KEEP_ALL: Final = dt.timedelta(days=200 * 365)  # retention of a clean that expires nothing
_UNCOMMITTED: Final = (
    "nothing, if its writer is running; if the writer died before its commit: restart it, or fence the lane and clean; "
    "entries that were removed from the end of a lane look the same: restore those from a copy of the store"
)


def run_verify(table_log: TableLog, *, deep: bool, progress: Progress | None) -> VerifyReport:
    """Verify a table.

    Args:
        table_log: Says where the table is; nothing that it has read is used.
        deep: Read the contents of files; otherwise only entries are read, and the sizes of files are compared.
        progress: Called during the work.

    Raises:
        NotFound: There is no table.
        StoreUnavailable: The store does not answer.
    """
    started = time.monotonic()
    findings = Findings(progress)
    at = _Verification(table_log, findings, deep=deep).run()
    findings.finish()
    return VerifyReport(
        uri=table_log.store.uri,
        cut=str(at),
        deep=deep,
        findings=findings.found,
        omitted=findings.omitted,
        checked=dict(findings.checked),
        seconds=time.monotonic() - started,
    )


class _Verification:
    def __init__(self, table_log: TableLog, findings: Findings, *, deep: bool) -> None:
        self._table_log, self._env, self._store = table_log, table_log.env, table_log.store
        self._findings, self._deep = findings, deep
        self._files = StoredFiles(self._store, findings)
        self._facts: dict[LaneName, LaneFacts] = {}

    def run(self) -> Cut:
        """Verify the table; returns the snapshot that was verified."""
        findings = self._findings
        slots = list_slots(self._env, TABLE_LANE, findings)
        if not slots:
            if not self._table_log.lacks_first():
                raise NotFound(f"there is no table at {self._store.uri}", hint="check the path, or create the table")
            what = "the table lane is gone, but writers' lanes exist: nobody can open the table, no file can be checked"
            findings.add(damage("S2", str(slot_path(TABLE_LANE, 1)), what))
            return Cut(0, {})
        findings.expect(len(slots))
        table = self._read_table_lane(slots)
        lanes = self._list_lanes(table)
        self._files.list()
        heads = {lane: taken[-1] if taken else 0 for lane, taken in lanes.items()}
        retained = find_retained(self._env, table, slots, heads, self._files)
        merged = Merged(table.state) if table.state is not None and table.current else None
        for lane, taken in lanes.items():
            self._check_lane(table, retained, merged, lane, taken)
        if table.whole:
            claims = {lane: facts.claims for lane, facts in self._facts.items()}
            findings.extend(check_fencing_barriers(table, claims))
        if table.state is not None:
            findings.extend(self._check_reach(retained))
            if self._deep:
                self._check_contents(table, retained)
            findings.extend(self._describe_open_work(table.state))
            for lane in table.state.archived:
                check_archives(self._env, lane, findings)
        self._drop_expired(table)
        findings.extend(self._describe_garbage())
        return Cut(table.head, {lane: facts.head for lane, facts in self._facts.items()})

    def _read_table_lane(self, slots: Sequence[int]) -> TableLane:
        checkpoints = TableCheckpoints(self._env, self._findings)
        reader = TableLaneReader(self._env, slots, self._findings)
        for _, state in reader.states():
            if state is not None:
                checkpoints.compare(state, exact=reader.lane.whole)
        checkpoints.finish(reader.lane.head, whole=reader.lane.whole)
        if reader.lane.state is None:
            what = "nothing is known of the table: its files cannot be checked"
            self._findings.add(damage("S2", str(slot_path(TABLE_LANE, 1)), what))
        elif not reader.lane.current:
            what = f"the table's state after entry {reader.lane.state.head} is not known; it was checked up to there"
            self._findings.add(info("the table lane", what, "repair the entry, and verify again"))
        return reader.lane

    def _list_lanes(self, table: TableLane) -> dict[LaneName, list[int]]:
        """The slots of every declared lane, all listed before any of their entries is read."""
        declared = table.state.lanes if table.state is not None else {}
        lanes = {lane: list_slots(self._env, lane, self._findings) for lane in declared}
        self._findings.count("lanes", len(lanes))
        self._findings.expect(sum(map(len, lanes.values())))
        if table.current:
            folder = f"{TIMELINE}/lanes"
            stored = {name.partition("/")[0] for name, _ in self._store.list(Path(folder))}
            known = {*lanes, *(entry.name for entry in self._later_entries(table) if isinstance(entry, LaneAdd))}
            what = "its entries are of a lane that the table does not have: nobody reads them"
            self._findings.extend(violation("S5", f"{folder}/{name}", what) for name in sorted(stored - known))
        return lanes

    def _later_entries(self, table: TableLane) -> list[TableEntry]:
        """Entries of the table lane that were published during the verification."""
        return read_table_lane(CommitLog(self._table_log.env), table.head)

    def _check_lane(
        self, table: TableLane, retained: Retained, merged: Merged | None, lane: LaneName, slots: Sequence[int]
    ) -> None:
        assert table.state is not None, "lanes are declared by a state"
        checker = LaneChecker(self._env, table, table.state.lanes[lane], slots, merged, self._findings)
        self._facts[lane] = checker.facts
        for entry in checker.commits():
            if retained.needs(lane, entry.seq):
                self._files.check_log_files(entry.files, f"snapshots with entry {entry.seq} of lane {lane!r}")
            if self._deep and any(snapshot.needs(lane, entry.seq) for snapshot in retained.snapshots):
                self._check_log_files(table.schema_at(entry.table_rev), entry.files)

    def _check_log_files(
        self, schema: TableSchema | None, files: Sequence[LogFile], trace: OnArrivals = lambda _arrivals, _where: None
    ) -> None:
        for file in files:
            if schema is not None and self._files.has(file.file):
                LogFileChecker(self._store, schema, file, self._findings, trace).check()

    def _check_reach(self, retained: Retained) -> Iterator[Finding]:
        """R3: snapshots, slices and folds end where the lanes end, or before."""
        for snapshot in retained.snapshots:
            state = snapshot.state
            for lane, seq in snapshot.lanes.items():
                if seq > self._head(lane):
                    what = f"{snapshot.name} ends at entry {seq}, but the lane ends at {self._head(lane)}"
                    yield damage("S4", f"lane {lane!r}", f"{what}: entries were removed")
            reached: list[tuple[str, cut.Seqs]]
            reached = [(f"slice of {group}", file.cut) for group, file in state.slices.items()]
            reached += [(f"fold of entry {fold.slot} of the table lane", fold.to) for fold in state.folds]
            for where, reach in reached:
                for lane, seq in reach.items():
                    if seq > snapshot.lanes.get(lane, 0) and seq > self._head(lane):
                        what = f"it holds lane {lane!r} up to entry {seq}, but the lane ends at {self._head(lane)}"
                        yield damage("S4", where, f"{what}: entries were removed")
                    elif seq > snapshot.lanes.get(lane, 0):
                        what = f"it holds entry {seq} of lane {lane!r}, which {snapshot.name} does not have"
                        yield violation("S8", where, what)

    def _head(self, lane: LaneName) -> int:
        return self._facts[lane].head if lane in self._facts else 0

    def _check_contents(self, table: TableLane, retained: Retained) -> None:
        """Check the slices and folds of all named snapshots, each once."""
        done: set[object] = set()
        files = SliceFiles(self._store, self._findings)
        for snapshot in retained.snapshots:
            arrivals = Arrivals(snapshot.state, self._facts)
            for group, file in sorted(snapshot.state.slices.items(), key=_by_base_file):
                paths = (part and part.path for part in (file.base, file.shadow))
                key = (group, tuple(sorted(file.cut.items())), *paths)
                schema = table.schema_at(file.rev)
                if key in done or schema is None or not (self._files.has(file.base) and self._files.has(file.shadow)):
                    continue
                done.add(key)
                self._findings.count("slices")
                trace = self._tracer(arrivals, file.cut)
                SliceChecker(files, schema, file, f"slice of {group}", self._findings, trace).check()
            for fold in snapshot.state.folds:
                if fold.slot not in done:
                    done.add(fold.slot)
                    # Files may have rows of file groups of which another fold or compaction was published first.
                    schema, trace = table.fold_schemas.get(fold.slot), self._tracer(arrivals, fold.to)
                    self._check_log_files(schema, fold.files, trace)

    def _tracer(self, arrivals: Arrivals, reach: cut.Seqs) -> OnArrivals:
        return lambda values, where: self._findings.extend(arrivals.check(values, reach, where))

    def _drop_expired(self, table: TableLane) -> None:
        """Forget missing files that a clean has expired during the verification."""
        if not self._files.absent:
            return
        try:
            later = self._later_entries(table)
        except TableError:
            return
        if any(isinstance(entry, CleanIntent) for entry in later):
            dropped = self._findings.drop(lambda finding: finding.where in self._files.absent)
            what = f"a clean made {dropped} files expire during the verification"
            self._findings.add(info("the table", what, "verify again"))

    def _describe_open_work(self, state: TableState) -> Iterator[Finding]:
        now = self._table_log.clock.now_ms()
        for plan_id, plan in state.plans.items():
            what = (
                f"a compaction or fold began {_ago(now - plan.committed_at_ms)} and has not ended; it keeps its files"
            )
            yield info(f"plan {plan_id}", what, "if it has died: clean with abandon_after")
        if state.intent is not None:
            what = f"a restore, undo or close began {_ago(now - state.intent.committed_at_ms)} and is not complete"
            where = f"entry {state.intent.seq} of the table lane"
            yield info(where, what, "the next writer or service completes it")
        open_lanes = {lane for lane in state.lanes if state.lanes[lane].closed is None}
        ends = {lane: (facts.head, facts.epoch) for lane, facts in self._facts.items() if lane in open_lanes}
        for lane, count in self._files.count_uncommitted(ends).items():
            what = f"{count} log files are for entries after {ends[lane][0]}, which is its last"
            yield info(f"lane {lane!r}", what, _UNCOMMITTED)
        for lane, beat in newest_heartbeats(self._store).items():
            if lane in open_lanes and now - beat.at_ms > SILENT_AFTER_MS:
                what = f"the last sign of life of its writer was {_ago(now - beat.at_ms)}"
                yield info(f"lane {lane!r}", what, "if it has died: restart it, or fence the lane")

    def _describe_garbage(self) -> Iterator[Finding]:
        """What a clean would delete that expires no snapshot, and objects that weft has not written."""
        try:
            result = run_clean(self._table_log, _KEEP_ALL, None, None, dry_run=True)
        except TableError as error:
            yield info("the table", f"its garbage is not known: {error.message}", "repair the rest first")
            return
        if result.files:
            kinds = ", ".join(f"{tally.files:,} {kind}" for kind, tally in sorted(result.deleted.items()))
            what = f"{result.files:,} files, {result.bytes:,} bytes that nobody needs: {kinds}"
            yield info("the table", what, "clean deletes them")
        if result.foreign_files:
            shown = ", ".join(result.foreign[:3])
            what = f"{result.foreign_files:,} objects have names that weft does not use: {shown}"
            yield info("the table", what, "nobody reads them; delete them, unless you need them")


def _by_base_file(item: tuple[FileGroup, SliceFile]) -> tuple[str, FileGroup]:
    """Sorts slices that share a base file next to each other: its row groups are decoded once."""
    group, file = item
    return str(file.base.path) if file.base is not None else "", group


def _ago(milliseconds: int) -> str:
    return f"{dt.timedelta(seconds=max(0, milliseconds) // 1000)} ago"
