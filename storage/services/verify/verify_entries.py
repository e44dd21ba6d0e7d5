"""The entries of a table as they stand in the store, read one by one: what `verify` says of the log itself.

Nothing here stops at what is wrong: a slot that is missing or damaged is told of, and the next one is looked at. So
entries are decoded here and not through `CommitLog`, which refuses to go on, and caches. What a state would be after an
entry that cannot be read is not known: a checkpoint beyond it may tell, else the state is that of before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from storage.core.log import sidecar_codec
from storage.core.log.checkpoint_codec import decode_table
from storage.core.log.entries import (
    Base,
    Claim,
    CleanIntent,
    Create,
    Done,
    Entry,
    Fold,
    Intent,
    LaneAdd,
    Mark,
    Plan,
    Savepoint,
    Schema,
    TableEntry,
)
from storage.core.log.file_refs import Sidecar, SliceFile
from storage.core.log.table_state import FileGroup, TableState, fold_table
from storage.core.names import TABLE_LANE, LaneName, Path, checkpoint_folder, parse_path, slot_path
from storage.core.schema.table_schema import TableSchema
from storage.errors import TableError, UnsupportedFormat
from storage.services.verify.findings import FROM_COPY, Findings
from storage.services.verify.verify_slots import read_slots
from storage.store.object_store import ObjectStore, normalise_errors

REPORT: Final = "a process broke the protocol: report it, with the entries before and after"


def checkpoints_of(store: ObjectStore, lane: LaneName) -> dict[int, list[Path]]:
    """The checkpoints of a lane, by the slot that they stand on."""
    folder = checkpoint_folder(lane)
    found: dict[int, list[Path]] = {}
    for name, _ in store.list(folder):
        path = Path(f"{folder}/{name}")
        parsed = parse_path(path)
        if parsed is not None:
            found.setdefault(parsed.slot, []).append(path)
    return found


def check_order(before: Entry | None, entry: Entry, findings: Findings) -> None:
    """What holds between an entry and the one before it in any lane; None: there is none, or it cannot be read."""
    where = str(slot_path(entry.lane, entry.seq))
    if entry.seq == 1 and entry.prev_id:
        findings.error("S2", where, "the first entry names one before it: others were removed", FROM_COPY)
    if before is None:
        return
    if entry.prev_id != before.commit_id:
        findings.error("S2", where, f"it does not follow entry {before.seq}: one of them was replaced", FROM_COPY)
    if entry.committed_at_ms < before.committed_at_ms:
        findings.error("", where, "it was committed before the entry before it: as_of a time may be wrong", REPORT)


@dataclass(slots=True)
class TableLane:
    """What the table lane says.

    Attributes:
        head: Its last slot.
        state: After the last entry up to which it is known; None if there is no table.
        whole: Every entry was read; else what is missing here is not known to be wrong.
        current: ``state`` is that of the last entry.
        oldest_retained: The largest that any CLEAN_INTENT says, be the state known or not.
        schemas: Per revision.
        revs: Slots of CREATE, SCHEMA and DONE.
        fold_schemas: Per FOLD the schema of its files.
        intents: Slots of INTENTs.
        dones: DONE entries.
    """

    head: int = 0
    state: TableState | None = None
    whole: bool = True
    current: bool = True
    oldest_retained: int = 1
    schemas: dict[int, TableSchema] = field(default_factory=dict)
    revs: set[int] = field(default_factory=set)
    fold_schemas: dict[int, TableSchema] = field(default_factory=dict)
    intents: set[int] = field(default_factory=set)
    dones: list[Done] = field(default_factory=list)

    def schema_at(self, rev: int) -> TableSchema | None:
        """The schema that was the newest at a revision; None for one that came after what was read here."""
        known = [own for own in self.schemas if own <= rev <= self.head]
        return self.schemas[max(known)] if known and self.whole else self.schemas.get(rev)


class TableLaneReader:
    """Reads the table lane from the first entry to the last, and knows the state after each."""

    def __init__(self, store: ObjectStore, slots: Sequence[int], findings: Findings) -> None:
        self._store, self._slots, self._findings = store, slots, findings
        self._checkpoints: dict[int, list[Path]] | None = None
        self.lane = TableLane(head=slots[-1] if slots else 0)

    def states(self) -> Iterator[tuple[TableEntry | None, TableState | None]]:
        """Every entry, its lists in parsed, with the state after it; None where that cannot be known."""
        lane, findings = self.lane, self._findings
        state: TableState | None = None
        before: Entry | None = None
        for seq, entry in read_slots(self._store, TABLE_LANE, self._slots, findings):
            whole = self._in_place(entry) if entry is not None else None
            if entry is not None:
                check_order(before, entry, findings)
                self._check_header(entry)
            if whole is not None:
                self._note(whole)
            if whole is None or (state is None and not isinstance(whole, Create)):
                lane.whole, state = False, self._resumed(seq)
            else:
                if state is not None:
                    self._check(state, whole)
                state = self._folded(state, whole)
            before = entry
            lane.current = state is not None
            lane.state = state or lane.state
            yield whole, state

    def _check_header(self, entry: Entry) -> None:
        if entry.epoch or entry.table_rev:
            where = str(slot_path(TABLE_LANE, entry.seq))
            self._findings.error("S3", where, "an entry of the table lane has an epoch or a revision", REPORT)

    def _resumed(self, seq: int) -> TableState | None:
        """The state after a slot that cannot be read, or that follows one, where a checkpoint knows it."""
        if self._checkpoints is None:
            self._checkpoints = checkpoints_of(self._store, TABLE_LANE)
        for path in self._checkpoints.get(seq, ()):
            with normalise_errors(path):
                data = self._store.get(path)
            state = decode_table(data) if data is not None else None
            if state is not None and state.head == seq:
                self.lane.schemas[state.schema_rev] = state.schema
                return state
        return None

    def _in_place(self, entry: Entry) -> TableEntry | None:
        """The entry with its lists; None if they cannot be read."""
        assert isinstance(entry, TableEntry), "decoding has checked that it belongs here"
        there = _sidecar(entry)
        if there is None:
            return entry
        with normalise_errors(there.path):
            data = self._store.get(there.path)
        if data is None or Sidecar.of(there.path, data) != there:
            what = "missing" if data is None else "damaged"
            self._findings.error("S7", str(there.path), f"it is {what}: entry {entry.seq} cannot be read", FROM_COPY)
            return None
        match entry:
            case Base():
                return entry.model_copy(update={"slices": sidecar_codec.decode_slices(data)})
            case Fold():
                return entry.model_copy(update={"file_groups": sidecar_codec.decode_folded(data)})
            case Intent(restore=restore) if restore is not None:
                slices = sidecar_codec.decode_slices(data)
                return entry.model_copy(update={"restore": restore.model_copy(update={"slices": slices})})
        return entry

    def _note(self, entry: TableEntry) -> None:
        lane = self.lane
        if isinstance(entry, Create | Schema | Done):
            lane.revs.add(entry.seq)
        if isinstance(entry, Intent):
            lane.intents.add(entry.seq)
        if isinstance(entry, Done):
            lane.dones.append(entry)
        if isinstance(entry, CleanIntent):
            lane.oldest_retained = max(lane.oldest_retained, entry.oldest_retained)

    def _folded(self, state: TableState | None, entry: TableEntry) -> TableState | None:
        """The next state; what is wrong with the entry is told, and left out."""
        if state is not None:
            # Order was checked, and told of: what follows is judged for itself.
            state = replace(state, head=entry.seq - 1, head_id=entry.prev_id)
        where = str(slot_path(TABLE_LANE, entry.seq))
        try:
            folded = fold_table(state, [entry])
        except UnsupportedFormat as error:
            self._findings.warning("", where, f"{error.message}: not all can be checked", "verify with a newer version")
            folded = None
        except (TableError, KeyError, TypeError, ValueError) as error:
            invariant = {Base: "S10", Fold: "S11", LaneAdd: "S15"}.get(type(entry), "S2")
            what = error.message if isinstance(error, TableError) else f"its schema cannot be read: {error}"
            self._findings.error(invariant, where, f"{what}; readers stop here", REPORT)
            folded = None
        if folded is None:
            self.lane.whole = False
            return self._resumed(entry.seq)
        if isinstance(entry, Create | Schema):
            self.lane.schemas[entry.seq] = folded.schema
        return folded

    def _check(self, state: TableState, entry: TableEntry) -> None:
        """What the fold takes for granted."""
        where = str(slot_path(TABLE_LANE, entry.seq))
        match entry:
            case LaneAdd() if entry.lane_id in {lane.lane_id for lane in state.lanes.values()}:
                self._findings.error("S13", where, f"lane id {entry.lane_id} is given twice: versions may tie", REPORT)
            case Plan() if not max(state.oldest_retained, state.restored) <= entry.table <= state.head:
                what = f"it begins from prefix {entry.table}, which is expired, rolled back or yet to come"
                self._findings.error("K1", where, what, REPORT)
            case Base():
                self._check_base(state, entry, where)
            case Fold():
                plan = state.plans.get(entry.plan_id)
                if plan is None:
                    self._findings.error("K3", where, f"it closes plan {entry.plan_id}, which is not open", REPORT)
                else:
                    schema = self.lane.schema_at(plan.at.table)
                    if schema is not None:
                        self.lane.fold_schemas[entry.seq] = schema
                    if dict(plan.at.lanes) != entry.to:
                        self._findings.error("S8", where, "its end is not the cut of its plan", REPORT)
            case Savepoint() if entry.table > state.head or entry.name in state.savepoints:
                self._findings.error(
                    "S9", where, f"savepoint {entry.name!r} is of no snapshot, or is there twice", REPORT
                )
            case Mark():
                self._check_mark(state, entry, where)
            case CleanIntent() if entry.oldest_retained > state.head:
                self._findings.error(
                    "S16", where, f"it gives up prefixes up to {entry.oldest_retained}, which are yet to come", REPORT
                )

    def _check_mark(self, state: TableState, entry: Mark, where: str) -> None:
        """S24: marks never fall back, in time or in what they have seen."""
        if not state.committed_at_ms <= entry.began_at_ms <= entry.committed_at_ms:
            self._findings.error("S24", where, "its times are not those between which lanes were read", REPORT)
        behind = [lane for lane, seq in state.seen.items() if entry.lanes.get(lane, 0) < seq]
        unknown = [lane for lane in entry.lanes if lane not in state.lanes]
        for what, lanes in (("has not seen all that was there in", behind), ("names what is no", unknown)):
            if lanes:
                found = f"it {what} lane {', '.join(lanes)}: times around it may be wrong"
                self._findings.error("S24", where, found, REPORT)

    def _check_base(self, state: TableState, entry: Base, where: str) -> None:
        plan = state.plans.get(entry.plan_id)
        if plan is None:
            self._findings.error("K3", where, f"it has slices of plan {entry.plan_id}, which is not open", REPORT)
        assert not isinstance(entry.slices, Sidecar), "lists are in parsed"
        for file in entry.slices:
            group = f"{where}, file group {FileGroup(file.partition, file.bits, file.bucket)}"
            if plan is not None and file.cut != dict(plan.at.lanes):
                self._findings.error("S8", group, "the cut of the slice is not that of its plan", REPORT)
            if any(seq > file.cut.get(lane, 0) for lane, seq in file.parent.items()):
                self._findings.error("S10", group, "the slice ends before the one it was made from", REPORT)
            if self.lane.whole and file.rev not in self.lane.schemas:
                self._findings.error("S19", group, f"it has schema revision {file.rev}, which there is not", REPORT)
            if plan is not None:
                self._check_names(file, plan.slot, group)

    def _check_names(self, file: SliceFile, plan: int, where: str) -> None:
        for part in (file.base, file.shadow):
            parsed = parse_path(part.path) if part is not None else None
            if part is not None and (parsed is None or parsed.slot != plan):
                what = f"file {part.path} is not named by the slot of its plan ({plan}): cleaning may misjudge it"
                self._findings.error("S17", where, what, REPORT)


def _sidecar(entry: Entry) -> Sidecar | None:
    match entry:
        case Base(slices=Sidecar() as there) | Fold(file_groups=Sidecar() as there):
            return there
        case Intent(restore=restore) if restore is not None and isinstance(restore.slices, Sidecar):
            return restore.slices
    return None


@dataclass(slots=True)
class Claims:
    """The claims of one lane: per barrier the slot of its first."""

    first: dict[int, int] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        if isinstance(entry, Claim) and entry.intent:
            self.first.setdefault(entry.intent, entry.seq)


def check_fencing_barriers(table: TableLane, claims: dict[LaneName, Claims], findings: Findings) -> None:
    """Every DONE has the first claim of its barrier in every lane; every claim of a barrier has its INTENT."""
    for done in table.dones:
        where = str(slot_path(TABLE_LANE, done.seq))
        for lane, head in done.heads.items():
            first = claims[lane].first.get(done.intent) if lane in claims else None
            if first != head:
                there = first or "missing"
                what = f"it ends lane {lane!r} at entry {head}, but the barrier's first claim there is {there}"
                findings.error("S18", where, what, REPORT)
    for lane, own in claims.items():
        for barrier, seq in own.first.items():
            if barrier not in table.intents and barrier <= table.head:
                what = f"it claims the lane for a barrier of entry {barrier} of the table lane, which is none"
                findings.error("S3", str(slot_path(lane, seq)), what, REPORT)
