"""CREATE, ALTER and DROP of tables and namespaces: Spark's objects as values, and the functions that do the work.

What a statement means: `weft.storage.config.table_properties` for CREATE TABLE, `weft.streams.catalog.table_changes`
for ALTER TABLE.
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
_OF_SPARK: Final = ("owner", "is_managed_location")
"""Properties that Spark adds itself."""
_CLAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "location": ("LOCATION", "leave it out: a table of this catalog is in the folder of its name"),
    "external": ("EXTERNAL", "leave it out; DROP TABLE deletes the files of a table, and needs PURGE"),
    "collation": ("DEFAULT COLLATION", "leave it out, and use COLLATE in queries"),
    "hive.": ("STORED AS and ROW FORMAT", "leave them out: the files of a table are Parquet"),
}
"""Clauses of CREATE TABLE and ALTER TABLE that Spark passes on as properties, by the beginning of their names."""
_TYPES: Final = "deploy/docs/configuration.md has the types"
_INSTEAD: Final[Mapping[str, str]] = {
    "VARIANT": "use STRING for JSON, and parse_json in queries; or a STRUCT of the fields",
    "COLLATE": "leave COLLATE out, and use it in queries",
    "GEOMETRY": "use BINARY for the WKB form",
    "GEOGRAPHY": "use BINARY for the WKB form",
    "NOT NULL": "leave NOT NULL out of the type: nobody would check it",
    "CHAR": "for text use STRING",
    "INTERVAL": "use BIGINT for the number of units",
}
"""What to use instead of types that a table cannot have, by a word of the type."""
_PARTITIONING: Final = "the number of buckets is a property: 'buckets' = '8'"
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "RenameColumn": ("a column cannot be renamed", "use a view with another name for it"),
    "DeleteColumn": (
        "a column cannot be dropped, because writers with the old schema continue",
        "leave it out of SELECT",
    ),
    "UpdateColumnNullability": ("NOT NULL cannot be changed", "only key columns are NOT NULL"),
    "UpdateColumnPosition": ("the order of columns cannot be changed", "use a view with another order"),
    "ClusterBy": ("a table has no clustering", "'buckets' in CREATE TABLE, or CALL weft.system.split(...)"),
    "AddConstraint": NO_CONSTRAINTS,
    "DropConstraint": NO_CONSTRAINTS,
}
_OF_COLUMNS: Final = ("AddColumn", "UpdateColumnType", "UpdateColumnDefaultValue", "UpdateColumnComment")


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
        properties: TBLPROPERTIES, and what Spark adds to them.
        with_rows: Whether the statement then writes rows, so that the table must have only one stream.

    Raises:
        InvalidInput: The statement is wrong, or asks for what a table cannot have. Nothing was created.
        TableError: See `weft.Table.create`.
    """
    given = {name: value for name, value in properties.items() if name not in _OF_SPARK}
    if (provider := given.pop("provider", _PROVIDER)).lower() != _PROVIDER:
        raise InvalidInput(f"USING {provider}: this catalog has weft tables only", hint="USING weft, or leave it out")
    # Spark gives OPTIONS twice: as they are, and with this prefix.
    given = {name: value for name, value in given.items() if not name.startswith("option.")}
    _check_clauses("CREATE TABLE", given)
    partitions = _partitions(partitioning)
    if partitions:
        given.setdefault("partition_by", ",".join(f"`{name.replace('`', '``')}`" for name in partitions))
    key = parse_names(given["key"]) if "key" in given else None
    config = config_from_properties([_column(catalog, column, key) for column in columns], given)
    if with_rows and len(config.streams) > 1:
        raise InvalidInput(
            f"CREATE TABLE {'.'.join((catalog.name, *names))} AS SELECT: the table has several streams, and the rows "
            "would be those of one",
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
        InvalidInput: There is one of `_CLAUSES`.
    """
    for name in properties:
        for start, (clause, hint) in _CLAUSES.items():
            if name == start or (start.endswith(".") and name.startswith(start)):
                raise InvalidInput(f"{statement}: a table cannot have {clause}", hint=hint)


def _partitions(partitioning: Iterable[Any]) -> list[str]:
    found = []
    for transform in partitioning:
        match transform.name():
            case "cluster_by":
                raise InvalidInput("CREATE TABLE: a table has no clustering (CLUSTER BY)", hint=_PARTITIONING)
            case "bucket" | "sorted_bucket":
                raise InvalidInput(
                    f"CREATE TABLE: {transform.toString()}: a table is divided into buckets by its key",
                    hint=_PARTITIONING,
                )
        (name,) = transform.references()[0].fieldNames() if transform.name() == "identity" else (None,)
        if name is None:
            raise InvalidInput(
                f"PARTITIONED BY ({transform.toString()}): only columns of the key can partition a table",
                hint=_PARTITIONING,
            )
        found.append(name)
    return found


def _column(catalog: CatalogContext, column: Any, key: Sequence[str] | None) -> SqlColumn:
    """A column of CREATE TABLE; ``key`` has the key columns, None if the statement does not name them."""
    name = column.name()
    kind = column_type(name, column.dataType())
    if key is not None and not column.nullable() and name not in key:
        raise InvalidInput(
            f"column {name!r}: NOT NULL: a column outside the key is NULL where its group has no event",
            hint="leave NOT NULL out; DEFAULT says what such a row shows",
        )
    default = column.defaultValue()
    value = None if default is None else _evaluated(catalog, name, default.getSql(), kind)
    return SqlColumn(name, kind, value, column.comment() or "")


def column_type(name: str, given: Any) -> str:
    """The type of a column, for Spark a `DataType`, as the name of a type of weft.

    The type reads back as it is given. PySpark knows Arrow forms of more types than that, in which they are other ones.

    Raises:
        InvalidInput: A table cannot have the type.
    """
    struct = f'{{"type":"struct","fields":[{{"name":"c","type":{given.json()},"nullable":true,"metadata":{{}}}}]}}'
    kind = StructType.fromJson(json.loads(struct)).fields[0].dataType
    try:
        stored = format_type(to_arrow_type(kind, timezone="UTC"))
        if from_arrow_type(parse_type(stored)).simpleString() == kind.simpleString() and not _has_not_null(kind):
            return stored
    except (PySparkException, InvalidInput):
        pass
    written = given.sql()
    raise InvalidInput(
        f"column {name!r}: a table cannot have the type {written}",
        hint=next((hint for word, hint in _INSTEAD.items() if word in written), _TYPES),
    )


def _has_not_null(kind: DataType) -> bool:
    """Whether a field inside of a type is NOT NULL, which nobody would check."""
    match kind:
        case StructType():
            return any(not field.nullable or _has_not_null(field.dataType) for field in kind)
        case ArrayType():
            return not kind.containsNull or _has_not_null(kind.elementType)
        case MapType():
            return not kind.valueContainsNull or _has_not_null(kind.keyType) or _has_not_null(kind.valueType)
    return False


def _evaluated(catalog: CatalogContext, name: str, sql: str, kind: str) -> Any:
    """The value of a DEFAULT.

    Raises:
        InvalidInput: It is not a constant of the column's type.
    """
    try:
        row = catalog.jvm.spark.sql(f"SELECT CAST({sql} AS {kind}) AS value").toArrow()
    except PySparkException as error:
        raise InvalidInput(
            f"column {name!r}: DEFAULT {sql} is no {kind}: {error.getCondition()}", hint="give a constant of the type"
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
    table = _whole_table(catalog, names, "ALTER TABLE")
    of_columns: list[Change] = []
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
            case _ if kind not in _OF_COLUMNS:
                raise InvalidInput(f"ALTER TABLE cannot do this ({kind})", hint="weft alter lists what it can do")
            case _:
                of_columns.append(_column_change(catalog, table, kind, change, of_columns))
    apply_changes(table, of_columns, properties)


def _column_change(catalog: CatalogContext, table: Table, kind: str, change: Any, before: Sequence[Change]) -> Change:
    name, *inside = change.fieldNames()
    if inside:
        raise InvalidInput(f"column {name!r}: fields of a struct cannot be changed", hint="add a column")
    match kind:
        case "AddColumn":
            return _addition(catalog, table, name, change, before)
        case "UpdateColumnType":
            return WidenColumn(name=name, type=column_type(name, change.newDataType()))
        case "UpdateColumnDefaultValue":
            type_name = format_type(table.schema.column(name).type)
            text = change.newDefaultValue() or "NULL"  # DROP DEFAULT gives an empty text
            return SetDefault(name=name, value=_evaluated(catalog, name, text, type_name))
        case "UpdateColumnComment":
            return SetComment(comment=change.newComment() or "", column=name)
    raise AssertionError(f"{kind} is one of {_OF_COLUMNS}")


def _addition(catalog: CatalogContext, table: Table, name: str, change: Any, before: Sequence[Change]) -> AddColumn:
    if not change.isNullable():
        raise InvalidInput(
            f"column {name!r}: NOT NULL: rows from before have no value", hint="leave NOT NULL out; use DEFAULT"
        )
    position = change.position()
    if position is not None and str(position.getClass().getSimpleName()) == "First":
        raise InvalidInput(
            f"ADD COLUMN {name} FIRST: a new column is the last of the table",
            hint="AFTER a column of the group that the new one belongs to",
        )
    kind = column_type(name, change.dataType())
    default = change.defaultValue()
    value = None if default is None else _evaluated(catalog, name, default.getSql(), kind)
    group = find_group(table.schema, name, None if position is None else position.column(), before)
    return AddColumn(group=group, name=name, type=kind, default=value, comment=change.comment() or "")


def drop_later(catalog: CatalogContext, names: Sequence[str]) -> bool:
    """Drop a table for REPLACE TABLE, which drops it before it looks at the new definition: when that is checked.

    Raises:
        InvalidInput: Somebody has written to the table.
    """
    try:
        table = _whole_table(catalog, names, "REPLACE TABLE")
    except NotFound:
        return False
    _check_empty(catalog, names, table, "REPLACE TABLE")
    catalog.replaced.add(tuple(names))
    return True


def drop_table(catalog: CatalogContext, names: Sequence[str], *, purge: bool) -> bool:
    """Drop a table; whether there was one.

    Raises:
        InvalidInput: ``purge`` is false, and somebody has written to the table: nothing brings its data back.
        Conflict: The table has live writers or savepoints.
    """
    try:
        table = _whole_table(catalog, names, "DROP TABLE")
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
            f"{statement} {'.'.join((catalog.name, *names))}: deletes all of its data and history, for good",
            hint="DROP TABLE ... PURGE does it, if no writer is live and the table has no savepoints",
        )


def _whole_table(catalog: CatalogContext, names: Sequence[str], what: str) -> Table:
    table, part = catalog.lake.resolve(names)
    if part:
        name = ".".join((catalog.name, *table))
        raise InvalidInput(f"{what} {name}.{part}: it is a part of a table", hint=f"name the table: {name}")
    return catalog.lake.table(table)


def create_namespace(catalog: CatalogContext, names: Sequence[str], properties: Mapping[str, str]) -> None:
    """Create a namespace. Creating a table in a namespace creates the namespace, too.

    Raises:
        InvalidInput: It has properties, or its name is not allowed.
    """
    given = sorted(set(properties) - {*_OF_SPARK})
    if given:
        raise InvalidInput(
            f"CREATE NAMESPACE {'.'.join(names)}: a namespace is a folder, and has no {', '.join(given)}",
            hint="leave COMMENT, LOCATION and DBPROPERTIES out",
        )
    if catalog.lake.has_namespace(names):
        catalog.jvm.namespace_already_exists(names)
    if catalog.lake.has_table(names):
        raise Conflict(f"{'.'.join(names)} is a table", hint="choose another name")
    make_namespace(catalog.lake.location(names), catalog.lake.storage_options)


def drop_namespace(catalog: CatalogContext, names: Sequence[str], *, cascade: bool) -> bool:
    """Drop an empty namespace; whether there was one.

    Raises:
        InvalidInput: It has tables, and ``cascade`` asks to drop them with it. Without ``cascade`` it is Spark's
            exception.
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
