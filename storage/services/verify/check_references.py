"""Checks that referenced tables still have the snapshots that savepoints need."""

from __future__ import annotations

from weft.storage.core.log.table_state import TableState
from weft.storage.errors import SnapshotExpired, TableError
from weft.storage.log.table_log import TableLog
from weft.storage.read.time_travel import snapshot_at
from weft.storage.services.verify.findings import Findings

_HINT = (
    "a copy of the referenced table must be made after that of the table: copy it again; until then reads of the "
    "savepoint fail if they use columns of the reference. Or release the savepoint"
)


def check_references(table_log: TableLog, state: TableState, findings: Findings) -> None:
    """Report savepoints whose snapshot of a referenced table cannot be read.

    Args:
        table_log: The table's log.
        state: The state of the table.
        findings: Collects the findings.
    """
    logs: dict[str, TableLog] = {}  # by location of a referenced table, so that each is opened once
    for name, savepoint in state.savepoints.items():
        if not savepoint.references:
            continue
        place = findings.at(f"savepoint {name}")
        try:
            references_by_name = table_log.at(savepoint.at.table).schema.reference_by_name
        except TableError:
            continue  # the table lane is damaged, which is a finding already
        for reference, kept_reference in savepoint.references.items():
            cut, location = kept_reference.at, references_by_name[reference].table
            findings.count("referenced snapshots")
            try:
                if location not in logs:
                    logs[location] = TableLog.of(table_log.env.of_table(location))
                snapshot_at(logs[location], str(cut))
            except SnapshotExpired as error:  # an erase of keys expires savepoints, for example
                text = f"reads of columns of reference {reference!r} fail: {cut} of table {location} is expired"
                place.info(f"{text}: {error.message}", "release the savepoint if nobody reads the other columns of it")
            except TableError as error:
                text = f"it needs {cut} of reference {reference!r}, table {location}, which cannot be read"
                place.warning(f"{text}: {error.message}", _HINT)
