"""What a query reads: the relation of a name, with the options of its use.

A use of a table in a query is resolved in two steps:

    LakeCatalog.loadTable      a view whose text is SELECT * FROM weft_catalog_<name>('shop/orders?as_of=...')
    Relations.relation         the plan over a `LiveView`, as for a view of `weft.create_view`

The text names the relation completely, so the same use always finds the same `LiveView`. Spark compares plans by it:
`CACHE TABLE` finds cached data, and all uses in one query share one snapshot.
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

KEPT: Final = 256
"""Relations that are remembered. Without a limit, each time of a query AS OF a time would be."""


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
        """The inverse of `str`."""
        where, _, given = text.partition("?")
        path, _, part = where.partition("#")
        names = tuple(unquote(name) for name in path.split("/"))
        return cls(names, unquote(part), tuple(parse_qsl(given, keep_blank_values=True)))

    def __str__(self) -> str:
        path = "/".join(quote(name, safe="") for name in self.names)
        part = f"#{quote(self.part, safe='')}" if self.part else ""
        given = f"?{urlencode(self.options)}" if self.options else ""
        return f"{path}{part}{given}"


class Relations:
    """The relations of one catalog in one session."""

    def __init__(self, jvm: CatalogJvm, name: str, lake: Lake) -> None:
        self.jvm = jvm
        self._name = name
        self._lake = lake
        self._lock = threading.Lock()
        self._views: dict[Reading, tuple[Table, LiveView]] = {}  # ordered by last use
        self._tables: dict[tuple[Reading, Names], tuple[StructType, Any]] = {}

    @property
    def function(self) -> str:
        """Name of the table function."""
        return f"weft_catalog_{self._name.lower()}"

    def relation(self, arguments: Any) -> Any:
        """The table function: a logical plan over the relation that the argument, a `Seq[Expression]`, names."""
        [text] = self.jvm.literals(arguments)
        return self.view(Reading.parse(str(text))).newest_relation()

    def table(self, catalog: Any, reading: Reading, names: Names) -> Any:
        """What Spark expands in the query that is analysed on this thread, a `V1Table`.

        Its columns are those of the query's state. It is made anew only if they changed.

        Args:
            catalog: The catalog.
            reading: What is read.
            names: The name in the query, by which the query also qualifies columns.
        """
        schema = self.view(reading).output_schema()
        with self._lock:
            known = self._tables.get((reading, names))
        if known is not None and known[0] == schema:
            return known[1]
        # Spark asserts that a table with a catalog has a database.
        shown = (self._name, *names) if len(names) == 1 else names
        query = f"SELECT * FROM `{self.function}`('{reading}')"  # noqa: S608 - the text is percent-encoded
        made = self.jvm.view_as_table(catalog, shown, schema, query, self.function)
        with self._lock:
            self._tables[reading, names] = (schema, made)
            _shorten(self._tables)
        return made

    def metadata_table(self, reading: Reading) -> MetadataTable:
        """The relation with metadata columns, a `Table` that Spark reads itself.

        Raises:
            InvalidInput: It is a system table.
        """
        if reading.part:
            raise InvalidInput(f"{reading.part}: a system table has no metadata columns", hint="read the table itself")
        view = self.view(replace(reading, part=METADATA))
        state = view.pins.current().state
        assert isinstance(state, PinnedMetadata), "the relation has this planner"
        return MetadataTable(view, state)

    def changelog(self, names: Names, given: ChangesRange) -> TableChangelog:
        """The changes of a table for a CHANGES clause.

        Raises:
            InvalidInput: See `range_options`.
        """
        created_at_ms = self._snapshot(Reading(names)).table_log.created_at_ms()
        reading = Reading.of(names, CHANGELOG, range_options(given, created_at_ms))
        return TableChangelog(self.view(reading), f"{self._name} {reading}")

    def view(self, reading: Reading) -> LiveView:
        """The live view of a relation; another one after the table was opened again."""
        table = self._lake.table(reading.names)
        with self._lock:
            known = self._views.pop(reading, None)
            if known is not None and known[0] is table:
                self._views[reading] = known  # the last one used
                return known[1]
        made = table, self._new_view(reading, table)
        with self._lock:
            known = self._views.setdefault(reading, made)
            _shorten(self._views)
        return known[1]

    def _new_view(self, reading: Reading, table: Table) -> LiveView:
        name = ".".join((self._name, *reading.names, *filter(None, [reading.part])))
        return LiveView(self.jvm, name, self._planner(reading, table))

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
        """The snapshot that the query on this thread reads of a table."""
        return self._state(reading).snapshot

    def _state(self, reading: Reading) -> PinnedSnapshot:
        state = self.view(reading).pins.current().state
        assert isinstance(state, PinnedSnapshot), f"{reading} is a table"
        return state


def _shorten(known: dict[Any, Any]) -> None:
    """Remove the oldest entries of what is remembered."""
    while len(known) > KEPT:
        del known[next(iter(known))]
