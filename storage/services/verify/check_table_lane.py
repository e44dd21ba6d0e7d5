"""Checks the table lane entry by entry: the order of entries, and what each entry says about the table.

Reading never stops: a missing or damaged slot is reported, and the next one is read. `CommitLog` would stop there, and
it caches, so it is not used here. The state after an unreadable entry is unknown unless a checkpoint has it. Rules such
as S10 are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_table
from weft.storage.core.log.cut import only, within
from weft.storage.core.log.entries import (
    Base,
    CleanIntent,
    Create,
    Done,
    Entry,
    Fold,
    Header,
    LaneAdd,
    Mark,
    Plan,
    Retire,
    Savepoint,
    Schema,
    TableEntry,
)
from weft.storage.core.log.entry_codec import Unresolved
from weft.storage.core.log.features import ERASE, OVERLAYS, RETIRE
from weft.storage.core.log.file_refs import SliceFile
from weft.storage.core.log.table_state import Lane, OpenPlan, TableState
from weft.storage.core.names import TABLE_LANE, LaneName, parse_path, slot_path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import TableError, UnsupportedFormat
from weft.storage.log.decoded_sidecars import DECODED_SLICES
from weft.storage.services.verify.check_checkpoints import Checkpoints, is_intact_table_checkpoint
from weft.storage.services.verify.check_slots import read_sidecar, read_slots
from weft.storage.services.verify.findings import Findings, Place

NOT_REPLAYED: Final = (TableError, KeyError, TypeError, ValueError)
"""Errors of replaying an entry that contradicts others, or whose schema cannot be read."""

_RULE_OF_REPLAY: Final = {Base: "S10", Fold: "S11", LaneAdd: "S15"}
_OTHER_COMMITS: Final = "contains other commits than its plan: rows may be missing, or count twice"


def check_order(previous: Header | None, entry: Header, place: Place) -> None:
    """Check an entry of any lane. ``previous``: None for the first entry, or if it cannot be read."""
    if entry.seq == 1 and entry.prev_id:
        place.damage("S2", "the first entry names a predecessor: others were removed")
    if previous is not None and entry.prev_id != previous.commit_id:
        place.damage("S2", f"it does not follow entry {previous.seq}: one of the two was replaced")
    if previous is not None and entry.committed_at_ms < previous.committed_at_ms:
        place.violation("", "its commit time is before that of the previous entry: as_of a time may be wrong")


@dataclass(slots=True)
class TableLane:
    """The content of the table lane.

    Attributes:
        head: Last slot of the lane.
        state: Newest known state of the table; None if no state is known.
        is_complete: Whether every entry could be read. Otherwise the attributes below may be incomplete.
        is_current: Whether ``state`` is the state after the last entry.
        oldest_retained: Largest ``oldest_retained`` of all CLEAN_INTENT entries, also of those after which the state is
            unknown.
        schemas: Schemas by revision.
        fold_schemas: Schema of the files of each FOLD, by slot of the FOLD.
        kinds: Kind of each entry, by slot.
        dones: All DONE entries.
        retired: Retired lanes. Their entries exist, but nothing reads them.
    """

    head: int = 0
    state: TableState | None = None
    is_complete: bool = True
    is_current: bool = True
    oldest_retained: int = 1
    schemas: dict[int, TableSchema] = field(default_factory=dict)
    fold_schemas: dict[int, TableSchema] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    dones: list[Done] = field(default_factory=list)
    retired: dict[LaneName, Lane] = field(default_factory=dict)

    def schema_at(self, rev: int) -> TableSchema | None:
        """The schema that was current at a revision; None if it is not known."""
        known_slots = [slot for slot in self.schemas if slot <= rev <= self.head]
        return self.schemas[max(known_slots)] if known_slots and self.is_complete else self.schemas.get(rev)

    def never_had(self, rev: int) -> bool:
        """Whether the entry in this slot is known and does not define a schema."""
        return self.is_complete and 0 < rev <= self.head and self.kinds[rev] not in {"CREATE", "SCHEMA", "DONE"}

    def note(self, entry: TableEntry) -> None:
        """Record the facts of an entry that do not depend on the state before it."""
        self.kinds[entry.seq] = entry.kind
        if isinstance(entry, Done):
            self.dones.append(entry)
        if isinstance(entry, CleanIntent):
            self.oldest_retained = max(self.oldest_retained, entry.oldest_retained)


class TableLaneReader:
    """Reads the table lane from the first entry to the last, and computes the state after each."""

    def __init__(self, env: Environment, slots: Sequence[int], findings: Findings) -> None:
        self._env, self._slots, self._findings = env, slots, findings
        self.checkpoints = Checkpoints(env, TABLE_LANE, decode_table, is_intact_table_checkpoint, findings)
        self.lane = TableLane(head=slots[-1] if slots else 0)

    def states(self) -> Iterator[tuple[TableEntry | None, TableState | None]]:
        """Yield every entry and the state after it; None for an unknown entry or state."""
        lane = self.lane
        state: TableState | None = None
        previous: Header | None = None
        for seq, stored_entry in read_slots(self._env, TABLE_LANE, self._slots, self._findings):
            place = self._findings.at(slot_path(TABLE_LANE, seq))
            entry = self._resolve(stored_entry) if stored_entry is not None else None
            if stored_entry is not None:
                check_order(previous, stored_entry, place)
                if stored_entry.epoch or stored_entry.table_rev:
                    text = "an entry of the table lane has an epoch or a schema revision"
                    place.violation("S3", f"{text}, which only writers' entries have")
            following = None
            if entry is not None:
                lane.note(entry)
                following = self._replay(state, entry, place)
            if following is None:
                lane.is_complete, following = False, self._from_checkpoint(seq)
            previous, state = stored_entry, following
            lane.is_current = state is not None
            lane.state = state or lane.state
            yield entry, state

    def _from_checkpoint(self, seq: int) -> TableState | None:
        """The state after a slot that cannot be replayed; None if no checkpoint has it."""
        for _, state in list(self.checkpoints.take(seq)):
            self.lane.schemas[state.schema_rev] = state.schema
            return state
        return None

    def _resolve(self, entry: Entry | Unresolved) -> TableEntry | None:
        """The entry with the lists of its sidecar. If the sidecar cannot be read, reports this and returns None."""
        if not isinstance(entry, Unresolved):
            assert isinstance(entry, TableEntry), "decoding has checked that it belongs here"
            return entry
        consequence = f"entry {entry.seq} of the table lane cannot be read"
        data = read_sidecar(self._env.store, entry.sidecar, self._findings, consequence)
        try:
            return sidecar_codec.resolve(entry, data, DECODED_SLICES.decode) if data is not None else None
        except UnsupportedFormat as error:
            text = f"{error.message}: it cannot be checked"
            self._findings.at(entry.sidecar.path).warning(text, "verify with the version that wrote it")
            return None

    def _replay(self, state: TableState | None, entry: TableEntry, place: Place) -> TableState | None:
        """Check an entry against the state before it; returns the state after it, None if that is unknown."""
        if state is not None:
            self._check(state, entry, place)
            # A wrong order was reported already: replay the entry as if it followed.
            state = replace(state, head=entry.seq - 1, head_id=entry.prev_id)
        elif not isinstance(entry, Create):
            return None
        try:
            following = apply_entries(state, [entry])
        except UnsupportedFormat as error:
            place.warning(f"{error.message}: not everything can be checked", "verify with a newer version")
            return None
        except NOT_REPLAYED as error:
            text = error.message if isinstance(error, TableError) else f"its schema cannot be read: {error}"
            place.violation(_RULE_OF_REPLAY.get(type(entry), "S2"), f"{text}; readers stop here")
            return None
        if following is not None and isinstance(entry, Retire) and state is not None:
            self.lane.retired |= {name: state.lanes[name] for name in entry.lanes}
        if following is not None and isinstance(entry, Create | Schema):
            self.lane.schemas[entry.seq] = following.schema
        return following

    def _check(self, state: TableState, entry: TableEntry, place: Place) -> None:
        """Check the rules that replaying an entry does not check."""
        match entry:
            case LaneAdd() if not entry.name:
                place.violation("S2", "it adds a lane without a name: its entries would be those of the table lane")
            case LaneAdd() if entry.name in self.lane.retired:
                place.violation("S32", f"lane {entry.name!r} was retired: its entries would count again")
            case LaneAdd() if entry.lane_id <= state.retired_id or entry.lane_id in {
                lane.lane_id for lane in state.lanes.values()
            }:
                place.violation("S13", f"lane id {entry.lane_id} is used twice: two events may have the same version")
            case Plan() if not state.oldest_continued <= entry.table <= state.head:
                text = f"its snapshot ends at entry {entry.table}, which is expired, was replaced or does not exist"
                place.violation("K1", f"{text}: the compaction or fold may merge wrong rows")
            case Base():
                self._check_base(state, entry, place)
            case Fold():
                self._check_fold(state.plans.get(entry.plan_id), entry, place)
            case Savepoint() if entry.table > state.head or entry.name in state.savepoints:
                text = f"savepoint {entry.name!r} already exists or has no snapshot: reading it may fail"
                place.violation("S9", text)
            case Mark():
                _check_mark(state, entry, place)
            case Retire() if RETIRE not in state.writer_features:
                place.violation(
                    "C6", "it retires lanes, but the table lacks the feature: older versions read them again"
                )
            case Retire():
                self._check_retired(state, entry, place)
            case CleanIntent() if entry.oldest_retained > state.head:
                text = f"it expires snapshots up to entry {entry.oldest_retained}, which does not exist yet"
                place.violation("S16", f"{text}: files that are needed may be deleted")

    def _check_base(self, state: TableState, entry: Base, place: Place) -> None:
        plan = state.plans.get(entry.plan_id)
        if plan is None:
            place.violation("K3", f"it is of plan {entry.plan_id}, which is not open: an aborted compaction continued")
        if entry.rewrites and ERASE not in state.writer_features:
            place.violation(
                "X2", "it rewrites rows, but the table lacks the feature: older versions may bring rows back"
            )
        for file in entry.slices:
            group = self._findings.at(f"{place.where}, file group {file.group}")
            if not within(only(file.parent, state.lanes), file.cut):
                group.violation("S10", "the slice ends before the one it was made from: rows may be missing")
            if self.lane.is_complete and file.rev not in self.lane.schemas:
                text = f"it has schema revision {file.rev}, which does not exist: it cannot be read"
                group.violation("S19", text)
            if plan is not None:
                _check_slice_of_plan(file, plan, state.slices.get(file.group), group)
            if file.overlays:
                self._check_overlays(state, file, group)

    def _check_retired(self, state: TableState, entry: Retire, place: Place) -> None:
        """Check S32 for the newest snapshot: its slices have all entries of the retired lanes."""
        for lane, end in entry.lanes.items():
            if state.covered.get(lane, 0) < end:
                text = f"it retires lane {lane!r} at entry {end}, and slices have its rows up to "
                place.violation("S32", f"{text}{state.covered.get(lane, 0)}: later rows may be missing")

    def _check_overlays(self, state: TableState, file: SliceFile, place: Place) -> None:
        """Check S29: a slice with overlays has all rows of a base, and each group in one file."""
        if OVERLAYS not in state.writer_features:
            place.violation(
                "K7", "it has overlays, but the table lacks the feature: older versions read the base alone"
            )
        groups = [group for overlay in file.overlays for group in overlay.groups]
        if len(set(groups)) < len(groups) or not set(groups) <= set(file.groups):
            place.violation("S29", f"its overlays have groups {groups}: one is in two of them, or not in the table")
        if file.base is None or file.base_part is not None:
            place.violation("S29", "it has overlays, but no base of its own")
        elif any(overlay.file.rows != file.base.rows for overlay in file.overlays):
            place.violation("S29", f"an overlay has another number of rows than the base, which has {file.base.rows}")

    def _check_fold(self, plan: OpenPlan | None, entry: Fold, place: Place) -> None:
        if plan is None:
            place.violation("K3", f"it is of plan {entry.plan_id}, which is not open: an aborted fold continued")
            return
        schema = self.lane.schema_at(plan.at.table)
        if schema is not None:
            self.lane.fold_schemas[entry.seq] = schema
        if dict(plan.at.lanes) != entry.to:
            place.violation("S8", f"the fold {_OTHER_COMMITS}")


def _check_slice_of_plan(file: SliceFile, plan: OpenPlan, previous: SliceFile | None, place: Place) -> None:
    """``previous``: the newest earlier slice of the file group; a slice with overlays may share its files."""
    previous_paths = (
        {file_ref.path for file_ref in previous.objects} if previous is not None and file.overlays else set()
    )
    if file.cut != dict(plan.at.lanes):
        place.violation("S8", f"the slice {_OTHER_COMMITS}")
    for file_ref in file.objects:
        parsed = parse_path(file_ref.path)
        if file_ref.path not in previous_paths and (parsed is None or parsed.slot != plan.slot):
            text = f"file {file_ref.path} is not named by the slot of its plan ({plan.slot})"
            place.violation("S17", f"{text}: clean may delete or keep it wrongly")


def _check_mark(state: TableState, entry: Mark, place: Place) -> None:
    """Check S24: the times of marks and the entries that they name never decrease."""
    if not state.committed_at_ms <= entry.began_at_ms <= entry.committed_at_ms:
        place.violation("S24", "its times contradict the previous entry or each other: as_of a time may be wrong")
    missed_lanes = [lane for lane, seq in state.seen.items() if entry.lanes.get(lane, 0) < seq]
    unknown_lanes = [lane for lane in entry.lanes if lane not in state.lanes]
    for problem, lanes in (
        ("misses entries that existed in lane", missed_lanes),
        ("names an unknown lane", unknown_lanes),
    ):
        if lanes:
            place.violation("S24", f"it {problem} {', '.join(lanes)}: as_of a time may be wrong")


def check_fencing_barriers(table: TableLane, claims: Mapping[LaneName, Mapping[int, int]], findings: Findings) -> None:
    """Check that every DONE names the first claim of its INTENT in every lane, and that the INTENT of claims exists.

    Args:
        table: The table lane.
        claims: Slot of the first claim, by lane and slot of the INTENT.
        findings: Collects the findings.
    """
    for done_entry in table.dones:
        for lane, head in done_entry.heads.items():
            first = claims.get(lane, {}).get(done_entry.intent)
            if first != head:
                text = f"the restore or close ends lane {lane!r} at entry {head}, but its first claim there is "
                text += f"{first or 'missing'}: rows may be missing, or visible although they were rolled back"
                findings.at(slot_path(TABLE_LANE, done_entry.seq)).violation("S18", text)
    for lane, lane_claims in claims.items():
        for intent, seq in lane_claims.items():
            if table.kinds.get(intent) != "INTENT" and intent <= table.head:
                text = f"it claims the lane for a restore or close, but entry {intent} of the table lane is neither"
                findings.at(slot_path(lane, seq)).violation("S3", text)
