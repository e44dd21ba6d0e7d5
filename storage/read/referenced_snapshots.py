"""Takes a snapshot of a table together with those of the tables that it refers to.

The cut of the table is taken first, and those of the referenced tables after it: a row that was committed to a
referenced table before a row that refers to it is in the snapshot. Two references to one table share its snapshot.
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

_ReferencedStates: TypeAlias = dt.datetime | Mapping[str, Cut] | None
"""Which snapshots of the referenced tables to take: of a time, of a cut for each reference, or the newest (None)."""


MOMENT_TRIES: Final = 3
"""Each try reads the logs of all tables. Referenced tables seldom change; for one that always changes, tries fail."""


class ReferencedTables:
    """The logs of the tables that one table refers to; each is opened once. Thread-safe."""

    def __init__(self, table_log: TableLog) -> None:
        self._table_log = table_log
        self._lock = threading.Lock()
        self._logs: dict[str, TableLog] = {}

    def log(self, reference: Reference) -> TableLog:
        """The log of a referenced table, which may not exist.

        Raises:
            InvalidInput: Its location has an unknown kind of store.
        """
        with self._lock:
            log = self._logs.get(reference.table)
        if log is not None:
            return log
        env = self._table_log.env.of_table(reference.table)
        opened = TableLog.of(env)
        with self._lock:
            same = (log for log in self._logs.values() if log.store.uri == env.store.uri)
            return self._logs.setdefault(reference.table, next(same, opened))

    def snapshot(self, as_of: dt.datetime | str | None, *, settled: bool = False, moment: bool = False) -> Snapshot:
        """The snapshot of the table and of the referenced tables. Arguments and errors as in `snapshot_at`.

        An error of a referenced table is raised when columns of the reference are read. With ``moment`` the snapshot of
        the table alone is always one moment. All tables together are one (`Snapshot.is_moment`) if none of them
        changed while they were read, which is tried a few times.
        """
        for _ in range(MOMENT_TRIES - 1 if moment and as_of is None else 0):
            snapshot = self._take_all(as_of, settled=settled, moment=True)
            if snapshot.is_moment:
                return snapshot
        return self._take_all(as_of, settled=settled, moment=moment)

    def _take_all(self, as_of: dt.datetime | str | None, *, settled: bool, moment: bool) -> Snapshot:
        table = snapshot_at(self._table_log, as_of, settled=settled, moment=moment)
        if not table.state.schema.references:
            return table
        states: _ReferencedStates = as_of if isinstance(as_of, dt.datetime) else None
        if isinstance(as_of, str):
            states = self._referenced_cuts(as_of)
        taken: dict[tuple[str, object], Snapshot | TableError] = {}
        tables = []
        for reference in table.state.schema.references:
            try:
                tables.append(
                    self._take_referenced(
                        table, reference, _referenced_as_of(table, reference, states), taken, settled=settled
                    )
                )
            except TableError as error:
                tables.append(ReferencedTable(reference, self._cause(reference, error)))
        snapshots = [table, *(other for other in taken.values() if isinstance(other, Snapshot))]
        return Snapshot(
            self._table_log,
            table.state,
            table.at,
            table.table_is_moment,
            settled=all(snapshot.settled for snapshot in snapshots),
            references=tables,
            together=moment and as_of is None and _are_unchanged(snapshots),
        )

    def _cause(self, reference: Reference, error: TableError) -> TableError:
        """The reason why there is no snapshot. A missing table is also the reason why its cut is unknown."""
        if isinstance(error, SnapshotExpired):
            try:
                self.log(reference).refresh()
            except NotFound as missing:
                return missing
        return error

    def _referenced_cuts(self, as_of: str) -> Mapping[str, Cut]:
        if as_of.startswith(PREFIX):
            return parse_cut(as_of).references
        references = find_savepoint(self._table_log.refresh(), as_of).references
        return {name: reference.at for name, reference in references.items()}

    def _take_referenced(
        self,
        table: Snapshot,
        reference: Reference,
        as_of: dt.datetime | str | None,
        taken: dict[tuple[str, object], Snapshot | TableError],
        *,
        settled: bool,
    ) -> ReferencedTable:
        """Take the snapshot of a referenced table; ``taken`` caches those of the other references of the snapshot."""
        log = self.log(reference)
        key = (log.store.uri, as_of)
        if key not in taken:
            try:
                taken[key] = snapshot_at(log, as_of, settled=settled)
            except TableError as error:
                taken[key] = error
        snapshot = taken[key]
        if isinstance(snapshot, NotFound | SnapshotExpired):
            check_table_id(reference, log.refresh().table_id)  # a replaced table explains the missing snapshot
        if isinstance(snapshot, TableError):
            return ReferencedTable(reference, snapshot)
        check_table_id(reference, snapshot.state.table_id)
        check_reference(table.state.schema, reference, snapshot.state.schema)
        return ReferencedTable(reference, snapshot)


def _are_unchanged(snapshots: list[Snapshot]) -> bool:
    """Whether the snapshots of tables that were read one after the other are of one moment.

    They are if all tables but the last one are still in the same state after the last one was read.
    """
    return all(snapshot.table_is_moment for snapshot in snapshots) and all(
        snapshot_cut.newest_cut(snapshot.table_log).at == snapshot.at for snapshot in snapshots[:-1]
    )


def _referenced_as_of(table: Snapshot, reference: Reference, states: _ReferencedStates) -> dt.datetime | str | None:
    """Which snapshot of a referenced table to take, as an argument of `snapshot_at`.

    Raises:
        SnapshotExpired: The cut of the referenced table is unknown.
    """
    if not isinstance(states, Mapping):
        return states
    if reference.name not in states:
        raise SnapshotExpired(
            f"{table.cut} does not say which state of {reference.table} belongs to it",
            hint="pass the whole text of str(snapshot.cut), which names the cuts of all tables",
        )
    return str(states[reference.name])
