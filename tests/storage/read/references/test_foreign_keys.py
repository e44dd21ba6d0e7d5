"""References to other tables: what a joined snapshot shows and refuses. MERGE.md, "References"."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.storage.support.reference_shop import CUSTOMER, ORDERS, Shop, no_product, write
from weft import Table
from weft.storage.core.log.cut import JoinedCut
from weft.storage.core.log.entries import Schema
from weft.storage.core.names import TABLE_LANE
from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError
from weft.storage.read.references.joined_scan import JoinedScan


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, {"customer": CUSTOMER})


def test_rows_show_the_row_of_the_merged_foreign_key(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.customer(2, "Bob")
    write(shop.customers, "loyalty", id=[2], tier=["gold"], tier_ts=[1])
    for key, customer in enumerate([1, 2, None, 7]):
        shop.order(key, customer)
    shop.order(0, 2, ts=0)  # loses: its foreign key is never used
    write(shop.orders, "payments", order_id=[9], paid=[1.0], pay_ts=[1])  # the group of the foreign key is absent
    expected = [(0, "Ann", "none"), (1, "Bob", "gold"), (2, None, None), (3, None, None), (9, None, None)]
    for _ in range(2):
        assert shop.rows("customer_name", "customer_tier") == expected
        shop.orders.compact()
        shop.customers.compact()
    assert shop.orders.snapshot().to_arrow().schema.names == [*ORDERS["columns"], "customer_name", "customer_tier"]


def test_changes_of_either_table_are_visible_at_once(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.customer(2, "Bob")
    shop.order(1, 1)
    seen = []
    for change in (
        lambda: None,
        lambda: shop.customer(1, "Anna", ts=2),
        lambda: shop.order(1, 2, ts=2),  # the foreign key changes,
        lambda: shop.order(1, 1, ts=3),  # and changes back
        lambda: shop.customer(1, None, ts=3, op="delete"),  # the row is hidden by its owner,
        lambda: shop.customer(1, "late", ts=2),
        lambda: shop.customer(1, "again", ts=4),  # and shown again
        lambda: shop.order(1, None, ts=4),
    ):
        change()
        seen += [name for _, name in shop.rows("customer_name")]
    assert seen == ["Ann", "Anna", "Bob", "Anna", None, None, "again", None]


def test_an_undone_or_restored_customer_shows_what_its_table_shows(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.customers.savepoint("before")
    shop.order(1, 1)
    shop.customer(1, "wrong", ts=2)
    assert shop.rows("customer_name") == [(1, "wrong")]
    shop.customers.restore("before")
    assert shop.rows("customer_name") == [(1, "Ann")]


def test_references_with_composite_keys_and_several_to_one_table(tmp_path: Path) -> None:
    customer, product = {**CUSTOMER, "columns": ["name"]}, {"table": "../products", "on": ["shop", "sku"]}
    shop = Shop(tmp_path, {"buyer": customer, "payer": {**customer, "prefix": "p_"}, "product": product})
    shop.customer(1, "Ann")
    types = {"shop": pa.int32(), "sku": pa.string()}
    write(shop.products, "products", shop=pa.array([1, 2], pa.int32()), sku=["a", "a"], title=["one", "two"])
    skus = {"shop": [1, 2, 3, None], "sku": ["a", "a", "a", "a"]}
    columns = {name: pa.array(values, types[name]) for name, values in skus.items()}
    write(shop.orders, "orders", order_id=[1, 2, 3, 4], customer_id=[1, 1, 2, 1], **columns, ts=[1] * 4)
    assert shop.rows("buyer_name", "p_name", "product_title") == [
        (1, "Ann", "Ann", "one"),
        (2, "Ann", "Ann", "two"),
        (3, None, None, None),
        (4, "Ann", "Ann", None),
    ]
    cut = shop.orders.snapshot().cut
    assert isinstance(cut, JoinedCut)
    assert set(cut.references) == {"buyer", "payer", "product"}
    assert str(cut.references["buyer"]) == str(cut.references["payer"]) == str(shop.customers.snapshot().cut)


def test_filters_required_references_and_every_way_to_read_agree(shop: Shop) -> None:
    for key in range(5):
        shop.customer(key, f"n{key}")
        shop.order(key, key + 1)
    write(shop.orders, "payments", order_id=[1, 2], paid=[5.0, 7.0], pay_ts=[1, 1])
    name = pc.field("customer_name")
    everything = shop.orders.snapshot().to_arrow()
    for condition in (
        name == "n2",
        name.is_null(),
        (name > "n1") & (pc.field("paid") > 6),
        (pc.field("paid") > 6) | (name == "n4"),
        name == pc.field("sku"),
        pc.field("paid") == pc.field("paid"),
        (name > "n1") & (pc.utf8_upper(pc.field("customer_tier")) == "NONE"),
    ):
        expected = everything.filter(condition).sort_by("order_id")
        snapshot = shop.orders.snapshot()
        assert snapshot.to_arrow(filter=condition).sort_by("order_id").equals(expected)
        assert snapshot.to_reader(filter=condition).read_all().sort_by("order_id").equals(expected)
        assert snapshot.to_arrow(["paid"], filter=condition).num_rows == expected.num_rows
        assert snapshot.to_arrow([], filter=condition).num_rows == expected.num_rows
    assert shop.rows("customer_name", filter=[("customer_name", "in", ["n1", "n3"])]) == [(0, "n1"), (2, "n3")]
    assert shop.rows(require=["customer"]) == [(0,), (1,), (2,), (3,)]
    assert shop.rows("_present_payment", require=["customer", "payment"]) == [(1, True), (2, True)]
    assert shop.orders.get([4, 2], ["customer_name"]).sort_by("customer_name").to_pylist() == [
        {"customer_name": "n3"},
        {"customer_name": None},
    ]
    assert shop.orders.get([4, 2], ["order_id"], require=["customer"]).to_pylist() == [{"order_id": 2}]


@pytest.mark.parametrize("apart", [1, 1000])
def test_many_foreign_keys_are_found_and_a_scan_can_be_sent_elsewhere(shop: Shop, apart: int) -> None:
    """More keys than are looked up one by one, consecutive or far apart, and tasks in another process."""
    keys = list(range(5000))
    write(shop.customers, "crm", id=[key * apart for key in keys], name=[f"n{key}" for key in keys], crm_ts=[1] * 5000)
    write(
        shop.orders,
        "orders",
        order_id=keys,
        customer_id=[key * 2 * apart for key in keys],
        **no_product(5000),
        ts=[1] * 5000,
    )
    scan = shop.orders.snapshot().scan(["order_id", "customer_name"])
    assert isinstance(scan, JoinedScan)
    expected = [(key, f"n{key * 2}" if key < 2500 else None) for key in keys]
    sent = pickle.loads(pickle.dumps(scan))  # after use, too
    batches = [batch for task in scan.tasks for batch in sent.read(task)]
    for found in (scan.to_arrow(), pa.Table.from_batches(batches), pickle.loads(pickle.dumps(scan)).to_arrow()):
        assert [tuple(row.values()) for row in found.sort_by("order_id").to_pylist()] == expected


@pytest.mark.parametrize(("wide", "narrow"), [("bigint", "int"), ("decimal(12,2)", "decimal(5,2)")])
@pytest.mark.parametrize("key_is_wide", [False, True])
def test_integers_may_differ_in_width_and_decimals_in_digits(
    tmp_path: Path, wide: str, narrow: str, *, key_is_wide: bool
) -> None:
    key, foreign = (wide, narrow) if key_is_wide else (narrow, wide)
    arrow = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "decimal(12,2)": pa.decimal128(12, 2),
        "decimal(5,2)": pa.decimal128(5, 2),
    }
    group = {"g": {"columns": ["v"]}}
    small = {"key": ["k"], "columns": {"k": key, "v": "string"}, "groups": group, "streams": {"s": {"groups": ["g"]}}}
    other = Table.create(tmp_path / "other", small)
    large = {**small, "columns": {"k": "bigint", "v": foreign}, "references": {"r": {"table": "../other", "on": "v"}}}
    table = Table.create(tmp_path / "table", large)
    write(other, "s", k=pa.array([3, -4]).cast(pa.decimal128(38, 2)).cast(arrow[key]), v=["three", "minus"])
    too_large = [] if key_is_wide else [2**32 + 3 if wide == "bigint" else 1003]
    values = pa.array([3, -4, None, 5, *too_large]).cast(pa.decimal128(38, 2)).cast(arrow[foreign])
    write(table, "s", k=list(range(len(values))), v=values)
    found = table.snapshot().to_arrow(["k", "r_v"]).sort_by("k")
    assert found["r_v"].to_pylist() == ["three", "minus", *[None] * (len(values) - 2)]
    small_key, small_value = (other, "k") if not key_is_wide else (table, "v")
    small_key.widen_column(small_value, wide)
    assert table.snapshot().to_arrow(["k", "r_v"]).sort_by("k").equals(found)


def test_a_missing_referenced_table_hides_its_own_columns_only(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(1, 1)
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    table = Table.open(shop.folder / "orders")
    snapshot = table.snapshot()
    assert snapshot.to_arrow(["order_id"], filter=pc.field("customer_id") == 1).num_rows == 1
    assert "customer" not in str(snapshot.cut)
    for read in (snapshot.to_arrow, lambda: snapshot.schema, lambda: snapshot.to_reader(["customer_name"])):
        with pytest.raises(NotFound, match=r"reference 'customer': there is no table at .*customers") as raised:
            read()
        assert "outside of the reference can be read" in raised.value.hint
    table.compact()
    with pytest.raises(NotFound, match="reference 'customer'"):
        table.savepoint("incomplete")
    assert table.savepoints() == []
    alone = table.snapshot(references=False)
    assert alone.to_arrow().schema.names == alone.schema.names == list(ORDERS["columns"])
    table.restore(str(alone.cut))
    shutil.move(shop.folder / "moved", shop.folder / "customers")
    assert shop.rows("customer_name") == [(1, "Ann")]


REFUSED: dict[str, tuple[dict[str, Any], type[TableError], str]] = {
    "no such table": ({"table": "../nobody"}, NotFound, r"references.customer.table: there is no table at .*nobody"),
    "the table itself": ({"table": "../orders"}, InvalidInput, "references.customer.table: .* is the table itself"),
    "no such column": ({"on": "nope"}, InvalidInput, "references.customer.on: there is no 'nope'"),
    "a column that cannot be a key": ({"on": "paid"}, InvalidInput, "on: column 'paid' has type double"),
    "another type": ({"on": "sku"}, InvalidInput, "on: column 'sku' is string, and 'id' of ../customers is bigint"),
    "too many columns": ({"on": ["shop", "sku"]}, InvalidInput, "2 columns, and the key of ../customers has 1"),
    "an unknown column": ({"columns": ["nick"]}, NotFound, "columns: ../customers has no column 'nick'"),
    "no columns": ({"columns": []}, InvalidInput, "references.customer.columns"),
    "a column twice": ({"columns": ["name", "name"]}, InvalidInput, "'name' is listed 2 times"),
    "a name of the table": (
        {"columns": ["id"]},
        InvalidInput,
        "'id' would be shown as 'customer_id', .* 'customer_id' of",
    ),
    "a name of a state": ({"prefix": "_present_", "columns": ["order"]}, InvalidInput, "'_present_order'"),
    "a reserved name": ({"prefix": "__weft_"}, InvalidInput, "a reserved name"),
    "an unknown field": ({"colums": ["name"]}, InvalidInput, "references.customer.colums: is not a known field"),
    "no foreign key": ({"on": []}, InvalidInput, "references.customer.on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_reference_that_cannot_be_is_refused(shop: Shop, case: str) -> None:
    changed, error, message = REFUSED[case]
    config = {**ORDERS, "references": {"customer": {**CUSTOMER, **changed}}}
    with pytest.raises(error, match=message) as raised:
        Table.create(shop.folder / ("orders" if case == "the table itself" else "new"), config)
    assert raised.value.hint
    assert not (shop.folder / "new").exists()


def test_names_of_references_are_checked(shop: Shop) -> None:
    for names in (["order"], ["a+b"], ["Customer", "customer"]):
        config = {**ORDERS, "references": {name: {**CUSTOMER, "prefix": f"p{name}"} for name in names}}
        with pytest.raises(InvalidInput, match=r"references\."):
            Table.create(shop.folder / "new", config)


def test_a_reference_of_a_reference_is_refused(shop: Shop) -> None:
    for columns in (["customer_name"], ["paid", "customer_tier"]):
        reference = {"table": "../orders", "on": "order_id", "columns": columns}
        with pytest.raises(InvalidInput, match=r"is a column of a reference of ../orders"):
            Table.create(shop.folder / "new", {**ORDERS, "references": {"o": reference}})


def test_references_are_added_and_dropped_under_a_table_that_has_bases(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {})
    shop.customer(1, "Ann")
    shop.order(1, 1)
    shop.orders.compact()
    before = str(shop.orders.snapshot().cut)
    assert shop.orders.add_reference("customer", "../customers", "customer_id").changed
    assert not shop.orders.add_reference("customer", "../customers", ["customer_id"]).changed
    assert shop.rows("customer_name", "customer_crm_ts", "customer_tier") == [(1, "Ann", 1, "none")]
    shop.customers.add_column("crm", "city", "string")
    assert "customer_city" not in shop.orders.snapshot().schema.names  # the list of columns was made with the reference
    with pytest.raises(Conflict, match="reference 'customer' already exists, with columns"):
        shop.orders.add_reference("customer", "../customers", "customer_id")
    with pytest.raises(InvalidInput, match="would be shown as 'customer_id'"):
        shop.orders.add_reference("again", "../customers", "customer_id", columns=["id"], prefix="customer_")
    during = str(shop.orders.snapshot().cut)
    assert shop.orders.drop_reference("customer").changed
    with pytest.raises(NotFound, match="has no reference 'customer'"):
        shop.orders.drop_reference("customer")
    assert shop.orders.snapshot().schema.names == list(ORDERS["columns"])
    assert shop.rows("customer_name", as_of=during) == [(1, "Ann")]
    with pytest.raises(NotFound, match="no column 'customer_name'"):
        shop.rows("customer_name", as_of=before)
    shop.orders.add_column("order", "note", "string")  # other schema changes keep references
    entries = [
        shop.orders._table_log.commit_log.entry(TABLE_LANE, slot) for slot in range(1, shop.orders.state().head + 1)
    ]
    with_reference = ["references" in entry.reader_features for entry in entries if isinstance(entry, Schema)]
    assert with_reference == [True, False, False]


def test_columns_of_a_reference_cannot_be_written(shop: Shop) -> None:
    with pytest.raises(InvalidInput, match="customer_name"):
        write(shop.orders, "orders", order_id=[1], customer_id=[1], **no_product(1), ts=[1], customer_name=["Ann"])


def test_names_that_do_not_exist_are_refused_with_those_that_do(shop: Shop) -> None:
    with pytest.raises(NotFound, match="nope") as raised:
        shop.rows("nope", "customer_name")
    assert "customer_tier" in raised.value.hint
    with pytest.raises(NotFound, match="no group or reference 'nope'") as raised:
        shop.rows("customer_name", require=["nope"])
    assert "references: customer" in raised.value.hint
    with pytest.raises(NotFound, match="the filter does not fit the table"):
        shop.rows("customer_name", filter=(pc.field("customer_name") == "a") & (pc.field("nope") == 1))
    with pytest.raises(InvalidInput, match="not a condition"):
        shop.rows(filter=pc.field("customer_name"))
