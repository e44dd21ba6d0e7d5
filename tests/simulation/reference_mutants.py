"""Mutants of references: which snapshots are joined, on which values, what is kept, and what counts as a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from tests.simulation.mutant import Mutant, always
from tests.simulation.two_tables import FOREIGN
from weft.storage.errors import NotFound, SnapshotExpired
from weft.storage.log import snapshot_cut
from weft.storage.log.table_log import TableLog
from weft.storage.read import referenced_snapshots as references
from weft.storage.read.changes import change_scan
from weft.storage.read.changes import plan as changes_plan
from weft.storage.read.referenced_snapshots import ReferencedTables
from weft.storage.read.references import bound_rows, joined_scan
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.plan_scan import plan_scan
from weft.storage.read.snapshot import Snapshot
from weft.storage.read.time_travel import snapshot_at
from weft.storage.services.history import savepoints
from weft.storage.table import Table


def takes_the_referenced_cut_first(right: Any) -> Any:
    def broken(self: ReferencedTables, as_of: Any, **named: Any) -> Any:
        known = self._table_log.refresh().schema.references if as_of is None else ()
        taken = {log: snapshot_at(log, None) for log in {self.log(each): None for each in known}}
        early = {each.name: taken[self.log(each)] for each in known}
        take = self._take_referenced

        def early_if_known(found: Any, reference: Any, *args: Any, **named: Any) -> Any:
            if reference.name in early:
                return ReferencedTable(reference, early[reference.name])
            return take(found, reference, *args, **named)

        with mock.patch.object(self, "_take_referenced", early_if_known):
            return right(self, as_of, **named)

    return broken


def takes_each_on_its_own(take: Any) -> Any:
    return lambda self, found, reference, as_of, _, *, settled: take(self, found, reference, as_of, {}, settled=settled)


def looks_once(take: Any) -> Any:
    """Keeps the first newest snapshot of a referenced table that the process has taken."""

    def broken(self: Any, found: Any, reference: Any, as_of: Any, taken: Any, *, settled: bool) -> Any:
        if as_of is not None:
            return take(self, found, reference, as_of, taken, settled=settled)
        first = vars(self).setdefault("first", {})
        if reference.name not in first:
            first[reference.name] = take(self, found, reference, as_of, taken, settled=settled)
        return first[reference.name]

    return broken


def takes_the_newest_for_an_expired_one(_: Any) -> Any:
    def broken(log: TableLog, as_of: Any, **named: Any) -> Any:
        try:
            return snapshot_at(log, as_of, **named)
        except SnapshotExpired:
            if not log.store.uri.endswith("referenced"):
                raise
            return snapshot_at(log, None)

    return broken


@dataclass(frozen=True)
class JoinedOnBases:
    """Joins on the foreign keys of base files, whatever newer events say."""

    right: JoinedScan
    base: pa.Table

    def to_arrow(self) -> pa.Table:
        rows = self.right.scan.to_arrow()
        schema = self.right.scan.schema
        foreign = [name for name in schema.arrow.names if name.startswith(FOREIGN)]
        old = {tuple(row[name] for name in schema.key): row for row in self.base.to_pylist()}
        keys = zip(*(rows.column(name).to_pylist() for name in schema.key), strict=True)
        places = [old.get(key) for key in keys]
        stale = rows
        for name in foreign:
            values = [
                now if then is None else then[name]
                for now, then in zip(rows.column(name).to_pylist(), places, strict=True)
            ]
            number, kind = rows.schema.get_field_index(name), rows.schema.field(name)
            stale = stale.set_column(number, kind, pa.array(values, kind.type))
        answer = replace(self.right, scan=mock.Mock(to_arrow=lambda: stale)).to_arrow()
        for name in foreign:
            number = answer.schema.get_field_index(name)
            answer = answer.set_column(number, answer.schema.field(name), rows.column(name))
        return answer

    def to_reader(self) -> pa.RecordBatchReader:
        return self.to_arrow().to_reader()


def as_if_they_were_unchanged(_: Any) -> Any:
    return lambda read: all(each.table_is_moment for each in read)


def joins_on_bases(plan: Any) -> Any:
    def broken(files: Any, tables: Any, request: Any) -> Any:
        right = plan(files, tables, request)
        if request.require or request.columns is not None or not files.table_schema.references:
            return right
        foreign = [name for name in files.table_schema.arrow.names if name.startswith(FOREIGN)]
        wanted = ScanRequest([*files.table_schema.key, *foreign], read_optimized=True)
        return JoinedOnBases(right, plan_scan(files, wanted).to_arrow())

    return broken


def makes_none_beside(publish: Any) -> Any:
    def broken(log: Any, name: Any, at: Any, note: str, kept: Any) -> Any:
        return None if note.startswith("for savepoint") else publish(log, name, at, note, kept)

    return broken


def names_none_beside(publish: Any) -> Any:
    return lambda log, name, at, note, _: publish(log, name, at, note, {})


def releases_the_other_first(right: Any) -> Any:
    def broken(self: Table, name: str) -> None:
        log, state = self.writable(), self.state()
        kept = savepoints.find_savepoint(state, name).references
        for reference, there in kept.items():
            known = state.schema.reference_by_name.get(reference)
            if known is not None:
                try:
                    savepoints._release(TableLog.of(log.env.of_table(known.table)), there.savepoint)
                except NotFound:
                    continue
        right(self, name)

    return broken


def releases_here_alone(_: Any) -> Any:
    return lambda self, name: savepoints._release(self.writable(), name)


def without_earlier_references(right: Any) -> Any:
    """Compares with the newest rows of referenced tables on both sides."""

    def broken(scan: Any, referenced: Any, used: Any) -> Any:
        later = {
            name: Snapshot(old.table_log, *snapshot_cut.newest_cut(old.table_log)) for name, old in referenced.items()
        }
        return right(scan, later, used)

    return broken


def overlooks_commits(changed_keys: Any) -> Any:
    def broken(*args: Any) -> Any:
        found = changed_keys(*args)
        return None if found is None else ({name: column.slice(0, 0) for name, column in found[0].items()}, {})

    return broken


REFERENCES: Final[Mapping[str, Mutant]] = {
    "M11 the cut of a referenced table is taken first": Mutant(
        ReferencedTables, "snapshot", takes_the_referenced_cut_first, "references"
    ),
    "M11 two references to a table see two snapshots": Mutant(
        ReferencedTables, "_take_referenced", takes_each_on_its_own, "references"
    ),
    "M11 a referenced table is looked at once": Mutant(ReferencedTables, "_take_referenced", looks_once, "references"),
    "S31 tables are not looked at again after all were read": Mutant(
        references, "_are_unchanged", as_if_they_were_unchanged, "together"
    ),
    "M11 the newest snapshot is taken for the one that a cut names": Mutant(
        references, "_referenced_as_of", always(None), "references"
    ),
    "M11 the newest snapshot is taken for one that has expired": Mutant(
        references, "snapshot_at", takes_the_newest_for_an_expired_one, "references"
    ),
    "M11 rows are joined on the foreign keys of base files": Mutant(
        joined_scan, "plan_joined_scan", joins_on_bases, "references"
    ),
    "M11 kept rows are used for any later snapshot": Mutant(
        bound_rows, "has_all_changed_keys", always(True), "references", rare=True
    ),
    "M11 rows of commits since the kept rows are left out": Mutant(
        bound_rows, "_changed_keys", overlooks_commits, "references"
    ),
    "S16 a savepoint makes none in the referenced table": Mutant(
        savepoints, "_publish", makes_none_beside, "references"
    ),
    "S16 a savepoint does not name the referenced snapshot": Mutant(
        savepoints, "_publish", names_none_beside, "references"
    ),
    "S16 what a savepoint needs of the referenced table is released before it": Mutant(
        Table, "release_savepoint", releases_the_other_first, "references"
    ),
    "L3 what a savepoint needed of the referenced table is never released": Mutant(
        Table, "release_savepoint", releases_here_alone, "references"
    ),
    "S16 a pin forgets the referenced tables": Mutant(Snapshot, "_referenced", always([]), "references", rare=True),
    "S21 changes leave out rows whose referenced row has changed": Mutant(
        change_scan.Referring, "keys", always({}), "references"
    ),
    "S21 changes compare with the newest referenced rows": Mutant(
        changes_plan, "_build_side", without_earlier_references, "references"
    ),
}
