"""The contents of the table's lanes, read from the log directly, without weft's readers or folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft import Table
from weft.storage.clock import SystemClock
from weft.storage.core.log.cut import in_spans
from weft.storage.core.log.entries import Base, Claim, CleanDone, Data, Done, Fold
from weft.storage.core.names import lane_name
from weft.storage.environment import Environment
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.store.open_store import open_store


@dataclass(frozen=True, slots=True)
class _Commit:
    seq: int
    events: int
    reached: int
    source: dict[str, Any]


class Lanes:
    """The entries of a table's lanes that were read so far.

    Attributes:
        claims: Number of claims of each lane.
        fences: How many of them were for a restore or an undo.
    """

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        self._table = table
        self._log = CommitLog(Environment(open_store(table.uri), SystemClock()))
        self._heads = {lane_name(name): 0 for name in names}
        self._commits: dict[str, list[_Commit]] = {name: [] for name in names}
        self.claims = dict.fromkeys(names, 0)
        self.fences = dict.fromkeys(names, 0)

    def refresh(self) -> None:
        """Read what was committed since the last call."""
        for lane, head in self._heads.items():
            for entry in self._log.read_after(lane, head):
                self._heads[lane] = entry.seq
                if isinstance(entry, Claim):
                    self.claims[lane] += 1
                    self.fences[lane] += entry.intent != 0
                if isinstance(entry, Data):
                    events = entry.rows + entry.rows_ignored
                    self._commits[lane].append(_Commit(entry.seq, events, _reached(entry.source), entry.source))
            self._log.forget_before(lane, self._heads[lane])

    @property
    def commits(self) -> int:
        """Commits of all lanes, including rolled-back ones."""
        return sum(map(len, self._commits.values()))

    def live(self) -> dict[str, list[_Commit]]:
        """The commits of each lane that no restore has rolled back."""
        rolled_back = self._table.state().rolled_back
        return {
            name: [commit for commit in commits if not in_spans(rolled_back.get(lane_name(name), ()), commit.seq)]
            for name, commits in self._commits.items()
        }

    def reached(self) -> dict[str, int]:
        """Number of messages of its topic before the source position of the last live commit, by lane."""
        return {name: commits[-1].reached if commits else 0 for name, commits in self.live().items()}

    def events(self) -> dict[str, int]:
        """Number of messages in live commits, by lane; duplicates count twice."""
        return {name: sum(commit.events for commit in commits) for name, commits in self.live().items()}


def _reached(source: dict[str, Any]) -> int:
    return sum(
        int(offset)
        for offsets in source.get("offsets", [])
        for partitions in (offsets or {}).values()
        for number, offset in partitions.items()
        if number.isdecimal()
    )


@dataclass(frozen=True, slots=True)
class Services:
    """Counts of what services did to a table."""

    compactions: int
    folds: int
    restores: int
    cleaned_files: int


def services_of(table: Table) -> Services:
    """From the table lane."""
    entries = read_table_lane(CommitLog(Environment(open_store(table.uri), SystemClock())), 0)
    return Services(
        compactions=sum(isinstance(entry, Base) for entry in entries),
        folds=sum(isinstance(entry, Fold) for entry in entries),
        restores=sum(isinstance(entry, Done) for entry in entries),
        cleaned_files=sum(entry.files for entry in entries if isinstance(entry, CleanDone)),
    )
