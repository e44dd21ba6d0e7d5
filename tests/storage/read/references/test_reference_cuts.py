"""Snapshots of tables with references: one cut of all tables, kept by savepoints and pins. MERGE.md, "References"."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.reference_shop import CUSTOMER, Shop, no_product
from weft import Table
from weft.storage.core.log.cut import parse_cut
from weft.storage.errors import Conflict, InvalidInput, NotComplete, SnapshotExpired, StillRetained


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, {"customer": CUSTOMER})


def test_the_text_of_a_cut_names_all_tables_and_gives_the_same_answer_again(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    then = str(shop.orders.snapshot().cut)
    assert then == f"{shop.orders.snapshot().cut}"
    assert str(parse_cut(then)) == then
    shop.customer(1, "Anna", ts=2)
    shop.customers.compact()
    now = str(shop.orders.snapshot().cut)
    assert shop.rows("customer_name", as_of=then) == [(1, "Ann")]
    assert shop.rows("customer_name", as_of=now) == [(1, "Anna")]
    alone = then.partition("+")[0]
    assert shop.rows("customer_id", as_of=alone) == [(1, 1)]
    with pytest.raises(SnapshotExpired, match=r"reference 'customer'.*does not say which state"):
        shop.rows("customer_name", as_of=alone)
    for wrong in (f"{then}+", f"{then}+customer:1:", f"{alone}+:1:crm=1", f"{alone}+customer", f"{then}+x:y:"):
        with pytest.raises(InvalidInput, match="is not a cut"):
            shop.orders.snapshot(wrong)


def test_the_cut_of_the_table_is_taken_first(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A customer that is committed before an order is seen with it, however the commits and the snapshot overlap."""
    from weft.storage.read import referenced_snapshots as references

    taken = references.snapshot_at

    def slowly(table_log: Any, *arguments: Any, **options: Any) -> Any:
        found = taken(table_log, *arguments, **options)
        if table_log.store.uri.endswith("orders"):
            shop.customer(5, "new")
            shop.order(5, 5)
        return found

    shop.order(4, 5)
    with monkeypatch.context() as patch:
        patch.setattr(references, "snapshot_at", slowly)
        snapshot = shop.orders.snapshot()
    assert snapshot.to_arrow(["order_id", "customer_name"]).to_pylist() == [{"order_id": 4, "customer_name": "new"}]


def test_a_savepoint_and_a_pin_keep_the_referenced_snapshots(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    made = shop.orders.savepoint("month-end")
    assert str(made.cut) == "cut:1:2:orders=2+customer:2:crm=2" == str(shop.orders.savepoints()[0].cut)
    assert shop.customers.savepoints()[0].name.startswith("month-end.")
    pinned = shop.orders.snapshot().pinned()
    with pinned as kept:
        shop.customer(1, "Anna", ts=2)
        for table in (shop.customers, shop.orders):
            table.compact()
            table.clean(dt.timedelta(0))
        again = Table.open(shop.folder / "orders")
        assert kept.to_arrow(["customer_name"]).to_pylist() == [{"customer_name": "Ann"}]
        assert again.snapshot("month-end").to_arrow(["customer_name"]).to_pylist() == [{"customer_name": "Ann"}]
        shop.orders.release_savepoint("month-end")
        assert shop.customers.savepoints() == []
        for table in (shop.customers, shop.orders):
            table.clean(dt.timedelta(0))
        assert kept.to_arrow(["customer_name"]).to_pylist() == [{"customer_name": "Ann"}]
    then = str(shop.orders.snapshot().cut)
    shop.customer(1, "Annie", ts=3)
    shop.customers.compact()
    shop.customers.clean(dt.timedelta(0))
    with pytest.raises(SnapshotExpired, match="customer"):
        shop.rows("customer_name", as_of=then)


def test_a_savepoint_that_is_refused_leaves_none_in_the_referenced_tables(shop: Shop) -> None:
    shop.orders.savepoint("taken")
    count = len(shop.customers.savepoints())
    with pytest.raises(Conflict, match="already has a savepoint"):
        shop.orders.savepoint("taken")
    with pytest.raises(InvalidInput, match="not a savepoint name"):
        shop.orders.savepoint("?")
    assert len(shop.customers.savepoints()) == count


def test_a_restore_takes_back_the_table_and_not_the_referenced_ones(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    shop.orders.savepoint("then")
    shop.order(2, 1)
    shop.customer(1, "Anna", ts=2)
    shop.orders.restore("then")
    assert shop.rows("customer_name") == [(1, "Anna")]
    assert shop.rows("customer_name", as_of="then") == [(1, "Ann")]


def test_a_time_is_a_time_of_all_tables(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    then = shop.orders.mark()
    shop.customers.mark()
    shop.customer(1, "Anna", ts=2)
    assert shop.rows("customer_name", as_of=then) == [(1, "Ann")]
    assert shop.orders.snapshot(then).settled
    later = dt.datetime.now(dt.UTC)
    shop.orders.mark()
    assert not shop.orders.snapshot(later).settled  # a commit of the referenced table may still become visible


def test_watermarks_of_the_referenced_tables_count(shop: Shop) -> None:
    for table, stream, columns in (
        (shop.orders, "orders", {"order_id": [1], "customer_id": [1], **no_product(1), "ts": [100]}),
        (shop.orders, "payments", {"order_id": [1], "paid": [1.0], "pay_ts": [100]}),
        (shop.customers, "crm", {"id": [1], "name": ["Ann"], "crm_ts": [100]}),
    ):
        with table.writer(stream, lateness=5) as writer:
            writer.append(pa.table(columns))
    shop.orders.snapshot(complete_through=90, complete_groups=["order", "payment"])
    with pytest.raises(NotComplete, match=r"reference 'customer'.*loyalty"):
        shop.orders.snapshot(complete_through=90)
    with pytest.raises(NotComplete, match="reference 'customer'"):
        shop.orders.snapshot(complete_through=90, complete_groups=["customer"])
    with shop.customers.writer("loyalty", lateness=5) as writer:
        writer.append(pa.table({"id": [1], "tier": ["gold"], "tier_ts": [100]}))
    shop.orders.snapshot(complete_through=90)


def test_an_erase_names_the_savepoints_of_other_tables_that_it_breaks(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    shop.orders.savepoint("audit")
    of_orders = f"savepoint audit of {shop.orders.uri}"
    (kept,) = shop.customers.savepoints()
    with pytest.raises(StillRetained, match="savepoints") as refused:
        shop.customers.erase([1], expire_snapshots=True)
    assert f"{kept.name} ({of_orders} needs it)" in refused.value.message
    assert refused.value.savepoints == (kept.name,)
    result = shop.customers.erase([1], expire_snapshots=True, release_savepoints=True)
    assert (result.released, result.broken) == ((kept.name,), (of_orders,))
    with pytest.raises(SnapshotExpired):
        shop.rows("customer_name", as_of="audit")
