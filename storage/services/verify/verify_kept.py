"""What is kept: the snapshots that somebody counts on, and whether the files that they need are there.

Judged from entries alone, and not by the code that cleans: what that takes for garbage, and is needed, is to be found.
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
from storage.services.verify.findings import FROM_COPY, Findings
from storage.services.verify.verify_entries import TableLane, TableLaneReader
from storage.store.object_store import ObjectStore

_FOLDERS: Final = (Path("base"), Path("shadow"), Path("log"), Path("_weft/index"))


class RetainedSnapshot:
    """A snapshot that somebody counts on; ``name`` in words."""

    def __init__(self, name: str, state: TableState, lanes: cut.Seqs) -> None:
        self.name, self.state, self.lanes = name, state, lanes
        self._start = state.covered

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether a restore to it, or a read without folds, needs the logs of an entry."""
        within = self._start.get(lane, 0) < seq <= self.lanes.get(lane, 0)
        return within and not in_spans(self.state.rolled_back.get(lane, ()), seq)


@dataclass(slots=True)
class RetainedStates:
    """What the states that may be read need.

    Attributes:
        needed: For the states in which the same entries are rolled back: per lane the last entry whose logs none of
            them needs, and what is rolled back.
        snapshots: Those that are counted on by name, the newest snapshot first.
    """

    needed: list[tuple[dict[LaneName, int], Mapping[LaneName, tuple[Span, ...]]]] = field(default_factory=list)
    snapshots: list[RetainedSnapshot] = field(default_factory=list)

    def add(self, state: TableState) -> None:
        """A state that may be read."""
        start = next((start for start, rolled_back in self.needed if rolled_back == state.rolled_back), None)
        if start is None:
            start = {}
            self.needed.append((start, state.rolled_back))
        for lane in state.lanes:
            own = state.covered.get(lane, 0)
            start[lane] = min(start.get(lane, own), own)

    def needs(self, lane: LaneName, seq: int) -> bool:
        """Whether some state needs the logs of an entry."""
        return any(
            lane in start and seq > start[lane] and not in_spans(rolled_back.get(lane, ()), seq)
            for start, rolled_back in self.needed
        )


class FilesThere:
    """The files that are there, by one listing, and those that are not and should be."""

    def __init__(self, store: ObjectStore, findings: Findings) -> None:
        self._store, self._findings = store, findings
        self._sizes: dict[Path, int] = {}
        self._seen: set[Path] = set()
        self.absent: set[str] = set()

    def list(self) -> None:
        """Look what there is: strictly after the entries that name it were listed."""
        for folder in _FOLDERS:
            self._sizes |= {Path(f"{folder}/{name}"): size for name, size in self._store.list(folder)}
        self._findings.expect(len(self._sizes))

    def has(self, file: FileRef | None) -> bool:
        """Whether a file that was checked is there with its size."""
        return file is None or str(file.path) not in self.absent

    def check_state(self, state: TableState, who: str) -> None:
        """The files of a state's slices and folds."""
        self.check_slice_files(state.slices.values(), who)
        for fold in state.folds:
            self.check_log_files(fold.files, who)

    def check_slice_files(self, slices: Iterable[SliceFile], who: str) -> None:
        for file in slices:
            for part in (file.base, file.shadow):
                if part is not None:
                    self._check(part.path, part.size, who)

    def check_log_files(self, files: Iterable[LogFile], who: str) -> None:
        for file in files:
            self._check(file.file.path, file.file.size, who)
            if isinstance(file.index, Sidecar):
                self._check(file.index.path, file.index.size, who)

    def of_commits_to_come(self, ends: Mapping[LaneName, tuple[int, int]]) -> Counter[LaneName]:
        """How many log files are there for entries that were not, by lane; ``ends``: its head, and the epoch there."""
        found: Counter[LaneName] = Counter()
        for path in self._sizes:
            parsed = parse_path(path)
            if parsed is not None and parsed.kind is Kind.LOG:
                head, epoch = ends.get(parsed.lane, (parsed.slot, 0))
                found[parsed.lane] += parsed.slot > head and parsed.epoch >= epoch
        return +found

    def _check(self, path: Path, size: int, who: str) -> None:
        """Tell of a file that is not there as it was written, once; ``who`` needs it."""
        if path in self._seen:
            return
        self._seen.add(path)
        self._findings.count("file sizes")
        self._findings.done()
        found = self._sizes.get(path)
        if found != size:
            what = "it is missing" if found is None else f"it has {found} bytes, and was written with {size}"
            self.absent.add(str(path))
            self._findings.error("S7", str(path), f"{what}: {who} cannot be read", FROM_COPY)


def gather_kept(
    store: ObjectStore, table: TableLane, slots: Sequence[int], heads: cut.Seqs, files: FilesThere
) -> RetainedStates:
    """What is needed by states that may be read; that their slices and folds are there is checked on the way.

    Args:
        store: The table's.
        table: Its table lane.
        slots: Of the table lane.
        heads: Per lane its last entry.
        files: Told of what is needed.
    """
    kept = RetainedStates()
    if table.state is None or table.oldest_retained > table.state.head:
        return kept  # what an unreadable entry may have given up is not known to be missing
    newest = table.state
    kept.snapshots.append(RetainedSnapshot("the newest snapshot", newest, heads))
    named = [(f"savepoint {name!r}", own.at) for name, own in newest.savepoints.items()]
    named += [(f"open compaction {plan_id[:8]}", plan.at) for plan_id, plan in newest.plans.items()]
    for entry, state in TableLaneReader(store, slots, Findings()).states():  # what is wrong with it has been told
        if state is None:
            continue
        kept.snapshots += [RetainedSnapshot(name, state, at.lanes) for name, at in named if at.table == state.head]
        if state.head == table.oldest_retained:
            kept.add(state)
            files.check_state(state, f"snapshots of prefix {table.oldest_retained}, which is kept,")
        elif state.head > table.oldest_retained:
            if isinstance(entry, Base | Done | LaneAdd):
                kept.add(state)
            who = f"snapshots from entry {state.head} of the table lane on"
            if isinstance(entry, Base) and not isinstance(entry.slices, Sidecar):
                files.check_slice_files(entry.slices, who)
            elif isinstance(entry, Fold):
                files.check_log_files(entry.files, who)
        if state.head == newest.head:
            break
    for snapshot in kept.snapshots:
        files.check_state(snapshot.state, snapshot.name)
    if newest.intent is not None and newest.intent.restore is not None:
        slices = newest.intent.restore.slices
        files.check_slice_files([] if isinstance(slices, Sidecar) else slices, "the restore that is under way")
    return kept
