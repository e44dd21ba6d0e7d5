"""Takes a snapshot of a table together with those of the tables that it refers to.

The cut of the table is taken first, and those of the referenced tables after it: a row that was committed to a
referenced table before a row that refers to it is seen with it. Two references to one table share its snapshot.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Mapping
from typing import Final, TypeAlias

from weft.storage.core.log.cut import PREFIX, Cut, parse_cut
from weft.storage.core.model import Reference
from weft.storage.errors import NotFound, SnapshotExpired, TableError
from weft.storage.log import snapshot_cut
from weft.storage.log.table_log import TableLog
from weft.storage.read.references.referenced_table import ReferencedTable, check_reference, check_table_id
from weft.storage.read.snapshot import Snapshot
from weft.storage.read.time_travel import find_savepoint, snapshot_at

_Wanted: TypeAlias = dt.datetime | Mapping[str, Cut] | None
"""Which snapshots of the referenced tables: those of a time, those of cuts by reference, or the newest."""


MOMENT_TRIES: Final = 3
"""Each reads all tables once more. Dimensions rest most of the time; a table that never rests needs other ways."""


class ReferencedTables:
    """The logs of the tables that one table refers to; each is opened once. Thread-safe."""

    def __init__(self, table_log: TableLog) -> None:
        self._table_log = table_log
        self._lock = threading.Lock()
        self._logs: dict[str, TableLog] = {}

    def log(self, reference: Reference) -> TableLog:
        """The log of a referenced table, which may not exist.

        Raises:
            InvalidInput: Its location is of an unknown kind of store.
        """
        with self._lock:
            known = self._logs.get(reference.table)
        if known is not None:
            return known
        env = self._table_log.env.of_table(reference.table)
        opened = TableLog.of(env)
        with self._lock:
            same = (log for log in self._logs.values() if log.store.uri == env.store.uri)
            return self._logs.setdefault(reference.table, next(same, opened))

    def snapshot(self, as_of: dt.datetime | str | None, *, settled: bool = False, moment: bool = False) -> Snapshot:
        """The snapshot of the table and of the referenced tables. Arguments and errors as in `snapshot_at`.

        An error of a referenced table is raised when columns of the reference are read. With ``moment`` that of the
        table alone is one moment in any case, and all of them together (`Snapshot.is_moment`) if none of them has
        changed while they were read, which is tried a few times.
        """
        for _ in range(MOMENT_TRIES - 1 if moment and as_of is None else 0):
            found = self._together(as_of, settled=settled, moment=True)
            if found.is_moment:
                return found
        return self._together(as_of, settled=settled, moment=moment)

    def _together(self, as_of: dt.datetime | str | None, *, settled: bool, moment: bool) -> Snapshot:
        found = snapshot_at(self._table_log, as_of, settled=settled, moment=moment)
        if not found.state.schema.references:
            return found
        wanted: _Wanted = as_of if isinstance(as_of, dt.datetime) else None
        if isinstance(as_of, str):
            wanted = self._named(as_of)
        taken: dict[tuple[str, object], Snapshot | TableError] = {}
        tables = []
        for reference in found.state.schema.references:
            try:
                tables.append(
                    self._take(found, reference, _of_reference(found, reference, wanted), taken, settled=settled)
                )
            except TableError as error:
                tables.append(ReferencedTable(reference, self._cause(reference, error)))
        read = [found, *(each for each in taken.values() if isinstance(each, Snapshot))]
        return Snapshot(
            self._table_log,
            found.state,
            found.at,
            found.table_is_moment,
            settled=all(each.settled for each in read),
            references=tables,
            together=moment and as_of is None and _are_unchanged(read),
        )

    def _cause(self, reference: Reference, error: TableError) -> TableError:
        """Why there is no snapshot: a table that is missing is the cause that its cut is not known, too."""
        if isinstance(error, SnapshotExpired):
            try:
                self.log(reference).refresh()
            except NotFound as missing:
                return missing
        return error

    def _named(self, as_of: str) -> Mapping[str, Cut]:
        if as_of.startswith(PREFIX):
            return parse_cut(as_of).references
        kept = find_savepoint(self._table_log.refresh(), as_of).references
        return {name: reference.at for name, reference in kept.items()}

    def _take(
        self,
        found: Snapshot,
        reference: Reference,
        as_of: dt.datetime | str | None,
        taken: dict[tuple[str, object], Snapshot | TableError],
        *,
        settled: bool,
    ) -> ReferencedTable:
        """The snapshot of a referenced table; ``taken`` has those that were taken before for the same snapshot."""
        log = self.log(reference)
        key = (log.store.uri, as_of)
        if key not in taken:
            try:
                taken[key] = snapshot_at(log, as_of, settled=settled)
            except TableError as error:
                taken[key] = error
        made = taken[key]
        if isinstance(made, NotFound | SnapshotExpired):
            check_table_id(reference, log.refresh().table_id)  # another table would explain why it has no such snapshot
        if isinstance(made, TableError):
            return ReferencedTable(reference, made)
        check_table_id(reference, made.state.table_id)
        check_reference(found.state.schema, reference, made.state.schema)
        return ReferencedTable(reference, made)


def _are_unchanged(read: list[Snapshot]) -> bool:
    """Whether tables that were read one after the other were in the states that were read at one moment.

    So it is if all but the last one are in the same state after the last one was read.
    """
    return all(each.table_is_moment for each in read) and all(
        snapshot_cut.newest_cut(each.table_log).at == each.at for each in read[:-1]
    )


def _of_reference(found: Snapshot, reference: Reference, wanted: _Wanted) -> dt.datetime | str | None:
    """The snapshot of a referenced table that is wanted, as for `snapshot_at`.

    Raises:
        SnapshotExpired: It is not known.
    """
    if not isinstance(wanted, Mapping):
        return wanted
    if reference.name not in wanted:
        raise SnapshotExpired(
            f"{found.cut} does not say which state of {reference.table} belongs to it",
            hint="give the whole text of str(snapshot.cut), which names the cuts of all tables",
        )
    return str(wanted[reference.name])
