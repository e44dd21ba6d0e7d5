"""Writers' lanes as they stand in the store: what `verify` says of commits, and of what slices claim to hold of them.

One pass over each lane, entry by entry; what is kept of a commit is its stamp and its slot (16 bytes), by which the
registers in slices are traced back to the events they were made of (S5, S8, S18).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.clock import LANE_BITS
from storage.core.log.checkpoint_codec import decode_lane
from storage.core.log.cut import Seqs, Span, in_spans, lowest
from storage.core.log.entries import Claim, Data, Entry, LaneEntry, Promise
from storage.core.log.file_refs import LogIndex, Sidecar
from storage.core.log.lane_state import LaneState
from storage.core.log.table_state import FileGroup, Lane, TableState
from storage.core.names import Kind, LaneName, Path, parse_path, slot_path
from storage.errors import CorruptData
from storage.services.verify.findings import Findings
from storage.services.verify.verify_entries import REPORT, Claims, TableLane, check_order, checkpoints_of
from storage.services.verify.verify_slots import read_slots
from storage.store.object_store import ObjectStore, normalise_errors

MAX_LANE: Final = (1 << LANE_BITS) - 1


@dataclass(slots=True)
class LaneFacts:
    """What one pass over a lane has learnt.

    Attributes:
        head: Its last slot.
        whole: Every entry was read.
        claims: See there.
        stamps, seqs: Of its commits, in the order of stamps.
        committed_at_ms: Of its last entry that was read.
        owner: Of its last claim.
        epoch: Of its last entry that was read.
    """

    head: int
    whole: bool = True
    claims: Claims = field(default_factory=Claims)
    stamps: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    seqs: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    committed_at_ms: int = 0
    owner: str = ""
    epoch: int = 0


class LaneVerifier:
    """Reads one lane and checks what its entries say to each other and to the table."""

    def __init__(
        self,
        store: ObjectStore,
        table: TableLane,
        lane: Lane,
        slots: Sequence[int],
        held: Held | None,
        findings: Findings,
    ) -> None:
        """Say what is known; ``held`` is None where the table's state is not."""
        self._store, self._table, self._lane, self._slots = store, table, lane, slots
        self._held, self._findings = held, findings
        self._void: Sequence[Span] = table.state.rolled_back.get(lane.name, ()) if table.state is not None else ()
        self._batches: dict[str, int] = {}
        self._promised: dict[int, Promise] = {}
        self._last_stamp = 0
        self.facts = LaneFacts(head=slots[-1] if slots else 0)

    def commits(self) -> Iterator[Data]:
        """Check the lane; gives every commit that could be read, live or not."""
        facts, findings = self.facts, self._findings
        stamps: list[int] = []
        seqs: list[int] = []
        checkpoints = _Checkpoints(self._store, self._lane.name, findings)
        before: Entry | None = None
        for seq, entry in read_slots(self._store, self._lane.name, self._slots, findings):
            if entry is None:
                facts.whole, before = False, None
                checkpoints.broken()
                continue
            assert isinstance(entry, LaneEntry), "decoding has checked that it belongs here"
            check_order(before, entry, findings)
            self._check_header(before, entry, follows=before is not None or seq == 1)
            checkpoints.add(entry)
            facts.claims.add(entry)
            facts.committed_at_ms, facts.epoch = entry.committed_at_ms, entry.epoch
            if isinstance(entry, Claim):
                facts.owner = entry.owner
            if isinstance(entry, Data):
                stamps.append(entry.stamp)
                seqs.append(seq)
                self._check_commit(entry)
                yield entry
            before = entry
        order = np.argsort(np.array(stamps, np.int64), kind="stable")
        facts.stamps, facts.seqs = np.array(stamps, np.int64)[order], np.array(seqs, np.int64)[order]

    def _check_header(self, before: Entry | None, entry: LaneEntry, *, follows: bool) -> None:
        where, findings = str(slot_path(entry.lane, entry.seq)), self._findings
        if follows and entry.epoch != (before.epoch if before is not None else 0) + isinstance(entry, Claim):
            epoch = before.epoch if before is not None else 0
            what = f"{entry.kind} of claim {entry.epoch} follows an entry of claim {epoch}: a fenced writer went on"
            findings.error("S3", where, what, REPORT)
        if before is not None and entry.table_rev < before.table_rev:
            what = f"its revision {entry.table_rev} is older than that of the entry before, {before.table_rev}"
            findings.error("S19", where, what, REPORT)
        elif self._table.whole and 0 < entry.table_rev <= self._table.head and entry.table_rev not in self._table.revs:
            findings.error("S19", where, f"the table never had revision {entry.table_rev}", REPORT)

    def _check_commit(self, entry: Data) -> None:
        where, findings = str(slot_path(entry.lane, entry.seq)), self._findings
        if entry.stream != self._lane.stream:
            what = f"it is of stream {entry.stream!r}, but the lane belongs to {self._lane.stream!r}"
            findings.error("S5", where, what, REPORT)
        if self._lane.closed is not None and entry.seq > self._lane.closed:
            what = f"the lane was closed at entry {self._lane.closed}: nobody reads this commit"
            findings.error("S4", where, what, "append its rows again in another lane")
        if entry.stamp <= self._last_stamp:
            what = "its stamp is not larger than those of earlier commits: versions may tie, and compaction may reorder"
            findings.error("S13", where, what, REPORT)
        self._last_stamp = max(self._last_stamp, entry.stamp)
        if entry.rows != sum(file.file.rows for file in entry.files):
            what = f"it says {entry.rows} rows, its files {sum(file.file.rows for file in entry.files)}"
            findings.error("S7", where, what, REPORT)
        for file in entry.files:
            parsed = parse_path(file.file.path)
            named = parsed is not None and (parsed.kind, parsed.lane, parsed.epoch, parsed.slot)
            if named != (Kind.LOG, entry.lane, entry.epoch, entry.seq):
                what = f"log file {file.file.path} is not named by this lane, claim and slot: cleaning may misjudge it"
                findings.error("S17", where, what, REPORT)
        if self._table.current and entry.table_rev <= self._table.head:  # else it knows of a restore that we do not
            self._check_batch(entry, where)
            self._check_promises(entry, where)
            if self._held is not None and not in_spans(self._void, entry.seq):
                self._check_held(entry, self._held, where)

    def _check_batch(self, entry: Data, where: str) -> None:
        """S6: what is live of a query are its batches one after the other."""
        if not entry.query_id or in_spans(self._void, entry.seq):
            return
        last = self._batches.get(entry.query_id)
        name = f"batch {entry.batch} of query {entry.query_id!r}"
        if last is not None and entry.batch <= last:
            what = f"{name} is committed again: its rows count twice where they are added up"
            self._findings.error("S6", where, what, REPORT)
        elif last is not None and entry.batch != last + 1 and self.facts.whole:
            what = f"{name} follows batch {last}: those in between are missing"
            self._findings.error("S6", where, what, "let the source send them again, as a new query")
        self._batches[entry.query_id] = max(entry.batch, last or 0)

    def _check_promises(self, entry: Data, where: str) -> None:
        """S23: what live entries promise never falls, nor does what they count."""
        if in_spans(self._void, entry.seq):
            return
        for group, before in self._promised.items():
            now = entry.watermarks.get(group)
            # JSON forms compare as the values do: integers, or ISO texts that differ in digits alone.
            if now is None or now.value < before.value or now.late < before.late:
                what = (
                    f"it promises less of group {group} than an earlier commit: readers may take too much for complete"
                )
                self._findings.error("S23", where, what, REPORT)
        self._promised = dict(entry.watermarks)

    def _check_held(self, entry: Data, held: Held, where: str) -> None:
        """S8: rows that readers take for merged are in a slice or fold."""
        if entry.seq > held.log_start.get(entry.lane, 0):
            return
        lost = set()
        for file in entry.files:
            index = self._index(file.index)
            if index is None:
                continue  # it is not needed any more, and may be cleaned
            pairs = set(zip(index.ranges.partition, index.ranges.bucket, strict=True))
            groups = {FileGroup(index.partitions[partition], file.bits, bucket) for partition, bucket in pairs}
            if groups <= held.groups and entry.seq <= held.lowest.get(entry.lane, 0):
                continue
            lost |= {group for group in groups if entry.seq > held.until(group).get(entry.lane, 0)}
        if lost:
            names = ", ".join(str(group) for group in sorted(lost)[:3])
            what = (
                f"its rows of {len(lost)} file groups ({names}) are in no slice and no fold, and readers skip its log"
            )
            self._findings.error("S8", where, what, "restore a snapshot from before the newest compaction or fold")

    def _index(self, there: LogIndex | Sidecar) -> LogIndex | None:
        if isinstance(there, LogIndex):
            return there
        with normalise_errors(there.path):
            data = self._store.get(there.path)
        if data is None or Sidecar.of(there.path, data) != there:
            return None
        return LogIndex.model_validate_json(data)


class Held:
    """What the slices and folds of a state claim to hold."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self.log_start = state.log_start()
        self.groups = frozenset(state.slices).union(*(fold.groups for fold in state.folds))
        self._until: dict[FileGroup, Seqs] = {group: state.folded_to(group) for group in self.groups}
        self.lowest: Seqs = {}
        for number, until in enumerate(self._until.values()):
            self.lowest = until if number == 0 else lowest(self.lowest, until)

    def until(self, group: FileGroup) -> Seqs:
        return self._until.get(group, {})


class _Checkpoints:
    """The checkpoints of one lane beside its replay, once per set of rolled back entries that they were made under."""

    def __init__(self, store: ObjectStore, lane: LaneName, findings: Findings) -> None:
        self._findings = findings
        self._made: dict[int, list[tuple[Path, LaneState]]] = {}
        self._replays: dict[tuple[Span, ...], LaneState] = {}
        self._broken = False
        for head, paths in checkpoints_of(store, lane).items():
            for path in paths:
                with normalise_errors(path):
                    data = store.get(path)
                if data is None:
                    continue  # cleaned since it was listed
                findings.count("checkpoints")
                state = decode_lane(data)
                if state is None:
                    unusable_checkpoint(path, findings)
                else:
                    self._made.setdefault(head, []).append((path, state))
                    self._replays.setdefault(state.rolled_back, LaneState(rolled_back=state.rolled_back))

    def broken(self) -> None:
        """The lane cannot be replayed any further."""
        self._broken = True

    def add(self, entry: LaneEntry) -> None:
        if self._broken:
            return
        for replay in self._replays.values():
            try:
                replay.add(entry)
            except CorruptData:  # told of as what it is, by the caller
                self._broken = True
                return
        for path, state in self._made.get(entry.seq, ()):
            if state != self._replays[state.rolled_back]:
                wrong_checkpoint(path, self._findings)


def unusable_checkpoint(path: Path, findings: Findings) -> None:
    """A checkpoint that nobody uses."""
    findings.warning("", str(path), "it is damaged, or of another version: nobody uses it", "delete it")


def wrong_checkpoint(path: Path, findings: Findings) -> None:
    """A checkpoint that is used, and should not be."""
    what = "it is not what replaying the log gives: whoever starts from it knows wrong things"
    findings.error("S2", str(path), what, "delete it, and restart the processes that use the table")


class Arrivals:
    """Which commits there are, by the arrivals that registers carry."""

    def __init__(self, state: TableState, facts: Mapping[LaneName, LaneFacts]) -> None:
        self._lanes = {lane.lane_id: (lane.name, facts[lane.name]) for lane in state.lanes.values()}

    def check(
        self,
        arrivals: pa.Array,
        cut: Seqs,
        rolled_back: Mapping[LaneName, Sequence[Span]],
        where: str,
        findings: Findings,
    ) -> None:
        """Every register of a slice or fold is of a live commit within its cut."""
        known = np.unique(np.asarray(arrivals.drop_null()))
        for lane_id in np.unique(known & MAX_LANE).tolist():
            stamps = known[known & MAX_LANE == lane_id] >> LANE_BITS
            if lane_id not in self._lanes:
                findings.error("S5", where, f"it has rows of lane id {lane_id}, which there is not", REPORT)
                continue
            name, facts = self._lanes[lane_id]
            place = np.minimum(np.searchsorted(facts.stamps, stamps), max(len(facts.stamps) - 1, 0))
            found = facts.stamps[place] == stamps if len(facts.stamps) else np.zeros(len(stamps), np.bool_)
            if not found.all():
                if facts.whole:
                    what = f"it has rows of {int((~found).sum())} commits that lane {name!r} does not have"
                    findings.error("S5", where, what, REPORT)
                continue
            seqs = facts.seqs[place]
            beyond = seqs[seqs > cut.get(name, 0)]
            if len(beyond):
                what = f"it has rows of entry {int(beyond[0])} of lane {name!r}, which is not in its cut"
                findings.error("S8", where, what, REPORT)
            spans = rolled_back.get(name, ())
            dead = np.logical_or.reduce([np.zeros(len(seqs), np.bool_), *((seqs > a) & (seqs <= b) for a, b in spans)])
            if dead.any():
                what = f"it has rows of entry {int(seqs[dead][0])} of lane {name!r}, which a restore has rolled back"
                findings.error("S18", where, what, REPORT)
