"""Overlays and compactions that write them, when something breaks."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import Fault, FaultyStore
from tests.storage.support.damage import Damage, wrong
from tests.storage.support.overlay_table import ROWS, compact, groups_of, small_table, write
from tests.storage.support.shop import contents, new_uri
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import TABLE_LANE, Path
from weft.storage.errors import CorruptData, StoreUnavailable, TableError
from weft.storage.store.open_store import open_store

CHANGES = ("put", "put_if_absent", "delete", "open_output")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return small_table(monkeypatch)


class _Died(BaseException):
    """The process ends."""


@pytest.mark.parametrize("error", [_Died(), StoreUnavailable("no answer", hint="of a test")], ids=["death", "error"])
def test_a_compaction_that_fails_at_any_request_loses_nothing(table: Table, error: BaseException) -> None:
    """Then cleaning removes what is left of it, and no file that the slice before it has."""
    write(table, "b", [1], 2)
    table.compact()
    write(table, "b", [2, 3], 3)
    write(table, "c", [2], 3)
    expected = contents(table)

    def objects() -> dict[Path, bytes]:
        store, folders = table.env.store, ("_weft", "log", "base", "shadow", "overlay")
        paths = [Path(f"{folder}/{name}") for folder in folders for name, _ in store.list(Path(folder))]
        return {path: store.get(path) or b"" for path in paths}

    before = objects()

    def copy() -> tuple[Table, FaultyStore]:
        store = FaultyStore(open_store(new_uri()))
        for path, data in before.items():
            store.inner.put(path, data)
        return Table(replace(table.env, store=store), Stamps()), store

    whole, watched = copy()
    whole.compact()
    assert groups_of(whole) == [[2, 3]]
    steps = [(call, f"{path.rpartition('/')[0]}/") for call, path in watched.calls if call in CHANGES]
    assert ("open_output", "overlay/b00-00000/") in steps
    for number, (call, place) in enumerate(steps):
        for when in ("before", "after"):
            broken, watched = copy()
            watched.faults.append(Fault(call, place, times=steps[:number].count((call, place)), action=lambda: None))
            watched.faults.append(Fault(call, place, when, error=error))
            with contextlib.suppress(_Died, TableError):
                broken.compact()
            left = Table(replace(table.env, store=watched.inner), Stamps())
            for clean in (False, True):
                if clean:
                    left.clean(dt.timedelta(0), abandon_after=dt.timedelta(0))
                assert contents(left) == expected, (call, place, when)
                assert not wrong(left), (call, place, when)


# Damage ---------------------------------------------------------------------------------------------------------------


def test_a_damaged_overlay(table: Table) -> None:
    write(table, "b", range(0, ROWS, 3), 2)
    compact(table)
    damage = Damage(table)
    (path,) = damage.paths("overlay")
    damage.flip(path, 0.3)
    assert {(finding.invariant, finding.where) for finding in wrong(table)} == {("S7", path)}
    with pytest.raises(CorruptData):
        Table.open(table.uri).snapshot().to_arrow()
    assert Table.open(table.uri).snapshot().to_arrow(["a_v"]).num_rows == ROWS
    damage.remove(path)
    assert {(finding.invariant, finding.where) for finding in wrong(table)} == {("S7", path)}


def misaligned(change: Callable[[pa.Table], pa.Table], row_group_rows: int = 128) -> Callable[[Damage], str]:
    return lambda damage: damage.rewrite_overlay(change, row_group_rows)


def other_keys(rows: pa.Table) -> pa.Table:
    """The last key of a row group is another one, so that its range of keys is the same."""
    keys = rows["id"].to_pylist()
    keys[5] += 10_000
    return rows.set_column(0, rows.schema.field("id"), pa.chunked_array([pa.array(sorted(keys), pa.int64())]))


def swapped_keys(rows: pa.Table) -> pa.Table:
    keys = rows["id"].to_pylist()
    keys[5], keys[6] = keys[6], keys[5]
    return rows.set_column(0, rows.schema.field("id"), pa.chunked_array([pa.array(keys, pa.int64())]))


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (misaligned(lambda rows: rows.slice(0, ROWS - 1)), False),
        (misaligned(lambda rows: rows, row_group_rows=100), False),
        (misaligned(other_keys), False),
        (misaligned(swapped_keys), True),
    ],
    ids=["a row less", "other row groups", "another key", "swapped keys"],
)
def test_an_overlay_that_does_not_fit_its_base(table: Table, change: Callable[[Damage], str], *, read: bool) -> None:
    """Readers see it where the ranges of keys differ; verify compares all keys."""
    write(table, "b", range(0, ROWS, 3), 2)
    compact(table)
    change(Damage(table))
    assert "S29" in {finding.invariant for finding in wrong(table)}
    if not read:
        with pytest.raises(CorruptData, match="are not those of"):
            Table.open(table.uri).snapshot().to_arrow()


def of_slice(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda entry: change(entry["slices"][0])


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made["overlays"].append(made["overlays"][0]),
        lambda made: made["overlays"][0].update(groups=[9]),
        lambda made: made["overlays"][0]["file"].update(rows=ROWS - 1),
    ],
    ids=["a group twice", "an unknown group", "another number of rows"],
)
def test_verify_finds_wrong_overlays_of_an_entry(table: Table, change: Callable[[Mapping[str, Any]], object]) -> None:
    write(table, "b", [1], 2)
    compact(table)
    damage = Damage(table)
    damage.edit(damage.slot(TABLE_LANE, "BASE"), of_slice(change))
    assert "S29" in {finding.invariant for finding in wrong(table, deep=False)}
