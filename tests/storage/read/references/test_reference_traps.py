"""References under change: what happens to one of the tables while the other is read. MERGE.md, "References"."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage import Table
from storage.core.names import TABLE_LANE, slot_path
from storage.errors import Conflict, CorruptData, NotFound, OffsetExpired, OffsetInvalidated, SnapshotExpired
from tests.storage.support.reference_shop import CUSTOMER, CUSTOMERS, Shop, no_product, write
from tests.tuning import tuned

NOW = dt.timedelta(0)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """An order of a customer, both compacted."""
    made = Shop(tmp_path, {"customer": CUSTOMER})
    made.customer(1, "Ann")
    made.order(1, 1)
    made.customers.compact()
    made.orders.compact()
    return made


def test_a_snapshot_does_not_use_what_a_later_compaction_of_the_same_cut_has_seen(shop: Shop) -> None:
    """The compaction reads commits that the snapshot has, too, but the referenced table has gone on meanwhile."""
    shop.order(2, 1)
    shop.orders.savepoint("kept")
    cut = str(shop.orders.snapshot().cut)
    shop.customer(1, "Anna", ts=2)
    for table in (shop.orders, shop.customers):
        table.compact()
        assert shop.rows("customer_name", as_of=cut) == [(1, "Ann"), (2, "Ann")]
    for table in (shop.orders, shop.customers):
        table.clean(NOW)
        assert shop.rows("customer_name", as_of="kept") == [(1, "Ann"), (2, "Ann")]
        assert shop.rows("customer_name") == [(1, "Anna"), (2, "Anna")]


@pytest.mark.parametrize("compacted", ["before", "after", "never"])
def test_undone_commits_of_a_referenced_table_are_not_shown(shop: Shop, compacted: str) -> None:
    began = shop.customers.mark()  # a time of the clock could be that of the commit before or after it
    shop.customer(1, "wrong", ts=2)
    shop.order(2, 1)
    wrong = str(shop.orders.snapshot().cut)
    if compacted == "before":
        shop.customers.compact()
        shop.orders.compact()
    shop.customers.undo("crm", began)
    if compacted == "after":
        shop.customers.compact()
        shop.orders.compact()
    assert shop.rows("customer_name") == [(1, "Ann"), (2, "Ann")]
    assert shop.rows("customer_name", as_of=wrong) == [(1, "wrong"), (2, "wrong")]
    with pytest.raises(OffsetInvalidated, match="reference 'customer': the table was restored"):
        shop.orders.changes(wrong)
    shop.customer(1, "right", ts=1)
    assert shop.rows("customer_name") == [(1, "right"), (2, "right")]


def test_a_referenced_table_may_be_compacted_and_cleaned_past_everything_that_was_read(shop: Shop) -> None:
    snapshot = shop.orders.snapshot()
    cut = str(snapshot.cut)
    shop.customer(1, "Anna", ts=2)
    shop.customers.compact()
    shop.customers.clean(NOW)
    with pytest.raises(SnapshotExpired, match="expired while it was being read"):
        snapshot.to_arrow()
    for read in (shop.orders.snapshot(str(snapshot.cut)).to_arrow, lambda: shop.orders.savepoint("late", cut)):
        with pytest.raises(SnapshotExpired, match=r"reference 'customer': .* no longer kept"):
            read()
    with pytest.raises(OffsetExpired):
        shop.orders.changes(cut)
    assert shop.orders.savepoints() == []
    assert snapshot.to_arrow(["customer_id"])["customer_id"].to_pylist() == [1]
    assert shop.rows("customer_name") == [(1, "Anna")]
    shop.orders.compact()
    assert shop.rows("customer_name") == [(1, "Anna")]


CHANGES: dict[str, Callable[[Shop], object]] = {
    "a column of the referenced table is widened": lambda shop: shop.customers.widen_column("size", "bigint"),
    "a column is added to the referenced table": lambda shop: shop.customers.add_column("crm", "city", "string"),
    "a default of the referenced table is set": lambda shop: shop.customers.set_default("size", 8),
    "the foreign key is widened": lambda shop: shop.orders.widen_column("by", "bigint"),
    "a reference is dropped": lambda shop: shop.orders.drop_reference("own"),
    "a reference is added": lambda shop: shop.orders.add_reference("more", "../customers", "by", columns=["name"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_live_reader_sees_its_snapshot_and_a_new_one_the_change(tmp_path: Path, change: str) -> None:
    """With bases from before the change, and events after it."""
    shop = Shop(tmp_path, {})
    shop.customers.add_column("loyalty", "size", "int", default=7)
    shop.orders.add_column("order", "by", "int")
    shop.orders.add_reference("own", "../customers", "by", columns=["name", "size"])
    shop.customer(1, "Ann")
    none = {"shop": pa.nulls(1, pa.int32()), "sku": pa.nulls(1, pa.string())}
    new = {"customer_id": [1], **none, "ts": [1], "by": pa.array([1], pa.int32())}
    write(shop.orders, "orders", order_id=[1], **new)
    shop.customers.compact()
    shop.orders.compact()
    live, cut = shop.orders.snapshot(), str(shop.orders.snapshot().cut)
    before = live.to_arrow(["own_name", "own_size"])
    assert before.to_pylist() == [{"own_name": "Ann", "own_size": 7}]
    CHANGES[change](shop)
    write(shop.orders, "orders", order_id=[2], **new)
    wide = change == "a column of the referenced table is widened"
    size, kind = (1 << 40, pa.int64()) if wide else (9, pa.int32())
    write(shop.customers, "loyalty", id=[1], tier=["gold"], tier_ts=[1], size=pa.array([size], kind))
    for as_of in (live, shop.orders.snapshot(cut), Table.open(shop.folder / "orders").snapshot(cut)):
        assert as_of.to_arrow(["own_name", "own_size"]).equals(before)
    prefix = "own" if change != "a reference is dropped" else ""
    if change == "a reference is added":
        assert shop.rows("more_name") == [(1, "Ann"), (2, "Ann")]
    for _ in range(2):
        if prefix:
            assert shop.rows("own_name", "own_size") == [(1, "Ann", size), (2, "Ann", size)]
            found = shop.orders.changes(cut, columns=["own_size"]).read_all().sort_by("order_id").to_pylist()
            assert [(row["order_id"], row["_change"], row["own_size"]) for row in found] == [
                (1, "update", size),
                (2, "insert", size),
            ]
        else:
            assert "own_name" not in shop.orders.snapshot().schema.names
        shop.orders.compact()
        shop.customers.compact()


def test_an_error_after_a_savepoint_was_published_does_not_release_what_it_needs(shop: Shop) -> None:
    """The entry before it is damaged meanwhile, which is found when the savepoint is there."""
    head = shop.orders.state().head
    path = shop.folder / "orders" / slot_path(TABLE_LANE, head)
    intact = path.read_bytes()
    path.write_bytes(intact[:20])
    with pytest.raises(CorruptData):
        shop.orders.savepoint("published")
    path.write_bytes(intact)
    shop.customer(1, "Anna", ts=2)
    shop.customers.compact()
    shop.customers.clean(NOW)
    shop.orders = Table.open(shop.folder / "orders")
    assert shop.rows("customer_name", as_of="published") == [(1, "Ann")]


@pytest.mark.parametrize("again", [False, True])
def test_a_savepoint_is_released_in_all_tables_that_it_was_made_in(shop: Shop, *, again: bool) -> None:
    """Also if its reference was dropped since, or refers to another table now."""
    shop.orders.savepoint("then")
    assert len(shop.customers.savepoints()) == 1
    shop.orders.drop_reference("customer")
    if again:
        Table.create(shop.folder / "others", CUSTOMERS)
        shop.orders.add_reference("customer", "../others", "customer_id", columns=["name"])
    assert shop.rows("customer_name", as_of="then") == [(1, "Ann")]
    shop.orders.release_savepoint("then")
    assert shop.customers.savepoints() == []


def test_another_table_at_the_location_of_a_referenced_table_is_not_taken_for_it(shop: Shop) -> None:
    """It may even have a snapshot of the same cut. Columns outside of the reference can be read."""
    shop.customer(1, "Ann")
    shop.order(1, 1)
    shop.orders.savepoint("then")
    cuts = [str(shop.orders.snapshot().cut), "then", None]
    shutil.rmtree(shop.folder / "customers")
    shop.customers = Table.create(shop.folder / "customers", CUSTOMERS)
    shop.orders = Table.open(shop.folder / "orders")
    for _ in range(2):
        for as_of in cuts:
            assert shop.rows("customer_id", as_of=as_of) == [(1, 1)]
            with pytest.raises(NotFound, match=r"reference 'customer': another table is at \.\./customers") as raised:
                shop.rows("customer_name", as_of=as_of)
            assert "drop the reference and add it again" in raised.value.hint
        shop.customer(1, "another Ann")
        shop.customer(1, "another Ann")
    with pytest.raises(Conflict, match="reference 'customer' already exists, to another table"):
        shop.orders.add_reference("customer", "../customers", "customer_id", columns=["name", "tier"])
    with pytest.raises(NotFound, match="another table"):
        shop.orders.savepoint("kept")
    shop.orders.add_reference("second", "../customers", "order_id", columns=["name"])
    assert shop.rows("second_name") == [(1, "another Ann")]
    before = str(shop.orders.snapshot().cut)
    with pytest.raises(NotFound, match="another table"):
        shop.rows("customer_name", "second_name")
    shop.orders.drop_reference("customer")
    shop.orders.add_reference("customer", "../customers", "customer_id", columns=["name", "tier"])
    assert shop.rows("customer_name") == [(1, "another Ann")]
    with pytest.raises(OffsetInvalidated, match=r"and now refers to another table at ../customers"):
        shop.orders.changes(before)
    shop.orders.release_savepoint("then")
    assert shop.orders.savepoints() == []


def test_read_optimized_answers_have_the_columns_of_references_in_both_forms(shop: Shop) -> None:
    shop.customer(1, "Anna", ts=2)  # not compacted: the base file has the former name
    snapshot = shop.orders.snapshot()
    base = snapshot.read_optimized()
    assert base.schema.names == snapshot.schema.names
    assert base.to_arrow().equals(snapshot.to_arrow(read_optimized=True))
    gold = base.to_reader(["customer_name"], filter=pc.field("customer_name") == "Ann", require=["customer"])
    assert gold.read_all().to_pylist() == [{"customer_name": "Ann"}]
    assert "customer_name" not in base.dataset().schema.names


def test_hints_list_columns_of_references_where_none_is_read(shop: Shop) -> None:
    with pytest.raises(NotFound, match="no column 'name'") as raised:
        shop.rows("name")
    assert "customer_name" in raised.value.hint
    with pytest.raises(NotFound, match="no group or reference 'customers'") as raised:
        shop.rows(require=["customers"])
    assert raised.value.hint.endswith("references: customer")
    with pytest.raises(NotFound, match="does not fit") as raised:
        shop.rows(filter=pc.field("nam") == "Ann")
    assert "customer_name" in raised.value.hint
    with pytest.raises(NotFound, match="does not fit") as raised:
        shop.rows(filter=pc.field("customer_name") == 1)
    assert raised.value.hint == "customer_name is string: compare with values of the same type"


def test_a_row_changes_once_if_its_large_file_group_was_split_and_its_customer_has_changed(shop: Shop) -> None:
    """Each later file group is divided by key range, and is searched for rows of the customer."""
    orders = tuned(shop.orders, row_group_rows=20, shared_row_group_rows=10, change_task_rows=10)

    def order(*keys: int, ts: int) -> None:
        ids = {"order_id": keys, "customer_id": [1] * len(keys), "ts": [ts] * len(keys)}
        write(orders, "orders", **ids, **no_product(len(keys)))

    order(*range(100), ts=2)
    orders.split(1)
    since = str(orders.snapshot().cut)
    order(*range(0, 100, 3), ts=3)
    orders.split(8)
    order(*range(0, 100, 9), ts=4)
    shop.customer(1, "Anna", ts=2)
    changed = [(row["order_id"], row["_change"]) for row in orders.changes(since).read_all().to_pylist()]
    assert sorted(changed) == [(key, "update") for key in range(100)]
