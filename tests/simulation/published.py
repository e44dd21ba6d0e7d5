"""The published Delta table, read by independent code: S28 PublishedKept.

Its log is watched at every change of the disk: versions are written once and without gaps, each with a savepoint that
exists, they never go back to an earlier state of the table lane, and the savepoints of the two newest stay. The rows of
a version are read by Polars, and compared with the oracle's rows at the cuts of the slices of its snapshot.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tests.simulation.history import TABLE, History
from tests.simulation.judge import Answer, Judge
from tests.simulation.scheduler import Violation
from tests.storage.support.world import canonical
from weft.storage.core.log.cut import Cut

LOG = "base/_delta_log/"
_ENTRY = re.compile(LOG + r"(\d{20})\.json")
_CHECKPOINT = re.compile(LOG + r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True)
class _Version:
    savepoint: str
    table: int


@dataclass
class Published:
    """The versions of the published table so far.

    Attributes:
        given_up: Savepoints that an operator has released, or is about to.
        erases: Whether an erase was begun that may release savepoints.
        reads: Number of compared versions.
    """

    history: History
    judge: Judge
    objects: Mapping[str, bytes]
    given_up: set[str] = field(default_factory=set)
    erases: bool = False
    reads: int = 0
    _versions: list[_Version] = field(default_factory=list)

    def watch(self, path: str, before: bytes | None, now: bytes | None) -> None:
        """Check a change of the disk, which `History.watch` has seen.

        Raises:
            Violation: The change violates S28.
        """
        match = _ENTRY.fullmatch(path)
        if match is not None:
            self._check_entry(int(match[1]), before, now)
        elif path.startswith("_weft/timeline/table/") and before is None and now is not None:
            newest = self.history.lanes[TABLE][-1]
            if newest["kind"] == "RELEASE":
                self._check_release(newest["name"])

    def _check_entry(self, number: int, before: bytes | None, now: bytes | None) -> None:
        if now is None:
            checkpoints = sorted(int(match[1]) for path in self.objects if (match := _CHECKPOINT.fullmatch(path)))
            if len(checkpoints) < 2 or number >= checkpoints[-2]:
                raise Violation(f"S28 PublishedKept: version {number} is deleted, and checkpoints are {checkpoints}")
            return
        if before is not None:
            raise Violation(f"S28 PublishedKept: version {number} is overwritten")
        if number < len(self._versions):
            return  # a late request, for a version that is before a checkpoint
        if number > len(self._versions):
            raise Violation(f"S28 PublishedKept: version {number} follows {len(self._versions) - 1}")
        savepoint = _domain(now)["savepoint"]
        kept = self.history.table.savepoints.get(savepoint)
        if kept is None:
            if not self._is_excused(savepoint):
                raise Violation(f"S28 PublishedKept: version {number} has no savepoint: {savepoint}")
            kept = (self._versions[-1].table if self._versions else 0, {})
        elif self._versions and kept[0] < self._versions[-1].table:
            raise Violation(f"S28 PublishedKept: version {number} goes back to {kept[0]}, from {self._versions[-1]}")
        self._versions.append(_Version(savepoint, kept[0]))

    def _check_release(self, name: str) -> None:
        needed = [version.savepoint for version in self._versions[-2:]]
        if name in needed and not self._is_excused(name):
            raise Violation(f"S28 PublishedKept: savepoint {name} is released, and versions need {needed}")

    def _is_excused(self, savepoint: str) -> bool:
        return self.erases or savepoint in self.given_up

    def check_rows(self) -> None:
        """Compare the rows of the newest version, as another engine shows them.

        Raises:
            Violation: They differ.
        """
        if not self._versions or self.judge.damaged:
            return
        newest = self._versions[-1]
        if newest.savepoint not in self.history.table.savepoints:
            return  # released on purpose, so that its files may be gone
        self.reads += 1
        what = f"S28 PublishedKept: wrong rows in version {len(self._versions) - 1}"
        self.judge.compare(what, self._rows(), self._expected(newest.table))

    def check_moment(self, at: Cut) -> None:
        """S31: base files that are said to show one moment show the cut ``at``, which is one."""
        if self.judge.damaged or self.judge.is_erased():
            return
        self.judge.check_moment(at)
        whole = self.judge.expected(at)
        self.judge.compare(f"S31 OneMoment: base files do not show {at}", self._expected(at.table), whole)

    def check_complete(self) -> None:
        """Compare the newest version with the whole table, of which everything is compacted."""
        heads = self.judge.heads()
        whole = self.judge.expected(Cut(heads.pop(TABLE), heads))
        self.judge.compare("S28 PublishedKept: not the whole table is published", self._rows(), whole)

    def check_without(self, keys: frozenset[tuple[Any, ...]]) -> None:
        """S26: after an erase, and a publication into a new folder, neither rows nor statistics have the keys."""
        columns = self.judge.config["key"]
        for path, data in self.objects.items():
            if not path.startswith(LOG):
                continue
            for action in map(json.loads, data.splitlines()):
                stats = json.loads(action.get("add", {}).get("stats", "{}"))
                for bounds in (stats.get("minValues", {}), stats.get("maxValues", {})):
                    if tuple(bounds.get(name) for name in columns) in keys:
                        raise Violation(f"S26 ErasedGone: {path} has an erased key in {bounds}")
        if self._versions and (left := [key for key in self._rows() if key in map(canonical, keys)]):
            raise Violation(f"S26 ErasedGone: the published table has the erased keys {left}")

    def forget(self) -> None:
        """The folder of the log was deleted: the next version is the first."""
        self._versions.clear()

    def _expected(self, table: int) -> Answer:
        """The oracle's rows at the cut of the slice of each file group, in a state of the table lane."""
        answer: Answer = {}
        keys = self.judge.config["key"]
        for group, cut in self.history.needs.states[table - 1].cuts.items():
            for key, row in self.judge.expected(Cut(table, cut)).items():
                if self.judge.group_of(tuple(row[name] for name in keys), [group]) == group:
                    answer[key] = row
        return answer

    def _rows(self) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            for path, data in self.objects.items():
                if path.startswith("base/"):
                    place = Path(folder, path)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
            return self.judge.answer(pl.scan_delta(Path(folder, "base")).collect().to_arrow())


def _domain(entry: bytes) -> Mapping[str, Any]:
    """What a publication says about itself."""
    actions = map(json.loads, entry.splitlines())
    (domain,) = (action["domainMetadata"]["configuration"] for action in actions if "domainMetadata" in action)
    found: Mapping[str, Any] = json.loads(domain)
    return found
