"""CREATE, ALTER and DROP of tables and namespaces: converts the objects of Spark, and runs the statement.

`weft.storage.config.table_properties` defines what CREATE TABLE means, and `weft.streams.catalog.table_changes` what
ALTER TABLE means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from weft.storage import Table
from weft.storage.alter import AddColumn, Change, SetComment, SetDefault, WidenColumn
from weft.storage.config.table_properties import SqlColumn, config_from_properties, parse_names
from weft.storage.core.types import format_type, parse_type
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.storage.services.location.drop_table import drop_table as drop_all_objects
from weft.storage.services.location.namespaces import make_namespace, remove_namespace
from weft.streams.catalog.stream_writes import NO_CONSTRAINTS
from weft.streams.catalog.table_changes import apply_changes, find_group

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_context import CatalogContext

_PROVIDER: Final = "weft"
_SPARK_PROPERTIES: Final = ("owner", "is_managed_location")
"""Properties that Spark adds to those of the statement."""
_CLAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "location": ("LOCATION", "leave it out: a table of this catalog is in the folder of its name"),
    "external": ("EXTERNAL", "leave it out; DROP TABLE deletes the files of a table, and needs PURGE"),
    "collation": ("DEFAULT COLLATION", "leave it out, and use COLLATE in queries"),
    "hive.": ("STORED AS and ROW FORMAT", "leave them out: the files of a table are Parquet"),
}
"""Refused clauses and hints, by the name (or, with a dot, the prefix) of the property as which Spark passes them on."""
_TYPES: Final = "deploy/docs/configuration.md lists the types"
_TYPE_HINTS: Final[Mapping[str, str]] = {
    "VARIANT": "use STRING for JSON, and parse_json in queries; or a STRUCT of the fields",
    "COLLATE": "leave COLLATE out, and use it in queries",
    "GEOMETRY": "use BINARY for the WKB form",
    "GEOGRAPHY": "use BINARY for the WKB form",
    "NOT NULL": "leave NOT NULL out of the type: weft does not check it",
    "CHAR": "for text use STRING",
    "INTERVAL": "use BIGINT for the number of units",
}
"""Hints for types that a table cannot have, by a word of the type."""
_BUCKETS_HINT: Final = "set the number of buckets as a property: 'buckets' = '8'"
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "RenameColumn": ("a column cannot be renamed", "use a view with another name for it"),
    "DeleteColumn": (
        "a column cannot be dropped, because writers with the old schema continue",
        "leave it out of SELECT",
    ),
    "UpdateColumnNullability": ("NOT NULL cannot be changed", "only key columns are NOT NULL"),
    "UpdateColumnPosition": ("the order of columns cannot be changed", "use a view with another order"),
    "ClusterBy": ("a table has no clustering", "use 'buckets' in CREATE TABLE, or CALL weft.system.split(...)"),
    "AddConstraint": NO_CONSTRAINTS,
    "DropConstraint": NO_CONSTRAINTS,
}
_COLUMN_CHANGES: Final = ("AddColumn", "UpdateColumnType", "UpdateColumnDefaultValue", "UpdateColumnComment")


def create_table(
    catalog: CatalogContext,
    names: Sequence[str],
    columns: Any,
    partitioning: Any,
    properties: Mapping[str, str],
    *,
    with_rows: bool = False,
) -> None:
    """Create a table.

    Args:
        catalog: The catalog.
        names: Name of the table.
        columns: Spark's `Column[]`.
        partitioning: Spark's `Transform[]`: identity transforms of key columns.
        properties: TBLPROPERTIES, and the properties that Spark adds.
        with_rows: Whether the statement then writes rows, so that the table must have only one stream.

    Raises:
        InvalidInput: The statement is wrong, or a table cannot have what it defines. Nothing was created.
        TableError: See `weft.Table.create`.
    """
    # Spark passes OPTIONS twice: without a prefix, and with the prefix "option.".
    table_properties = {
        name: value
        for name, value in properties.items()
        if name not in _SPARK_PROPERTIES and not name.startswith("option.")
    }
    if (provider := table_properties.pop("provider", _PROVIDER)).lower() != _PROVIDER:
        raise InvalidInput(
            f"USING {provider}: this catalog has weft tables only", hint="write USING weft, or leave USING out"
        )
    _check_clauses("CREATE TABLE", table_properties)
    partitions = _partition_columns(partitioning)
    if partitions:
        table_properties.setdefault("partition_by", ",".join(f"`{name.replace('`', '``')}`" for name in partitions))
    key = parse_names(table_properties["key"]) if "key" in table_properties else None
    config = config_from_properties([_parse_column(catalog, column, key) for column in columns], table_properties)
    if with_rows and len(config.streams) > 1:
        raise InvalidInput(
            f"CREATE TABLE {'.'.join((catalog.name, *names))} AS SELECT: the table has several streams, and the rows "
            "would belong to only one of them",
            hint="create it without AS SELECT, and then INSERT INTO each stream",
        )
    location = catalog.lake.location(names)
    if tuple(names) in catalog.replaced:
        catalog.replaced.discard(tuple(names))
        drop_table(catalog, names, purge=False)
    try:
        Table.create(location, config, storage_options=catalog.lake.storage_options)
    except Conflict:
        if catalog.lake.has_table(names):  # another session was first
            catalog.jvm.table_already_exists(names)
        raise
    finally:
        catalog.lake.forget(names)


def _check_clauses(statement: str, properties: Iterable[str]) -> None:
    """Refuse the clauses that Spark passes on as properties.

    Raises:
        InvalidInput: A property stands for one of `_CLAUSES`.
    """
    for name in properties:
        for prefix, (clause, hint) in _CLAUSES.items():
            if name == prefix or (prefix.endswith(".") and name.startswith(prefix)):
                raise InvalidInput(f"{statement}: a table cannot have {clause}", hint=hint)


def _partition_columns(partitioning: Iterable[Any]) -> list[str]:
    columns = []
    for transform in partitioning:
        match transform.name():
            case "cluster_by":
                raise InvalidInput("CREATE TABLE: a table has no clustering (CLUSTER BY)", hint=_BUCKETS_HINT)
            case "bucket" | "sorted_bucket":
                raise InvalidInput(
                    f"CREATE TABLE: {transform.toString()}: a table is divided into buckets by its key",
                    hint=_BUCKETS_HINT,
                )
        (name,) = transform.references()[0].fieldNames() if transform.name() == "identity" else (None,)
        if name is None:
            raise InvalidInput(
                f"PARTITIONED BY ({transform.toString()}): only columns of the key can partition a table",
                hint=_BUCKETS_HINT,
            )
        columns.append(name)
    return columns


def _parse_column(catalog: CatalogContext, column: Any, key: Sequence[str] | None) -> SqlColumn:
    """Parse a column of CREATE TABLE.

    Args:
        catalog: The catalog.
        column: Spark's `Column`.
        key: The key columns; None if the statement does not name them.

    Raises:
        InvalidInput: A table cannot have the column.
    """
    name = column.name()
    kind = column_type(name, column.dataType())
    if key is not None and not column.nullable() and name not in key:
        raise InvalidInput(
            f"column {name!r}: NOT NULL: a column outside the key is NULL where its group has no event",
            hint="leave NOT NULL out; DEFAULT sets the value that such a row shows",
        )
    default = column.defaultValue()
    value = None if default is None else _evaluate_default(catalog, name, default.getSql(), kind)
    return SqlColumn(name, kind, value, column.comment() or "")


def column_type(name: str, spark_type: Any) -> str:
    """Convert the type of a column, Spark's `DataType`, to the name of a type of weft.

    Only types that read back as the same Spark type are allowed. PySpark converts some other types to Arrow, too, but
    they read back as different types.

    Raises:
        InvalidInput: A table cannot have the type.
    """
    json_type = spark_type.json()
    struct = f'{{"type":"struct","fields":[{{"name":"c","type":{json_type},"nullable":true,"metadata":{{}}}}]}}'
    kind = StructType.fromJson(json.loads(struct)).fields[0].dataType
    try:
        stored = format_type(to_arrow_type(kind, timezone="UTC"))
        if from_arrow_type(parse_type(stored)).simpleString() == kind.simpleString() and not _has_not_null(kind):
            return stored
    except (PySparkException, InvalidInput):
        pass
    sql_type = spark_type.sql()
    raise InvalidInput(
        f"column {name!r}: a table cannot have the type {sql_type}",
        hint=next((hint for word, hint in _TYPE_HINTS.items() if word in sql_type), _TYPES),
    )


def _has_not_null(kind: DataType) -> bool:
    """Whether a field inside of a type is NOT NULL."""
    match kind:
        case StructType():
            return any(not field.nullable or _has_not_null(field.dataType) for field in kind)
        case ArrayType():
            return not kind.containsNull or _has_not_null(kind.elementType)
        case MapType():
            return not kind.valueContainsNull or _has_not_null(kind.keyType) or _has_not_null(kind.valueType)
    return False


def _evaluate_default(catalog: CatalogContext, name: str, sql: str, kind: str) -> Any:
    """Evaluate the expression of a DEFAULT.

    Raises:
        InvalidInput: The expression is not a constant, or does not fit the type of the column.
    """
    try:
        row = catalog.jvm.spark.sql(f"SELECT CAST({sql} AS {kind}) AS value").toArrow()
    except PySparkException as error:
        raise InvalidInput(
            f"column {name!r}: DEFAULT {sql} is not a constant of type {kind}: {error.getCondition()}",
            hint="give a constant of this type",
        ) from None
    return row.column(0)[0].as_py()


def alter_table(catalog: CatalogContext, names: Sequence[str], changes: Sequence[Any]) -> None:
    """Change a table.

    Args:
        catalog: The catalog.
        names: Name of the table.
        changes: Spark's `TableChange` objects.

    Raises:
        InvalidInput, NotFound: See `weft.streams.catalog.table_changes.apply_changes`.
    """
    table = _open_table(catalog, names, "ALTER TABLE")
    column_changes: list[Change] = []
    properties: dict[str, str | None] = {}
    for change in changes:
        kind = str(change.getClass().getSimpleName())
        match kind:
            case "SetProperty":
                _check_clauses("ALTER TABLE", [change.property()])
                properties[change.property()] = change.value()
            case "RemoveProperty":
                properties[change.property()] = None
            case _ if kind in _REFUSED:
                what, hint = _REFUSED[kind]
                raise InvalidInput(f"ALTER TABLE: {what}", hint=hint)
            case _ if kind not in _COLUMN_CHANGES:
                raise InvalidInput(
                    f"ALTER TABLE cannot do this ({kind})", hint="weft alter --help lists the possible changes"
                )
            case _:
                column_changes.append(_parse_change(catalog, table, kind, change, column_changes))
    apply_changes(table, column_changes, properties)


def _parse_change(catalog: CatalogContext, table: Table, kind: str, change: Any, earlier: Sequence[Change]) -> Change:
    """Parse a change of a column; ``earlier`` has those before it in the statement."""
    name, *inside = change.fieldNames()
    if inside:
        raise InvalidInput(f"column {name!r}: fields of a struct cannot be changed", hint="add a column")
    match kind:
        case "AddColumn":
            return _parse_addition(catalog, table, name, change, earlier)
        case "UpdateColumnType":
            return WidenColumn(name=name, type=column_type(name, change.newDataType()))
        case "UpdateColumnDefaultValue":
            type_name = format_type(table.schema.column(name).type)
            text = change.newDefaultValue() or "NULL"  # DROP DEFAULT has an empty text
            return SetDefault(name=name, value=_evaluate_default(catalog, name, text, type_name))
        case "UpdateColumnComment":
            return SetComment(comment=change.newComment() or "", column=name)
    raise AssertionError(f"{kind} is one of {_COLUMN_CHANGES}")


def _parse_addition(
    catalog: CatalogContext, table: Table, name: str, change: Any, earlier: Sequence[Change]
) -> AddColumn:
    if not change.isNullable():
        raise InvalidInput(
            f"column {name!r}: NOT NULL: existing rows have no value", hint="leave NOT NULL out; use DEFAULT"
        )
    position = change.position()
    if position is not None and str(position.getClass().getSimpleName()) == "First":
        raise InvalidInput(
            f"ADD COLUMN {name} FIRST: a new column is the last of the table",
            hint="write AFTER with a column of the group to which the new one belongs",
        )
    kind = column_type(name, change.dataType())
    default = change.defaultValue()
    value = None if default is None else _evaluate_default(catalog, name, default.getSql(), kind)
    group = find_group(table.schema, name, None if position is None else position.column(), earlier)
    return AddColumn(group=group, name=name, type=kind, default=value, comment=change.comment() or "")


def drop_later(catalog: CatalogContext, names: Sequence[str]) -> bool:
    """Mark a table to be dropped by REPLACE TABLE, once `create_table` has checked the new definition.

    Spark itself drops the table before it looks at the new definition.

    Returns:
        Whether the table exists.

    Raises:
        InvalidInput: The table has been written to.
    """
    try:
        table = _open_table(catalog, names, "REPLACE TABLE")
    except NotFound:
        return False
    _check_empty(catalog, names, table, "REPLACE TABLE")
    catalog.replaced.add(tuple(names))
    return True


def drop_table(catalog: CatalogContext, names: Sequence[str], *, purge: bool) -> bool:
    """Drop a table, and delete all its files.

    Args:
        catalog: The catalog.
        names: Name of the table.
        purge: Whether the table may have been written to.

    Returns:
        Whether the table existed.

    Raises:
        InvalidInput: ``purge`` is false, and the table has been written to.
        Conflict: The table has live writers or savepoints.
    """
    try:
        table = _open_table(catalog, names, "DROP TABLE")
    except NotFound:
        return False
    if not purge:
        _check_empty(catalog, names, table, "DROP TABLE")
    drop_all_objects(table.writable())
    catalog.lake.forget(names)
    return True


def _check_empty(catalog: CatalogContext, names: Sequence[str], table: Table, statement: str) -> None:
    if table.state().has_had_lanes:
        raise InvalidInput(
            f"{statement} {'.'.join((catalog.name, *names))}: this would delete all of its data and history",
            hint="use DROP TABLE ... PURGE, if no writer is live and the table has no savepoints",
        )


def _open_table(catalog: CatalogContext, names: Sequence[str], statement: str) -> Table:
    table, part = catalog.lake.resolve(names)
    if part:
        name = ".".join((catalog.name, *table))
        raise InvalidInput(f"{statement} {name}.{part}: it is a part of a table", hint=f"name the table: {name}")
    return catalog.lake.table(table)


def create_namespace(catalog: CatalogContext, names: Sequence[str], properties: Mapping[str, str]) -> None:
    """Create a namespace. Creating a table in a namespace creates the namespace, too.

    Raises:
        InvalidInput: The statement sets properties, or the name is not allowed.
        Conflict: The name is that of a table.
    """
    unsupported = sorted(set(properties) - {*_SPARK_PROPERTIES})
    if unsupported:
        raise InvalidInput(
            f"CREATE NAMESPACE {'.'.join(names)}: a namespace is a folder, and has no {', '.join(unsupported)}",
            hint="leave COMMENT, LOCATION and DBPROPERTIES out",
        )
    if catalog.lake.has_namespace(names):
        catalog.jvm.namespace_already_exists(names)
    if catalog.lake.has_table(names):
        raise Conflict(f"{'.'.join(names)} is a table", hint="choose another name")
    make_namespace(catalog.lake.location(names), catalog.lake.storage_options)


def drop_namespace(catalog: CatalogContext, names: Sequence[str], *, cascade: bool) -> bool:
    """Drop an empty namespace.

    Returns:
        Whether the namespace existed.

    Raises:
        InvalidInput: The namespace is not empty, and ``cascade`` is true.
        Py4JJavaError: The namespace is not empty, and ``cascade`` is false; this is Spark's own exception.
    """
    if not catalog.lake.has_namespace(names):
        return False
    if catalog.lake.tables(names) or catalog.lake.namespaces(names):
        if cascade:
            raise InvalidInput(
                f"DROP NAMESPACE {'.'.join(names)} CASCADE: it is not empty", hint="drop its tables first, each by name"
            )
        catalog.jvm.namespace_not_empty(names)
    remove_namespace(catalog.lake.location(names), catalog.lake.storage_options)
    return True
