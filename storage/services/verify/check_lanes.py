"""Checks writers' lanes: that commits are consistent, and that slices and folds contain exactly these commits.

Each lane is read once, entry by entry. Only the stamp and the slot of each commit are kept (16 bytes). They are used to
find the commits that registers in slices came from. Rules such as S8 are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from weft.storage.clock import LANE_BITS
from weft.storage.core.keys import Indices
from weft.storage.core.log.cut import Seqs, Span, in_spans, lowest
from weft.storage.core.log.entries import Claim, Data, LaneEntry, Promise
from weft.storage.core.log.file_refs import FileGroup, LogFile
from weft.storage.core.log.regroup import fill, overlapping
from weft.storage.core.log.table_state import Lane, TableState
from weft.storage.core.merge.locate_keys import key_columns, locate_keys
from weft.storage.core.names import Kind, LaneName, parse_path, slot_path
from weft.storage.environment import Environment
from weft.storage.files.log_file import open_columns
from weft.storage.services.verify.check_checkpoints import LaneCheckpoints
from weft.storage.services.verify.check_log_files import names_file_groups, read_index
from weft.storage.services.verify.check_rows import UNREADABLE
from weft.storage.services.verify.check_slots import read_slots
from weft.storage.services.verify.check_table_lane import TableLane, check_order
from weft.storage.services.verify.findings import Findings, Place
from weft.storage.store.object_store import ObjectStore

_LANE_MASK: Final = (1 << LANE_BITS) - 1
_LOST: Final = (
    "do not clean this table: as long as its log files are there, nothing is lost. Report a bug, with this entry and "
    "the BASE and FOLD entries"
)


class MergedEntries:
    """The entries that the slices and folds of a state claim to contain, by file group."""

    def __init__(self, store: ObjectStore, state: TableState, *, deep: bool) -> None:
        """``deep``: whether log files may be read, to find out which file groups have rows."""
        self._store, self._deep, self._schema, self._log_start = store, deep, state.schema, state.log_start()
        groups = frozenset(state.slices).union(*(fold.groups for fold in state.folds))
        self._until: dict[FileGroup, Seqs] = {group: state.folded_to(group) for group in groups}
        self._levels = {group.bits for group in groups}
        self._everywhere: Seqs = {}
        for number, until in enumerate(self._until.values()):
            self._everywhere = until if number == 0 else lowest(self._everywhere, until)

    def check_commit(self, entry: Data, place: Place) -> None:
        """Check S8: a commit whose log files readers skip is in the slices or folds of all its file groups."""
        if entry.seq > self._log_start.get(entry.lane, 0):
            return
        missing_groups: set[FileGroup] = set()
        for file in entry.files:
            # A clean may have deleted the index, which is no longer needed.
            index = read_index(self._store, file.index, Findings())
            if index is None:
                continue
            if not names_file_groups(index):
                text = f"the index of log file {file.file.path} contradicts itself: its file groups are not known"
                place.bad_content("S7", text)
                continue
            pairs = set(zip(index.ranges.partition, index.ranges.bucket, strict=True))
            groups = {FileGroup(index.partitions[partition], file.bits, bucket) for partition, bucket in pairs}
            if entry.seq > self._everywhere.get(entry.lane, 0) or not groups <= self._until.keys():
                missing_groups |= {group for group in groups if self._lacks(group, entry, file)}
        if missing_groups:
            names = ", ".join(str(group) for group in sorted(missing_groups)[:3])
            text = (
                f"its rows of {len(missing_groups)} file groups ({names}) are missing from compacted and folded files"
            )
            place.violation("S8", f"{text}, and readers skip its log files", _LOST)

    def _lacks(self, group: FileGroup, entry: Data, file: LogFile) -> bool:
        """Whether rows of a commit in a file group are certainly missing from slices and folds.

        If the file group was split since, its parts have the rows. A part without rows need not contain the commit, nor
        exist (G3, G4). So if only some parts contain the commit, the rows themselves show whether any is missing.
        """
        homes = [group] if group in self._until else overlapping(group, self._levels, self._until.__contains__)
        containing = [home for home in homes if entry.seq <= self._until[home].get(entry.lane, 0)]
        if not containing:
            return True
        if containing[0].bits <= group.bits or fill(group, containing):
            return False
        return self._deep and self._has_other_rows(file, group, containing)

    def _has_other_rows(self, file: LogFile, group: FileGroup, parts: Sequence[FileGroup]) -> bool:
        """Whether a log file has rows of a file group outside of ``parts``; False if the file does not exist."""
        try:
            with self._store.open_input(file.file.path, file.file.size) as source:
                rows = key_columns(self._schema, open_columns(source, self._schema.key).read_all())
        except UNREADABLE:
            return False  # a clean may have deleted the file; if it is needed, damage is reported elsewhere
        rows_by_group = locate_keys(self._schema, rows, {group.bits, *(part.bits for part in parts)})
        return sum(len(rows_by_group[part]) for part in parts if part in rows_by_group) < len(rows_by_group[group])


class LaneChecker:
    """Reads one lane and checks its entries against each other and against the table.

    Attributes:
        head: Last slot of the lane.
        is_complete: Whether all slots so far could be read.
        epoch: Epoch of the last entry that could be read.
        claims: Slot of the first claim for each fencing barrier, by the slot of the barrier's INTENT.
        followed: Live commits that follow an entry of the table lane after ``table.head``: slots, and these entries.
        stamps, seqs: Stamps and slots of the lane's commits, sorted by stamp; set after all have been read.
    """

    def __init__(
        self,
        env: Environment,
        table: TableLane,
        lane: Lane,
        slots: Sequence[int],
        merged_entries: MergedEntries | None,
        findings: Findings,
    ) -> None:
        """``merged_entries``: the entries in slices and folds; None if the newest state of the table is not known."""
        self._env, self._table, self._lane, self._slots = env, table, lane, slots
        self._merged_entries, self._findings = merged_entries, findings
        self._rolled_back: Sequence[Span] = table.state.rolled_back.get(lane.name, ()) if table.state else ()
        self._batches: dict[str, int] = {}
        self._promises: dict[int, Promise] = {}
        self._last_stamp = 0
        self._table_seen = 0
        self.head, self.is_complete, self.epoch = slots[-1] if slots else 0, True, 0
        self.claims: dict[int, int] = {}
        self.followed: list[tuple[int, int]] = []
        self.stamps: Indices = np.empty(0, np.int64)
        self.seqs: Indices = np.empty(0, np.int64)

    def commits(self) -> Iterator[Data]:
        """Check the lane. Yields every commit that could be read, also those that were rolled back."""
        name = self._lane.name
        stamps, seqs = array("q"), array("q")
        checkpoints = LaneCheckpoints(self._env, name, self._findings)
        previous: LaneEntry | None = None
        for seq, entry in read_slots(self._env, name, self._slots, self._findings):
            if entry is None:
                self.is_complete, previous = False, None
                checkpoints.stop()
                continue
            assert isinstance(entry, LaneEntry), "decoding has checked that it belongs here"
            place = self._findings.at(slot_path(name, seq))
            check_order(previous, entry, place)
            self._check_header(previous, entry, place)
            checkpoints.add(entry)
            self.epoch, previous = entry.epoch, entry
            if isinstance(entry, Data):
                stamps.append(entry.stamp)
                seqs.append(seq)
                self._check_commit(entry, place)
                yield entry
                continue
            if entry.for_batch and not in_spans(self._rolled_back, seq):
                self._promises = {}  # a batch does not continue the promises of the lane
            if entry.intent:
                self.claims.setdefault(entry.intent, seq)
        order = np.argsort(stamps, kind="stable")
        self.stamps, self.seqs = np.asarray(stamps)[order], np.asarray(seqs)[order]

    def _check_header(self, previous: LaneEntry | None, entry: LaneEntry, place: Place) -> None:
        """Check epoch and schema revision. ``previous``: None for the first entry, or if it cannot be read."""
        epoch = previous.epoch if previous is not None else 0
        if (previous is not None or entry.seq == 1) and entry.epoch != epoch + isinstance(entry, Claim):
            text = f"{entry.kind} of epoch {entry.epoch} follows an entry of epoch {epoch}: a fenced writer continued"
            place.violation("S3", text)
        if previous is not None and previous.finishes and not isinstance(entry, Claim):
            place.violation("S3", "it follows an entry that finishes the lane, without a claim: a writer went on")
        if previous is not None and isinstance(entry, Claim) and entry.for_batch and not previous.finishes:
            text = f"it is the claim of a batch, and the {previous.kind} before does not finish the lane"
            place.violation("L5", f"{text}: it fenced another writer")
        if previous is not None and entry.table_rev < previous.table_rev:
            text = (
                f"its schema revision {entry.table_rev} is older than that of the previous entry, {previous.table_rev}"
            )
            place.violation("S19", text)
        elif self._table.never_had(entry.table_rev):
            place.violation("S19", f"the table never had schema revision {entry.table_rev}")

    def _check_table_seen(self, seq: int, table_seen: int, place: Place) -> None:
        if table_seen < self._table_seen:
            text = f"its writer had read {table_seen} entries of the table lane, the last one {self._table_seen}"
            place.violation("S31", text)
        if in_spans(self._rolled_back, seq):
            return  # a restore of a copy rolls back commits that follow entries of another table lane
        self._table_seen = table_seen
        if table_seen > self._table.head:
            self.followed.append((seq, table_seen))

    def _check_commit(self, entry: Data, place: Place) -> None:
        lane = self._lane
        if entry.stream != lane.stream:
            place.violation("S5", f"it is of stream {entry.stream!r}, but the lane belongs to {lane.stream!r}")
        if lane.closed is not None and entry.seq > lane.closed:
            text = f"the lane was closed at entry {lane.closed}: readers ignore this commit"
            place.violation("S4", text, "append its rows again, through another lane")
        if entry.stamp <= self._last_stamp:
            text = "its stamp is not larger than those of earlier commits: two events may have the same version"
            place.violation("S13", text)
        self._last_stamp = max(self._last_stamp, entry.stamp)
        if entry.table_seen is not None:
            self._check_table_seen(entry.seq, entry.table_seen, place)
        rows = sum(file.file.rows for file in entry.files)
        if entry.rows != rows:
            place.violation("S7", f"it says that it has {entry.rows} rows, but its files have {rows}")
        for file in entry.files:
            parsed = parse_path(file.file.path)
            name_parts = parsed is not None and (parsed.kind, parsed.lane, parsed.epoch, parsed.slot)
            if name_parts != (Kind.LOG, entry.lane, entry.epoch, entry.seq):
                text = f"log file {file.file.path} is not named by this lane, epoch and slot"
                place.violation("S17", f"{text}: clean may delete or keep it wrongly")
        # An entry with a later revision may follow a restore that this verification has not seen.
        is_known = self._table.is_current and entry.table_rev <= self._table.head
        if is_known and not in_spans(self._rolled_back, entry.seq):
            self._check_batch(entry, place)
            self._check_promises(entry, place)
            if self._merged_entries is not None:
                self._merged_entries.check_commit(entry, place)

    def _check_batch(self, entry: Data, place: Place) -> None:
        """Check S6: batch numbers of a query have no gaps. Commits that were rolled back do not count."""
        if not entry.query_id:
            return
        last = self._batches.get(entry.query_id)
        name = f"batch {entry.batch} of query {entry.query_id!r}"
        if last is not None and entry.batch <= last:
            place.violation("S6", f"{name} is committed again: its rows count twice where they are added up")
        elif last is not None and entry.batch != last + 1 and self.is_complete:
            text = f"{name} follows batch {last}: the ones in between are missing"
            place.violation("S6", text, "let the source send them again, as a new query")
        self._batches[entry.query_id] = max(entry.batch, last or 0)

    def _check_promises(self, entry: Data, place: Place) -> None:
        """Check S23: watermarks and counts of late events never decrease. Rolled-back commits do not count."""
        for group, previous in self._promises.items():
            promise = entry.watermarks.get(group)
            # JSON forms sort like the values: integers, or ISO texts of one length.
            if promise is None or promise.value < previous.value or promise.late < previous.late:
                text = f"its watermark or count of late events of group {group} is below that of an earlier commit"
                place.violation("S23", f"{text}: a snapshot may seem complete too early")
        self._promises = dict(entry.watermarks)


class _Commits(NamedTuple):
    """The readable commits of a lane, sorted by stamp. ``is_complete``: whether all commits were readable."""

    name: LaneName
    is_complete: bool
    stamps: Indices
    seqs: Indices


class Arrivals:
    """Finds the commits that registers in slices and folds came from, by their arrivals. It can be pickled."""

    def __init__(
        self, state: TableState, retired: Mapping[LaneName, Lane], lanes: Mapping[LaneName, LaneChecker]
    ) -> None:
        """``retired``: retired lanes; ``lanes``: checkers that have read all commits of their lane."""
        all_lanes = {**retired, **state.lanes}
        self._lanes = {
            all_lanes[name].lane_id: _Commits(name, lane.is_complete, lane.stamps, lane.seqs)
            for name, lane in lanes.items()
            if name in all_lanes
        }
        # A slice that is newer than the retirement of a lane has all of its rows, and its cut does not name the lane.
        self._ends = {name: lane.closed or 0 for name, lane in retired.items() if name not in state.lanes}
        self._rolled_back = state.rolled_back

    def check(self, cut: Seqs, arrivals: pa.Array, place: Place) -> None:
        """Check that every register of a slice or fold came from a commit in its cut that was not rolled back."""
        unique_arrivals = np.unique(np.asarray(arrivals.drop_null()))
        for lane_id in np.unique(unique_arrivals & _LANE_MASK).tolist():
            if lane_id not in self._lanes:
                place.violation("S5", f"it has rows of lane id {lane_id}, which does not exist")
                continue
            lane = self._lanes[lane_id]
            name = lane.name
            stamps = unique_arrivals[unique_arrivals & _LANE_MASK == lane_id] >> LANE_BITS
            positions = np.searchsorted(lane.stamps, stamps)
            is_missing = positions == np.searchsorted(lane.stamps, stamps, side="right")
            if is_missing.any():
                if lane.is_complete:
                    place.violation(
                        "S5", f"it has rows of {int(is_missing.sum())} commits that lane {name!r} does not have"
                    )
                continue
            seqs = lane.seqs[positions]
            rolled_back = np.zeros(len(seqs), np.bool_)
            for after, until in self._rolled_back.get(name, ()):
                rolled_back |= (seqs > after) & (seqs <= until)
            for rule, is_wrong, reason in (
                ("S8", seqs > max(cut.get(name, 0), self._ends.get(name, 0)), "is not in its cut"),
                ("S18", rolled_back, "a restore has rolled back"),
            ):
                if is_wrong.any():
                    place.violation(rule, f"it has rows of entry {seqs[is_wrong][0]} of lane {name!r}, which {reason}")
