"""The types of log entries, and of their members.

An entry is one immutable JSON object in one slot of one lane (FORMAT.md, "Entries"). Members that this version does not
know are refused. The parts of entries that describe files are in `weft.storage.core.log.file_refs`, the encoding of
entries is in `weft.storage.core.log.entry_codec`; PROTOCOL.md defines what a sequence of entries means.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, WrapSerializer

from weft.storage.core.log.cut import Cut, JoinedCut
from weft.storage.core.log.file_refs import FileGroup, LogFile, Seqs, SharedSeqs, SliceFile, Strict
from weft.storage.core.names import LaneName

LONGEST_RESERVATION_MS: Final = 24 * 3_600_000
"""The longest reservation of a PLAN: by default a clean aborts plans that are older."""

FORMAT_VERSION: Final = 2
"""The table format that this version of weft reads and writes. Version 1 named some members differently."""

_COMMIT_ID: Final = re.compile(r"[0-9a-f]{32}-(\d{1,18})")
"""``commit_id`` of a DATA entry that says what its writer had read of the table lane."""


def _dump_slices(slices: Sequence[SliceFile], dump: SerializerFunctionWrapHandler) -> Any:
    return dump(list(slices))


StoredSlices = Annotated[Sequence[SliceFile], WrapSerializer(_dump_slices)]
"""A list of slices, which may be a `SliceList` that is decoded lazily."""

SpansByLane = dict[LaneName, list[tuple[int, int]]]
"""Spans (after, up to) of entries that were rolled back, by lane, ascending."""


class Promise(Strict):
    """A lane's watermark for one group.

    Attributes:
        value: The writer declares that no later event of the lane has a smaller first ordering value. In JSON form.
        late: Events of the lane so far that were below a watermark that was recorded before them; those that were
            rolled back are not counted.
    """

    value: Any
    late: int


class Header(Strict):
    """The members that every entry has.

    Attributes:
        lane: "" for the table lane.
        seq: 1, 2, ... without gaps.
        epoch: Number of the claim under which it was written; 0 in the table lane.
        commit_id: Random. A writer recognises its entry by it. In a DATA entry it also contains `Data.table_seen`.
        prev_id: ``commit_id`` of entry seq - 1; "" for the first.
        table_rev: Slot of the newest CREATE, SCHEMA or DONE entry that the writer knew; of a CLAIM, the value of the
            entry before; 0 in the table lane.
        stamp: Orders versions. Milliseconds; compared with a clock only for a time to live.
        committed_at_ms: Wall clock of the writer in milliseconds since 1970 UTC; never decreases within a lane. Only
            used to find a snapshot by time, and to decide when a compaction is due.
    """

    lane: LaneName
    seq: int
    epoch: int
    commit_id: str
    prev_id: str
    table_rev: int
    stamp: int
    committed_at_ms: int

    def keys(self) -> Collection[str]:
        """Names of the members of the header alone: ``Release(**header, name="a")`` builds an entry with it."""
        return Header.model_fields.keys()

    def __getitem__(self, member: str) -> Any:
        return getattr(self, member)


class Create(Header):
    """First entry of the table lane."""

    kind: Literal["CREATE"] = "CREATE"
    format_version: Literal[2] = FORMAT_VERSION
    table_id: str
    reader_features: list[str]
    writer_features: list[str]
    table_schema: dict[str, Any]


class LaneAdd(Header):
    """Adds a writer's lane to the table."""

    kind: Literal["LANE_ADD"] = "LANE_ADD"
    name: LaneName
    lane_id: int
    stream: str


class Schema(Header):
    """Replaces the schema. Older entries and files can be read under the new one."""

    kind: Literal["SCHEMA"] = "SCHEMA"
    reader_features: list[str]
    writer_features: list[str]
    table_schema: dict[str, Any]
    change: str


class Plan(Header):
    """Begins a compaction or fold of the snapshot (``table``, ``cut``). Cleaning keeps these files while it is open.

    ``reserves_ms``: for how many milliseconds it keeps others from publishing a BASE
    (`weft.storage.core.plan.reservation`); 0 for no reservation.
    """

    kind: Literal["PLAN"] = "PLAN"
    plan_id: str
    table: int
    cut: Seqs
    file_groups: int
    reserves_ms: Annotated[int, Field(ge=0, le=LONGEST_RESERVATION_MS)] = 0


class Abort(Header):
    """Ends a compaction or fold without a result. Its files are garbage, and it can no longer publish a result."""

    kind: Literal["ABORT"] = "ABORT"
    plan_id: str
    reason: str


class Base(Header):
    """Publishes slices of a compaction; ``last`` closes its plan.

    ``covered`` is a cut or empty: every row of an entry up to it is in a slice. Without it, file groups without rows,
    or without new rows for a long time, would keep all log files alive.

    ``rewrites``: why its slices have other rows than what they were made from; "" for a compaction, which changes no
    row. A BASE that rewrites ends all open plans, and its slices may have the cut of their parents.
    """

    kind: Literal["BASE"] = "BASE"
    plan_id: str
    last: bool
    covered: Seqs
    slices: StoredSlices
    rewrites: str = ""


class FoldedGroup(Strict):
    """The part of a file group's logs that is in a fold: entries after ``start`` up to the fold's ``to``.

    Attributes:
        partition: Folder of the partition, "" for none.
        bits: Bucket bits.
        bucket: Bucket number.
        parent: Cut of the slice that the fold is on top of; empty if there was none.
        start: Last entry of each lane that is *not* in it: the cut of the slice, or the end of the previous fold.
    """

    partition: str
    bits: int
    bucket: int
    parent: SharedSeqs
    start: SharedSeqs

    @property
    def group(self) -> FileGroup:
        """The file group whose logs it folds."""
        return FileGroup(self.partition, self.bits, self.bucket)


class Fold(Header):
    """Publishes register-form log files: commits up to ``to``, merged but not in a slice. Closes its plan.

    ``covered`` is ``to`` or empty: every row of an entry up to it is in a slice or in a fold.
    """

    kind: Literal["FOLD"] = "FOLD"
    plan_id: str
    to: Seqs
    covered: Seqs
    files: list[LogFile]
    file_groups: list[FoldedGroup]


class KeptReference(Strict):
    """The snapshot of a referenced table that belongs to a savepoint.

    Attributes:
        table, lanes: Cut of the snapshot.
        savepoint: Name of the savepoint of the referenced table that keeps it.
    """

    table: int
    lanes: Seqs
    savepoint: str

    @property
    def at(self) -> Cut:
        """Cut of the snapshot."""
        return Cut(self.table, self.lanes)


def joined_cut(at: Cut, references: Mapping[str, KeptReference]) -> Cut:
    """The cut of a table with those of the referenced tables, if there are any."""
    return (
        JoinedCut(at.table, at.lanes, {name: reference.at for name, reference in references.items()})
        if references
        else at
    )


class Savepoint(Header):
    """Names the snapshot (``table``, ``lanes``), whose files stay until it is released.

    ``references``: the snapshots of the referenced tables, by the name of the reference.
    """

    kind: Literal["SAVEPOINT"] = "SAVEPOINT"
    name: str
    table: int
    lanes: Seqs
    note: str
    references: dict[str, KeptReference] = Field(default_factory=dict)


class Release(Header):
    """Releases a savepoint."""

    kind: Literal["RELEASE"] = "RELEASE"
    name: str


class Restoration(Strict):
    """The result of a restore: everything that any process needs to complete it.

    Attributes:
        label: The request, in words.
        table: Length of the prefix of the table lane whose slices are restored (PROTOCOL.md, T0).
        last_kept: Last entry that is kept, by fenced lane.
        rolled_back: Spans (after, up to) that were rolled back before, by lane; in fenced lanes up to ``last_kept``.
        covered: `TableState.covered` at ``table``.
        slices: The newest slice of every file group at ``table``.
    """

    label: str
    table: int
    last_kept: Seqs
    rolled_back: SpansByLane
    covered: Seqs
    slices: StoredSlices


class Intent(Header):
    """Begins a fencing barrier: an action that takes effect once every lane in ``lanes`` has a claim of it.

    Attributes:
        lanes: For each lane, an entry before which there is no claim of this barrier.
        restore: The restore that takes effect; None: the lanes are closed.
    """

    kind: Literal["INTENT"] = "INTENT"
    lanes: Seqs
    restore: Restoration | None


class Done(Header):
    """Completes the fencing barrier of INTENT ``intent``; ``heads`` has the slot of its first claim in every lane."""

    kind: Literal["DONE"] = "DONE"
    intent: int
    heads: Seqs


class Mark(Header):
    """Records which commits exist at a time, whatever time the commits state (PROTOCOL.md, S24 TimeStable).

    Attributes:
        began_at_ms: Time of the publisher's clock before it read the lanes.
        lanes: Last entry of each lane. The publisher read it after the previous entry was published and after
            ``began_at_ms``, and before ``committed_at_ms``.
    """

    kind: Literal["MARK"] = "MARK"
    began_at_ms: int
    lanes: Seqs


class CleanIntent(Header):
    """Expires snapshots of prefixes of the table lane shorter than ``oldest_retained``, except savepoints.

    ``archived``: last slot of each lane that may be archived from now on ("" is the table lane).
    """

    kind: Literal["CLEAN_INTENT"] = "CLEAN_INTENT"
    oldest_retained: int
    archived: Seqs = Field(default_factory=dict)


class CleanDone(Header):
    """Reports that the files of snapshots that CLEAN_INTENT ``intent`` expired are deleted."""

    kind: Literal["CLEAN_DONE"] = "CLEAN_DONE"
    intent: int
    files: int
    bytes: int


class Retire(Header):
    """Removes closed lanes from the table: every kept snapshot has all their rows in slices (PROTOCOL.md, C6).

    Attributes:
        lanes: The last entry of each lane.
    """

    kind: Literal["RETIRE"] = "RETIRE"
    lanes: Seqs


class Claim(Header):
    """Claims a lane, for a writer or for an operator; every older claim of the lane is fenced.

    Attributes:
        owner: The claimant in words, for messages to the writer that is fenced.
        intent: Slot of the INTENT that the claim is for; 0 for the claim of a writer and of a fence.
        for_batch: Its writer commits one batch, and continues nothing that the lane has (PROTOCOL.md, W10).
        finishes: No writer is in the lane until the next claim.
    """

    kind: Literal["CLAIM"] = "CLAIM"
    owner: str
    intent: int
    for_batch: bool = False
    finishes: bool = False


class Data(Header):
    """A commit. All its files become visible at once.

    Attributes:
        stream: The stream of the lane.
        query_id: Id of the query whose batch it is; "" without a batch.
        batch: Number of the batch; 0 without a batch.
        rows: Rows in ``files``.
        rows_ignored: Input rows that changed nothing and are not in ``files``.
        source: State of the source after the commit, as the writer recorded it.
        files: Log files; empty for an empty batch.
        watermarks: The lane's watermark per group id after the commit; empty if it has none.
        finishes: Its writer writes nothing more: no writer is in the lane until the next claim.
    """

    kind: Literal["DATA"] = "DATA"
    stream: str
    query_id: str
    batch: int
    rows: int
    rows_ignored: int
    source: dict[str, Any]
    files: list[LogFile]
    watermarks: dict[int, Promise] = Field(default_factory=dict)
    finishes: bool = False

    @property
    def table_seen(self) -> int | None:
        """Length of the prefix of the table lane that its writer had read when the commit began (PROTOCOL.md, W9, W11).

        None if a version wrote it that does not say so. It is a part of ``commit_id``, because such a version refuses
        an entry with a member that it does not know, and both work on one table during an upgrade.
        """
        match = _COMMIT_ID.fullmatch(self.commit_id)
        return int(match[1]) if match is not None else None


TableEntry = (
    Create
    | LaneAdd
    | Schema
    | Plan
    | Abort
    | Base
    | Fold
    | Savepoint
    | Release
    | Intent
    | Done
    | Mark
    | CleanIntent
    | CleanDone
    | Retire
)
LaneEntry = Claim | Data
Entry = TableEntry | LaneEntry


def table_entries(entries: Iterable[Entry]) -> list[TableEntry]:
    """Narrow the type of entries of the table lane; decoding has checked that they belong to it."""
    return [entry for entry in entries if isinstance(entry, TableEntry)]


def lane_entries(entries: Iterable[Entry]) -> list[LaneEntry]:
    """Narrow the type of entries of a writer's lane; decoding has checked that they belong to it."""
    return [entry for entry in entries if isinstance(entry, LaneEntry)]
