"""Verify: every invariant that can be seen from storage, and all that is wrong, not the first of it.

    table lane ─▶ slots of all lanes ─▶ files there are ─▶ table lane again ─▶ lanes, commit by commit ─▶ slices, folds
    (state, schemas,  (what came later      (only what is       (what kept states        (logs)
     checkpoints)      is not looked at)     not there is        need)
                                             wrong)

In this order a table that is written to while it is verified shows nothing that is not wrong: whatever an entry names
was there before the entry was. Nothing is changed, nothing is taken from caches, and no reader's code is asked whether
it is content: entries, checksums, key homes, orders, statistics and checkpoints are computed anew.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from storage.core.log import cut
from storage.core.log.checkpoint_codec import decode_table
from storage.core.log.cut import Cut
from storage.core.log.entries import CleanIntent, Data, LaneAdd
from storage.core.log.file_refs import SliceFile
from storage.core.log.table_state import FileGroup, LiveFold, TableState
from storage.core.names import TABLE_LANE, TIMELINE, LaneName, Path, slot_path
from storage.errors import NotFound, TableError
from storage.log.commit_log import CommitLog
from storage.log.heartbeat import SILENT_AFTER_MS, newest_heartbeats
from storage.log.table_log import TableLog
from storage.services.clean.clean import run_clean
from storage.services.verify.findings import FROM_COPY, Findings, Progress, VerifyReport
from storage.services.verify.verify_entries import (
    REPORT,
    TableLane,
    TableLaneReader,
    check_fencing_barriers,
    checkpoints_of,
)
from storage.services.verify.verify_files import SliceFiles, SliceVerifier
from storage.services.verify.verify_kept import FilesThere, RetainedStates, gather_kept
from storage.services.verify.verify_lanes import (
    Arrivals,
    Held,
    LaneFacts,
    LaneVerifier,
    unusable_checkpoint,
    wrong_checkpoint,
)
from storage.services.verify.verify_logs import LogVerifier
from storage.services.verify.verify_slots import check_archives, is_taken, slots_of
from storage.store.object_store import normalise_errors

_FOR_EVER: Final = dt.timedelta(days=200 * 365)  # what a clean that gives up nothing retains
_TO_COME: Final = (
    "nothing, if its writer is at work; if that died before its commit: start it again, or fence the lane and clean; "
    "entries that were removed from the end of a lane look just so: then restore them from a copy of the store"
)


def run_verify(table_log: TableLog, *, deep: bool, progress: Progress | None) -> VerifyReport:
    """Verify a table.

    Args:
        table_log: Tells where the table is; nothing that it knows is used.
        deep: Read the contents of files; else only entries are read, and files are looked at by size.
        progress: Called as the work goes on.

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
        self._table_log, self._store = table_log, table_log.store
        self._findings, self._deep = findings, deep
        self._files = FilesThere(self._store, findings)
        self._facts: dict[LaneName, LaneFacts] = {}

    def run(self) -> Cut:
        """All of it; the snapshot that was verified."""
        slots = slots_of(self._store, TABLE_LANE, self._findings)
        if not slots:
            if not self._table_log.lacks_first():
                raise NotFound(f"there is no table at {self._store.uri}", hint="check the path, or create the table")
            what = (
                "the table lane is gone, but lanes of writers are there: nobody finds the table, no file can be checked"
            )
            self._findings.error("S2", str(slot_path(TABLE_LANE, 1)), what, FROM_COPY)
            return Cut(0, {})
        self._findings.expect(len(slots))
        table = self._read_table_lane(slots)
        lanes = self._slots(table)
        self._files.list()
        heads = {lane: own[-1] if own else 0 for lane, own in lanes.items()}
        kept = gather_kept(self._store, table, slots, heads, self._files)
        held = Held(table.state) if table.state is not None and table.current else None
        for lane, own in lanes.items():
            self._check_lane(table, kept, held, lane, own)
        if table.whole:
            check_fencing_barriers(table, {lane: facts.claims for lane, facts in self._facts.items()}, self._findings)
        if table.state is not None:
            self._check_reach(kept)
            if self._deep:
                self._check_contents(table, kept)
            self._tell_what_is_open(table.state)
            for lane in table.state.archived:
                check_archives(self._store, lane, self._findings)
        self._forgive_cleaning(table)
        self._tell_garbage()
        return Cut(table.head, {lane: facts.head for lane, facts in self._facts.items()})

    def _read_table_lane(self, slots: Sequence[int]) -> TableLane:
        findings = self._findings
        made = checkpoints_of(self._store, TABLE_LANE)
        reader = TableLaneReader(self._store, slots, findings)
        for _, state in reader.states():
            if state is None:
                continue
            for path in made.pop(state.head, ()):
                self._check_checkpoint(path, state, known=reader.lane.whole)
        for paths in made.values():
            findings.count("checkpoints", len(paths))
            for path in paths:
                if reader.lane.whole and not is_taken(self._store, TABLE_LANE, max(slots) + 1):
                    findings.warning(
                        "", str(path), "it stands on an entry that is not there: nobody uses it", "delete it"
                    )
        if reader.lane.state is None:
            findings.error(
                "S2", str(slot_path(TABLE_LANE, 1)), "nothing is known of the table: files cannot be checked", FROM_COPY
            )
        elif not reader.lane.current:
            what = f"beyond entry {reader.lane.state.head} the table's state is not known; it was checked up to there"
            findings.info("the table lane", what, "mend the entry, and verify again")
        return reader.lane

    def _check_checkpoint(self, path: Path, state: TableState, *, known: bool) -> None:
        with normalise_errors(path):
            data = self._store.get(path)
        if data is None:
            return  # cleaned since it was listed
        self._findings.count("checkpoints")
        made = decode_table(data)
        if made is None or (made.head, made.head_id) != (state.head, state.head_id):
            unusable_checkpoint(path, self._findings)
        elif known and made != state:
            wrong_checkpoint(path, self._findings)

    def _slots(self, table: TableLane) -> dict[LaneName, list[int]]:
        """The slots of every declared lane, all listed before any of their entries is read."""
        declared = table.state.lanes if table.state is not None else {}
        lanes = {lane: slots_of(self._store, lane, self._findings) for lane in declared}
        self._findings.count("lanes", len(lanes))
        self._findings.expect(sum(len(own) for own in lanes.values()))
        if table.current:
            folder = f"{TIMELINE}/lanes"
            there = {name.partition("/")[0] for name, _ in self._store.list(Path(folder))}
            known = self._declared_since(table)
            for name in sorted(there - set(lanes) - known):
                what = "its entries are of a lane that the table does not have: nobody reads them"
                self._findings.error("S5", f"{folder}/{name}", what, REPORT)
        return lanes

    def _declared_since(self, table: TableLane) -> set[str]:
        """Lanes that came while we looked."""
        log = CommitLog(self._store, self._table_log.clock)
        return {entry.name for entry in log.read_after(TABLE_LANE, table.head) if isinstance(entry, LaneAdd)}

    def _check_lane(
        self, table: TableLane, kept: RetainedStates, held: Held | None, lane: LaneName, slots: Sequence[int]
    ) -> None:
        assert table.state is not None, "lanes are declared by a state"
        verifier = LaneVerifier(self._store, table, table.state.lanes[lane], slots, held, self._findings)
        self._facts[lane] = verifier.facts
        for entry in verifier.commits():
            if kept.needs(lane, entry.seq):
                self._files.check_log_files(entry.files, f"snapshots with entry {entry.seq} of lane {lane!r}")
            if self._deep and any(snapshot.needs(lane, entry.seq) for snapshot in kept.snapshots):
                self._check_logs(table, entry)

    def _check_logs(self, table: TableLane, entry: Data) -> None:
        schema = table.schema_at(entry.table_rev)
        if schema is None:
            return
        for file in entry.files:
            if self._files.has(file.file):
                LogVerifier(self._store, schema, file, self._findings, found=lambda *_: None).check()

    def _check_reach(self, kept: RetainedStates) -> None:
        """R3: nothing that is merged is of entries that no lane has."""
        for snapshot in kept.snapshots:
            for lane, seq in snapshot.lanes.items():
                if seq > self._head(lane):
                    what = f"{snapshot.name} reaches to entry {seq}, but the lane ends at {self._head(lane)}"
                    self._findings.error("S4", f"lane {lane!r}", f"{what}: entries were removed", FROM_COPY)
            for group, reach in _reach(snapshot.state):
                for lane, seq in reach.items():
                    if seq > snapshot.lanes.get(lane, 0) and seq > self._head(lane):
                        what = f"it holds lane {lane!r} up to entry {seq}, but the lane ends at {self._head(lane)}"
                        self._findings.error("S4", group, f"{what}: entries were removed", FROM_COPY)
                    elif seq > snapshot.lanes.get(lane, 0):
                        what = f"it holds entry {seq} of lane {lane!r}, which {snapshot.name} does not"
                        self._findings.error("S8", group, what, REPORT)

    def _head(self, lane: LaneName) -> int:
        return self._facts[lane].head if lane in self._facts else 0

    def _check_contents(self, table: TableLane, kept: RetainedStates) -> None:
        """Slices and folds of all snapshots that are counted on, each once."""
        done: set[object] = set()
        files = SliceFiles(self._store, self._findings)
        for snapshot in kept.snapshots:
            state = snapshot.state
            arrivals = Arrivals(state, self._facts)
            for group, file in sorted(state.slices.items(), key=_place):
                key = (
                    group,
                    tuple(sorted(file.cut.items())),
                    *(part and part.path for part in (file.base, file.shadow)),
                )
                schema = table.schema_at(file.rev)
                there = self._files.has(file.base) and self._files.has(file.shadow)
                if key not in done and schema is not None and there:
                    done.add(key)
                    found = self._tracer(arrivals, file.cut, state)
                    self._findings.count("slices")
                    SliceVerifier(files, schema, file, f"slice of {group}", self._findings, found).check()
            for fold in state.folds:
                if fold.slot not in done:
                    done.add(fold.slot)
                    self._check_fold(table, fold, self._tracer(arrivals, fold.to, state))

    def _tracer(self, arrivals: Arrivals, reach: cut.Seqs, state: TableState) -> Callable[..., None]:
        return lambda values, where: arrivals.check(values, reach, state.rolled_back, where, self._findings)

    def _check_fold(self, table: TableLane, fold: LiveFold, found: Callable[..., None]) -> None:
        schema = table.fold_schemas.get(fold.slot)
        for file in fold.files:  # may have rows of file groups that another fold or compaction was faster with
            if schema is not None and self._files.has(file.file):
                LogVerifier(self._store, schema, file, self._findings, found=found).check()

    def _forgive_cleaning(self, table: TableLane) -> None:
        """What a clean has given up while we looked is not missing."""
        if not self._files.absent:
            return
        try:
            later = CommitLog(self._store, self._table_log.clock).read_after(TABLE_LANE, table.head)
        except TableError:
            return
        if any(isinstance(entry, CleanIntent) for entry in later):
            dropped = self._findings.drop(lambda finding: finding.where in self._files.absent)
            what = f"{dropped} files were given up by cleaning while they were looked for"
            self._findings.info("the table", what, "verify again")

    def _tell_what_is_open(self, state: TableState) -> None:
        now = self._table_log.clock.now_ms()
        for plan_id, plan in state.plans.items():
            what = (
                f"a compaction or fold began {_ago(now - plan.committed_at_ms)} and has not ended; it keeps its files"
            )
            self._findings.info(f"plan {plan_id}", what, "if it has died: clean with abandon_after")
        if state.intent is not None:
            what = f"a barrier began {_ago(now - state.intent.committed_at_ms)} and is not complete"
            self._findings.info(
                f"entry {state.intent.seq} of the table lane", what, "the next writer or service ends it"
            )
        ends = {own: (facts.head, facts.epoch) for own, facts in self._facts.items() if state.lanes[own].closed is None}
        for lane, count in self._files.of_commits_to_come(ends).items():
            what = f"{count} log files are for entries after {ends[lane][0]}, which is its last"
            self._findings.info(f"lane {lane!r}", what, _TO_COME)
        for lane, beat in newest_heartbeats(self._store).items():
            own = state.lanes.get(lane)
            if own is not None and own.closed is None and now - beat.at_ms > SILENT_AFTER_MS:
                what = f"its writer was last heard of {_ago(now - beat.at_ms)}"
                self._findings.info(f"lane {lane!r}", what, "if it has died: start it again, or fence the lane")

    def _tell_garbage(self) -> None:
        """What a clean would delete that gives up nothing, and what is none of ours."""
        try:
            result = run_clean(self._table_log, _FOR_EVER, None, None, dry_run=True)
        except TableError as error:
            self._findings.info("the table", f"what is garbage cannot be told: {error.message}", "mend the rest first")
            return
        if result.files:
            kinds = ", ".join(f"{own.files:,} {kind}" for kind, own in sorted(result.deleted.items()))
            what = f"{result.files:,} files, {result.bytes:,} bytes that nobody needs: {kinds}"
            self._findings.info("the table", what, "clean removes them")
        if result.foreign_files:
            shown = ", ".join(result.foreign[:3])
            what = f"{result.foreign_files:,} objects have names that are none of weft's: {shown}"
            self._findings.info("the table", what, "nobody reads them; remove them, if they are not yours")


def _reach(state: TableState) -> Iterator[tuple[str, cut.Seqs]]:
    """What holds commits, and up to where."""
    for group, file in state.slices.items():
        yield f"slice of {group}", file.cut
    for fold in state.folds:
        yield f"fold of entry {fold.slot} of the table lane", fold.to


def _place(own: tuple[FileGroup, SliceFile]) -> tuple[str, FileGroup]:
    """Orders slices so that those which share a base file follow each other: its row groups are decoded once."""
    group, file = own
    return str(file.base.path) if file.base is not None else "", group


def _ago(milliseconds: int) -> str:
    return f"{dt.timedelta(seconds=max(0, milliseconds) // 1000)} ago"
