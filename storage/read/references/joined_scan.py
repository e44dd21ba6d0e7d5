"""Reads columns of references: joins the rows of a scan with those of the referenced tables (MERGE.md, M11).

The result is that of a LEFT JOIN of the snapshots on the merged values of the foreign keys, or of an inner join for a
required reference. The scan of the table reads its columns and the foreign keys, and applies the parts of the
filter that do not use references. The whole filter is applied to the joined rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.model import Reference
from weft.storage.core.predicate import And, Condition, columns_of, to_arrow
from weft.storage.core.schema.state_columns import state_columns
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import NotFound
from weft.storage.read.plan.read_task import ReadTask
from weft.storage.read.references.reference_rows import KeyedRows, ReferenceRows
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.storage.read.request.filter_input import ParsedFilter, parse_filter
from weft.storage.read.request.projection import check_filter, check_required
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.plan_scan import choose_slices, plan_scan
from weft.storage.read.scan.scan import Scan, row_count_batch
from weft.storage.read.snapshot_files import SnapshotFiles


@dataclass(frozen=True)
class Join:
    """A reference in a read.

    Attributes:
        reference: The reference.
        rows: The rows of the referenced table.
        columns: The columns to show: (name in the result, name in the referenced table).
        required: Whether rows without a row of the referenced table are left out.
    """

    reference: Reference
    rows: ReferenceRows
    columns: tuple[tuple[str, str], ...]
    required: bool

    @property
    def identity(self) -> str:
        """A text that identifies the rows and columns of the referenced table.

        A cut determines the rows, or the base files if only these are read. A copy of a table has the same id, so the
        text also contains the location.
        """
        scan = self.rows.scan
        logs = any(len(part.rows) for part in scan.slices)
        return f"{scan.env.store.uri} {self.reference.table_id} {scan.at} {logs} {scan.projection.columns}"


@dataclass(frozen=True)
class JoinedScan:
    """A planned read with columns of references. It can be pickled if the environment of the table can.

    Attributes:
        scan: Scan of the necessary columns of the table, including the foreign keys.
        joins: The references that the read uses.
        filter: Condition on joined rows; None without a filter, or if ``scan`` applies all of it.
        arrow: Schema of every batch.
    """

    scan: Scan
    joins: tuple[Join, ...]
    filter: pc.Expression | None
    arrow: pa.Schema

    @property
    def tasks(self) -> tuple[ReadTask, ...]:
        """The tasks. Each process that reads a task reads the referenced tables, too."""
        return self.scan.tasks

    def without_tasks(self) -> JoinedScan:
        """A copy without the tasks, for processes to which tasks are sent one by one.

        These processes keep the rows of the referenced tables for later reads
        (`weft.storage.read.references.kept_rows`).
        """
        joins = tuple(replace(join, rows=replace(join.rows, cache_key=join.identity)) for join in self.joins)
        return replace(self, scan=self.scan.without_tasks(), joins=joins)

    def to_arrow(self) -> pa.Table:
        """The result as one table. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        table = self.scan.to_arrow()
        rows = [join.rows.of([table.column(name) for name in join.reference.on]) for join in self.joins]
        batches = [joined for batch in table.to_batches() for joined in self._join_batch(batch, rows)]
        return pa.Table.from_batches(batches, self.arrow)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream of batches, one task after the other. Needs memory for the referenced tables."""
        return pa.RecordBatchReader.from_batches(
            self.arrow, (batch for task in self.tasks for batch in self.read(task))
        )

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Rows of one task. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        for number, batch in enumerate(self.scan.read(task)):
            # A task that finds a few rows of few keys has one batch, and does not need the whole referenced table.
            rows = [
                join.rows.all() if number else join.rows.of([batch.column(name) for name in join.reference.on])
                for join in self.joins
            ]
            yield from self._join_batch(batch, rows)

    def _join_batch(self, batch: pa.RecordBatch, rows: Sequence[KeyedRows]) -> Iterator[pa.RecordBatch]:
        columns: dict[str, pa.Array | pa.ChunkedArray] = dict(zip(batch.schema.names, batch.columns, strict=True))
        keep: pa.Array | None = None
        for join, keyed in zip(self.joins, rows, strict=True):
            numbers = keyed.find([columns[name] for name in join.reference.on])
            if join.required:
                matched = numbers.is_valid()
                keep = matched if keep is None else pc.and_(keep, matched)
            columns |= {shown_name: keyed.values(name, numbers) for shown_name, name in join.columns}
        joined = pa.table(columns)
        if keep is not None:
            joined = joined.filter(keep)
        if self.filter is not None:
            joined = joined.filter(self.filter)
        if not len(joined):
            return
        if not self.arrow.names:  # `select` of no columns loses the number of rows
            yield row_count_batch(len(joined))
            return
        yield from joined.select(self.arrow.names).cast(self.arrow).combine_chunks().to_batches()


def uses_references(schema: TableSchema, request: ScanRequest) -> bool:
    """Whether a read uses references; otherwise the referenced tables are not read."""
    if not schema.references:
        return False
    shown_names = {name for reference in schema.references for name in reference.shown_names}
    if request.columns is None or shown_names.intersection(request.columns):
        return True
    if any(name in schema.reference_by_name for name in request.require or ()):
        return True
    if request.filter is None:
        return False
    if request.filter.condition is not None:
        return not shown_names.isdisjoint(columns_of(request.filter.condition))
    return not _fits_table(schema, request.filter)


def plan_read(files: SnapshotFiles, tables: Sequence[ReferencedTable], request: ScanRequest) -> Scan | JoinedScan:
    """Plan a read of a snapshot; it joins only if it uses references. Errors as in `plan_joined_scan`."""
    if tables and uses_references(files.table_schema, request):
        return plan_joined_scan(files, tables, request)
    return plan_scan(files, request)


def plan_joined_scan(
    files: SnapshotFiles,
    tables: Sequence[ReferencedTable],
    request: ScanRequest,
    plan: Callable[[SnapshotFiles, ScanRequest], Scan] = plan_scan,
) -> JoinedScan:
    """Plan a read of a snapshot that uses columns of references.

    Args:
        files: The snapshot.
        tables: Its references.
        request: Columns, filter and ``require`` may name columns of references, and references.
        plan: Plans the scan of the table.

    Raises:
        NotFound: A column, group, reference or referenced table does not exist.
        InvalidInput: The filter is not a condition.
        SnapshotExpired: A snapshot has expired.
    """
    schema = files.table_schema
    owners = {name: table for table in tables for name in table.reference.shown_names}
    columns = [*schema.arrow.names, *owners] if request.columns is None else list(request.columns)
    required = list(dict.fromkeys(request.require or ()))
    _check_names(schema, owners, columns, required)
    condition, filter_columns, table_filter = _split_filter(schema, tables, request)
    used_references = {owners[name].reference.name for name in {*columns, *filter_columns} if name in owners}
    used_references.update(name for name in required if name in schema.reference_by_name)
    joins = tuple(
        _join(table, {*columns, *filter_columns}, request, required=table.reference.name in required)
        for table in tables
        if table.reference.name in used_references
    )
    table_columns = dict.fromkeys(name for name in (*columns, *filter_columns) if name not in owners)
    table_columns |= dict.fromkeys(name for join in joins for name in join.reference.on)
    groups = [name for name in required if name not in schema.reference_by_name]
    scan = plan(files, replace(request, columns=list(table_columns), filter=table_filter, require=groups))
    fields = {name: scan.arrow.field(name) for name in table_columns}
    for join in joins:
        referenced = next(table for table in tables if table.reference.name == join.reference.name)
        fields |= {field.name: field for field in referenced.fields()}
    return JoinedScan(scan, joins, condition, pa.schema([fields[name] for name in columns]))


def choose_joined(files: SnapshotFiles, tables: Sequence[ReferencedTable], request: ScanRequest) -> JoinedScan:
    """Plan a joined scan without tasks. Reads no file of the table."""
    return plan_joined_scan(files, tables, request, choose_slices)


def joined_fields(schema: TableSchema, tables: Sequence[ReferencedTable]) -> pa.Schema:
    """The columns of a table, then those of its references.

    Raises:
        TableError: The snapshot of a referenced table could not be taken.
    """
    fields = [field.remove_metadata() for field in schema.arrow]
    return pa.schema([*fields, *(field for table in tables for field in table.fields())])


def _join(table: ReferencedTable, requested: set[str], request: ScanRequest, *, required: bool) -> Join:
    reference, files = table.reference, table.files
    shown_columns = zip(reference.shown_names, reference.columns, strict=True)
    columns = tuple((name, column) for name, column in shown_columns if name in requested)
    columns_to_read = dict.fromkeys((*files.table_schema.key, *(column for _, column in columns)))
    scan_request = ScanRequest(
        list(columns_to_read),
        parallelism=request.parallelism,
        task_bytes=request.task_bytes,
        read_optimized=request.read_optimized,
    )
    return Join(reference, ReferenceRows(plan_scan(files, scan_request)), columns, required)


def _check_names(
    schema: TableSchema, owners: Mapping[str, ReferencedTable], columns: Sequence[str], required: Sequence[str]
) -> None:
    """Check that columns, groups and references exist.

    Raises:
        NotFound: A name does not exist; the hint lists those that exist.
    """
    existing = {*schema.column_by_name, *state_columns(schema), *owners}
    for name in columns:
        if name not in existing:
            hint = f"columns: {', '.join([*schema.column_by_name, *owners])}"
            raise NotFound(f"the table has no column {name!r}", hint=hint)
    check_required(schema, required)


def _split_filter(
    schema: TableSchema, tables: Sequence[ReferencedTable], request: ScanRequest
) -> tuple[pc.Expression | None, tuple[str, ...], ParsedFilter | None]:
    """The condition on joined rows, the columns that it uses, and the filter that the scan of the table applies."""
    if request.filter is None:
        return None, (), None
    condition, predicate = request.filter.expression, request.filter.condition
    own_columns = {*schema.arrow.names, *state_columns(schema)}
    filter_columns = columns_of(predicate) if predicate is not None else None
    if filter_columns <= own_columns if filter_columns is not None else _fits_table(schema, request.filter):
        return None, (), request.filter
    # A filter that could not be parsed may use any column.
    used_tables = [
        table
        for table in tables
        if filter_columns is None or not filter_columns.isdisjoint(table.reference.shown_names)
    ]
    check_filter(joined_fields(schema, used_tables), request.filter, state_columns(schema).values())
    shown_names = [name for table in used_tables for name in table.reference.shown_names]
    if filter_columns is None:
        return condition, (*schema.arrow.names, *state_columns(schema), *shown_names), None
    parts = predicate.conditions if isinstance(predicate, And) else ()
    pushed = tuple(part for part in parts if columns_of(part) <= own_columns and _has_expression(part))
    names = tuple(
        name for name in (*schema.arrow.names, *state_columns(schema), *shown_names) if name in filter_columns
    )
    return condition, names, parse_filter(And(pushed)) if pushed else None


def _fits_table(schema: TableSchema, parsed: ParsedFilter) -> bool:
    """Whether a filter uses columns of the table alone."""
    try:
        check_filter(schema.arrow, parsed, state_columns(schema).values())
    except NotFound:
        return False
    return True


def _has_expression(condition: Condition) -> bool:
    """Whether a condition can be evaluated alone, without the expression that it is a part of."""
    try:
        to_arrow(condition)
    except TypeError:
        return False
    return True
