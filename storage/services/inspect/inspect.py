"""Inspects a table for operators: an overview, the newest log entries, files of file groups, and lanes.

Results are frozen values made from log entries and sizes; no data file is opened. The cost does not depend on the
length of the history: only the newest entries of a lane are read, and its claim is found by bisection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from weft.storage.clock import Clock, Stamps
from weft.storage.core.log.cut import Cut, in_spans
from weft.storage.core.log.entries import (
    Abort,
    Base,
    Claim,
    CleanDone,
    CleanIntent,
    Data,
    Done,
    Entry,
    Fold,
    Intent,
    Mark,
    Plan,
    Retire,
    Savepoint,
)
from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.names import TABLE_LANE, LaneName, Path, parse_plan
from weft.storage.core.plan.regroup_slices import other_bits
from weft.storage.core.plan.slices import log_rows
from weft.storage.core.plan.watermarks import Watermarks
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.environment import open_environment
from weft.storage.log import snapshot_cut
from weft.storage.log.heartbeat import SILENT_AFTER_MS, Heartbeat, newest_heartbeats
from weft.storage.log.holders import Holder, find_holders
from weft.storage.log.pins import unexpired
from weft.storage.log.present_writer import newest_claim
from weft.storage.log.table_log import TableLog
from weft.storage.plural import counted
from weft.storage.read.lane_watermarks import is_finished
from weft.storage.read.referenced_snapshots import ReferencedTables
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.inspect.references import ReferenceReport, inspect_references
from weft.storage.services.inspect.stream_report import StreamReport, stream_report


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of a table. Times are Unix milliseconds, sizes are bytes.

    Attributes:
        cut: The newest snapshot, as text.
        rows_in_base: Visible rows in base files.
        events_in_logs: Events that are not compacted yet. If there are none, ``rows_in_base`` is the row count.
        unsplit_groups: File groups that wait to be split or merged, because the number of buckets was changed.
        commits_waiting: Commits with events that are not compacted yet.
        compactions_open: Compactions and folds that have begun and neither ended nor been aborted.
        oldest_retained: Snapshots of shorter prefixes of the table lane have expired, unless they are savepoints.
        keepers: Savepoints, plans and pins that keep files of older snapshots. A dry run of clean shows the garbage.
        streams: Watermarks of streams and groups.
        references: The references, with their problems.
    """

    uri: str
    table_id: str
    created_at_ms: int
    schema: TableSchema
    cut: str
    file_groups: int
    rows_in_base: int
    events_in_logs: int
    unsplit_groups: int
    base_bytes: int
    log_bytes: int
    commits: int
    commits_waiting: int
    compactions_open: int
    oldest_retained: int
    keepers: tuple[Holder, ...]
    streams: tuple[StreamReport, ...]
    references: tuple[ReferenceReport, ...]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of any lane.

    Attributes:
        lane: "" for the table lane.
        rows: Events of a DATA entry, rows in the slices of a BASE entry, or rows in the files of a FOLD entry; None for
            other entries.
        files: Number of files that it made visible.
        bytes: Size of these files.
        detail: A description.
        plan: Id of the compaction or fold that the entry begins, continues or ends; "" for other entries.
        ignored: Input rows of a DATA entry that changed nothing: upserts without an ordering value, ignored deletes.
        intent: Slot of the INTENT entry that a DONE entry completes; 0 for other entries.
        closes: True for an INTENT entry that closes lanes, False for one that restores the table or undoes a stream.
    """

    committed_at_ms: int
    lane: str
    seq: int
    kind: str
    rows: int | None
    files: int
    bytes: int
    detail: str
    plan: str
    ignored: int = 0
    intent: int = 0
    closes: bool = False


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file group at the newest snapshot. ``log_files`` counts the log files with events of this group."""

    file_group: str
    base_rows: int
    base_bytes: int
    shadow_rows: int
    shadow_bytes: int
    log_files: int
    log_rows: int
    log_bytes: int
    commits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReport:
    """One lane. Commits that were rolled back are not counted. Times are Unix milliseconds.

    Fields about a claim or a commit have their defaults if the lane has none.

    Attributes:
        epoch: Number of the newest claim.
        owner: Process that made the newest claim.
        query_id: Query of the last commit; "" if it is not a batch of a query.
        batch: Batch number of the last commit; None if it is not a batch of a query.
        rows: Events of the commits that were read.
        rows_complete: Whether ``rows`` counts all commits of the lane.
        source: Offsets of the source that the last commit recorded.
        closed: Whether the lane is closed.
        finished: Whether its last writer has finished the lane, so that another writer may continue it.
        for_batch: Whether its newest claim is of a batch. Batches use a lane one after another.
        writer: ``live``: a recent heartbeat. ``silent``: no recent heartbeat, and the writer did not end normally: it
            died or is paused. ``closed``: the last writer ended normally, or was fenced. ``never``: the lane never had
            a writer. This is a hint: only fencing ensures that a writer has stopped.
        heartbeat_at_ms: Last heartbeat of the present writer; None without a heartbeat.
        watermarks: Watermark by group (JSON form); None without a watermark.
        late: Events so far that were below the watermark.
    """

    lane: str
    stream: str
    head: int
    epoch: int = 0
    owner: str = ""
    claimed_at_ms: int | None = None
    last_commit: int | None = None
    committed_at_ms: int | None = None
    last_rows: int | None = None
    query_id: str = ""
    batch: int | None = None
    rows: int
    rows_complete: bool
    rows_waiting: int
    source: Mapping[str, Any] = field(default_factory=dict)
    closed: bool
    finished: bool = False
    for_batch: bool = False
    writer: Literal["live", "silent", "closed", "never"]
    heartbeat_at_ms: int | None
    watermarks: Mapping[str, Any]
    late: int


class Inspection:
    """Inspects the state that a table had when this object was created.

    Raises:
        NotFound: There is no table.
    """

    def __init__(
        self, uri: str, *, storage_options: Mapping[str, Any] | None = None, clock: Clock | None = None
    ) -> None:
        table_log = TableLog(open_environment(uri, storage_options, clock), Stamps())
        state, cut, _ = snapshot_cut.newest_cut(table_log)
        self._inspect(Snapshot(table_log, state, cut))

    @classmethod
    def of(cls, snapshot: Snapshot) -> Inspection:
        """Inspect a snapshot. What is not in the log, such as heartbeats, is current."""
        inspection = cls.__new__(cls)
        inspection._inspect(snapshot)  # noqa: SLF001 - of this class
        return inspection

    def _inspect(self, snapshot: Snapshot) -> None:
        self._table_log, self._state = snapshot.table_log, snapshot.state
        self._snapshot = snapshot
        self._lanes = snapshot.at.lanes

    @cached_property
    def _watermarks(self) -> Watermarks:
        """Read on first use, because that takes a round trip."""
        return self._snapshot.watermarks()

    def overview(self) -> Overview:
        """Sizes and settings of the table, its waiting work, and what keeps old files."""
        slices, files = self._snapshot.slices, self._snapshot.files
        pins = unexpired(self._table_log.store, self._table_log.clock)
        return Overview(
            uri=self._table_log.store.uri,
            table_id=self._state.table_id,
            created_at_ms=self._table_log.created_at_ms(),
            schema=self._state.schema,
            cut=str(self._joined_cut()),
            file_groups=len(slices),
            rows_in_base=sum(file_slice.slice.base_rows for file_slice in slices if file_slice.slice),
            events_in_logs=log_rows(slices),
            unsplit_groups=len(other_bits(slices, self._state.schema.bucket_bits)),
            base_bytes=sum(file_slice.base_bytes for file_slice in slices),
            log_bytes=sum(file_slice.log_bytes for file_slice in slices),
            commits=sum(self._lanes.values()),
            commits_waiting=len({(file.lane, file.seq) for file in files}),
            compactions_open=len(self._state.plans),
            oldest_retained=self._state.oldest_retained,
            keepers=tuple(holder for holder, _ in find_holders(self._state, pins)),
            streams=tuple(self.streams()),
            references=tuple(inspect_references(self._table_log.env, self._state.schema)),
        )

    def _joined_cut(self) -> Cut:
        """The newest cut with the cuts of referenced tables, so that it can be read with their columns."""
        if not self._state.schema.references:
            return self._snapshot.cut
        return ReferencedTables(self._table_log).snapshot(None).cut

    def streams(self) -> list[StreamReport]:
        """Watermarks of each stream and group, in the order of the schema."""
        now_ms = self._table_log.clock.now_ms()
        return [stream_report(mark, now_ms) for groups in self._watermarks.values() for mark in groups.values()]

    def timeline(self, limit: int | None = None) -> list[TimelineEntry]:
        """The newest entries of all lanes, newest first; all entries without a limit."""
        if limit is None:
            limit = self._state.head + sum(self._lanes.values())
        entries = self._newest(TABLE_LANE, self._state.head, limit)
        for lane, head in self._lanes.items():
            entries.extend(self._newest(lane, head, limit))
        entries.sort(key=lambda entry: (entry.committed_at_ms, entry.stamp), reverse=True)
        return [
            _describe(entry, rolled_back=isinstance(entry, Data) and self._is_rolled_back(entry))
            for entry in entries[:limit]
        ]

    def heads(self) -> dict[LaneName, int]:
        """The last entry of each lane in the snapshot, "" for the table lane."""
        return {TABLE_LANE: self._state.head, **self._lanes}

    def entries(self, spans: Mapping[LaneName, tuple[int, int]]) -> dict[LaneName, list[TimelineEntry]]:
        """Entries after + 1, ..., until of several lanes, in order. Lanes are read concurrently, without a cache.

        Args:
            spans: (after, until) by lane.

        Raises:
            CorruptData: An entry is missing or damaged.
        """
        tails = self._table_log.commit_log.uncached().read_tails(dict(spans))
        return {
            lane: [
                _describe(entry, rolled_back=isinstance(entry, Data) and self._is_rolled_back(entry))
                for entry in entries
            ]
            for lane, entries in tails.items()
        }

    def plan_of(self, path: str) -> TimelineEntry | None:
        """The PLAN of the compaction or fold that wrote a file; None for a file of a commit.

        Args:
            path: Path of the file, relative to the table.

        Raises:
            CorruptData: The entry is missing or damaged.
        """
        slot = parse_plan(Path(path))
        return None if slot is None else self.entries({TABLE_LANE: (slot - 1, slot)})[TABLE_LANE][0]

    def open_plans(self) -> frozenset[str]:
        """Ids of the compactions and folds that have begun, and have not ended."""
        return frozenset(self._state.plans)

    def files(self) -> list[FileReport]:
        """Every file group, in order."""
        files = self._snapshot.files
        reports = []
        for file_slice in self._snapshot.slices:
            numbers = set(file_slice.file.tolist())
            reports.append(
                FileReport(
                    file_group=str(file_slice.group),
                    base_rows=file_slice.slice.base_rows if file_slice.slice else 0,
                    base_bytes=file_slice.slice.base_bytes if file_slice.slice else 0,
                    shadow_rows=file_slice.slice.shadow_rows if file_slice.slice else 0,
                    shadow_bytes=file_slice.slice.shadow_bytes if file_slice.slice else 0,
                    log_files=len(numbers),
                    log_rows=int(file_slice.rows.sum()),
                    log_bytes=file_slice.log_bytes,
                    commits=len({(files[i].lane, files[i].seq) for i in numbers}),
                )
            )
        return reports

    def lanes(self) -> list[LaneReport]:
        """Every lane, in the order in which they were added."""
        rows_waiting: dict[LaneName, int] = {}
        for file in self._snapshot.files:
            rows_waiting[file.lane] = rows_waiting.get(file.lane, 0) + file.file.file.rows
        heartbeats = newest_heartbeats(self._table_log.store)
        return [self._lane(lane, rows_waiting.get(lane, 0), heartbeats.get(lane)) for lane in self._state.lanes]

    def _lane(self, lane: LaneName, rows_waiting: int, heartbeat: Heartbeat | None) -> LaneReport:
        head = self._lanes.get(lane, 0)
        newest = self._newest(lane, head, self._table_log.env.tuning.inspected_entries)
        data = [entry for entry in newest if isinstance(entry, Data) and not self._is_rolled_back(entry)]
        claim = newest_claim(self._table_log.commit_log, lane, head)
        # A heartbeat of an older claim was left by a writer that was fenced or died.
        is_present = heartbeat is not None and claim is not None and heartbeat.epoch >= claim.epoch
        present_heartbeat = heartbeat if is_present else None
        stream = self._state.lanes[lane].stream
        promises = {name: mark.lanes[lane] for name, mark in self._watermarks[stream].items()}
        report = LaneReport(
            lane=lane,
            stream=stream,
            head=head,
            rows=sum(entry.rows for entry in data),
            rows_complete=head <= self._table_log.env.tuning.inspected_entries,
            rows_waiting=rows_waiting,
            closed=self._state.lanes[lane].closed is not None,
            finished=bool(newest) and is_finished(newest[-1], self._state.rolled_back),
            for_batch=claim is not None and claim.for_batch,
            writer=self._writer(claim, present_heartbeat),
            heartbeat_at_ms=present_heartbeat.at_ms if present_heartbeat else None,
            watermarks={group: encode_scalar(mark.value) for group, mark in promises.items()},
            late=sum(mark.late for mark in promises.values()),
        )
        if claim is not None:
            report = replace(report, epoch=claim.epoch, owner=claim.owner, claimed_at_ms=claim.committed_at_ms)
        if data:
            last = data[-1]
            report = replace(report, last_commit=last.seq, committed_at_ms=last.committed_at_ms, last_rows=last.rows)
            batch = last.batch if last.query_id else None
            report = replace(report, query_id=last.query_id, batch=batch, source=last.source)
        return report

    def _is_rolled_back(self, entry: Data) -> bool:
        """Whether a restore or an undo has rolled a commit back."""
        return in_spans(self._state.rolled_back.get(entry.lane, ()), entry.seq)

    def _writer(self, claim: Claim | None, heartbeat: Heartbeat | None) -> Literal["live", "silent", "closed", "never"]:
        if claim is None:
            return "never"
        if heartbeat is None:
            return "closed"
        return "live" if self._table_log.clock.now_ms() - heartbeat.at_ms <= SILENT_AFTER_MS else "silent"

    def _newest(self, lane: LaneName, head: int, limit: int) -> list[Entry]:
        """The last entries of a lane, in ascending order."""
        return self._table_log.commit_log.read_after(lane, max(0, head - limit), head)


def _describe(entry: Entry, *, rolled_back: bool) -> TimelineEntry:
    files, rows = _published_files(entry)
    return TimelineEntry(
        committed_at_ms=entry.committed_at_ms,
        lane=entry.lane,
        seq=entry.seq,
        kind=entry.kind,
        rows=rows,
        files=len(files),
        bytes=sum(file.size for file in files),
        detail=_detail(entry) + (", rolled back" if rolled_back else ""),
        plan=entry.plan_id if isinstance(entry, Plan | Base | Fold | Abort) else "",
        ignored=entry.rows_ignored if isinstance(entry, Data) else 0,
        intent=entry.intent if isinstance(entry, Done) else 0,
        closes=isinstance(entry, Intent) and entry.restore is None,
    )


def _published_files(entry: Entry) -> tuple[list[FileRef], int | None]:
    """Distinct files that an entry makes visible, and their number of rows; None for kinds without files."""
    match entry:
        case Base():
            files_by_path = {file.path: file for slice_file in entry.slices for file in slice_file.objects}
            return list(files_by_path.values()), sum(slice_file.base_rows for slice_file in entry.slices)
        case Fold() | Data():
            files = [file.file for file in entry.files]
            return files, sum(file.rows for file in files)
    return [], None


_DETAIL: Final[Mapping[str, str]] = {
    "CREATE": "table {table_id}",
    "LANE_ADD": "lane {name} of stream {stream}",
    "SCHEMA": "schema: {change}",
    "ABORT": "compaction {plan_id:.8} ended: {reason}",
    "RELEASE": "savepoint {name} is released",
    "DONE": "completes entry {intent}",
}
"""Descriptions of entries by kind, as formats of their fields. `_detail` describes the other kinds."""


def _detail(entry: Entry) -> str:
    match entry:
        case Base():
            part = "" if entry.last else ", a part"
            if entry.rewrites:
                return f"{entry.rewrites}: {counted(len(entry.slices), 'file group')}"
            return f"compaction {entry.plan_id[:8]}{part}: {counted(len(entry.slices), 'file group')}"
        case Fold():
            return f"fold {entry.plan_id[:8]}: {counted(len(entry.file_groups), 'file group')}"
        case Plan():
            return f"compaction {entry.plan_id[:8]} of {counted(entry.file_groups, 'file group')}"
        case Retire():
            entries = counted(sum(entry.lanes.values()), "entry")
            return f"{counted(len(entry.lanes), 'closed lane')} retired, with {entries}"
        case CleanDone():
            return f"{counted(entry.files, 'file')} deleted, {counted(entry.bytes, 'byte')}"
        case Savepoint():
            note = f": {entry.note}" if entry.note else ""
            return f"savepoint {entry.name} keeps {Cut(entry.table, entry.lanes)}{note}"
        case Intent():
            purpose = entry.restore.label if entry.restore is not None else "closing"
            return f"{purpose} begins, for lanes {', '.join(entry.lanes) or 'none'}"
        case Mark():
            return f"mark: times before it are settled, with {counted(sum(entry.lanes.values()), 'entry')} of lanes"
        case CleanIntent():
            ends = ", ".join(f"{lane or 'the table lane'} {seq}" for lane, seq in sorted(entry.archived.items()))
            archive_text = f"; old entries may be archived up to {ends}" if ends else ""
            return f"snapshots before entry {entry.oldest_retained} expire{archive_text}"
        case Claim():
            barrier = f" for entry {entry.intent} of the table lane" if entry.intent else ""
            purpose = ", for a batch" if entry.for_batch else ", finishes the lane" if entry.finishes else ""
            return f"claim {entry.epoch} by {entry.owner}{barrier}{purpose}"
        case Data():
            batch = f", batch {entry.batch}" if entry.query_id else ""
            ignored_text = f", {counted(entry.rows_ignored, 'row')} ignored" if entry.rows_ignored else ""
            return f"stream {entry.stream}{batch}{ignored_text}"
    return _DETAIL[entry.kind].format_map(entry)
