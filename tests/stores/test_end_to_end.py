"""One table on every kind of store: two writers, a compaction, compared with the oracle, opened again."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from tests.oracle import Oracle
from tests.storage.support.shop import SHOP
from tests.stores.places import Place
from weft import Table
from weft.storage.core.names import Path

COMMITS = 6
TYPES = {"id": pa.int64(), "status": pa.string(), "ots": pa.int64(), "paid": pa.float64(), "pts": pa.int64()}


def batch(stream: str, number: int) -> list[dict[str, Any]]:
    """Rows with repeated keys, times in no order, and some deletes."""
    time = (number * 7) % 5
    keys = range(number % 3, 20, 2)
    if stream == "payments":
        return [{"id": key, "paid": number + key / 4, "pts": time} for key in keys]
    rows: list[dict[str, Any]] = [{"id": key, "status": f"s{number}", "ots": time, "_op": "upsert"} for key in keys]
    return [*rows, {"id": number, "status": None, "ots": time + 1, "_op": "delete"}]


def to_arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], TYPES.get(name)) for name in rows[0]})


def answer(table: Table, as_of: str | None = None) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(row["id"],): row for row in table.snapshot(as_of).to_arrow().to_pylist()}


def test_a_table_equals_the_oracle_on_every_store(place: Place) -> None:
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    other = Table.open(place.uri, storage_options=place.options)
    oracle = Oracle(SHOP)
    cuts = []
    with table.writer("orders") as orders, other.writer("payments") as payments:
        for number in range(COMMITS):
            for stream, writer in (("orders", orders), ("payments", payments)):
                rows = batch(stream, number)
                writer.append(to_arrow(rows), batch=("q", number))
                oracle.append(stream, rows, 2 * number + (stream == "payments"))
            assert answer(table) == answer(other) == oracle.read()
            cuts.append((str(table.snapshot().cut), oracle.read()))
            if number == COMMITS // 2:
                assert table.compact().done
    assert other.compact().done
    again = Table.open(place.uri, storage_options=place.options)
    assert answer(again) == oracle.read()
    newest, expected = cuts[-1]
    assert answer(again, newest) == expected
    with again.writer("orders") as writer:
        assert writer.append(to_arrow(batch("orders", COMMITS - 1)), batch=("q", COMMITS - 1)).replayed
    assert place.open().list(Path("_weft/probe")) == []
    assert place.open().leftovers() == []


def test_services_work_on_every_store(place: Place) -> None:
    """Fold, compaction, cleaning, savepoint, restore, undo, a new column and verify, each seen by a second process."""
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    other = Table.open(place.uri, storage_options=place.options)
    oracle = Oracle(SHOP)

    def commit(*numbers: int) -> None:
        for number in numbers:
            for stream in ("orders", "payments"):
                rows = batch(stream, number)
                with table.writer(stream) as writer:
                    writer.append(to_arrow(rows))
                oracle.append(stream, rows, 2 * number + (stream == "payments"))

    def check() -> None:
        assert answer(table) == answer(other) == oracle.read()
        assert other.verify().ok

    commit(0, 1)
    assert table.fold().done
    check()
    assert other.compact().done
    check()
    good = table.savepoint("good")
    saved = oracle.read()
    commit(2, 3)
    assert other.fold().done
    assert table.compact().done
    check()
    planned = table.clean(dt.timedelta(0), dry_run=True)
    cleaned = other.clean(dt.timedelta(0))
    assert cleaned.deleted == planned.deleted
    assert cleaned.files > 0
    check()
    assert answer(table, "good") == answer(other, str(good.cut)) == saved
    table.restore("good")
    assert answer(table) == answer(other) == saved
    assert other.verify().ok
    since = table.mark()  # a time of the clock could be that of the commit before or after it
    with other.writer("orders") as writer:
        writer.append(to_arrow(batch("orders", 5)))
    assert answer(table) != saved
    other.undo("orders", since)
    assert answer(table) == saved
    other.add_column("order", "note", "string")
    assert {row["note"] for row in table.snapshot().to_arrow().to_pylist()} == {None}
    again = Table.open(place.uri, storage_options=place.options)
    assert again.verify().ok
    assert place.open().leftovers() == []
