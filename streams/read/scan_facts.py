"""What one scan of a query reads, for EXPLAIN and `weft sql --explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.storage.plural import counted

SPARK: Final = "Spark's Parquet reader"
ARROW: Final = "Arrow in tasks"


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """What one scan of a query reads, for EXPLAIN.

    Attributes:
        cut: Text of the cut of the snapshot.
        reader: `SPARK` or `ARROW`.
        file_groups: Number of file groups that are read.
        skipped: Number of file groups that are not read, because none of their rows can be in the result.
        with_logs: Number of file groups among ``file_groups`` that have logs.
        log_bytes, base_bytes: Stored bytes of the file groups that are read, all columns.
        columns: The columns that Spark requested.
        filter: The filter that weft applies, or an empty text.
        tasks: Number of tasks; 0 if Spark's Parquet reader divides the files.
        divided: Number of file groups that several tasks read.
        pushed: The aggregates that tasks compute, or how many rows they return; empty if they return all rows.
        known: Number of file groups whose aggregates are known without reading them; not among ``file_groups``.
    """

    cut: str
    reader: str
    file_groups: int
    skipped: int
    with_logs: int
    log_bytes: int
    base_bytes: int
    columns: tuple[str, ...]
    filter: str
    tasks: int = 0
    divided: int = 0
    pushed: str = ""
    known: int = 0

    def __str__(self) -> str:
        filter_text = f", filter {self.filter}" if self.filter else ""
        computed = f", {self.pushed}" if self.pushed else ""
        known_text = f"{self.known} known from statistics, " if self.known else ""
        in_tasks = (
            f"{counted(self.tasks, 'task')} ({counted(self.divided, 'file group')} divided), " if self.tasks else ""
        )
        return (
            f"weft {self.cut}, {counted(self.file_groups, 'file group')} ({self.with_logs} with logs), "
            f"{self.skipped} skipped, {known_text}{in_tasks}logs {self.log_bytes} bytes, base {self.base_bytes} bytes, "
            f"{counted(len(self.columns), 'column')}{filter_text}{computed}"
        )
