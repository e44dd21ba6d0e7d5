"""Relations: what queries read for a name in the catalog, with the options of the query.

A name in a query is resolved in two steps:

    LakeCatalog.loadTable      a view whose text is SELECT * FROM weft_catalog_<name>('shop/orders?as_of=...')
    Relations.relation         the plan over a `LiveView`, as for a view of `weft.create_view`

The text of the view has the name and all options, so equal reads always get the same `LiveView`. Spark compares plans
by it: queries find the data of `CACHE TABLE`, and all reads of a table in one query share one snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pyspark.sql.types import StructType

from weft.storage import Snapshot, Table
from weft.storage.errors import InvalidInput
from weft.streams.catalog.catalog_jvm import CatalogJvm, ChangesRange
from weft.streams.catalog.changelog import CHANGELOG, PinnedChangelog, TableChangelog, range_options
from weft.streams.catalog.changes import SINCE, UNTIL, PinnedChanges, states_between
from weft.streams.catalog.lake import Lake, Names
from weft.streams.catalog.metadata_columns import METADATA, MetadataTable, PinnedMetadata
from weft.streams.catalog.system_tables import system_rows
from weft.streams.read.native_or_merged import PinnedSnapshot
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.planner_interface import PinnedPlanner, Planner
from weft.streams.read.relation.spark_scan import LiveView
from weft.streams.read.view import table_planner

_MAX_CACHED: Final = 256
"""Maximum number of relations in a cache. Queries AS OF many different times would fill it without a limit."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a table.

    Attributes:
        names: Name of the table in its catalog.
        part: Name of a system table; empty for the table itself.
        options: Options of the read, as text, in order of their names.
    """

    names: Names
    part: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, names: Names, part: str, options: Mapping[str, str]) -> Reading:
        return cls(names, part, tuple(sorted(options.items())))

    @classmethod
    def parse(cls, text: str) -> Reading:
        """Parse the text that `str` returns."""
        name, _, options = text.partition("?")
        path, _, part = name.partition("#")
        names = tuple(unquote(folder) for folder in path.split("/"))
        return cls(names, unquote(part), tuple(parse_qsl(options, keep_blank_values=True)))

    def __str__(self) -> str:
        path = "/".join(quote(name, safe="") for name in self.names)
        part = f"#{quote(self.part, safe='')}" if self.part else ""
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{path}{part}{options}"


class Relations:
    """The relations of one catalog in one session; safe for several threads."""

    def __init__(self, jvm: CatalogJvm, name: str, lake: Lake) -> None:
        self.jvm = jvm
        self._name = name
        self._lake = lake
        self._lock = threading.Lock()
        self._views: dict[Reading, tuple[Table, LiveView]] = {}  # ordered by last use
        self._tables: dict[tuple[Reading, Names], tuple[StructType, Any]] = {}

    @property
    def function(self) -> str:
        """Name of the table function that texts of views call."""
        return f"weft_catalog_{self._name.lower()}"

    def relation(self, arguments: Any) -> Any:
        """The table function: it returns a logical plan for its argument, a `Seq[Expression]` with a `Reading`."""
        [text] = self.jvm.literals(arguments)
        return self.view(Reading.parse(str(text))).newest_relation()

    def table(self, catalog: Any, reading: Reading, names: Names) -> Any:
        """Return the `V1Table` that Spark expands in the query that is analysed on this thread.

        Its columns are those of the state that the query reads. It is cached until they change.

        Args:
            catalog: The catalog.
            reading: The relation.
            names: The name in the query, by which the query also qualifies columns.
        """
        schema = self.view(reading).output_schema()
        with self._lock:
            cached = self._tables.get((reading, names))
        if cached is not None and cached[0] == schema:
            return cached[1]
        # Spark asserts that a table with a catalog has a database.
        qualified = (self._name, *names) if len(names) == 1 else names
        query = f"SELECT * FROM `{self.function}`('{reading}')"  # noqa: S608 - the text is percent-encoded
        table = self.jvm.view_as_table(catalog, qualified, schema, query, self.function)
        with self._lock:
            self._tables[reading, names] = (schema, table)
            _evict_oldest(self._tables)
        return table

    def metadata_table(self, reading: Reading) -> MetadataTable:
        """Return the `Table` of a relation with metadata columns. Spark scans it, instead of expanding a view.

        Raises:
            InvalidInput: The relation is a system table.
        """
        if reading.part:
            raise InvalidInput(f"{reading.part}: a system table has no metadata columns", hint="read the table itself")
        view = self.view(replace(reading, part=METADATA))
        state = view.pins.current().state
        assert isinstance(state, PinnedMetadata), "the relation has this planner"
        return MetadataTable(view, state)

    def changelog(self, names: Names, bounds: ChangesRange) -> TableChangelog:
        """Return the changes of a table for a CHANGES clause.

        Raises:
            InvalidInput: See `range_options`.
        """
        created_at_ms = self._snapshot(Reading(names)).table_log.created_at_ms()
        reading = Reading.of(names, CHANGELOG, range_options(bounds, created_at_ms))
        return TableChangelog(self.view(reading), f"{self._name} {reading}")

    def view(self, reading: Reading) -> LiveView:
        """Return the live view of a relation. It is cached until the table is opened again."""
        table = self._lake.table(reading.names)
        with self._lock:
            cached = self._views.pop(reading, None)
            if cached is not None and cached[0] is table:
                self._views[reading] = cached  # moves it to the end, as the last one used
                return cached[1]
        name = ".".join((self._name, *reading.names, *filter(None, [reading.part])))
        new = table, LiveView(self.jvm, name, self._planner(reading, table))
        with self._lock:
            cached = self._views.setdefault(reading, new)
            _evict_oldest(self._views)
        return cached[1]

    def _planner(self, reading: Reading, table: Table) -> Planner:
        options = dict(reading.options)
        if SINCE in options:
            return lambda: self._changes(table, reading)
        plain = Reading(reading.names, "", reading.options)
        if reading.part == METADATA:
            return lambda: PinnedMetadata.of(self._state(plain))
        if reading.part:
            return lambda: system_rows(reading.part, self._snapshot(plain))
        return table_planner(self.jvm.spark, table, ReadOptions.of(options))

    def _changes(self, table: Table, reading: Reading) -> PinnedPlanner:
        options, newest = dict(reading.options), self._snapshot(Reading(reading.names))
        earlier, later = states_between(table, options[SINCE], options.get(UNTIL), newest)
        if reading.part == CHANGELOG:
            return PinnedChangelog.between(earlier, later)
        return PinnedChanges.between(earlier, later, before=False)

    def _snapshot(self, reading: Reading) -> Snapshot:
        """Return the snapshot of a table that the query on this thread reads."""
        return self._state(reading).snapshot

    def _state(self, reading: Reading) -> PinnedSnapshot:
        state = self.view(reading).pins.current().state
        assert isinstance(state, PinnedSnapshot), f"{reading} is a table"
        return state


def _evict_oldest(cache: dict[Any, Any]) -> None:
    while len(cache) > _MAX_CACHED:
        del cache[next(iter(cache))]
