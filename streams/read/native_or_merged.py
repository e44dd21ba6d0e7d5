"""Plans the scans of a table: which file groups Spark reads natively, and which are merged by Arrow in tasks.

A query gets one snapshot. For each of its scans these rules decide which reader reads which file group:

1. *Native.* A file group without logs consists of its base file, which Spark's vectorised Parquet reader reads. It
   must have access to the store (`weft.streams.read.hadoop_access`), and a reader that does not know weft must find the
   right values of the columns in the file (`weft.storage.core.schema.evolution.reads_as_it_is`). A base file that
   several file groups share is read natively only if none of them has logs.
2. *Merged.* All other file groups are merged by Arrow in tasks.
3. If a snapshot has both kinds, a query may read them with two scans (`Part`). Which scan reads a file group depends on
   the snapshot only, not on columns or filters. Those may differ between the two scans, and then each scan might leave
   the same file group to the other one. Spark offers aggregates and limits to a single scan alone, and decides on two
   before it has seen the query. So tasks read everything if at least half of the bytes have to be merged anyway.
   A large file group with logs belongs to both, if its logs touch few of the row groups of its base: the native scan
   reads the others (`weft.storage.read.plan.untouched_rows`).
4. *Joined.* Columns of a small referenced table are columns of the scan. If a scan has some of them, all of its file
   groups are read and joined by Arrow in tasks. A large referenced table is joined by Spark
   (`weft.streams.read.reference_planner`).
5. *Aggregated.* Tasks that merge or join rows also aggregate them, if Spark offers that: returning the rows to Spark
   takes as long as merging them. Spark's own reader and generated code aggregate rows if none needs a merge, unless all
   aggregates are known without reading rows (`weft.storage.read.pushed.known_aggregates`).
6. *Filtered when the query runs.* A join determines the values that a column can have (`weft.streams.read.relation`,
   ``runtime_filters``). Tasks use the values of every column: values of the key select file groups, row groups and rows
   before they are merged, other values the rows that are returned. A native scan leaves out whole file groups, so it
   uses values of the key only. Tasks that aggregate use values of the columns of GROUP BY: all rows of a group are in
   the join, or none. First rows (rule 7) are chosen before a join, so a filter of the join would change them.
7. *First rows.* For a LIMIT, with or without ORDER BY, tasks that merge or join rows return no more rows than it needs.
   If some file groups surely have enough rows for a LIMIT without ORDER BY, one task reads them, and Spark applies no
   limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage import Snapshot, Table
from weft.storage.core.log.file_refs import FileGroup, FilePart, FileRef
from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice, LiveFile, base_slices, whole_files
from weft.storage.core.predicate import And, Condition, columns_of
from weft.storage.read.plan.untouched_rows import DividedFileGroup, byte_ranges, divide_by_touch
from weft.storage.read.pushed.aggregated_scan import AggregatedScan
from weft.storage.read.pushed.first_rows import FirstRows, FirstRowsScan, in_one_task
from weft.storage.read.pushed.known_aggregates import known_aggregates
from weft.storage.read.pushed.partial_aggregates import Aggregation
from weft.storage.read.references.bound_rows import BoundRows
from weft.storage.read.references.joined_scan import JoinedScan, choose_joined, uses_references
from weft.storage.read.request.filter_input import parse_filter
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.divide_scan import divide
from weft.storage.read.scan.scan import Scan
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.reference_planner import ReferencePlanner, joined_columns, joined_in_tasks, readable_columns
from weft.streams.read.relation.live_view import JoinedColumns, ParquetFile, Part, PinnedPlanner, ReadPlan
from weft.streams.read.scan_facts import ARROW, SPARK, ScanFacts


@dataclass(frozen=True, slots=True)
class PlannerTuning:
    """Values that affect the speed of a query, never its result.

    Attributes:
        mix_min_bytes: With fewer bytes of base files (all columns) one scan is faster than two. A second scan costs 30
            to 60 ms for planning and tasks; Spark's reader saves about 1 ms per MB when it reads 7 of 63 columns
            (`tests/benchmarks/view_overhead.py`).
        merged_share: With at least this share of the bytes in file groups that have to be merged, one scan is faster
            than two for aggregates, which its tasks compute: 1.1 to 1.9 times, while rows take up to 1.2 times as long
            (`tests/benchmarks/aggregates.py`).
        divide_min_bytes: A file group with logs is read by two scans if at least this many bytes of its base (all
            columns) are untouched by them: each file is opened twice then.
        filter_min_bytes: A scan of fewer bytes (all columns) is not filtered by joins: planning it again takes longer
            than it gains (`tests/benchmarks/filters.py`).
        filter_min_groups: The same for a native scan of fewer file groups. Joins prune whole file groups of it, and
            nearly every file group has one of the keys if there are few.
        recheck_seconds: A snapshot older than this is checked for expiry before a query is planned with it, which costs
            a request. A DataFrame takes its snapshot when it is created, and may be run hours later. Cleaning retains
            snapshots for longer than this.
    """

    mix_min_bytes: int = 64 * 1024 * 1024
    merged_share: float = 0.5
    divide_min_bytes: int = 8 * 1024 * 1024
    filter_min_bytes: int = 128 * 1024 * 1024
    filter_min_groups: int = 64
    recheck_seconds: float = 60.0


@dataclass(frozen=True)
class TablePlanner:
    """Gives every query a snapshot: the newest one, or the one that the options name.

    Attributes:
        table: The table.
        options: Options of the read.
        parallelism: Number of tasks that run at the same time.
        task_bytes: Returns the largest number of stored bytes of a task, for every scan; None for weft's default.
        hadoop_file: Returns a file under the URL by which Spark's Parquet reader finds it; None if it does not find it.
        on_scan: Called with the facts of every scan that is planned.
        tuning: Values that affect speed only.
        bound: The rows of referenced tables that worker processes keep.
    """

    table: Table
    options: ReadOptions
    parallelism: int
    task_bytes: Callable[[], int | None]
    hadoop_file: Callable[[ParquetFile], ParquetFile | None]
    on_scan: Callable[[ScanFacts], None] | None = None
    tuning: PlannerTuning = PlannerTuning()
    bound: BoundRows = field(default_factory=BoundRows)

    def __call__(self) -> PinnedSnapshot:
        return PinnedSnapshot(self.options.snapshot(self.table), self)


@dataclass(frozen=True)
class PinnedSnapshot(PinnedPlanner):
    """The snapshot of one query; plans its scans.

    Attributes:
        snapshot: The snapshot.
        planner: The options of the read, and everything that planning a scan needs.
        taken_s: When the snapshot was taken, on the monotonic clock.
        joins_all: Whether each scan joins all references, also large and required ones, so that Spark joins none.
    """

    snapshot: Snapshot
    planner: TablePlanner
    taken_s: float = field(default_factory=time.monotonic)
    joins_all: bool = False

    def recheck(self) -> PinnedSnapshot:
        """Check that the snapshot still exists, and return this state for another query.

        Raises:
            SnapshotExpired: Spark's reader would report a missing file instead.
        """
        self.snapshot.check_kept()
        return self

    def schema(self) -> StructType:
        return from_arrow_schema(self.columns)

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the table and of all references that can be read; every scan can return all of them."""
        return pa.schema([*self.snapshot.table_columns, *readable_columns(self.snapshot.references)])

    def joins(self) -> Sequence[JoinedColumns]:
        if self.joins_all or joined_in_tasks(self.snapshot.references, self.planner.options.require):
            return ()
        return [joined_columns(table, self.planner.options.require) for table in self.snapshot.references]

    def joined(self, name: str) -> PinnedPlanner:
        snapshot = self.snapshot.of_reference(name)
        options = ReadOptions(read_optimized=self.planner.options.read_optimized)
        of_table = replace(self, snapshot=snapshot, planner=replace(self.planner, options=options, on_scan=None))
        reference = self.snapshot.table_schema.reference(name)
        return ReferencePlanner(
            of_table, reference.columns, snapshot.table_schema.key, required=name in self.planner.options.require
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """The required groups of the table, without the required references if Spark joins them."""
        if self.joins_all:
            return self.planner.options.require
        references = self.snapshot.table_schema.reference_by_name
        return tuple(name for name in self.planner.options.require if name not in references)

    @cached_property
    def slices(self) -> Sequence[FileSlice]:
        """All file groups that a read with these options may need."""
        return base_slices(self.snapshot.state) if self.planner.options.read_optimized else self.snapshot.slices

    @cached_property
    def native(self) -> list[FileSlice]:
        """The file groups of `slices` that Spark may read natively; empty if it has no access to the files."""
        native_slices = [file_slice for file_slice in self.slices if not self._is_merged(file_slice)]
        bases = (
            file_slice.slice.base
            for file_slice in native_slices
            if file_slice.slice is not None and file_slice.slice.base is not None
        )
        first = next(bases, None)
        return native_slices if first is None or self._hadoop_file(first) is not None else []

    @cached_property
    def divided(self) -> Mapping[FileGroup, DividedFileGroup]:
        """The file groups that two scans read, if there are two (rule 3)."""
        if self.planner.options.read_optimized:
            return {}
        snapshot, least = self.snapshot, self.planner.tuning.divide_min_bytes
        return divide_by_touch(snapshot.table_log.env, snapshot.table_schema, self.slices, snapshot.files, least)

    def parts(self) -> Sequence[Part]:
        """Two scans, if some file groups must be merged and the others are large enough; otherwise one."""
        if self.groups or len(self.native) == len(self.slices):
            return (Part.WHOLE,)
        native = sum(file_slice.base_bytes for file_slice in self.native)
        if self._can_divide:
            native += sum(part.base_bytes for group in self.divided.values() for part in group.untouched)
        total = sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in self.slices)
        pushes = self.planner.options.push_aggregates and total - native >= total * self.planner.tuning.merged_share
        if pushes or native < max(self.planner.tuning.mix_min_bytes, 1):
            return (Part.WHOLE,)
        return (Part.FILES, Part.REST)

    @cached_property
    def _can_divide(self) -> bool:
        """Whether file groups with logs can be large enough for two scans, and Spark has access to their files."""
        bases = [file_slice.slice.base for file_slice in self.slices if file_slice.slice is not None]
        base_files = [base for base in bases if base is not None]
        enough = sum(base.size for base in base_files) >= self.planner.tuning.mix_min_bytes
        return enough and bool(base_files) and self._hadoop_file(base_files[0]) is not None

    def exact(self, filters: Sequence[Condition], part: Part) -> Sequence[int]:
        """Positions of the filters that tasks apply; none if the scan is native, because then Spark applies them."""
        uses_references = self._uses_references([], filters)
        if not uses_references and not self.groups and part is not Part.REST and self._may_be_native(part):
            if part is Part.FILES or len(self.native) == len(self.slices):
                return ()
            # The filters may exclude all file groups that must be merged: then the scan is native, too.
            if self._scan([], filters, part).clean_files is not None:
                return ()
        return [i for i, item in enumerate(filters) if self._has_columns_of(item)]

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        scan, clean = self._choose(columns, filters, part)
        return self._read_plan(scan, clean, columns, filters)

    def plan_aggregates(
        self, aggregation: Aggregation, filters: Sequence[Condition], part: Part, runtime: Sequence[Condition] = ()
    ) -> ReadPlan | None:
        """Plan a scan whose tasks aggregate the rows (rule 5 of this module)."""
        result = aggregation.result(self.columns) if self.planner.options.push_aggregates else None
        if result is None:
            return None
        scan, clean = self._choose(aggregation.columns, (*filters, *runtime), part)
        known_values, known_groups = None, 0
        if isinstance(scan, Scan):
            total = len(scan.slices)
            scan, known_values = known_aggregates(scan, aggregation)
            known_groups = total - len(scan.slices)
            if clean is not None and scan.slices and not runtime:
                return None
        plan = self._read_plan(
            scan,
            None,
            aggregation.columns,
            (*filters, *runtime),
            lambda rows: AggregatedScan(rows, aggregation, known_values),
            str(aggregation),
            known_groups=known_groups,
        )
        filterable_columns = self._filterable(aggregation.groups, plan.size_bytes or 0)
        named_groups = zip(aggregation.groups, aggregation.group_names, strict=True)
        filterable = [name for column, name in named_groups if column in filterable_columns]
        return replace(plan, columns=from_arrow_schema(result), filterable=filterable)

    def plan_first(
        self, columns: Sequence[str], filters: Sequence[Condition], part: Part, first: FirstRows
    ) -> ReadPlan | None:
        """Plan a scan whose tasks return only the first rows (rule 7 of this module)."""
        if not self.planner.options.push_aggregates or not first.fits(self.columns):
            return None
        scan, clean = self._choose(columns, filters, part)
        if first.in_all:
            assert isinstance(scan, Scan), "`has_first` has asked for all columns"
            single_task = in_one_task(scan, first.count, self._log_files)
            assert single_task is not None, "`has_first` has found it: it does not depend on the columns"
            scan = single_task
        elif clean is not None:
            return None
        return self._read_plan(scan, None, columns, filters, lambda rows: FirstRowsScan(rows, first), str(first))

    def has_first(self, filters: Sequence[Condition], part: Part, count: int) -> bool:
        if not self.planner.options.push_aggregates:
            return False
        scan, clean = self._choose(self.columns.names, filters, part)
        if clean is not None or not isinstance(scan, Scan):
            return False
        return in_one_task(scan, count, self._log_files) is not None

    def _choose(
        self, columns: Sequence[str], filters: Sequence[Condition], part: Part
    ) -> tuple[Scan | JoinedScan, list[FileRef] | None]:
        """Return a scan without tasks, and the base files that Spark may read instead; None if tasks must read it."""
        if time.monotonic() - self.taken_s > self.planner.tuning.recheck_seconds:
            self.snapshot.check_kept()  # see `recheck`
        if self._uses_references(columns, filters):
            return self._joined_scan(columns, filters, part), None
        scan = self._scan(columns, filters, part)
        # The filters need not be applied here: Spark applies them to a native scan (see `exact`).
        return scan, scan.clean_files if self._may_be_native(part) else None

    @property
    def _log_files(self) -> Sequence[LiveFile]:
        """The log files that the file groups of a scan refer to."""
        return () if self.planner.options.read_optimized else self.snapshot.files

    def _may_be_native(self, part: Part) -> bool:
        return bool(self.native) or (part is Part.FILES and self._can_divide and bool(self.divided))

    def _read_plan(
        self,
        chosen: Scan | JoinedScan,
        clean: Sequence[FileRef] | None,
        columns: Sequence[str],
        filters: Sequence[Condition],
        pushed: Callable[[Scan | JoinedScan], AggregatedScan | FirstRowsScan] | None = None,
        description: str = "",
        known_groups: int = 0,
    ) -> ReadPlan:
        """Plan how a scan is read.

        Args:
            chosen: The scan.
            clean: The base files that Spark may read instead; None if tasks must read the scan.
            columns: Columns of the query.
            filters: Filters of the query.
            pushed: Wraps a scan whose tasks aggregate or limit the rows; None if tasks return the rows unchanged.
            description: ``pushed`` as text.
            known_groups: Number of file groups whose aggregates are known from statistics.
        """
        joined = chosen if isinstance(chosen, JoinedScan) else None
        # Large file groups are divided only for merged reads: dividing reads footers, which a native scan does not
        # need.
        of_table = chosen.scan if isinstance(chosen, JoinedScan) else chosen
        scan = of_table
        if not scan.tasks:
            parallelism, task_bytes = self.planner.parallelism, self.planner.task_bytes()
            scan = divide(of_table, self._log_files, parallelism, task_bytes, large=clean is None)
        facts = self._facts(scan, columns, filters, native=clean is not None)
        facts = replace(facts, pushed=description, known=known_groups)
        if self.planner.on_scan is not None:
            self.planner.on_scan(facts)
        rows = scan if joined is None else replace(joined, scan=scan)
        task_function = rows if pushed is None else pushed(rows)
        others = "" if joined is None else f", joined with {', '.join(join.reference.name for join in joined.joins)}"
        size_bytes = facts.log_bytes + facts.base_bytes
        native = of_table.slices if clean else None
        return ReadPlan(
            description=f"{facts}{others}",
            tasks=task_function.tasks,
            read=task_function.without_tasks().read,  # Spark sends the tasks one by one
            parquet_files=self._parquet_files(clean, of_table.slices) if clean else None,
            size_bytes=size_bytes,
            filterable=[] if pushed is not None else self._filterable(columns, size_bytes, native),
        )

    def _filterable(
        self, columns: Sequence[str], size_bytes: int, native: Sequence[FileSlice] | None = None
    ) -> list[str]:
        """Return the columns by whose values a join may filter the scan when the query runs (rule 6).

        ``native`` are the file slices that Spark reads itself, if it reads the scan natively.
        """
        tuning = self.planner.tuning
        if size_bytes < tuning.filter_min_bytes or (native and len(native) < tuning.filter_min_groups):
            return []
        if native:
            return [name for name in columns if name in self.snapshot.table_schema.key]
        fields = (self.columns.field(name) for name in columns if name in self.columns.names)
        return [
            field.name for field in fields if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))
        ]

    @cached_property
    def _whole(self) -> frozenset[Path]:
        return whole_files(self.slices)

    def _parquet_files(self, clean: Sequence[FileRef], slices: Sequence[FileSlice]) -> list[ParquetFile]:
        """Base files for Spark's reader, with the byte ranges of those of divided file groups."""
        parts: dict[Path, list[FilePart]] = {}
        for piece in slices:
            if piece.group in self.divided and piece.slice is not None and piece.slice.base is not None:
                assert piece.slice.base_part is not None, "untouched rows are some of the rows of a file"
                parts.setdefault(piece.slice.base.path, []).append(piece.slice.base_part)
        spark_files = []
        for file in clean:
            for_spark = self._hadoop_file(file)
            if for_spark is not None and file.path in parts:
                ranges = byte_ranges(self.snapshot.table_log.env, file, parts[file.path])
                for_spark = for_spark._replace(ranges=tuple(ranges))
            if for_spark is not None:
                spark_files.append(for_spark)
        return spark_files

    def _hadoop_file(self, file: FileRef) -> ParquetFile | None:
        return self.planner.hadoop_file(ParquetFile(self.snapshot.table_log.store.url(file.path), file.size))

    def _is_merged(self, file_slice: FileSlice) -> bool:
        """Whether a file group has to be merged, whatever the columns and filters of a scan are (rules 1 and 3)."""
        if len(file_slice.rows):
            return True
        return (
            file_slice.slice is not None
            and file_slice.slice.base is not None
            and file_slice.slice.base.path not in self._whole
        )

    def _scan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> Scan:
        """A scan of the table without tasks."""
        return self._of_part(self.snapshot.choose_slices(self._request(columns, filters)), part)

    def _joined_scan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> JoinedScan:
        """A scan of columns of references, without tasks."""
        result = choose_joined(self.snapshot, self.snapshot.references, self._request(columns, filters))
        if not self.planner.options.read_optimized:
            result = self.planner.bound.apply(result, self.snapshot.references)
        return replace(result, scan=self._of_part(result.scan, part))

    def _uses_references(self, columns: Sequence[str], filters: Sequence[Condition]) -> bool:
        return uses_references(self.snapshot.table_schema, self._request(columns, filters))

    def _request(self, columns: Sequence[str], filters: Sequence[Condition]) -> ScanRequest:
        condition, optimized = parse_filter(self._predicate(filters)), self.planner.options.read_optimized
        return ScanRequest(
            columns, condition, self.groups, parallelism=self.planner.parallelism, read_optimized=optimized
        )

    def _of_part(self, scan: Scan, part: Part) -> Scan:
        """A scan without the file groups of other parts."""
        if part is Part.WHOLE:
            return scan
        groups_read = {file_slice.group for file_slice in scan.slices}
        of_part = [piece for file_slice in self.slices for piece in self._pieces(file_slice, part)]
        slices = tuple(piece for piece in of_part if piece.group in groups_read)
        in_part: set[Path] = set()
        if part is Part.FILES:
            bases = (piece.slice.base for piece in slices if piece.group in self.divided and piece.slice is not None)
            in_part.update(base.path for base in bases if base is not None)
        return replace(scan, slices=slices, skipped=len(of_part) - len(slices), whole=scan.whole | in_part)

    def _pieces(self, file_slice: FileSlice, part: Part) -> Sequence[FileSlice]:
        """Return the part of a file group that FILES or REST reads."""
        division = self.divided.get(file_slice.group)
        if division is not None:
            return (division.rest,) if part is Part.REST else division.untouched
        return (file_slice,) if self._is_merged(file_slice) is (part is Part.REST) else ()

    def _predicate(self, filters: Sequence[Condition]) -> Condition | None:
        conditions = tuple(filter(self._has_columns_of, filters))
        return And(conditions) if conditions else None

    def _has_columns_of(self, condition: Condition) -> bool:
        """Whether the scan has the columns of a condition; it has no metadata columns."""
        return columns_of(condition).issubset(self.columns.names)

    def _facts(
        self,
        scan: Scan,
        columns: Sequence[str],
        filters: Sequence[Condition],
        *,
        native: bool,
    ) -> ScanFacts:
        slices = scan.slices
        parsed = parse_filter(self._predicate(filters))
        return ScanFacts(
            cut=str(self.snapshot.cut),
            reader=SPARK if native else ARROW,
            file_groups=len({file_slice.group for file_slice in slices}),
            skipped=scan.skipped,
            with_logs=sum(len(file_slice.rows) > 0 for file_slice in slices),
            log_bytes=sum(file_slice.log_bytes for file_slice in slices),
            base_bytes=sum(file_slice.base_bytes for file_slice in slices),
            columns=tuple(columns),
            filter="" if parsed is None else str(parsed.expression),
            tasks=0 if native else len(scan.tasks),
            divided=0 if native else scan.divided,
        )
