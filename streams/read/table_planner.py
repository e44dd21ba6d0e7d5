"""How a table answers the live view: a snapshot per query, and of each scan what Spark reads itself and what tasks do.

It decides which reader reads which file group:

1. A file group without logs is its base file, as it is: Spark's own vectorised reader takes it, if it reaches the
   store (`streams.read.hadoop_access`), and if a reader that knows nothing of weft finds the right values of the wanted
   columns in it (`storage.core.schema.evolution.reads_as_it_is`). Of a base file that several file groups share that is
   so if it holds nothing else than file groups without logs.
2. All others are merged by Arrow in tasks.
3. Where a snapshot has both, a query may read them as two parts. Whether a file group is in the one or in the other
   depends on the snapshot alone, not on columns or filters: the two scans of a query may differ in those, and a file
   group that both leave to the other would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from storage import Snapshot, Table
from storage.engine import (
    And,
    Condition,
    FileRef,
    FileSlice,
    Path,
    Scan,
    base_file_groups,
    file_url,
    make_tasks,
    whole_files,
)
from streams.read.arrow_filters import translate
from streams.read.read_options import ReadOptions
from streams.read.relation.live_view import ParquetFile, Part, PinnedPlanner, ReadPlan

SPARK: Final = "Spark's Parquet reader"
ARROW: Final = "Arrow in tasks"


@dataclass(frozen=True, slots=True)
class PlannerTuning:
    """Values that decide about the speed of a query, and never about its answer.

    Attributes:
        mix_min_bytes: Bytes of base files, all columns, from which on Spark's reader saves a query more than the union
            costs it: 30 to 60 ms for planning, and for tasks of either kind. If 7 of 63 columns are read, it saves
            about 1 ms per MB (`tests/benchmarks/view_overhead.py`).
        recheck_seconds: A snapshot older than this is checked for expiry before a query is planned with it, which costs
            a request: a DataFrame is analysed where it is made, and may be run hours later. Cleaning retains
            snapshots for longer than this.
    """

    mix_min_bytes: int = 64 * 1024 * 1024
    recheck_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """What one scan of a query reads, for EXPLAIN.

    Attributes:
        cut: Names the snapshot.
        reader: Who reads.
        file_groups: Those that are read.
        skipped: Those that are not, because no row of theirs can be in the answer.
        with_logs: Those of ``file_groups`` that are merged.
        log_bytes, base_bytes: Stored bytes of ``file_groups``, all columns.
        columns: That Spark asked for.
        filter: What is known of the answer before anything is read; empty if nothing is.
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

    def __str__(self) -> str:
        looked_for = f", filter {self.filter}" if self.filter else ""
        return (
            f"weft {self.cut}, {self.file_groups} file groups ({self.with_logs} with logs), {self.skipped} skipped, "
            f"logs {self.log_bytes} bytes, base {self.base_bytes} bytes, {len(self.columns)} columns{looked_for}"
        )


@dataclass(frozen=True)
class TablePlanner:
    """A table as it moves on, or at one moment if the options say so.

    ``reaches`` says whether Spark's own reader finds a file; ``on_scan`` is told of every scan that is planned.
    """

    table: Table
    options: ReadOptions
    parallelism: int
    reaches: Callable[[ParquetFile], bool]
    on_scan: Callable[[ScanFacts], None] | None = None
    tuning: PlannerTuning = PlannerTuning()

    def pin(self) -> PinnedSnapshot:
        snapshot = self.options.snapshot(self.table)
        return PinnedSnapshot(snapshot, self.options, self.parallelism, self.reaches, self.on_scan, self.tuning)


@dataclass(frozen=True)
class FixedPlanner:
    """One snapshot, whatever the table does."""

    pinned: PinnedSnapshot

    def pin(self) -> PinnedPlanner:
        self.pinned.snapshot.check_kept()  # once a query: Spark's own reader could only say that a file is gone
        return self.pinned


@dataclass(frozen=True)
class PinnedSnapshot:
    """One snapshot as a query sees it."""

    snapshot: Snapshot
    options: ReadOptions
    parallelism: int
    reaches: Callable[[ParquetFile], bool]
    on_scan: Callable[[ScanFacts], None] | None = None
    tuning: PlannerTuning = PlannerTuning()
    taken_s: float = field(default_factory=time.monotonic)

    def schema(self) -> StructType:
        return from_arrow_schema(self.snapshot.schema)

    @cached_property
    def slices(self) -> list[FileSlice]:
        """The file groups that there are to be read."""
        return base_file_groups(self.snapshot) if self.options.read_optimized else self.snapshot.slices

    @cached_property
    def files(self) -> list[FileSlice]:
        """Those of them that are their base files, as they are; none where Spark's own reader finds none of them."""
        found = [file_slice for file_slice in self.slices if not self._is_merged(file_slice)]
        bases = (
            file_slice.slice.base
            for file_slice in found
            if file_slice.slice is not None and file_slice.slice.base is not None
        )
        first = next(bases, None)
        return found if first is None or self.reaches(self._file(first)) else []

    def parts(self) -> Sequence[Part]:
        """Two scans where there is enough for each of them."""
        if self.options.require or not 0 < len(self.files) < len(self.slices):
            return (Part.WHOLE,)
        if sum(file_slice.base_bytes for file_slice in self.files) < self.tuning.mix_min_bytes:
            return (Part.WHOLE,)
        return (Part.FILES, Part.REST)

    def exact(self, filters: Sequence[Filter], part: Part) -> Sequence[int]:
        """Filters that tasks apply themselves; none where Spark's own reader does better, over clean base files."""
        if not self.options.require and part is not Part.REST and self.files:
            if part is Part.FILES or len(self.files) == len(self.slices):
                return ()
            # What is merged may all be pruned away.
            if self._scan([], filters, part).clean_files is not None:
                return ()
        return [i for i, item in enumerate(filters) if translate(item, self.snapshot.schema) is not None]

    def plan(self, columns: Sequence[str], filters: Sequence[Filter], part: Part) -> ReadPlan:
        if time.monotonic() - self.taken_s > self.tuning.recheck_seconds:
            self.snapshot.check_kept()  # Spark's own reader could only say that a file is gone
        scan = self._scan(columns, filters, part)
        # Spark evaluates filters over clean files itself (see `exact`), so they may be read as they are.
        clean = scan.clean_files if self.files else None
        facts = self._facts(scan, native=clean is not None)
        if self.on_scan is not None:
            self.on_scan(facts)
        reader = replace(scan, tasks=(), whole=frozenset())  # the tasks travel one by one
        return ReadPlan(
            description=str(facts),
            tasks=scan.tasks,
            read=reader.read,
            parquet_files=[self._file(file) for file in clean] if clean else None,
            size_bytes=facts.log_bytes + facts.base_bytes,
        )

    @cached_property
    def _whole(self) -> frozenset[Path]:
        return whole_files(self.slices)

    def _file(self, file: FileRef) -> ParquetFile:
        return ParquetFile(file_url(self.snapshot, file), file.size)

    def _is_merged(self, file_slice: FileSlice) -> bool:
        """Whether Arrow reads a file group; see rules 1 and 3."""
        if len(file_slice.rows):
            return True
        return (
            file_slice.slice is not None
            and file_slice.slice.base is not None
            and file_slice.slice.base.path not in self._whole
        )

    def _scan(self, columns: Sequence[str], filters: Sequence[Filter], part: Part) -> Scan:
        scan = self.snapshot.scan(
            columns,
            self._predicate(filters),
            self.options.require,
            parallelism=self.parallelism,
            read_optimized=self.options.read_optimized,
        )
        if part is Part.WHOLE:
            return scan
        read = {file_slice.group for task in scan.tasks for file_slice in task.slices}
        of_part = [file_slice for file_slice in self.slices if self._is_merged(file_slice) is (part is Part.REST)]
        slices = [file_slice for file_slice in of_part if file_slice.group in read]
        # Cut anew: what is merged may be neighbours, and tasks are to be about equal.
        tasks = make_tasks(slices, self.snapshot.files, self.parallelism)
        return replace(scan, tasks=tuple(tasks), skipped=len(of_part) - len(slices))

    def _predicate(self, filters: Sequence[Filter]) -> Condition | None:
        found = [translate(item, self.snapshot.schema) for item in filters]
        known = tuple(condition for condition in found if condition is not None)
        return And(known) if known else None

    def _facts(self, scan: Scan, *, native: bool) -> ScanFacts:
        slices = [file_slice for task in scan.tasks for file_slice in task.slices]
        condition = scan.projection.filter
        return ScanFacts(
            cut=str(self.snapshot.cut),
            reader=SPARK if native else ARROW,
            file_groups=len(slices),
            skipped=scan.skipped,
            with_logs=sum(len(file_slice.rows) > 0 for file_slice in slices),
            log_bytes=sum(file_slice.log_bytes for file_slice in slices),
            base_bytes=sum(file_slice.base_bytes for file_slice in slices),
            columns=scan.projection.columns,
            filter="" if condition is None else str(condition),
        )
