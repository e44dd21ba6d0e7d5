"""Rows of referenced tables that a process keeps: found by identity, bounded in bytes, never those of another cut."""

from __future__ import annotations

import functools
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.reference_shop import CUSTOMER, CUSTOMERS, Shop, write
from weft import Table
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core.keys import one_array
from weft.storage.read.references import reference_rows
from weft.storage.read.references.bound_rows import BoundRows
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.references.kept_rows import KeptRows
from weft.storage.read.references.reference_rows import KeyedRows, Newer

GONE: Final = object()
"""Stands for a key without a row."""


@dataclass
class Value:
    nbytes: int


def test_the_least_recently_used_values_are_dropped() -> None:
    kept: KeptRows[Value] = KeptRows(10)
    first = kept.get("a", lambda: Value(4))
    kept.get("b", lambda: Value(4))
    assert kept.get("a", lambda: Value(0)) is first  # used after b
    kept.get("c", lambda: Value(4))
    assert kept.find("b") is None
    assert kept.find("a") is first
    large = Value(11)
    assert kept.get("d", lambda: large) is large
    assert kept.find("d") is None
    assert kept.find("a") is first


KEYS: dict[str, tuple[dict[str, str], st.SearchStrategy[tuple[Any, ...]]]] = {
    "nearly consecutive": ({"k": "bigint"}, st.tuples(st.integers(0, 9))),
    "far apart": ({"k": "bigint"}, st.tuples(st.sampled_from([-(10**12), -5, 0, 7, 10**9, 10**15]))),
    "texts": ({"k": "string"}, st.tuples(st.sampled_from(["", "a", "a\0", "b", "ä"]))),
    "composite": ({"k": "int", "l": "string"}, st.tuples(st.integers(-1, 1), st.sampled_from(["x", "y"]))),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_newer_rows_replace_those_of_the_same_keys(kind: str, data: st.DataObject) -> None:
    columns, keys = KEYS[kind]
    schema = build_schema(load_config(table_config(columns)))
    values = st.one_of(st.none(), st.text(max_size=2))
    before = data.draw(st.dictionaries(keys, values))
    changes = data.draw(st.lists(st.dictionaries(keys, st.one_of(st.just(GONE), values)), min_size=1, max_size=3))
    types = {name: schema.column_by_name[name].type for name in columns}

    def table(rows: Mapping[tuple[Any, ...], Any]) -> pa.Table:
        arrays = {name: pa.array([key[i] for key in rows], kind) for i, (name, kind) in enumerate(types.items())}
        return pa.table({**arrays, "v": pa.array(list(rows.values()), pa.string())})

    def newer_of(change: Mapping[tuple[Any, ...], Any]) -> Newer:
        changed = table(dict.fromkeys(change)).select(list(columns))
        there = table({key: value for key, value in change.items() if value is not GONE})
        return Newer.of(schema, {name: one_array(changed.column(name)) for name in columns}, there)

    newer = functools.reduce(Newer.followed_by, map(newer_of, changes))
    after = {key: value for change in changes for key, value in change.items()}
    keyed = KeyedRows.of(schema, table(before)).with_newer(newer)
    wanted = data.draw(st.lists(st.one_of(keys, st.just((None,) * len(columns)))))
    foreign = [pa.array([key[i] for key in wanted], kind) for i, kind in enumerate(types.values())]
    numbers = keyed.find(foreign)
    expected = [{**before, **after}.get(key, GONE) for key in wanted]
    assert numbers.is_valid().to_pylist() == [value is not GONE for value in expected]
    assert keyed.values("v", numbers).to_pylist() == [None if value is GONE else value for value in expected]


def table_config(columns: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": list(columns),
        "columns": {**columns, "v": "string"},
        "groups": {"g": {"columns": ["v"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(reference_rows, "KEPT_ROWS", KeptRows(1 << 20))
    monkeypatch.setattr("weft.storage.read.references.bound_rows.MOST_SHARE", 1e9)
    monkeypatch.setattr(reference_rows, "LOOK_UP_ROWS", 0)  # a look-up by key reads no other rows
    made = Shop(tmp_path, {"customer": CUSTOMER})
    made.customer(1, "Ann")
    made.order(1, 1)
    return made


def read_as_worker(shop: Shop, columns: list[str], *, cut: str | None = None) -> list[tuple[object, ...]]:
    """The rows, as a process reads them that gets the pickled scan and its tasks."""
    scan = shop.orders.snapshot(cut).scan(columns)
    assert isinstance(scan, JoinedScan)
    sent = pickle.loads(pickle.dumps(scan.without_tasks()))
    tasks = pickle.loads(pickle.dumps(scan.tasks))
    found = pa.Table.from_batches([batch for task in tasks for batch in sent.read(task)], scan.arrow)
    return [tuple(row.values()) for row in found.to_pylist()]


def test_a_process_reads_the_rows_of_a_cut_once_for_all_tasks(shop: Shop) -> None:
    before = str(shop.orders.snapshot().cut)
    assert read_as_worker(shop, ["customer_name"]) == [("Ann",)]
    shop.customer(1, "Anna", ts=2)
    assert read_as_worker(shop, ["customer_name"]) == [("Anna",)]
    assert read_as_worker(shop, ["customer_tier"]) == [("none",)]
    shutil.rmtree(shop.folder / "customers" / "log")
    assert read_as_worker(shop, ["customer_name"], cut=before) == [("Ann",)]
    assert read_as_worker(shop, ["customer_name"]) == [("Anna",)]


def test_a_copy_of_a_table_is_another_table(shop: Shop) -> None:
    """Both have the id of the table, and the same cut after one more commit each."""
    shutil.copytree(shop.folder / "customers", shop.folder / "copied")
    shop.orders.add_reference("copy", "../copied", "customer_id", columns=["name", "tier"])
    bound = BoundRows()
    for version, (name, other) in enumerate([("Anna", "Other"), ("Anne", "Another")], 2):
        shop.customer(1, name, ts=version)
        write(Table.open(shop.folder / "copied"), "crm", id=[1], name=[other], crm_ts=[version])
        snapshot = shop.orders.snapshot()
        scan = snapshot.scan(["customer_name", "copy_name"])
        assert isinstance(scan, JoinedScan)
        assert len({str(snapshot.of_reference(each).cut) for each in ("customer", "copy")}) == 1
        sent = pickle.loads(pickle.dumps(bound.apply(scan, snapshot.references).without_tasks()))
        found = pa.Table.from_batches([batch for task in scan.tasks for batch in sent.read(task)])
        assert found.to_pylist() == [{"customer_name": name, "copy_name": other}]


def test_another_table_at_the_same_location_is_another_table(shop: Shop) -> None:
    bound = BoundRows()
    for name in ("Ann", "Bob"):
        snapshot = shop.orders.snapshot()
        scan = snapshot.scan(["customer_name"])
        assert isinstance(scan, JoinedScan)
        sent = pickle.loads(pickle.dumps(bound.apply(scan, snapshot.references).without_tasks()))
        assert [row for task in scan.tasks for batch in sent.read(task) for row in batch.to_pylist()] == [
            {"customer_name": name}
        ]
        shutil.rmtree(shop.folder / "customers")
        shop.customers = Table.create(shop.folder / "customers", CUSTOMERS)
        shop.customer(1, "Bob")
        shop.customer(2, "Carl")  # a commit after the cut of the former table, which the next read finds in the log
        shop.orders.drop_reference("customer")
        shop.orders.add_reference("customer", "../customers", "customer_id", columns=["name", "tier"])
        shop.orders = Table.open(shop.folder / "orders")


def test_base_files_alone_are_not_taken_for_the_whole_snapshot(shop: Shop) -> None:
    shop.customers.compact()
    shop.customer(1, "Anna", ts=2)
    shop.orders.compact()
    for optimized, name in ((False, "Anna"), (True, "Ann"), (False, "Anna")):
        scan = shop.orders.snapshot().scan(["customer_name"], read_optimized=optimized).without_tasks()
        tasks = shop.orders.snapshot().scan(["customer_name"], read_optimized=optimized).tasks
        assert [row["customer_name"] for task in tasks for batch in scan.read(task) for row in batch.to_pylist()] == [
            name
        ]
