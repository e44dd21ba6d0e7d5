"""The catalog object that Spark calls: it converts arguments, and calls the other modules, which have the logic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.streams.catalog import definitions, procedures, writing
from weft.streams.catalog.catalog_context import CatalogContext
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.changelog import TableChangelog
from weft.streams.catalog.changes import SINCE
from weft.streams.catalog.lake import Lake, Names
from weft.streams.catalog.metadata_columns import METADATA, MetadataTable, names_metadata
from weft.streams.catalog.relations import Reading, Relations
from weft.streams.catalog.statement_options import check_options
from weft.streams.catalog.stream_table import STREAM_OPTIONS, ChangeStreamTable, reads_stream, stream_table
from weft.streams.catalog.stream_writes import check_readable
from weft.streams.catalog.system_tables import SYSTEM_TABLES
from weft.streams.catalog.table_entry import PROVIDER, TableEntry, build_damaged_entry, build_entry
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.callbacks import Callback, ScalaFunction, check_methods
from weft.streams.read.stream_mark import MARK

_STATE_OPTIONS: Final = (*ReadOptions.model_fields, METADATA, *STREAM_OPTIONS)
READ_OPTIONS: Final = tuple(name for name in _STATE_OPTIONS if name != MARK)
AS_OF: Final = "as_of"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def register_lake(jvm: CatalogJvm, name: str, lake: Lake) -> LakeCatalog:
    """Register a folder of tables as a catalog of a session.

    Raises:
        UnsupportedSessionError: This version of Spark may call methods that objects of the catalog lack.
    """
    check_methods(
        jvm,
        (
            LakeCatalog,
            TableEntry,
            MetadataTable,
            TableChangelog,
            ChangeStreamTable,
            procedures.SparkProcedure,
            procedures.MissingProcedure,
            procedures.ResultScan,
            writing.StreamTable,
            writing.NoScan,
            writing.Append,
        ),
    )
    catalog = LakeCatalog(jvm, name, lake)
    relations = catalog.relations
    function = ScalaFunction(jvm, f"weft relations {id(relations)}", relations.relation)
    jvm.register_function(relations.function, function)
    jvm.register_catalog(name, catalog)
    return catalog


class LakeCatalog(
    Callback,
    java=(
        "org.apache.spark.sql.connector.catalog.TableCatalog",
        "org.apache.spark.sql.connector.catalog.SupportsNamespaces",
        "org.apache.spark.sql.connector.catalog.ProcedureCatalog",
    ),
    answers={"useNullableQuerySchema": True},
):
    """A folder of tables as a catalog of one session.

    Attributes:
        jvm: The session.
        lake: The folder of tables.
        relations: The relations that queries read.
    """

    def __init__(self, jvm: CatalogJvm, name: str, lake: Lake) -> None:
        super().__init__(jvm, f"weft catalog {name}: {lake.root}")
        self.jvm: CatalogJvm = jvm
        self.lake = lake
        self._name = name
        self._context = CatalogContext(jvm, name, lake)
        self.relations = Relations(jvm, name, lake)
        self._state_options = self._java_set(_STATE_OPTIONS)

    # CatalogPlugin ----------------------------------------------------------------------------------------------------

    def initialize(self, _name: str, _options: Any) -> None:
        """Do nothing; Spark calls it for catalogs that it creates from settings."""

    def name(self) -> str:
        return self._name

    def defaultNamespace(self) -> Any:  # noqa: N802
        return self.jvm.strings(())

    # Tables: reads ----------------------------------------------------------------------------------------------------

    def capabilities(self) -> Any:
        return self._java_set([self.jvm.TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE])

    def tableStateOptionKeys(self) -> Any:  # noqa: N802
        return self._state_options

    def changelogStateOptionKeys(self) -> Any:  # noqa: N802
        return self._java_set(())

    def listTables(self, namespace: Any) -> Any:  # noqa: N802
        tables = self._list(self.lake.tables, namespace)
        return self.jvm.array(self.jvm.Identifier, [self.jvm.identifier(names) for names in tables])

    def listTableSummaries(self, namespace: Any) -> Any:  # noqa: N802
        tables = self.listTables(namespace)
        summary = self.jvm.TableSummary
        return self.jvm.array(summary, [summary.of(table, summary.EXTERNAL_TABLE_TYPE) for table in tables])

    def tableExists(self, ident: Any) -> bool:  # noqa: N802
        names = _names(ident)
        return self.lake.has_table(names) or self.lake.has_table(names[:-1])  # the second: a part of a table

    def loadTable(self, ident: Any, *arguments: Any) -> Any:  # noqa: N802
        """Spark passes a `TableContext` and options, but nothing more for SHOW TABLE EXTENDED."""
        names = _names(ident)
        if not arguments:
            return self._entry(names)
        options: dict[str, str] = {}
        privileges: frozenset[str] = frozenset()
        if len(arguments) == 2:
            context = arguments[0]
            options = _options(arguments[1])
            # Iterating over a Java collection takes Py4J 40 ms, even if it is empty.
            if not context.writePrivileges().isEmpty():
                privileges = frozenset(str(privilege.name()) for privilege in context.writePrivileges())
            if context.timeTravel().isPresent():
                options[AS_OF] = _as_of(self.jvm.point_in_time(context.timeTravel().get()))
        if privileges:
            return writing.table_for_write(self._context, names, privileges, options)
        table, part = self._resolve(names)
        if self.jvm.is_command():
            return build_entry(self.jvm, self._full_name(names), self.lake.table(table), part)
        text, relation, after = self.jvm.statement()
        check_readable(text, self._full_name(names))
        check_options(after, READ_OPTIONS)
        if reads_stream(options, relation):
            if part:
                raise InvalidInput(
                    f"{self._full_name(names)} cannot be read as a stream", hint="read the table itself as a stream"
                )
            return stream_table(self.jvm, self._full_name(names), self.lake, table, options)
        if AS_OF not in options and SINCE not in options:
            options = {**self.lake.default_options(), **options}
        with_metadata = options.pop(METADATA, "").lower() == "true" or names_metadata(text)
        reading = Reading.of(table, part, options)
        return self.relations.metadata_table(reading) if with_metadata else self.relations.table(self, reading, names)

    def loadChangelog(self, ident: Any, context: Any, _options: Any) -> Any:  # noqa: N802
        names = _names(ident)
        table, part = self._resolve(names)
        if part:
            raise InvalidInput(f"{self._full_name(names)} has no changes", hint="read CHANGES of the table itself")
        return self.relations.changelog(table, self.jvm.changes_range(context))

    def invalidateTable(self, ident: Any) -> None:  # noqa: N802
        """Open the table again, for REFRESH TABLE. Queries see new commits without it."""
        self.lake.forget(_names(ident))

    # Tables: definitions ----------------------------------------------------------------------------------------------

    def createTable(self, ident: Any, *arguments: Any) -> Any:  # noqa: N802
        names = _names(ident)
        if len(arguments) == 1:  # a TableInfo
            info = arguments[0]
            columns, partitioning, properties = info.columns(), info.partitions(), dict(info.properties())
        else:
            columns, partitioning, properties = *arguments[:2], dict(arguments[2])
        with_rows = self.jvm.creates_from_query()
        definitions.create_table(self._context, names, columns, partitioning, properties, with_rows=with_rows)
        # It returns nothing, so that CREATE TABLE AS SELECT asks `loadTable` for the table to write to.

    def createTableLike(self, ident: Any, info: Any, source: Any) -> None:  # noqa: N802
        """Create a table for CREATE TABLE ... LIKE. The properties of a weft table contain its configuration."""
        source_properties = dict(source.properties())
        if source_properties.get("provider") != PROVIDER:
            source_properties = {}
        source_properties.pop("location", None)
        properties = {**source_properties, **dict(info.properties())}
        definitions.create_table(self._context, _names(ident), info.columns(), info.partitions(), properties)

    def alterTable(self, ident: Any, changes: Any) -> Any:  # noqa: N802
        names = _names(ident)
        try:
            definitions.alter_table(self._context, names, list(changes))
        except TableError as error:
            self.jvm.raise_user_error(error)
        return build_entry(self.jvm, self._full_name(names), self.lake.table(names))

    def dropTable(self, ident: Any) -> bool:  # noqa: N802
        """Drop a table. CREATE TABLE AS SELECT calls it, too, to drop its table after an error."""
        names = _names(ident)
        if self.jvm.replaces_table():
            return definitions.drop_later(self._context, names)
        return definitions.drop_table(self._context, names, purge=self.jvm.writes_from_query())

    def purgeTable(self, ident: Any) -> bool:  # noqa: N802
        return definitions.drop_table(self._context, _names(ident), purge=True)

    def renameTable(self, ident: Any, _new: Any) -> None:  # noqa: N802
        raise InvalidInput(
            f"{'.'.join(_names(ident))} cannot be renamed: the name of a table is that of its folder",
            hint="stop its writers, move the folder, and give the writers the new location",
        )

    # Namespaces -------------------------------------------------------------------------------------------------------

    def listNamespaces(self, *arguments: Any) -> Any:  # noqa: N802
        return self.jvm.string_arrays(self._list(self.lake.namespaces, arguments[0] if arguments else ()))

    def namespaceExists(self, namespace: Any) -> bool:  # noqa: N802
        return self.lake.has_namespace(tuple(namespace))

    def loadNamespaceMetadata(self, namespace: Any) -> Any:  # noqa: N802
        names = tuple(namespace)
        if not self.lake.has_namespace(names):
            self.jvm.no_such_namespace(names)
        return self.jvm.java_map({"location": self.lake.location(names)})

    def createNamespace(self, namespace: Any, properties: Any) -> None:  # noqa: N802
        definitions.create_namespace(self._context, tuple(namespace), dict(properties))

    def alterNamespace(self, namespace: Any, _changes: Any) -> None:  # noqa: N802
        raise InvalidInput(
            f"namespace {'.'.join(namespace)} has no properties to change: it is a folder",
            hint="set properties of its tables",
        )

    def dropNamespace(self, namespace: Any, cascade: bool) -> bool:  # noqa: FBT001, N802
        return definitions.drop_namespace(self._context, tuple(namespace), cascade=cascade)

    # Procedures -------------------------------------------------------------------------------------------------------

    def loadProcedure(self, ident: Any) -> Any:  # noqa: N802
        names = _names(ident)
        if names[:-1] != procedures.NAMESPACE:
            error = NotFound(
                f"{self._name} has no procedure {'.'.join(names)}",
                hint=f"procedures are in {self._name}.{'.'.join(procedures.NAMESPACE)}",
            )
            return procedures.MissingProcedure(self.jvm, names[-1], error)
        return procedures.load_procedure(self._context, names[-1])

    def listProcedures(self, namespace: Any) -> Any:  # noqa: N802
        in_namespace = tuple(namespace) == procedures.NAMESPACE
        names = sorted(procedures.offered_procedures(self.lake)) if in_namespace else []
        return self.jvm.array(
            self.jvm.Identifier, [self.jvm.identifier((*procedures.NAMESPACE, name)) for name in names]
        )

    def _entry(self, names: Names) -> Any:
        """The entry of a table in a listing, even if the table is damaged."""
        try:
            table, part = self.lake.resolve(names)
            return build_entry(self.jvm, self._full_name(names), self.lake.table(table), part)
        except TableError as error:
            if not self.lake.has_damaged_table(names):
                self.jvm.no_such_table(names)
            return build_damaged_entry(self.jvm, self._full_name(names), self.lake.location(names), error)

    def changes(self, names: Names, options: Mapping[str, str]) -> Any:
        """Build a logical plan over the changes of a table.

        Args:
            names: Name of the table.
            options: The options of `weft.streams.catalog.changes`.

        Raises:
            NotFound: The table does not exist.
        """
        table, part = self.lake.resolve(names)
        if part:
            raise NotFound(
                f"there is no table {self._full_name(names)}", hint="name a table: a system table has no changes"
            )
        return self.relations.view(Reading.of(table, "", options)).newest_relation()

    def _list(self, list_names: Callable[[Names], list[str] | None], namespace: Sequence[str]) -> list[Names]:
        """List full names in a namespace. Raises Spark's exception if the namespace does not exist."""
        parent = tuple(namespace)
        names = list_names(parent)
        if names is None:
            self.jvm.no_such_namespace(parent)
        return [(*parent, name) for name in names]

    def _resolve(self, names: Names) -> tuple[Names, str]:
        """Split a name into a table and a system table, or "". Raises Spark's exception if they do not exist.

        Raises:
            InvalidInput: It is the name of a stream.
            NotFound: The table is damaged.
        """
        try:
            table, part = self.lake.resolve(names)
        except NotFound:
            if self.lake.has_damaged_table(names):
                raise NotFound(
                    f"{self._full_name(names)} is the folder of a table, whose log is missing",
                    hint=f"restore it from a backup, or delete {self.lake.location(names)}",
                ) from None
            self.jvm.no_such_table(names)
        if part and part.lower() not in SYSTEM_TABLES:
            if any(part == stream.name for stream in self.lake.table(table).schema.streams):
                raise InvalidInput(
                    f"{self._full_name(names)} is a stream of the table, which can only be written",
                    hint=f"name the table, {self._full_name(table)}",
                )
            self.jvm.no_such_table(names)
        return table, part.lower()

    def _full_name(self, names: Names) -> str:
        return ".".join((self._name, *names))

    def _java_set(self, values: Sequence[Any]) -> Any:
        converted = self.jvm.HashSet()
        for value in values:
            converted.add(value)
        return converted


def _names(ident: Any) -> Names:
    return (*ident.namespace(), ident.name())


def _options(java_map: Any) -> dict[str, str]:
    """Convert options from a Java map. It looks up the known names, because Py4J takes 40 ms for an iterator."""
    if java_map.isEmpty():
        return {}
    options = {name: str(value) for name in _STATE_OPTIONS if (value := java_map[name]) is not None}
    return options if len(options) == java_map.size() else dict(java_map)


def _as_of(point: str | int) -> str:
    """Convert a version, or microseconds since 1970, to the option ``as_of``."""
    return point if isinstance(point, str) else (_EPOCH + dt.timedelta(microseconds=point)).isoformat()
