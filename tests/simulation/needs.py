"""Which files are needed, computed from the history whenever a file is deleted (S16 CleanSafe).

A file is needed by every state of the table lane from ``oldest_retained`` on, by savepoints, by open plans and by the
target of an open restore: slices and folds of that state, and the log files of commits that are live in it and have
rows of a file group whose slice does not hold them. Folds do not replace log files, because a fold may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.file_groups import Group, others, reached
from tests.simulation.scheduler import Violation
from tests.simulation.table_lane import Entry, TableLane


@dataclass(frozen=True)
class _State:
    """The data that readers of one state of the table lane use: the cuts of its slices, and the files of slices and
    folds.

    ``start``: last entry of each lane that all slices contain; lanes without such an entry are left out. ``retired``:
    the ends of retired lanes, of which nothing is read.
    """

    cuts: Mapping[Group, Mapping[str, int]]
    start: Mapping[str, int]
    files: frozenset[str]
    retired: Mapping[str, int]


@dataclass(frozen=True)
class _Snapshot:
    """A snapshot that must be readable: a prefix of the table lane, and of each lane (all of a lane that is not named).

    ``live_at``: the prefix that says what is live, if it is another one.
    """

    table: int
    lanes: Mapping[str, int] = field(default_factory=dict)
    live_at: int | None = None


@dataclass
class Needs:
    """What readers of each state of the table lane use.

    Attributes:
        states: States by length of the table lane.
        commits: Commit (lane, slot) of each log file and sidecar, and the file groups that it has rows of.
    """

    table: TableLane
    states: list[_State] = field(default_factory=list)
    commits: dict[str, tuple[str, int, frozenset[Group]]] = field(default_factory=dict)
    _slices: dict[Group, frozenset[str]] = field(default_factory=dict)
    _covered: Mapping[str, int] = field(default_factory=dict)
    _folds: list[tuple[frozenset[Group], frozenset[str]]] = field(default_factory=list)

    def add_data(self, entry: Entry, indexes: list[Mapping[str, Any]]) -> None:
        """Add a DATA entry, with the indexes of its files in place."""
        for file, index in zip(entry["files"], indexes, strict=True):
            ranges, partitions = index["ranges"], index["partitions"]
            places = zip(ranges["partition"], ranges["bucket"], strict=True)
            groups = frozenset((partitions[partition], file["bits"], bucket) for partition, bucket in places)
            for path in paths_of(file):
                self.commits[path] = (entry["lane"], entry["seq"], groups)

    def add_table_entry(self, entry: Entry, parts: list[Mapping[str, Any]]) -> None:
        """Add an entry that `TableLane` has added; ``parts`` are its slices, or file groups of a fold."""
        groups = frozenset((part["partition"], part["bits"], part["bucket"]) for part in parts)
        match entry["kind"]:
            case "BASE":
                self._slices = {group: files for group, files in self._slices.items() if not any(others(group, groups))}
                self._slices |= {_group(made): frozenset(slice_paths([made])) for made in parts}
                lanes = {*self._covered, *entry["covered"]}
                self._covered = {lane: max(self._covered.get(lane, 0), entry["covered"].get(lane, 0)) for lane in lanes}
                self._fold_away(groups)
            case "FOLD":
                self._fold_away(frozenset(_group(part) for part in parts if part["start"] == part["parent"]))
                self._folds.append((groups, frozenset(path for file in entry["files"] for path in paths_of(file))))
            case "DONE" if self.table.restorations and self.table.restorations[-1].done == entry["seq"]:
                self._slices = {_group(made): frozenset(slice_paths([made])) for made in parts}
                self._covered = self.table.restorations[-1].covered
                self._folds = []
        cuts = dict(self.table.cuts)
        start = dict(self._covered)
        files = frozenset().union(*self._slices.values(), *(paths for _, paths in self._folds))
        if entry["kind"] == "RETIRE":
            self._check_retired(entry)
        retired = {lane: end for lane, (_, end) in self.table.retired.items()}
        self.states.append(_State(cuts, start, files, retired))

    def _check_retired(self, entry: Entry) -> None:
        """S32: every snapshot that must stay readable has all entries of a retired lane, and their rows in slices."""
        for snapshot in self._needed():
            for path, (lane, seq, _) in self.commits.items():
                if lane not in entry["lanes"] or not self.table.is_live(lane, seq, snapshot.live_at or snapshot.table):
                    continue
                if seq > snapshot.lanes.get(lane, seq) or self._reads(path, snapshot, exact=True):
                    raise Violation(f"S32 RetiredWhole: {lane!r} is retired, and {snapshot} reads or lacks entry {seq}")

    def check_delete(self, path: str) -> None:
        """Check the deletion of a file.

        Raises:
            Violation: The file is still needed.
        """
        for snapshot in self._needed():
            if self._reads(path, snapshot, exact=True):
                raise Violation(f"S16 CleanSafe: {path} is deleted, and {snapshot} reads it")

    def is_verified(self, path: str) -> bool:
        """Whether `verify` reads a file: files of the newest snapshot, savepoints and open plans, and every entry."""
        if path.startswith("_weft/timeline/"):
            return True
        snapshots = [_Snapshot(len(self.states)), *self._named()]
        return any(self._reads(path, snapshot, exact=True) for snapshot in snapshots)

    def may_stay(self, path: str) -> bool:
        """Whether a clean may keep the file as needed: it does not check of which file groups a commit has rows."""
        return any(self._reads(path, snapshot, exact=False) for snapshot in self._needed())

    def _needed(self) -> Iterator[_Snapshot]:
        """The snapshots that must stay readable."""
        yield from (_Snapshot(table) for table in range(self.table.oldest_retained, len(self.states) + 1))
        yield from self._named()
        intent = self.table.intent
        if intent is not None and intent["restore"] is not None:
            target = intent["restore"]
            full = target["label"].startswith("restore")
            # A closed lane is not fenced: its kept entries end where its last span of rolled-back entries begins.
            ends = {
                lane: spans[-1][0]
                for lane, spans in target["rolled_back"].items()
                if spans and lane in self.table.closed
            }
            yield _Snapshot(
                target["table"], {**ends, **target["last_kept"]}, live_at=None if full else intent["seq"] - 1
            )

    def _named(self) -> Iterator[_Snapshot]:
        for table, lanes in [*self.table.savepoints.values(), *self.table.plans.values()]:
            yield _Snapshot(table, {lane: lanes.get(lane, 0) for lane in self.table.lane_ids})

    def _reads(self, path: str, snapshot: _Snapshot, *, exact: bool) -> bool:
        state = self.states[snapshot.table - 1]
        if path not in self.commits:
            return path in state.files
        lane, seq, groups = self.commits[path]
        live_at = snapshot.live_at or snapshot.table
        if seq <= state.retired.get(lane, 0):
            return False
        if seq > snapshot.lanes.get(lane, seq) or not self.table.is_live(lane, seq, live_at):
            return False
        if not exact:
            return seq > state.start.get(lane, 0)
        start = state.start.get(lane, 0)
        return any(reached(state.cuts, group, lane, start) < seq for group in groups)

    def _fold_away(self, done: frozenset[Group]) -> None:
        rest = [
            (frozenset(group for group in groups - done if not any(others(group, done))), files)
            for groups, files in self._folds
        ]
        self._folds = [(groups, files) for groups, files in rest if groups]


def _group(part: Mapping[str, Any]) -> Group:
    return (part["partition"], part["bits"], part["bucket"])


def paths_of(file: Mapping[str, Any]) -> Iterator[str]:
    """A log file and its sidecar."""
    yield file["file"]["path"]
    if "sha256" in file["index"]:
        yield file["index"]["path"]


def slice_paths(made: list[Mapping[str, Any]]) -> Iterator[str]:
    for file_slice in made:
        overlays = (overlay["file"] for overlay in file_slice.get("overlays", ()))
        files = (file_slice["base"], file_slice["shadow"], *overlays)
        yield from (file["path"] for file in files if file is not None)
