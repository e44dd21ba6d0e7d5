"""State of the table: what the entries of a prefix of the table lane say together.

It has the newest slice of every file group and the folds on top of it, but no history: an older state is that of a
shorter prefix. So memory is proportional to the size of the table, not to the length of its history.
`weft.storage.core.log.apply_entries` computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut, Span
from weft.storage.core.log.entries import Intent, KeptReference
from weft.storage.core.log.file_refs import FileGroup, LogFile, SliceFile
from weft.storage.core.log.group_set import GroupSet, GroupUnion, StoredGroups
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.regroup import overlapping
from weft.storage.core.log.stored_as import stored_as
from weft.storage.core.names import LaneName
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import SnapshotExpired, UnsupportedFormat


@dataclass(frozen=True, slots=True)
class Lane:
    """A writer's lane, as the table lane declares it.

    Attributes:
        name: Unique in the table.
        lane_id: 1, 2, ..., in the order in which lanes were added.
        stream: The stream whose events it has.
        closed: The last entry of a closed lane; None while it is open.
    """

    name: LaneName
    lane_id: int
    stream: str
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A compaction or fold that has begun and not ended. Cleaning keeps the files of its snapshot.

    Attributes:
        slot: Slot of its PLAN; it is part of the names of its files.
        at: Cut of its snapshot.
        committed_at_ms: Time of the PLAN.
        reserves_ms: Duration of its reservation from then on (`weft.storage.core.plan.reservation`); 0 for none.
    """

    slot: int
    at: Cut
    committed_at_ms: int
    reserves_ms: int = 0


@dataclass(frozen=True, slots=True)
class LiveFold:
    """A fold that readers use.

    Attributes:
        slot: Slot of its FOLD.
        to: Last entry of each lane that it contains.
        files: Its files.
        groups: File groups whose logs up to ``to`` are read from it.
    """

    slot: int
    to: cut.Seqs
    files: tuple[LogFile, ...]
    groups: Annotated[GroupSet, stored_as(StoredGroups, GroupSet, GroupSet.dump)]


@dataclass(frozen=True, slots=True)
class LiveSavepoint:
    """A savepoint that is not released.

    Attributes:
        at: Cut of its snapshot.
        note: Text of the user.
        committed_at_ms: Time of the SAVEPOINT.
        references: Snapshots of the referenced tables, by the name of the reference.
    """

    at: Cut
    note: str
    committed_at_ms: int
    references: Mapping[str, KeptReference] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a prefix of the table lane. Checkpoints store every field, as it is declared here.

    Attributes:
        head: Length of the prefix (T).
        head_id: ``commit_id`` of its last entry.
        committed_at_ms: ``committed_at_ms`` of its last entry.
        stamp: Largest stamp.
        rev: Slot of the newest CREATE, SCHEMA or DONE of a restore.
        schema_rev: Slot of the newest CREATE or SCHEMA.
        restored: Slot of the newest DONE of a restore; 0 if there is none.
        lanes: In the order in which they were added, without those that were retired (PROTOCOL.md, C6).
        slices: The newest slice of each file group.
        covered: For each lane, an entry up to which every row is in a slice, even if the cuts of some slices are older.
        folds: Oldest first. The folds of a file group follow its slice without gaps.
        folded: For each lane, an entry up to which every row is in a slice or in a fold.
        plans: Open compactions and folds, by plan id.
        savepoints: Savepoints by name.
        oldest_retained: Snapshots of shorter prefixes are expired, except savepoints (PROTOCOL.md, S16 CleanSafe).
        intent: The INTENT of the fencing barrier that is open; None if there is none.
        rolled_back: Spans (after, up to) that restores have rolled back, by lane (S18 RolledBackNeverVisible).
        archived: Last slot of each lane that may be archived ("" is the table lane); lanes without one are left out.
        seen: Last entry of each lane that certainly existed when the last entry of the prefix was published.
        first_mark: Slot of the oldest MARK; 0 if there is none.
        mark: Slot of the newest MARK; 0 if there is none.
        marked_at_ms: ``began_at_ms`` of that MARK; the time of CREATE if there is none.
        rewritten: Slot of the newest BASE that rewrites; 0 if there is none. A snapshot of a shorter prefix has rows
            that the table lost, so no plan may begin from it.
        complete_from: Every snapshot of this prefix or a longer one, and every other one that is kept, has all entries
            of the retired lanes; 0 if none was retired.
        retired_id: The largest id of a retired lane; 0 if none was retired.
    """

    head: int
    head_id: str
    committed_at_ms: int
    stamp: int
    rev: int
    schema_rev: int
    table_id: str
    schema: Annotated[TableSchema, stored_as(dict[str, Any], TableSchema.from_json, TableSchema.to_json)]
    writer_features: Annotated[frozenset[str], stored_as(list[str], frozenset, sorted)]
    marked_at_ms: int
    restored: int = 0
    lanes: Mapping[LaneName, Lane] = field(default_factory=dict)
    slices: Annotated[Slices, stored_as(list[SliceFile], Slices.of, lambda slices: list(slices.values()))] = field(
        default_factory=Slices
    )
    covered: cut.Seqs = field(default_factory=dict)
    folds: tuple[LiveFold, ...] = ()
    folded: cut.Seqs = field(default_factory=dict)
    plans: Mapping[str, OpenPlan] = field(default_factory=dict)
    savepoints: Mapping[str, LiveSavepoint] = field(default_factory=dict)
    oldest_retained: int = 1
    intent: Intent | None = None
    rolled_back: Mapping[LaneName, tuple[Span, ...]] = field(default_factory=dict)
    archived: cut.Seqs = field(default_factory=dict)
    seen: cut.Seqs = field(default_factory=dict)
    first_mark: int = 0
    mark: int = 0
    rewritten: int = 0
    complete_from: int = 0
    retired_id: int = 0

    @property
    def next_lane_id(self) -> int:
        """The id of the next lane: larger than that of every lane that there ever was."""
        return 1 + max([self.retired_id, *(lane.lane_id for lane in self.lanes.values())])

    @property
    def has_had_lanes(self) -> bool:
        """Whether anybody has ever written to the table. If all lanes were retired, it has rows and lists no lane."""
        return bool(self.lanes) or self.retired_id > 0

    @property
    def oldest_continued(self) -> int:
        """Snapshots of shorter prefixes have rows that are gone since: no compaction or fold may begin from them."""
        return max(self.oldest_retained, self.restored, self.rewritten)

    @property
    def folded_groups(self) -> GroupUnion:
        """The file groups that have folds."""
        return GroupUnion(fold.groups for fold in self.folds)

    @property
    def levels(self) -> frozenset[int]:
        """The bits of its file groups. The largest is that of keys in no slice and no fold."""
        levels = self.slices.levels | self.folded_groups.levels
        return levels | {max((self.schema.bucket_bits, *levels))}

    def overlapped(self, groups: Collection[FileGroup]) -> set[FileGroup]:
        """Those file groups that overlap one with other bits, which is among them too, or has a slice or a fold."""
        levels = self.levels | {group.bits for group in groups}
        if len(levels) == 1:
            return set()
        candidates, folded_groups = frozenset(groups), self.folded_groups

        def has(group: FileGroup) -> bool:
            return group in candidates or group in folded_groups or group in self.slices

        return {group for group in groups if any(overlapping(group, levels, has))}

    def folded_to(self, group: FileGroup) -> cut.Seqs:
        """The last entry of each lane that is in the slice or the folds of a file group."""
        for fold in reversed(self.folds):
            if group in fold.groups:
                return fold.to
        return self.slices.cut_of(group)

    def log_start(self) -> dict[LaneName, int]:
        """The last entry of each lane whose log files no file group reads any more."""
        return cut.highest(self.covered, self.folded)

    def keeps(self, at: Cut) -> bool:
        """Whether the files of a snapshot are kept: it is not older than ``oldest_retained``, or it is a savepoint."""
        return at.table >= self.oldest_retained or any(savepoint.at == at for savepoint in self.savepoints.values())

    def readable_at(self, lanes: cut.Seqs) -> bool:
        """Whether a snapshot up to ``lanes`` contains every entry that slices and folds contain (PROTOCOL.md, R3)."""
        return all(cut.within(cut.only(end, self.lanes), lanes) for end in (self.covered, *self.reached()))

    def complete(self, lanes: cut.Seqs) -> dict[LaneName, int]:
        """A cut of a later state in the lanes of this state. Lanes that were retired since are at their ends.

        A lane that is open in this state, and not in the cut, gets no entries: this state has expired (C6).
        """
        return {lane.name: lanes.get(lane.name, lane.closed or 0) for lane in self.lanes.values()}

    def reached(self) -> Iterator[cut.Seqs]:
        """The cuts of all slices, with few duplicates, and the ends of all folds; they may name retired lanes."""
        yield from self.slices.cuts()
        yield from (fold.to for fold in self.folds)


def check_promised(state: TableState, at: Cut) -> None:
    """Refuse a snapshot that has expired and is not a savepoint (PROTOCOL.md, R4, S16 CleanSafe).

    Raises:
        SnapshotExpired: Cleaning may delete its files, or has done so.
    """
    if not state.keeps(at):
        raise SnapshotExpired(
            f"snapshot {at} is no longer kept: snapshots before entry {state.oldest_retained} of the table lane are "
            "expired",
            hint="read a newer snapshot; keep one with a savepoint, or with a longer retention",
        )


def check_writable(state: TableState, features: frozenset[str]) -> None:
    """Refuse to write to a table with a writer feature that is not ``features``.

    Raises:
        UnsupportedFormat: The table has such a feature.
    """
    unknown = sorted(state.writer_features - features)
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot write: {', '.join(unknown)}", hint="upgrade weft"
        )
