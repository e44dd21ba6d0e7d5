"""References to other tables: what a joined snapshot shows, keeps and refuses. MERGE.md, "References"."""

from __future__ import annotations

import datetime as dt
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage import Table
from storage.core.log.cut import JoinedCut, parse_cut
from storage.core.log.entries import Schema
from storage.core.names import TABLE_LANE
from storage.errors import Conflict, InvalidInput, NotComplete, NotFound, SnapshotExpired, TableError
from storage.read.joined_scan import JoinedScan

CUSTOMERS: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "name": "string",
        "crm_ts": "bigint",
        "tier": {"type": "string", "default": "none"},
        "tier_ts": "bigint",
    },
    "groups": {
        "crm": {"columns": ["name", "crm_ts"], "ordering": ["crm_ts"]},
        "loyalty": {"columns": ["tier", "tier_ts"], "ordering": ["tier_ts"]},
    },
    "streams": {"crm": {"groups": ["crm"], "on_delete": "row"}, "loyalty": {"groups": ["loyalty"]}},
}
PRODUCTS: dict[str, Any] = {
    "key": ["shop", "sku"],
    "columns": {"shop": "int", "sku": "string", "title": "string"},
    "groups": {"product": {"columns": ["title"]}},
    "streams": {"products": {"groups": ["product"]}},
}
ORDERS: dict[str, Any] = {
    "key": ["order_id"],
    "columns": {
        "order_id": "bigint",
        "customer_id": "bigint",
        "shop": "int",
        "sku": "string",
        "ts": "bigint",
        "paid": "double",
        "pay_ts": "bigint",
    },
    "groups": {
        "order": {"columns": ["customer_id", "shop", "sku", "ts"], "ordering": ["ts"]},
        "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}
CUSTOMER = {"table": "../customers", "on": "customer_id", "columns": ["name", "tier"]}


class Shop:
    """Three tables in one folder."""

    def __init__(self, folder: Path, references: Mapping[str, Any]) -> None:
        self.folder = folder
        self.customers = Table.create(folder / "customers", CUSTOMERS)
        self.products = Table.create(folder / "products", PRODUCTS)
        self.orders = Table.create(folder / "orders", {**ORDERS, "references": references})

    def customer(self, key: int, name: str | None, ts: int = 1, op: str = "upsert") -> None:
        write(self.customers, "crm", id=[key], name=[name], crm_ts=[ts], _op=[op])

    def order(self, key: int, customer: int | None, ts: int = 1) -> None:
        write(
            self.orders,
            "orders",
            order_id=[key],
            customer_id=pa.array([customer], pa.int64()),
            **_no_product(1),
            ts=[ts],
        )

    def rows(self, *columns: str, as_of: dt.datetime | str | None = None, **options: Any) -> list[Any]:
        """Rows as tuples, by order."""
        found = self.orders.snapshot(as_of).to_arrow(["order_id", *columns], **options).sort_by("order_id")
        return [tuple(row.values()) for row in found.to_pylist()]


def _no_product(rows: int) -> dict[str, pa.Array]:
    return {"shop": pa.nulls(rows, pa.int32()), "sku": pa.nulls(rows, pa.string())}


def write(table: Table, stream: str, **columns: Any) -> None:
    with table.writer(stream) as writer:
        writer.append(pa.table(columns))


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
        **_no_product(5000),
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
    from storage.read import references

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
        (shop.orders, "orders", {"order_id": [1], "customer_id": [1], **_no_product(1), "ts": [100]}),
        (shop.orders, "payments", {"order_id": [1], "paid": [1.0], "pay_ts": [100]}),
        (shop.customers, "crm", {"id": [1], "name": ["Ann"], "crm_ts": [100]}),
    ):
        with table.writer(stream, lateness=5) as writer:
            writer.append(pa.table(columns))
    shop.orders.snapshot(complete_through=90, require=["order", "payment"])
    with pytest.raises(NotComplete, match=r"reference 'customer'.*loyalty"):
        shop.orders.snapshot(complete_through=90)
    with pytest.raises(NotComplete, match="reference 'customer'"):
        shop.orders.snapshot(complete_through=90, require=["customer"])
    with shop.customers.writer("loyalty", lateness=5) as writer:
        writer.append(pa.table({"id": [1], "tier": ["gold"], "tier_ts": [100]}))
    shop.orders.snapshot(complete_through=90)


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
        write(shop.orders, "orders", order_id=[1], customer_id=[1], **_no_product(1), ts=[1], customer_name=["Ann"])


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
