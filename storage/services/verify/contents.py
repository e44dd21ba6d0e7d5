"""Checks of the contents of files as tasks, which may run in other processes.

`verify` reads the entries and creates the tasks. A task has everything that its files are compared with. Findings are
reported in the order of the tasks, so a report does not depend on where and when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.file_refs import LogFile, SliceFile
from weft.storage.core.plan.memory_cost import UNPACKED
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.services.steps.tasks import WORKING_BYTES, Execute, Shared
from weft.storage.services.verify.check_lanes import Arrivals
from weft.storage.services.verify.check_log_files import LogFileChecker
from weft.storage.services.verify.check_slices import SliceChecker, SliceFiles
from weft.storage.services.verify.findings import Findings, TaskFindings
from weft.storage.store.object_store import ObjectStore

MAX_WAITING: Final = 1_000  # tasks that are collected before they are run: bounds their memory


@dataclass(frozen=True, slots=True)
class Check:
    """A task of `verify`: checks the contents of some files.

    Attributes:
        run: Reads the files, and returns the findings.
        bytes: Size of the files.
        memory_bytes: Estimate of the memory that the task needs.
    """

    run: Callable[[], TaskFindings]
    bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class SliceToCheck:
    """A slice, the schema with which it was written, and the commits that its registers may come from."""

    schema: TableSchema
    file: SliceFile
    arrivals: Shared[Arrivals]


class ContentChecks:
    """Collects content checks, and runs many of them at once."""

    def __init__(self, store: ObjectStore, findings: Findings, execute: Execute) -> None:
        self._store, self._findings, self._execute = store, findings, execute
        self._pending: list[Check] = []
        self._slices: dict[str, list[SliceToCheck]] = {}

    def add_log_file(
        self, schema: TableSchema, file: LogFile, registers_of: Shared[Arrivals] | None = None, ends: Seqs | None = None
    ) -> None:
        """Check one log file of a commit or a fold.

        Args:
            schema: Schema with which the file was written.
            file: The log file.
            registers_of: Commits that the file's registers may come from; None for a file of events.
            ends: Last entry per lane that the fold contains; None for a file of a commit.
        """
        size = file.file.size
        run = partial(_check_log_file, self._store, schema, file, registers_of, ends)
        self._add(Check(run, size, WORKING_BYTES + UNPACKED * size))  # the whole file is in memory

    def add_slice(self, item: SliceToCheck) -> None:
        """Check a slice in `finish`, together with the slices that share its files, so that each is read once."""
        # The base and the shadow that one compaction wrote have the same path below their folders.
        of_compaction = item.file.objects[0].path.partition("/")[2] if item.file.objects else ""
        self._slices.setdefault(of_compaction, []).append(item)

    def finish(self) -> None:
        """Run all remaining checks."""
        for slices in self._slices.values():
            sizes = {file.path: file.size for item in slices for file in item.file.objects}
            self._add(Check(partial(_check_slices, self._store, slices), sum(sizes.values()), WORKING_BYTES))
        self._run()

    def _add(self, check: Check) -> None:
        self._pending.append(check)
        if len(self._pending) >= MAX_WAITING:
            self._run()

    def _run(self) -> None:
        self._findings.expect(len(self._pending))
        for _, task_findings in zip(self._pending, self._execute(self._pending), strict=True):
            self._findings.include(task_findings)
            self._findings.done()
        self._pending = []


def _check_log_file(
    store: ObjectStore, schema: TableSchema, file: LogFile, registers_of: Shared[Arrivals] | None, ends: Seqs | None
) -> TaskFindings:
    findings = Findings()
    on_arrivals = partial(registers_of.value.check, ends) if registers_of is not None and ends is not None else _ignore
    LogFileChecker(store, schema, file, findings, on_arrivals).check()
    return findings.result()


def _check_slices(store: ObjectStore, slices: Sequence[SliceToCheck]) -> TaskFindings:
    files, findings = SliceFiles(store), Findings()
    for item in slices:
        SliceChecker(files, item.schema, item.file, partial(item.arrivals.value.check, item.file.cut), findings).check()
    return findings.result()


def _ignore(*_: object) -> None:
    """Ignore arrivals of events, which are in the log files of their commits."""
