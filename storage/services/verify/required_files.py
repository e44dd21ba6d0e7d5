"""Checks that the files exist which retained snapshots need.

Which files are needed follows from entries alone, without the code that cleans: a file that cleaning takes for garbage
although it is needed has to be found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage.core.log import cut
from storage.core.log.cut import Span, in_spans
from storage.core.log.entries import Base, Done, Fold, LaneAdd
from storage.core.log.file_refs import FileRef, LogFile, Sidecar, SliceFile
from storage.core.log.table_state import TableState
from storage.core.names import Kind, LaneName, Path, parse_path
from storage.environment import Environment
from storage.services.verify.check_table_lane import TableLane, TableLaneReader
from storage.services.verify.findings import Findings, damage
from storage.store.object_store import ObjectStore

_FOLDERS: Final = (Path("base"), Path("shadow"), Path("log"), Path("_weft/index"))


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """The newest snapshot, or that of a savepoint or an open compaction or fold; ``name`` describes it in words."""

    name: str
    state: TableState
    lanes: cut.Seqs

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether a restore to it, or a read without folds, needs the log files of an entry."""
        within = self.state.covered.get(lane, 0) < seq <= self.lanes.get(lane, 0)
        return within and not in_spans(self.state.rolled_back.get(lane, ()), seq)


@dataclass(slots=True)
class Retained:
    """The snapshots whose files have to exist.

    Attributes:
        needed: One item for the states with the same rolled back entries: per lane the last entry whose log files none
            of these states needs, and the rolled back spans.
        snapshots: The newest snapshot, then savepoints, then open compactions and folds.
    """

    needed: list[tuple[dict[LaneName, int], Mapping[LaneName, tuple[Span, ...]]]] = field(default_factory=list)
    snapshots: list[NamedSnapshot] = field(default_factory=list)

    def add(self, state: TableState) -> None:
        """Add a state that may be read."""
        start = next((start for start, rolled_back in self.needed if rolled_back == state.rolled_back), None)
        if start is None:
            start = {}
            self.needed.append((start, state.rolled_back))
        for lane in state.lanes:
            covered = state.covered.get(lane, 0)
            start[lane] = min(start.get(lane, covered), covered)

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether some state needs the log files of an entry."""
        return any(
            lane in start and seq > start[lane] and not in_spans(rolled_back.get(lane, ()), seq)
            for start, rolled_back in self.needed
        )


class StoredFiles:
    """The files that exist, by one listing, and the missing ones."""

    def __init__(self, store: ObjectStore, findings: Findings) -> None:
        self._store, self._findings = store, findings
        self._sizes: dict[Path, int] = {}
        self._checked: set[Path] = set()
        self.absent: set[str] = set()

    def list(self) -> None:
        """List the files: strictly after the entries that name them were listed."""
        for folder in _FOLDERS:
            self._sizes |= {Path(f"{folder}/{name}"): size for name, size in self._store.list(folder)}
        self._findings.expect(len(self._sizes))

    def has(self, file: FileRef | None) -> bool:
        """Whether a file that was checked exists with its size."""
        return file is None or str(file.path) not in self.absent

    def check_state(self, state: TableState, user: str) -> None:
        """Check the files of a state's slices and folds."""
        self.check_slices(state.slices.values(), user)
        for fold in state.folds:
            self.check_log_files(fold.files, user)

    def check_slices(self, slices: Iterable[SliceFile], user: str) -> None:
        for file in slices:
            for part in (file.base, file.shadow):
                if part is not None:
                    self._check(part, user)

    def check_log_files(self, files: Iterable[LogFile], user: str) -> None:
        for file in files:
            self._check(file.file, user)
            if isinstance(file.index, Sidecar):
                self._check(file.index, user)

    def count_uncommitted(self, ends: Mapping[LaneName, tuple[int, int]]) -> Counter[LaneName]:
        """Number of log files for entries that do not exist yet, by lane; ``ends``: its last entry, and its epoch."""
        found: Counter[LaneName] = Counter()
        for path in self._sizes:
            parsed = parse_path(path)
            if parsed is not None and parsed.kind is Kind.LOG:
                head, epoch = ends.get(parsed.lane, (parsed.slot, 0))
                found[parsed.lane] += parsed.slot > head and parsed.epoch >= epoch
        return +found

    def _check(self, file: FileRef | Sidecar, user: str) -> None:
        """Report a file that is missing or has another size, once; ``user`` needs it."""
        if file.path in self._checked:
            return
        self._checked.add(file.path)
        self._findings.count("file sizes")
        self._findings.done()
        size = self._sizes.get(file.path)
        if size != file.size:
            what = "it is missing" if size is None else f"it has {size} bytes, but was written with {file.size}"
            self.absent.add(str(file.path))
            self._findings.add(damage("S7", str(file.path), f"{what}: {user} cannot be read"))


def find_retained(
    env: Environment, table: TableLane, slots: Sequence[int], heads: cut.Seqs, files: StoredFiles
) -> Retained:
    """The snapshots whose files have to exist; the files of their slices and folds are checked on the way.

    Args:
        env: The table's.
        table: Its table lane.
        slots: Slots of the table lane.
        heads: Per lane its last entry.
        files: Checks the files.
    """
    retained = Retained()
    if table.state is None or table.oldest_retained > table.state.head:
        return retained  # an unreadable entry may have expired anything: nothing is known to be missing
    newest = table.state
    retained.snapshots.append(NamedSnapshot("the newest snapshot", newest, heads))
    named = [(f"savepoint {name!r}", savepoint.at) for name, savepoint in newest.savepoints.items()]
    named += [(f"open compaction {plan_id[:8]}", plan.at) for plan_id, plan in newest.plans.items()]
    for entry, state in TableLaneReader(env, slots, Findings()).states():  # its problems have been reported
        if state is None:
            continue
        retained.snapshots += [NamedSnapshot(name, state, at.lanes) for name, at in named if at.table == state.head]
        if state.head == table.oldest_retained:
            retained.add(state)
            files.check_state(state, f"the oldest retained snapshot (entry {table.oldest_retained} of the table lane)")
        elif state.head > table.oldest_retained:
            if isinstance(entry, Base | Done | LaneAdd):
                retained.add(state)
            user = f"snapshots from entry {state.head} of the table lane on"
            if isinstance(entry, Base):
                files.check_slices(entry.slices, user)
            elif isinstance(entry, Fold):
                files.check_log_files(entry.files, user)
        if state.head == newest.head:
            break
    for snapshot in retained.snapshots:
        files.check_state(snapshot.state, snapshot.name)
    if newest.intent is not None and newest.intent.restore is not None:
        files.check_slices(newest.intent.restore.slices, "the restore in progress")
    return retained
