"""Metadata columns: facts about a row besides its values. A query selects them by name; `*` does not include them.

    _present_<group>       boolean      whether the column group is present in the row
    _arrival_<group>       bigint       arrival of the event that the row shows; NULL where the group is absent
    _commit_time_<group>   timestamp    time of the commit of that event; NULL where the group is absent
    _bucket                int          bucket of the key

A view of Spark cannot have hidden columns. So if a statement names a metadata column, or a read has the option
``metadata_columns``, the table is not a view but a `MetadataTable`. Its rows are merged in tasks, which also join all
references.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition
from weft.storage.core.schema.state_columns import state_columns
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.read.bucket_numbers import bucket_numbers
from weft.streams.read.native_or_merged import PinnedSnapshot
from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.planner_interface import Part, PinnedPlanner, ReadPlan
from weft.streams.read.relation.spark_scan import LiveTable, LiveView, PruningScanBuilder

METADATA: Final = "metadata_columns"
"""Option of a DataFrame, which has no statement: ``spark.read.option("metadata_columns", True).table(...)``."""

BUCKET: Final = "_bucket"
_ARRIVAL: Final = "_arrival_"
_COMMIT_TIME: Final = "_commit_time_"
_NAMES: Final = re.compile(r"\b(_present_|_arrival_|_commit_time_|_bucket\b)", re.IGNORECASE)
_STAMP_BITS: Final = 20  # an arrival is the stamp in milliseconds, and then the number of the lane (FORMAT.md)


def names_metadata(statement: str) -> bool:
    """Whether a statement may name a metadata column."""
    return _NAMES.search(statement) is not None


def metadata_schema(schema: TableSchema) -> pa.Schema:
    """Build the schema of the metadata columns of a table, without those whose name a column of the table has."""
    fields = [column.field for column in state_columns(schema).values()]
    fields += [pa.field(f"{_COMMIT_TIME}{group.name}", pa.timestamp("us", tz="UTC")) for group in schema.groups]
    fields.append(pa.field(BUCKET, pa.int32(), nullable=False))
    return pa.schema([field for field in fields if field.name not in schema.column_by_name])


@dataclass(frozen=True)
class PinnedMetadata(PinnedPlanner):
    """A planned state of a table with metadata columns.

    Attributes:
        plain: The state without metadata columns.
    """

    plain: PinnedSnapshot

    @classmethod
    def of(cls, plain: PinnedSnapshot) -> PinnedMetadata:
        """Add metadata columns to a state."""
        return cls(replace(plain, joins_all=True))

    @property
    def hidden(self) -> pa.Schema:
        """Schema of the metadata columns."""
        return metadata_schema(self.plain.snapshot.table_schema)

    def schema(self) -> StructType:
        return StructType([*self.plain.schema().fields, *from_arrow_schema(self.hidden).fields])

    def exact(self, filters: Sequence[Condition], part: Part) -> Sequence[int]:
        return self.plain.exact(filters, part)

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        hidden = self.hidden
        metadata_names = [name for name in columns if name in hidden.names]
        if not metadata_names:
            return self.plain.plan(columns, filters, part)
        schema = self.plain.snapshot.table_schema
        inputs = [name for name in columns if name not in metadata_names]
        for name in metadata_names:
            if name == BUCKET:
                inputs += schema.key
            else:
                inputs.append(name.replace(_COMMIT_TIME, _ARRIVAL, 1) if name.startswith(_COMMIT_TIME) else name)
        plan = self.plain.plan(tuple(dict.fromkeys(inputs)), filters, part)
        read = functools.partial(_read_with_metadata, plan.read, schema, metadata_names)
        return replace(plan, parquet_files=None, read=read)  # the files lack these columns


def _read_with_metadata(
    read: Callable[[Any], Iterator[pa.RecordBatch]], schema: TableSchema, metadata_names: Sequence[str], task: Any
) -> Iterator[pa.RecordBatch]:
    for batch in read(task):
        result = batch
        for name in metadata_names:
            if name == BUCKET:
                buckets = bucket_numbers(schema, pa.Table.from_batches([batch]))
                result = result.append_column(name, buckets.cast(pa.int32()))
            elif name.startswith(_COMMIT_TIME):
                stamps = pc.shift_right(batch.column(name.replace(_COMMIT_TIME, _ARRIVAL, 1)), _STAMP_BITS)
                times = stamps.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", "UTC"))
                result = result.append_column(name, times)
        yield result


class MetadataTable(
    LiveTable,
    java=(
        "org.apache.spark.sql.connector.catalog.SupportsRead",
        "org.apache.spark.sql.connector.catalog.SupportsMetadataColumns",
    ),
    answers={"canRenameConflictingMetadataColumns": True},
):
    """A table with metadata columns (Spark's `SupportsMetadataColumns`)."""

    def __init__(self, view: LiveView, state: PinnedMetadata) -> None:
        """Take the columns of the state that the query reads."""
        super().__init__(view, state.plain.schema(), Part.WHOLE)
        self._all_columns = state.schema()

    def newScanBuilder(self, _options: Any) -> PruningScanBuilder:  # noqa: N802
        return PruningScanBuilder(self._view, self._all_columns, self._part, self._view.pins.current())

    def metadataColumns(self) -> Any:  # noqa: N802
        hidden = self._all_columns.fields[len(self._schema.fields) :]
        columns = [HiddenColumn(self.jvm, StructType([field])) for field in hidden]
        return self.jvm.array(self.jvm.MetadataColumn, columns)


class HiddenColumn(
    Callback,
    java=("org.apache.spark.sql.connector.catalog.MetadataColumn",),
    answers={"comment": None, "transform": None, "metadataInJSON": None},
):
    """A metadata column (Spark's `MetadataColumn`)."""

    def __init__(self, jvm: Jvm, column: StructType) -> None:
        """Take the column, which is the only field of a struct."""
        super().__init__(jvm, f"weft metadata column {column.simpleString()}")
        self._column = column

    def name(self) -> str:
        return self._column.names[0]

    def dataType(self) -> Any:  # noqa: N802
        return self.jvm.struct(self._column).apply(0).dataType()

    def isNullable(self) -> bool:  # noqa: N802
        return self._column.fields[0].nullable
