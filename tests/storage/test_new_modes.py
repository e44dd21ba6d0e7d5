"""A merge mode and an aggregate function defined in this file: adding one needs no change elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.storage.support.shop import append, new_uri
from weft import Table
from weft.storage.core import modes, names
from weft.storage.core.arrays import Arrays, take_rows
from weft.storage.core.keys import KeyVector, Mask
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes import GroupEvents, MergeMode, Registers, functions
from weft.storage.core.modes.aggregate_function import AggregateFunction, ColumnEvents, Context, Refusal
from weft.storage.core.modes.versions import History, newer, pick
from weft.storage.errors import InvalidInput, UnsupportedFormat

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "a": "string", "ats": "bigint", "n": "bigint", "nts": "bigint"},
    "groups": {
        "origin": {"columns": ["a", "ats"], "ordering": ["ats"], "merge": "oldest"},
        "scale": {"columns": ["n", "nts"], "ordering": ["nts"], "merge": "aggregate", "functions": {"n": "product"}},
    },
    "streams": {
        "origins": {"groups": ["origin"], "on_delete": "ignore"},
        "scales": {"groups": ["scale"], "on_delete": "ignore"},
    },
}


class Oldest(MergeMode):
    """The oldest event wins the whole group."""

    name = "oldest"

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        return {names.arrival(group.id): pa.int64()}

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        return (names.arrival(group.id), *group.ordering)

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        history = History.of(events)
        oldest = history.first(np.asarray(history.sort(events.op)) == Op.UPSERT)
        given = {**events.values, **events.ordering, names.arrival(group.id): events.arrival}
        return Registers(history.keys, {name: pick(history.sort(column), oldest) for name, column in given.items()})

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        arrival = names.arrival(group.id)
        versions = [([side[name] for name in group.ordering], side[arrival]) for side in (new, old)]
        # A delete has a register without arrival, which never replaces one with an arrival.
        wins = (newer(*versions) | np.asarray(old[arrival].is_null())) & np.asarray(new[arrival].is_valid())
        return wins, take_rows(new, wins)


class Product(AggregateFunction):
    """Product of the non-null values."""

    def refuses(self, column: pa.DataType) -> Refusal | None:
        return None if pa.types.is_integer(column) else Refusal("is not possible", "product takes integers")

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        starts = events.history.starts
        products = np.multiply.reduceat(np.asarray(events.values.fill_null(1)), starts)
        known = np.logical_or.reduceat(events.valid, starts)
        return {context.column.name: pa.array(products, mask=~known)}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        return {context.column.name: pc.coalesce(pc.multiply(a, b), a, b)}


@pytest.fixture
def uri(monkeypatch: pytest.MonkeyPatch) -> str:
    """A table that uses both; they are registered until the test removes them."""
    monkeypatch.setattr(modes, "MODES", (*modes.MODES, Oldest()))
    monkeypatch.setattr(functions, "FUNCTIONS", {**functions.FUNCTIONS, "product": Product()})
    uri = new_uri()
    Table.create(uri, CONFIG)
    return uri


def test_a_new_mode_and_a_new_function_work_everywhere(uri: str) -> None:
    table = Table.open(uri)
    write(table, origins=[(1, "b", 5), (1, "c", 7), (2, "x", 1)], scales=[(1, 2, 1), (1, 3, 2), (3, None, 1)])
    assert shown(table) == {1: ("b", 5, 6, 2), 2: ("x", 1, None, None), 3: (None, None, None, 1)}
    table.compact()
    write(table, origins=[(1, "a", 3), (2, "y", 2), (3, "z", 9)], scales=[(1, 5, 0), (3, 7, 4)])
    expected = {1: ("a", 3, 30, 2), 2: ("x", 1, None, None), 3: ("z", 9, 7, 4)}
    assert shown(table) == expected
    table.fold()
    assert shown(table) == expected
    assert table.snapshot().to_arrow(columns=["n"]).sort_by("n").column("n").to_pylist() == [7, 30, None]
    table.compact()
    assert shown(table) == expected
    assert shown(Table.open(uri)) == expected
    assert table.verify().ok


@pytest.mark.usefixtures("uri")
def test_rules_of_new_modes_are_checked() -> None:
    as_double = {**CONFIG, "columns": {**CONFIG["columns"], "n": "double"}}
    with pytest.raises(InvalidInput, match="product of double is not possible"):
        Table.create(new_uri(), as_double)
    deleting = {**CONFIG, "streams": {**CONFIG["streams"], "scales": {"groups": ["scale"]}}}
    with pytest.raises(InvalidInput, match="product cannot take back what stream 'scales' deletes"):
        Table.create(new_uri(), deleting)
    with pytest.raises(InvalidInput, match=r"modes: .*oldest"):
        Table.create(new_uri(), {**CONFIG, "groups": {**CONFIG["groups"], "origin": {"columns": ["a"], "merge": "x"}}})


def test_versions_without_the_new_mode_refuse_the_table(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat, match="function-product, merge-oldest"):
        Table.open(uri)


def write(table: Table, *, origins: list[tuple[int, str, int]], scales: list[tuple[int, int | None, int]]) -> None:
    for stream, names_of, rows in (("origins", ("id", "a", "ats"), origins), ("scales", ("id", "n", "nts"), scales)):
        types = {"a": pa.string()}
        columns = zip(*rows, strict=True)
        arrays = {
            name: pa.array(column, types.get(name, pa.int64())) for name, column in zip(names_of, columns, strict=True)
        }
        append(table, pa.table(arrays), stream)


def shown(table: Table) -> dict[int, tuple[Any, ...]]:
    rows = table.snapshot().to_arrow().to_pylist()
    return {row["id"]: (row["a"], row["ats"], row["n"], row["nts"]) for row in rows}
