"""Checks of a catalog: the store of a folder of tables, and each table in it."""

from __future__ import annotations

from collections.abc import Iterator

from weft.storage.errors import TableError
from weft.storage.plural import counted
from weft.streams.catalog.lake import Lake, Names
from weft.streams.doctor.finding import Finding, Findings
from weft.streams.doctor.store_checks import check_store
from weft.streams.pipeline.file.model import TableLocation


def diagnose_lake(location: TableLocation) -> list[Finding]:
    """Check a folder of tables, or one table. Nothing is changed, and nothing is left behind.

    A table is opened, and its newest snapshot and references are read, but no file of rows: ``weft verify`` does that.
    """
    findings = Findings()
    check_store("store", location.uri, location.storage_options, findings)
    lake, tables = Lake(location.uri, location.storage_options), 0
    with findings.guarded("tables"):
        for names in _tables(lake):
            tables += 1
            _check_table(lake, names, findings)
        findings.ok("tables", f"{location.uri} has {counted(tables, 'table') if tables else 'no tables'}")
    return findings.all


def _tables(lake: Lake) -> Iterator[Names]:
    """The names of all tables, those of nested namespaces too; the empty name for a root that is a table.

    Raises:
        NotFound: There is no such folder.
    """
    if lake.exists():
        yield from lake.all_tables()
    else:
        lake.table(())
        yield ()


def _check_table(lake: Lake, names: Names, findings: Findings) -> None:
    name, uri = ".".join(names) or "table", lake.location(names)
    try:
        snapshot = lake.table(names).snapshot()
    except TableError as error:
        hint = f"{error.hint}; " if error.hint else ""
        findings.problem(name, error.message, f"{hint}weft verify {uri} lists every problem", error.guide)
        return
    missing = [referenced for referenced in snapshot.references if isinstance(referenced.snapshot_or_error, TableError)]
    for referenced in missing:
        text = f"reference {referenced.reference.name!r}: {referenced.snapshot_or_error}"
        findings.problem(name, text, "repair its table, or weft alter drop-reference: queries of its columns fail")
    if not missing:
        findings.ok(name, f"{uri}: {counted(len(snapshot.schema), 'column')}, newest snapshot {snapshot.cut}")
