"""The object behind a catalog name in Spark: converts arguments, and dispatches. The logic is in the other modules."""

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
from weft.streams.catalog.table_entry import PROVIDER, TableEntry, damaged_entry, entry_of
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.callbacks import Callback, ScalaFunction, check_methods
from weft.streams.read.stream_mark import MARK

_STATE_OPTIONS: Final = (*ReadOptions.model_fields, METADATA, *STREAM_OPTIONS)
READ_OPTIONS: Final = tuple(name for name in _STATE_OPTIONS if name != MARK)
AS_OF: Final = "as_of"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def register_lake(jvm: CatalogJvm, name: str, lake: Lake) -> LakeCatalog:
    """Make a catalog known to its session.

    Raises:
        UnsupportedSessionError: Spark may call methods that its objects lack.
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
        lake: The folder.
        relations: What queries read.
    """

    def __init__(self, jvm: CatalogJvm, name: str, lake: Lake) -> None:
        super().__init__(jvm, f"weft catalog {name}: {lake.root}")
        self.jvm: CatalogJvm = jvm
        self.lake = lake
        self._name = name
        self._context = CatalogContext(jvm, name, lake)
        self.relations = Relations(jvm, name, lake)
        self._state_options = self._set(_STATE_OPTIONS)

    # CatalogPlugin ----------------------------------------------------------------------------------------------------

    def initialize(self, _name: str, _options: Any) -> None:
        """Nothing to do."""

    def name(self) -> str:
        return self._name

    def defaultNamespace(self) -> Any:  # noqa: N802
        return self.jvm.strings(())

    # Tables: reads ----------------------------------------------------------------------------------------------------

    def capabilities(self) -> Any:
        return self._set([self.jvm.TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE])

    def tableStateOptionKeys(self) -> Any:  # noqa: N802
        return self._state_options

    def changelogStateOptionKeys(self) -> Any:  # noqa: N802
        return self._set(())

    def listTables(self, namespace: Any) -> Any:  # noqa: N802
        found = self._listed(self.lake.tables, namespace)
        return self.jvm.array(self.jvm.Identifier, [self.jvm.identifier(names) for names in found])

    def listTableSummaries(self, namespace: Any) -> Any:  # noqa: N802
        tables = self.listTables(namespace)
        summary = self.jvm.TableSummary
        return self.jvm.array(summary, [summary.of(each, summary.EXTERNAL_TABLE_TYPE) for each in tables])

    def tableExists(self, ident: Any) -> bool:  # noqa: N802
        names = _names(ident)
        return self.lake.has_table(names) or self.lake.has_table(names[:-1])  # a part of a table

    def loadTable(self, ident: Any, *given: Any) -> Any:  # noqa: N802
        """Spark calls the form with a `TableContext` and options, and for SHOW TABLE EXTENDED the one without."""
        names = _names(ident)
        if not given:
            return self._shown(names)
        options: dict[str, str] = {}
        privileges: frozenset[str] = frozenset()
        if len(given) == 2:
            context = given[0]
            options = _options(given[1])
            # Going through a collection of Java takes Py4J 40 ms, also if it is empty.
            if not context.writePrivileges().isEmpty():
                privileges = frozenset(str(each.name()) for each in context.writePrivileges())
            if context.timeTravel().isPresent():
                options[AS_OF] = _point(self.jvm.point_in_time(context.timeTravel().get()))
        if privileges:
            return writing.table_for_write(self._context, names, privileges, options)
        table, part = self._resolve(names)
        if self.jvm.is_command():
            return entry_of(self.jvm, self._full(names), self.lake.table(table), part)
        text, relation, after = self.jvm.statement()
        check_readable(text, self._full(names))
        check_options(after, READ_OPTIONS)
        if reads_stream(options, relation):
            if part:
                raise InvalidInput(f"{self._full(names)} cannot be read as a stream", hint="the table itself can")
            return stream_table(self.jvm, self._full(names), self.lake, table, options)
        if AS_OF not in options and SINCE not in options:
            options = {**self.lake.default_options(), **options}
        with_metadata = options.pop(METADATA, "").lower() == "true" or names_metadata(text)
        reading = Reading.of(table, part, options)
        return self.relations.metadata_table(reading) if with_metadata else self.relations.table(self, reading, names)

    def loadChangelog(self, ident: Any, context: Any, _options: Any) -> Any:  # noqa: N802
        names = _names(ident)
        table, part = self._resolve(names)
        if part:
            raise InvalidInput(f"{self._full(names)} has no changes", hint="CHANGES of the table itself has them")
        return self.relations.changelog(table, self.jvm.changes_range(context))

    def invalidateTable(self, ident: Any) -> None:  # noqa: N802
        """REFRESH TABLE: opens the table again. Queries see new commits without it."""
        self.lake.forget(_names(ident))

    # Tables: definitions ----------------------------------------------------------------------------------------------

    def createTable(self, ident: Any, *given: Any) -> Any:  # noqa: N802
        names = _names(ident)
        if len(given) == 1:  # a TableInfo
            info = given[0]
            columns, partitioning, properties = info.columns(), info.partitions(), dict(info.properties())
        else:
            columns, partitioning, properties = *given[:2], dict(given[2])
        with_rows = self.jvm.creates_from_query()
        definitions.create_table(self._context, names, columns, partitioning, properties, with_rows=with_rows)
        # Without a result, CREATE TABLE AS SELECT asks `loadTable` for the table to write to.

    def createTableLike(self, ident: Any, info: Any, source: Any) -> None:  # noqa: N802
        """CREATE TABLE ... LIKE: a table of weft has its configuration in its properties."""
        copied = dict(source.properties())
        copied = copied if copied.get("provider") == PROVIDER else {}
        copied.pop("location", None)
        properties = {**copied, **dict(info.properties())}
        definitions.create_table(self._context, _names(ident), info.columns(), info.partitions(), properties)

    def alterTable(self, ident: Any, changes: Any) -> Any:  # noqa: N802
        names = _names(ident)
        try:
            definitions.alter_table(self._context, names, list(changes))
        except TableError as error:
            self.jvm.raise_user_error(error)
        return entry_of(self.jvm, self._full(names), self.lake.table(names))

    def dropTable(self, ident: Any) -> bool:  # noqa: N802
        """Also for AS SELECT: it drops the table that it has made if it cannot fill it."""
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

    def listNamespaces(self, *given: Any) -> Any:  # noqa: N802
        return self.jvm.string_arrays(self._listed(self.lake.namespaces, given[0] if given else ()))

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
            hint="tables have properties",
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
        found = procedures.procedure_names() if tuple(namespace) == procedures.NAMESPACE else []
        return self.jvm.array(
            self.jvm.Identifier, [self.jvm.identifier((*procedures.NAMESPACE, name)) for name in found]
        )

    def _shown(self, names: Names) -> Any:
        """The entry of a table in a listing, which a damaged table must not break."""
        try:
            table, part = self.lake.resolve(names)
            return entry_of(self.jvm, self._full(names), self.lake.table(table), part)
        except TableError as error:
            if not self.lake.has_damaged_table(names):
                self.jvm.no_such_table(names)
            return damaged_entry(self.jvm, self._full(names), self.lake.location(names), error)

    def changes(self, names: Names, options: Mapping[str, str]) -> Any:
        """A logical plan over the changes of a table; `weft.streams.catalog.changes` has the options.

        Raises:
            NotFound: There is no such table.
        """
        table, part = self.lake.resolve(names)
        if part:
            raise NotFound(f"there is no table {self._full(names)}", hint="a system table has no changes")
        return self.relations.view(Reading.of(table, "", options)).newest_relation()

    def _listed(self, listing: Callable[[Names], list[str] | None], namespace: Sequence[str]) -> list[Names]:
        """The whole names of what is listed in a namespace. Raises Spark's exception if there is no such namespace."""
        parent = tuple(namespace)
        found = listing(parent)
        if found is None:
            self.jvm.no_such_namespace(parent)
        return [(*parent, name) for name in found]

    def _resolve(self, names: Names) -> tuple[Names, str]:
        """The table of a name, and the name of a system table or "". Raises Spark's exception if there is none.

        Raises:
            InvalidInput: It is the name of a stream.
        """
        try:
            table, part = self.lake.resolve(names)
        except NotFound:
            if self.lake.has_damaged_table(names):
                raise NotFound(
                    f"{self._full(names)} is the folder of a table, whose log is not there",
                    hint=f"restore it from a backup, or delete {self.lake.location(names)}",
                ) from None
            self.jvm.no_such_table(names)
        if part and part.lower() not in SYSTEM_TABLES:
            if any(part == stream.name for stream in self.lake.table(table).schema.streams):
                raise InvalidInput(
                    f"{self._full(names)} is a stream of the table, which can only be written",
                    hint=f"name the table, {self._full(table)}",
                )
            self.jvm.no_such_table(names)
        return table, part.lower()

    def _full(self, names: Names) -> str:
        return ".".join((self._name, *names))

    def _set(self, values: Sequence[Any]) -> Any:
        made = self.jvm.HashSet()
        for value in values:
            made.add(value)
        return made


def _names(ident: Any) -> Names:
    return (*ident.namespace(), ident.name())


def _options(given: Any) -> dict[str, str]:
    """Options of a use, from a map of Java. The known ones are asked for, because Py4J takes 40 ms for an iterator."""
    if given.isEmpty():
        return {}
    found = {name: str(value) for name in _STATE_OPTIONS if (value := given[name]) is not None}
    return found if len(found) == given.size() else dict(given)


def _point(given: str | int) -> str:
    """The option ``as_of`` for a version, or for microseconds since 1970."""
    return given if isinstance(given, str) else (_EPOCH + dt.timedelta(microseconds=given)).isoformat()
