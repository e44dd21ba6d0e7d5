"""Checks the table lane entry by entry: the order of entries, and what each of them says of the table.

Reading never stops: a slot that is missing or damaged is reported, and the next one is read. So entries are decoded
here, without `CommitLog`, which stops there, and which caches. The state after an entry that cannot be read is unknown
unless a checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from storage.core.log import sidecar_codec
from storage.core.log.checkpoint_codec import decode_table
from storage.core.log.entries import (
    Base,
    CleanIntent,
    Create,
    Done,
    Entry,
    Fold,
    Header,
    Intent,
    LaneAdd,
    Mark,
    Plan,
    Savepoint,
    Schema,
    TableEntry,
    Unresolved,
)
from storage.core.log.file_refs import SliceFile
from storage.core.log.table_state import OpenPlan, TableState, fold_table
from storage.core.names import TABLE_LANE, LaneName, Path, parse_path, slot_path
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.errors import TableError, UnsupportedFormat
from storage.log.decoded_slices import DECODED_SLICES
from storage.services.verify.check_checkpoints import list_checkpoints
from storage.services.verify.check_slots import read_object, read_sidecar, read_slots
from storage.services.verify.findings import Finding, Findings, damage, violation, warning

_RULE_OF_REPLAY: Final = {Base: "S10", Fold: "S11", LaneAdd: "S15"}
_OTHER_COMMITS: Final = "says that it holds other commits than its plan: rows may be missing, or count twice"


def check_order(before: Header | None, entry: Header) -> Iterator[Finding]:
    """Checks an entry of any lane against the one before it; ``before``: None if there is none, or it is unreadable."""
    where = str(slot_path(entry.lane, entry.seq))
    if entry.seq == 1 and entry.prev_id:
        yield damage("S2", where, "the first entry names a predecessor: others were removed")
    if before is not None and entry.prev_id != before.commit_id:
        yield damage("S2", where, f"it does not follow entry {before.seq}: one of the two was replaced")
    if before is not None and entry.committed_at_ms < before.committed_at_ms:
        yield violation("", where, "its commit time is before that of the previous entry: as_of a time may be wrong")


@dataclass(slots=True)
class TableLane:
    """The content of the table lane.

    Attributes:
        head: Its last slot.
        state: After the last entry after which it is known; None if it never is.
        whole: Every entry was read; otherwise the attributes below may lack something.
        current: ``state`` is that after the last entry.
        oldest_retained: The largest one of any CLEAN_INTENT, whether the state after it is known or not.
        schemas: Per revision.
        revs: Slots of CREATE, SCHEMA and DONE.
        fold_schemas: Per slot of a FOLD the schema of its files.
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
        """The newest schema at a revision; None if that is newer than this lane."""
        known = [slot for slot in self.schemas if slot <= rev <= self.head]
        return self.schemas[max(known)] if known and self.whole else self.schemas.get(rev)


class TableLaneReader:
    """Reads the table lane from the first entry to the last, with the state after each."""

    def __init__(self, env: Environment, slots: Sequence[int], findings: Findings) -> None:
        self._env, self._store, self._slots, self._findings = env, env.store, slots, findings
        self._checkpoints: dict[int, list[Path]] | None = None
        self.lane = TableLane(head=slots[-1] if slots else 0)

    def states(self) -> Iterator[tuple[TableEntry | None, TableState | None]]:
        """Every entry and the state after it; None for what cannot be known."""
        lane, findings = self.lane, self._findings
        state: TableState | None = None
        before: Header | None = None
        for seq, entry in read_slots(self._env, TABLE_LANE, self._slots, findings):
            whole = self._resolve(entry) if entry is not None else None
            if entry is not None:
                findings.extend(check_order(before, entry))
                if entry.epoch or entry.table_rev:
                    what = (
                        "an entry of the table lane has an epoch or a schema revision, which only writers' entries have"
                    )
                    findings.add(violation("S3", str(slot_path(TABLE_LANE, seq)), what))
            if whole is not None:
                self._note(whole)
            if whole is None or (state is None and not isinstance(whole, Create)):
                lane.whole, state = False, self._from_checkpoint(seq)
            else:
                if state is not None:
                    findings.extend(self._check(state, whole, str(slot_path(TABLE_LANE, seq))))
                state = self._replay(state, whole)
            before = entry
            lane.current = state is not None
            lane.state = state or lane.state
            yield whole, state

    def _from_checkpoint(self, seq: int) -> TableState | None:
        """The state after a slot that cannot be replayed, if a checkpoint has it."""
        if self._checkpoints is None:
            self._checkpoints = list_checkpoints(self._store, TABLE_LANE)
        for path in self._checkpoints.get(seq, ()):
            data = read_object(self._store, path)
            state = decode_table(data) if data is not None else None
            if state is not None and state.head == seq:
                self.lane.schemas[state.schema_rev] = state.schema
                return state
        return None

    def _resolve(self, entry: Entry | Unresolved) -> TableEntry | None:
        """The whole entry; None if its sidecar cannot be read, which is reported."""
        if not isinstance(entry, Unresolved):
            assert isinstance(entry, TableEntry), "decoding has checked that it belongs here"
            return entry
        data, problem = read_sidecar(self._store, entry.sidecar)
        if data is None:
            what = f"it is {problem}: entry {entry.seq} of the table lane cannot be read"
            self._findings.add(damage("S7", str(entry.sidecar.path), what))
            return None
        try:
            return sidecar_codec.resolve(entry, data, DECODED_SLICES.decode)
        except UnsupportedFormat as error:
            what = f"{error.message}: it cannot be checked"
            self._findings.add(warning(str(entry.sidecar.path), what, "verify with the version that wrote it"))
            return None

    def _note(self, entry: TableEntry) -> None:
        lane = self.lane
        if isinstance(entry, Create | Schema | Done):
            lane.revs.add(entry.seq)
        match entry:
            case Intent():
                lane.intents.add(entry.seq)
            case Done():
                lane.dones.append(entry)
            case CleanIntent():
                lane.oldest_retained = max(lane.oldest_retained, entry.oldest_retained)

    def _replay(self, state: TableState | None, entry: TableEntry) -> TableState | None:
        """The state after a further entry; None if it is not known."""
        if state is not None:
            # A wrong order has been reported: the entry itself is checked all the same.
            state = replace(state, head=entry.seq - 1, head_id=entry.prev_id)
        where = str(slot_path(TABLE_LANE, entry.seq))
        try:
            following = fold_table(state, [entry])
        except UnsupportedFormat as error:
            what = f"{error.message}: not everything can be checked"
            self._findings.add(warning(where, what, "verify with a newer version"))
            following = None
        except (TableError, KeyError, TypeError, ValueError) as error:
            what = error.message if isinstance(error, TableError) else f"its schema cannot be read: {error}"
            rule = _RULE_OF_REPLAY.get(type(entry), "S2")
            self._findings.add(violation(rule, where, f"{what}; readers stop here"))
            following = None
        if following is None:
            self.lane.whole = False
            return self._from_checkpoint(entry.seq)
        if isinstance(entry, Create | Schema):
            self.lane.schemas[entry.seq] = following.schema
        return following

    def _check(self, state: TableState, entry: TableEntry, where: str) -> Iterator[Finding]:
        """Checks what replaying an entry takes for granted."""
        match entry:
            case LaneAdd() if entry.lane_id in {lane.lane_id for lane in state.lanes.values()}:
                what = f"lane id {entry.lane_id} is used twice: two events may have the same version"
                yield violation("S13", where, what)
            case Plan() if not max(state.oldest_retained, state.restored) <= entry.table <= state.head:
                what = f"its snapshot ends at entry {entry.table}, which is expired, rolled back or does not exist"
                yield violation("K1", where, f"{what}: the compaction or fold may merge wrong rows")
            case Base():
                yield from self._check_base(state.plans.get(entry.plan_id), entry, where)
            case Fold():
                yield from self._check_fold(state.plans.get(entry.plan_id), entry, where)
            case Savepoint() if entry.table > state.head or entry.name in state.savepoints:
                what = f"savepoint {entry.name!r} is of no snapshot, or exists already: reading it may fail"
                yield violation("S9", where, what)
            case Mark():
                yield from _check_mark(state, entry, where)
            case CleanIntent() if entry.oldest_retained > state.head:
                what = f"it expires snapshots up to entry {entry.oldest_retained}, which does not exist yet"
                yield violation("S16", where, f"{what}: files that are needed may be deleted")

    def _check_base(self, plan: OpenPlan | None, entry: Base, where: str) -> Iterator[Finding]:
        if plan is None:
            yield violation(
                "K3", where, f"it is of plan {entry.plan_id}, which is not open: an aborted compaction went on"
            )
        for file in entry.slices:
            group = f"{where}, file group {file.group}"
            if plan is not None and file.cut != dict(plan.at.lanes):
                yield violation("S8", group, f"the slice {_OTHER_COMMITS}")
            if any(seq > file.cut.get(lane, 0) for lane, seq in file.parent.items()):
                yield violation("S10", group, "the slice ends before the one it was made from: rows may be missing")
            if self.lane.whole and file.rev not in self.lane.schemas:
                yield violation(
                    "S19", group, f"it has schema revision {file.rev}, which does not exist: it cannot be read"
                )
            if plan is not None:
                yield from _check_names(file, plan.slot, group)

    def _check_fold(self, plan: OpenPlan | None, entry: Fold, where: str) -> Iterator[Finding]:
        if plan is None:
            yield violation("K3", where, f"it is of plan {entry.plan_id}, which is not open: an aborted fold went on")
            return
        schema = self.lane.schema_at(plan.at.table)
        if schema is not None:
            self.lane.fold_schemas[entry.seq] = schema
        if dict(plan.at.lanes) != entry.to:
            yield violation("S8", where, f"the fold {_OTHER_COMMITS}")


def _check_mark(state: TableState, entry: Mark, where: str) -> Iterator[Finding]:
    """S24: neither the time of marks nor the entries that they have seen go back."""
    if not state.committed_at_ms <= entry.began_at_ms <= entry.committed_at_ms:
        yield violation(
            "S24", where, "its times are not the ones between which lanes were read: as_of a time may be wrong"
        )
    behind = [lane for lane, seq in state.seen.items() if entry.lanes.get(lane, 0) < seq]
    unknown = [lane for lane in entry.lanes if lane not in state.lanes]
    for what, lanes in (("misses entries that existed in lane", behind), ("names an unknown lane", unknown)):
        if lanes:
            yield violation("S24", where, f"it {what} {', '.join(lanes)}: as_of a time may be wrong")


def _check_names(file: SliceFile, plan: int, where: str) -> Iterator[Finding]:
    for part in (file.base, file.shadow):
        parsed = parse_path(part.path) if part is not None else None
        if part is not None and (parsed is None or parsed.slot != plan):
            what = f"file {part.path} is not named by the slot of its plan ({plan})"
            yield violation("S17", where, f"{what}: clean may delete or keep it wrongly")


def check_fencing_barriers(table: TableLane, claims: Mapping[LaneName, Mapping[int, int]]) -> Iterator[Finding]:
    """Checks that every DONE names the first claim of its INTENT in every lane, and that the INTENT of claims exists.

    Args:
        table: The table lane.
        claims: Per lane and INTENT the slot of the first claim.
    """
    for done in table.dones:
        for lane, head in done.heads.items():
            first = claims.get(lane, {}).get(done.intent)
            if first != head:
                what = f"the restore or close ends lane {lane!r} at entry {head}, but its first claim there is "
                what += f"{first or 'missing'}: rows may be missing, or visible although they were rolled back"
                yield violation("S18", str(slot_path(TABLE_LANE, done.seq)), what)
    for lane, found in claims.items():
        for intent, seq in found.items():
            if intent not in table.intents and intent <= table.head:
                what = f"it claims the lane for a restore or close, but entry {intent} of the table lane is not one"
                yield violation("S3", str(slot_path(lane, seq)), what)
