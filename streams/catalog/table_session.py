"""A read-only session over one table, for the web page: the table, its system tables, and procedures that only read.

The table is the only one in the catalog `CATALOG`, which is the current catalog:

    t, orders_wide                        the table
    t.files, orders_wide.commits          its system tables
    weft.orders_wide                      the same, as in other catalogs
    CALL weft.system.explain_row('t', '7')
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from weft.storage import Table
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.store.open_store import check_reachable
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake, Names
from weft.streams.catalog.lake_session import CATALOG
from weft.streams.catalog.procedure_table import PROCEDURES
from weft.streams.catalog.register import register_catalog_of
from weft.streams.catalog.system_tables import SYSTEM_TABLES
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.read.read_only import READ_ONLY, ReadOnlyQueries
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.sql_query import SqlSession, spark_errors, view_names
from weft.streams.spark.session import temporary_session

READ_ONLY_PROCEDURES: Final = frozenset(name for name, procedure in PROCEDURES.items() if procedure.reads)


class OneTable(Lake):
    """A catalog of one table, which has two names. No other folder can be named."""

    def __init__(self, location: TableLocation) -> None:
        """Take the location; the table is opened when it is first used."""
        super().__init__(location.uri, location.storage_options)
        self.names: Final = view_names(location)
        """Names of the table; the last one is the name of its folder."""
        self.read_options: dict[str, str] = {}
        """Options of every read that does not name a point in time."""

    def default_options(self) -> dict[str, str]:
        """Return `read_options`."""
        return self.read_options

    def offers_procedure(self, name: str) -> bool:
        """Whether it only reads. Spark calls a procedure already when it analyses a statement, before it is judged."""
        return name in READ_ONLY_PROCEDURES

    def location(self, names: Sequence[str]) -> str:
        """Return the location of the table.

        Raises:
            NotFound: The name is not a name of the table.
        """
        if not self._is_table(names):
            raise NotFound(f"there is no table {'.'.join(names)} here", hint=f"the table is {' or '.join(self.names)}")
        return self.root

    def table(self, names: Sequence[str]) -> Table:
        """Return the table, by any of its names. Raises as `Lake.table`."""
        self.location(names)
        return super().table(self.names[-1:])

    def has_table_folder(self, names: Sequence[str]) -> bool:
        """Whether this is a name of the table."""
        return self._is_table(names)

    def resolve(self, names: Sequence[str]) -> tuple[Names, str]:
        """Split a name as `Lake.resolve`. The table always gets the same name, so a query reads one snapshot of it."""
        for table, part in ((tuple(names), ""), (tuple(names[:-1]), names[-1])):
            if self._is_table(table):
                return self.names[-1:], part
        raise NotFound(f"there is no table {'.'.join(names)} here", hint=f"the table is {' or '.join(self.names)}")

    def tables(self, namespace: Sequence[str]) -> list[str] | None:
        """List the names of the table; only the root has it."""
        return None if namespace else list(self.names)

    def namespaces(self, parent: Sequence[str]) -> list[str] | None:
        """List the namespaces of the root; it has none."""
        return None if parent else []

    def has_namespace(self, names: Sequence[str]) -> bool:
        """Whether this is the root, the only namespace."""
        return not names

    def _is_table(self, names: Sequence[str]) -> bool:
        return len(names) == 1 and names[0].lower() in {name.lower() for name in self.names}


@contextmanager
def table_session(settings: CommandSettings) -> Iterator[SqlSession]:
    """Start Spark with one table in the current catalog, for queries only; stop it at the end of the block.

    Raises:
        NotFound: The table does not exist, or Java is not installed.
        InvalidInput: Spark refuses its settings.
    """
    location = settings.table
    check_reachable(location.uri, location.storage_options)
    lake = OneTable(location)
    table = lake.table(lake.names[-1:])
    hint = f"the table is called {' and '.join(lake.names)}; its system tables are t.{', t.'.join(SYSTEM_TABLES)}"
    with temporary_session("weft ui", {**settings.spark, **READ_ONLY}) as spark:

        def look_at(options: ReadOptions) -> None:
            options.check(table)
            if options.model_fields_set - {"as_of"}:
                raise InvalidInput(
                    "only a snapshot can be chosen here", hint="set other options in the query: FROM t WITH (...)"
                )
            point = options.as_of
            text = point if isinstance(point, str) or point is None else point.isoformat()
            lake.read_options = {} if text is None else {"as_of": text}

        def names() -> list[str]:
            return [*lake.names, *table.schema.column_by_name]

        with spark_errors(hint):
            register_catalog_of(spark, CATALOG, lake)
            spark.sql(f"USE {CATALOG}")
            CatalogJvm.connect(spark).replace_session_catalog(CATALOG)
            queries = ReadOnlyQueries(spark, READ_ONLY_PROCEDURES)
        yield SqlSession(spark, hint, names, table, None, look_at, queries)
