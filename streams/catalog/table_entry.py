"""Descriptions of tables for commands such as DESCRIBE, SHOW CREATE TABLE and SHOW TBLPROPERTIES.

With the same columns and properties CREATE TABLE would create an equal table (`weft.storage.config.table_properties`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from weft.storage import Table
from weft.storage.config.table_properties import schema_properties
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput, TableError
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.system_tables import system_table
from weft.streams.read.relation.callbacks import PlainTable, WithoutMetrics

PROVIDER: Final = "weft"
_CURRENT_DEFAULT: Final = "CURRENT_DEFAULT"
_COMMENT: Final = "comment"
_EXISTS_DEFAULT: Final = "EXISTS_DEFAULT"  # Spark reads the default of a field only if it has both


def describe_columns(fields: StructType, schema: TableSchema) -> StructType:
    """Add the defaults and comments of a table's columns to the metadata of fields, where Spark looks for them."""
    columns = []
    for field in fields:
        column = schema.column_by_name.get(field.name)
        metadata = dict(field.metadata)
        if column is not None and column.default is not None:
            text = sql_literal(column.default, format_type(column.type))
            metadata |= {_CURRENT_DEFAULT: text, _EXISTS_DEFAULT: text}
        if column is not None and column.comment:
            metadata[_COMMENT] = column.comment
        columns.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(columns)


def sql_literal(value: Any, kind: str) -> str:
    """Format a value as a constant of Spark SQL.

    Args:
        value: The value.
        kind: Type of the column.
    """
    match value:
        case bool() | int():
            return str(value).lower()
        case bytes():
            return f"X'{value.hex()}'"
        case _:
            text = "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
            return text if kind == "string" else f"CAST({text} AS {kind.upper()})"


class TableEntry(PlainTable, WithoutMetrics, java=("org.apache.spark.sql.connector.catalog.TruncatableTable",)):
    """A table as commands describe it. It cannot be read; queries get another object."""

    def __init__(
        self,
        jvm: CatalogJvm,
        name: str,
        columns: StructType,
        properties: Mapping[str, str],
        partition_by: Sequence[str] = (),
    ) -> None:
        """Store the arguments; use `build_entry` to build an entry.

        Args:
            jvm: The session.
            name: The full name.
            columns: The columns.
            properties: The properties.
            partition_by: Names of the partition columns.
        """
        identity = f"weft entry {name}: {columns.simpleString()} {sorted(properties.items())}"
        super().__init__(jvm, identity, name, columns)
        self._partition_by = tuple(partition_by)
        self._properties = {"provider": PROVIDER, **properties}

    def properties(self) -> Any:
        return self.jvm.java_map(self._properties)

    def partitioning(self) -> Any:
        return self.jvm.array(self.jvm.Transform, [self.jvm.identity(name) for name in self._partition_by])

    def capabilities(self) -> Any:
        return self.jvm.HashSet()

    def truncateTable(self, _options: Any = None) -> bool:  # noqa: N802
        raise InvalidInput(
            f"TRUNCATE TABLE {self._name}: a statement cannot delete all rows of a table at once",
            hint="to delete all rows, use DELETE FROM a stream of the table with WHERE <key column> IS NOT NULL",
        )


def build_entry(jvm: CatalogJvm, name: str, table: Table, part: str = "") -> TableEntry:
    """Build the entry of a table, or of a system table.

    Args:
        jvm: The session.
        name: The full name.
        table: The table.
        part: Name of the system table; empty for the table itself.

    Raises:
        NotFound: The table has no such system table.
    """
    if part:
        description = system_table(name, part)
        return TableEntry(jvm, name, from_arrow_schema(description.columns), {"comment": description.description})
    snapshot = table.snapshot()
    # The location follows from the name, so SHOW CREATE TABLE need not repeat it.
    location = {"location": table.uri, "is_managed_location": "true"}
    schema = snapshot.table_schema
    properties = schema_properties(schema)
    properties.pop("partition_by", None)  # shown by `TableEntry.partitioning`
    columns = describe_columns(from_arrow_schema(snapshot.schema), schema)
    return TableEntry(jvm, name, columns, {**location, **properties}, schema.partition_by)


def build_damaged_entry(jvm: CatalogJvm, name: str, uri: str, error: TableError) -> TableEntry:
    """Build the entry of a table that cannot be opened; SHOW TABLE EXTENDED shows its error as the comment."""
    return TableEntry(
        jvm, name, StructType([]), {"location": uri, "comment": f"{type(error).__name__}: {error.message}"}
    )
