"""Checks of the contents of files as tasks, which may run in other processes and give the same findings there.

`verify` reads the entries and makes the tasks. A task carries everything that it compares its files with. Its findings
are inserted at the position at which it was made, so a report does not depend on where and when tasks run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.file_refs import LogFile, SliceFile
from weft.storage.core.names import Path
from weft.storage.core.plan.memory_cost import UNPACKED
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.services.steps.tasks import WORKING_BYTES, Execute, Shared, Task, one_by_one
from weft.storage.services.verify.check_lanes import Arrivals
from weft.storage.services.verify.check_log_files import LogFileChecker
from weft.storage.services.verify.check_slices import SliceChecker, SliceFiles
from weft.storage.services.verify.findings import Findings, Found, Part
from weft.storage.store.object_store import ObjectStore

MAX_WAITING: Final = 1_000  # tasks that are collected before they are run: bounds their memory


@dataclass(frozen=True, slots=True)
class CheckLogFile:
    """Checks one log file of a commit or a fold.

    Attributes:
        store: The table's folder.
        schema: Schema that the file was written with.
        file: The log file.
        registers_of: Commits that the file's registers may come from; None for a file of events.
        to: Last entry per lane that the fold contains; None for a file of a commit.
    """

    store: ObjectStore
    schema: TableSchema
    file: LogFile
    registers_of: Shared[Arrivals] | None = None
    to: Seqs | None = None

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.file.file.size

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: the whole file."""
        return WORKING_BYTES + UNPACKED * self.bytes

    def run(self) -> list[Found]:
        """Check the file."""
        findings = Findings()
        of, to = self.registers_of, self.to
        on_arrivals = partial(of.value.check, to) if of is not None and to is not None else _ignore
        LogFileChecker(self.store, self.schema, self.file, findings, on_arrivals).check()
        return [findings.result()]


@dataclass(frozen=True, slots=True)
class SliceToCheck:
    """A slice, the schema that it was written with, and the commits that its registers may come from."""

    schema: TableSchema
    file: SliceFile
    arrivals: Shared[Arrivals]


@dataclass(frozen=True, slots=True)
class CheckSlices:
    """Checks slices that share files, in the order of the report: each file is read once."""

    store: ObjectStore
    slices: tuple[SliceToCheck, ...]

    @property
    def bytes(self) -> int:
        """Size of the files, each counted once."""
        return sum({stored.path: stored.size for each in self.slices for stored in each.file.objects}.values())

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: some row groups."""
        return WORKING_BYTES

    def run(self) -> list[Found]:
        """Check the slices."""
        files = SliceFiles(self.store)
        return [self._check(files, each) for each in self.slices]

    def _check(self, files: SliceFiles, each: SliceToCheck) -> Found:
        findings = Findings()
        SliceChecker(files, each.schema, each.file, partial(each.arrivals.value.check, each.file.cut), findings).check()
        return findings.result()


class ContentChecks:
    """Runs content checks: at once in this process, or collected with the given `Execute`."""

    def __init__(self, store: ObjectStore, findings: Findings, execute: Execute | None) -> None:
        self._store, self._findings, self._execute = store, findings, execute
        self._waiting: list[tuple[Task[list[Found]], list[Part]]] = []
        self._slices: list[tuple[SliceToCheck, Part]] = []

    def add_log_file(
        self, schema: TableSchema, file: LogFile, registers_of: Shared[Arrivals] | None = None, to: Seqs | None = None
    ) -> None:
        """Check a log file; see `CheckLogFile`."""
        self._add(CheckLogFile(self._store, schema, file, registers_of, to), [self._findings.part()])

    def add_slice(self, each: SliceToCheck) -> None:
        """Check a slice in `finish`, together with the slices that share its files."""
        self._slices.append((each, self._findings.part()))

    def finish(self) -> None:
        """Run all remaining checks."""
        slices, self._slices = self._slices, []
        for chosen in _sharing_files([each.file for each, _ in slices]):
            task = CheckSlices(self._store, tuple(slices[i][0] for i in chosen))
            self._add(task, [slices[i][1] for i in chosen])
        self._run()

    def _add(self, task: Task[list[Found]], parts: list[Part]) -> None:
        self._waiting.append((task, parts))
        if self._execute is None or len(self._waiting) >= MAX_WAITING:
            self._run()

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        execute: Execute = self._execute if self._execute is not None else one_by_one
        for (_, parts), found in zip(waiting, execute([task for task, _ in waiting]), strict=True):
            for part, of_part in zip(parts, found, strict=True):
                part.found = of_part
        self._findings.settle()


def _sharing_files(slices: Sequence[SliceFile]) -> list[list[int]]:
    """Groups of slices that share files, directly or through other slices, as ascending positions."""
    leader = list(range(len(slices)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    first: dict[Path, int] = {}
    for i, file in enumerate(slices):
        for stored in file.objects:
            one, other = find(first.setdefault(stored.path, i)), find(i)
            leader[max(one, other)] = min(one, other)
    together: dict[int, list[int]] = {}
    for i in range(len(slices)):
        together.setdefault(find(i), []).append(i)
    return list(together.values())


def _ignore(*_: object) -> None:
    """Used for events, which need not be traced back: they are in the log files of their commits."""
