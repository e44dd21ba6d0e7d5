"""Checks that the files that retained snapshots need exist.

The needed files are computed from entries, without the code of `clean`. So needed files that `clean` deleted by mistake
are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.cut import in_spans
from weft.storage.core.log.entries import Base, Fold
from weft.storage.core.log.file_refs import FileRef, LogFile, SliceFile
from weft.storage.core.log.needed_files import ENDLESS, LaneEnd, entry_may_come
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import Kind, LaneName, Path, parse_path
from weft.storage.environment import Environment
from weft.storage.log.holders import find_holders
from weft.storage.services.verify.check_table_lane import TableLane, TableLaneReader
from weft.storage.services.verify.findings import Findings
from weft.storage.store.object_store import ObjectStore

_FOLDERS: Final = (Path("base"), Path("shadow"), Path("overlay"), Path("log"), Path("_weft/index"))


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """A snapshot and its name: the newest one, or that of a savepoint, or of an open compaction or fold."""

    name: str
    state: TableState
    lanes: cut.Seqs

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether the log files of an entry must exist: its rows are not yet in slices and were not rolled back.

        This includes log files that were folded, because a restore to the snapshot discards folds.
        """
        within = self.state.covered.get(lane, 0) < seq <= self.lanes.get(lane, 0)
        return within and not in_spans(self.state.rolled_back.get(lane, ()), seq)


@dataclass(slots=True)
class RetainedSnapshots:
    """The snapshots whose files must exist.

    Attributes:
        periods: One item for each period between two restores, as of its start: the last entry per lane up to which all
            rows are in slices, and the spans that were rolled back. One item per period is enough, because between
            restores entries are only added to slices. No entry of a lane that was retired by then is needed.
        snapshots: The newest snapshot, then savepoints, then open compactions and folds.
    """

    periods: list[tuple[cut.Seqs, cut.SpansByLane]] = field(default_factory=list)
    snapshots: list[NamedSnapshot] = field(default_factory=list)

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether a retained table state needs the log files of an entry."""
        return any(
            seq > covered.get(lane, 0) and not in_spans(rolled_back.get(lane, ()), seq)
            for covered, rolled_back in self.periods
        )


def _files_of(state: TableState) -> Iterator[SliceFile | LogFile]:
    """Yield the slices of a state, and the files of its folds."""
    yield from state.slices.values()
    for fold in state.folds:
        yield from fold.files


class StoredFiles:
    """The files that exist, listed once, and the files that are missing or have a wrong size."""

    def __init__(self, store: ObjectStore, findings: Findings) -> None:
        self._store, self._findings = store, findings
        self._sizes: dict[Path, int] = {}
        self._checked: set[Path] = set()
        self.unusable: set[str] = set()

    def list(self) -> None:
        """List the files. Call this after the entries that name them were listed."""
        self._sizes = self._list()
        self._findings.expect(len(self._sizes))

    def _list(self) -> dict[Path, int]:
        return {Path(f"{folder}/{name}"): size for folder in _FOLDERS for name, size in self._store.list(folder)}

    def find_missing(self) -> set[str]:
        """Missing files, and files that were removed since they were listed."""
        return self.unusable | (self._sizes.keys() - self._list().keys())

    def have(self, *files: FileRef) -> bool:
        """Whether files, which `check` has checked, exist with the right sizes."""
        return all(file.path not in self.unusable for file in files)

    def check(self, users_files: Iterable[SliceFile | LogFile], user: str) -> None:
        """Report each file that is missing or has another size, once. ``user``: what needs the files."""
        for file in (stored_file for owner in users_files for stored_file in owner.objects):
            if file.path in self._checked:
                continue
            self._checked.add(file.path)
            self._findings.count("file sizes")
            self._findings.done()
            size = self._sizes.get(file.path)
            if size != file.size:
                text = "it is missing" if size is None else f"it has {size} bytes, but was written with {file.size}"
                self.unusable.add(file.path)
                self._findings.at(file.path).damage("S7", f"{text}: {user} cannot be read")

    def count_uncommitted(self, ends: Mapping[LaneName, LaneEnd]) -> Counter[LaneName]:
        """Count log files for entries that do not exist yet, by lane; only for the lanes in ``ends``."""
        logs = (parsed for parsed in map(parse_path, self._sizes) if parsed is not None and parsed.kind is Kind.LOG)
        return Counter(log.lane for log in logs if log.lane in ends and entry_may_come(log, ends[log.lane]))


def find_retained(
    env: Environment, table: TableLane, slots: Sequence[int], heads: cut.Seqs, files: StoredFiles
) -> RetainedSnapshots:
    """Find the snapshots whose files must exist, and check the files of their slices and folds.

    Args:
        env: Environment of the table.
        table: The table lane.
        slots: Slots of the table lane.
        heads: Last entry of each lane, including retired lanes.
        files: The existing files.
    """
    retained = RetainedSnapshots()
    if table.state is None or table.oldest_retained > table.state.head:
        return retained  # an unreadable entry may have expired any snapshot: no missing file is an error
    newest = table.state
    retained.snapshots.append(NamedSnapshot("the newest snapshot", newest, cut.only(heads, newest.lanes)))
    holders = [(f"{holder.what} {holder.name!r}", end) for holder, end in find_holders(newest, pins=())]
    oldest = table.oldest_retained
    for entry, state in TableLaneReader(env, slots, Findings()).states():  # problems were reported before
        if state is None:
            continue
        retained.snapshots += [
            NamedSnapshot(name, state, end.lanes) for name, end in holders if end.table == state.head
        ]
        if state.head >= oldest and (not retained.periods or retained.periods[-1][1] != state.rolled_back):
            next_lane_id = state.next_lane_id
            retired = [
                name for name, lane in table.retired.items() if name not in state.lanes and lane.lane_id < next_lane_id
            ]
            retained.periods.append(({**state.covered, **dict.fromkeys(retired, ENDLESS)}, state.rolled_back))
        user = f"snapshots from entry {state.head} of the table lane on"
        if state.head == oldest:
            files.check(_files_of(state), f"the oldest retained snapshot (entry {oldest} of the table lane)")
        elif state.head > oldest and isinstance(entry, Base):
            files.check(entry.slices, user)
        elif state.head > oldest and isinstance(entry, Fold):
            files.check(entry.files, user)
        if state.head == newest.head:
            break
    for snapshot in retained.snapshots:
        files.check(_files_of(snapshot.state), snapshot.name)
    if newest.intent is not None and newest.intent.restore is not None:
        files.check(newest.intent.restore.slices, "the restore in progress")
    return retained
