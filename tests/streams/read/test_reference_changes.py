"""Changes of a table with references through Spark: an update of a customer changes its orders, exactly once."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles

from tests.storage.read.references import test_reference_laws as laws
from tests.storage.support.reference_shop import CUSTOMER, Shop, write
from tests.streams.read.test_change_stream import Consumer
from tests.tuning import tune
from weft import Table
from weft.storage.errors import NotFound, OffsetInvalidated
from weft.storage.read.changes.consumer_cuts import advance_cut, referenced_cuts
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.change_stream import ChangeOptions, ChangeStreamReader, change_schema
from weft.streams.read.table_source import register

Rows = list[tuple[Any, ...]]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Orders 0 to 3, the first two of customer 1; customers 1 and 2."""
    made = Shop(tmp_path, {"customer": CUSTOMER})
    made.customer(1, "Ann")
    made.customer(2, "Bob")
    for order, customer in enumerate([1, 1, 2, 9]):
        made.order(order, customer)
    return made


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and row groups of a few rows, and tasks that divide a file group."""
    files = {"block_min_bytes": 40, "block_max_bytes": 160, "row_group_rows": 2, "shared_row_group_rows": 2}
    tune(monkeypatch, **files, change_task_bytes=400, change_task_rows=2)


class Follower:
    """A reader as Spark uses it, without Spark: it plans in one copy, and reads each task in another one."""

    def __init__(self, table: Table, **options: str) -> None:
        self.table = table
        self.options = {"starting": "earliest", **options}
        self.offset: dict[str, Any] = {}
        self.restart()

    def restart(self) -> None:
        options = ChangeOptions.of(self.options)
        assert options is not None
        self.schema = change_schema(self.table, options)
        self.reader = ChangeStreamReader(TableLocation(self.table.uri), options, self.schema)

    def batch(self, limit: ReadLimit | None = None) -> list[dict[str, Any]]:
        """The rows of the next batch."""
        start, self.offset = self.offset, self.reader.latestOffset(self.offset, limit or ReadAllAvailable())
        return self.read(start, self.offset)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        start, end = json.loads(json.dumps([start, end]))
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]


def brief(rows: list[dict[str, Any]], *columns: str) -> Rows:
    """The key, the kind, the changed groups and some columns of each change, by key."""
    return sorted(
        (row["order_id"], row["_change"], row["_changed_groups"], *(row[name] for name in columns)) for row in rows
    )


@pytest.mark.extended
def test_a_query_delivers_orders_of_changed_customers_across_restarts(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    register(spark)

    def consumer() -> Consumer:
        return Consumer(spark, shop.orders, tmp_path / "checkpoint", before="true")

    mine = consumer().run()
    assert brief(mine.batches[0], "customer_name") == [
        (0, "insert", ["order", "customer"], "Ann"),
        (1, "insert", ["order", "customer"], "Ann"),
        (2, "insert", ["order", "customer"], "Bob"),
        (3, "insert", ["order"], None),
    ]
    shop.customer(1, "Anna", ts=2)
    shop.order(2, 1, ts=2)
    write(shop.orders, "payments", order_id=[3], paid=[1.0], pay_ts=[1])
    failing = consumer()
    failing.fail_in = 1
    with pytest.raises(StreamingQueryException, match="after it has written"):
        failing.run()
    shop.customer(1, "Annette", ts=3)  # not in the batch that is repeated
    shop.customer(9, "Zoe")
    shop.orders.compact()
    shop.customers.compact()
    mine = consumer().run()
    assert brief(mine.batches[1], "customer_name") == brief(failing.batches[1], "customer_name")
    assert brief(mine.batches[1], "customer_name") == [
        (0, "update", ["customer"], "Anna"),
        (1, "update", ["customer"], "Anna"),
        (2, "update", ["order", "customer"], "Anna"),
        (3, "update", ["payment"], None),
    ]
    assert brief(mine.batches[2], "customer_name") == [
        (0, "update", ["customer"], "Annette"),
        (1, "update", ["customer"], "Annette"),
        (2, "update", ["customer"], "Annette"),
        (3, "update", ["customer"], "Zoe"),
    ]
    before = {row["order_id"]: row["_before"]["customer_name"] for row in mine.batches[2]}
    assert before == {0: "Anna", 1: "Anna", 2: "Anna", 3: None}
    assert mine.cuts()[-1] == str(shop.orders.snapshot().cut)
    batch = (
        spark.read.format("weft").options(changes_since=mine.cuts()[0], columns="customer_tier").load(shop.orders.uri)
    )
    assert sorted(row["order_id"] for row in batch.collect()) == [3]


def test_a_limit_counts_commits_of_the_table_and_takes_the_newest_customers(shop: Shop) -> None:
    follower = Follower(shop.orders, columns="customer_name")
    follower.batch(ReadMaxFiles(1))
    for name in ("a", "b", "c"):
        shop.customer(5, name, ts=ord(name))
    for order in (10, 11):
        shop.order(order, 5)
    batches = [brief(follower.batch(ReadMaxFiles(1)), "customer_name") for _ in range(3)]
    assert batches == [[(10, "insert", ["customer"], "c")], [(11, "insert", ["customer"], "c")], []]
    assert follower.offset["cut"] == str(shop.orders.snapshot().cut)


def test_a_run_of_what_is_available_ends_at_the_customers_of_its_beginning(shop: Shop) -> None:
    follower = Follower(shop.orders, columns="customer_name")
    follower.reader.prepareForTriggerAvailableNow()
    shop.customer(1, "later", ts=2)
    assert {row["customer_name"] for row in follower.batch()} == {"Ann", "Bob", None}
    assert follower.batch() == []


def test_a_query_that_reads_no_column_of_a_reference_does_not_follow_its_table(shop: Shop) -> None:
    follower = Follower(shop.orders, columns="paid")
    follower.batch()
    offset = follower.offset
    assert not referenced_cuts(offset["cut"])
    shop.customer(1, "Anna", ts=2)
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    assert follower.batch() == []
    assert follower.offset == offset
    with pytest.raises(NotFound, match="reference 'customer': there is no table at"):
        Follower(shop.orders).batch()


def test_a_reference_that_is_added_is_delivered_after_the_restart(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {})
    shop.customer(1, "Ann")
    for order, customer in enumerate([1, 9]):
        shop.order(order, customer)
    follower = Follower(shop.orders)
    first: dict[str, Any] = {}
    follower.batch()
    second = follower.offset
    shop.orders.add_reference("customer", **CUSTOMER)
    shop.order(2, 1)
    assert brief(follower.batch()) == [(2, "insert", ["order"])]  # with the columns that it began with
    third = follower.offset
    follower.restart()
    again = [follower.read(*ends) for ends in itertools.pairwise((first, second, third))]  # batches that Spark repeats
    assert [brief(rows, "customer_name") for rows in again] == [
        [(0, "insert", ["order"], None), (1, "insert", ["order"], None)],
        [(2, "insert", ["order"], None)],
    ]
    assert brief(follower.batch(), "customer_name") == [
        (0, "update", ["customer"], "Ann"),
        (2, "update", ["customer"], "Ann"),
    ]


def test_a_widened_column_of_a_customer_is_read_after_the_restart(shop: Shop) -> None:
    shop.customers.add_column("crm", "age", "int", default=1)
    shop.orders.drop_reference("customer")
    shop.orders.add_reference("customer", **{**CUSTOMER, "columns": ["name", "age"]})
    follower = Follower(shop.orders)
    follower.batch()
    start = follower.offset
    write(shop.customers, "crm", id=[1], name=["Ann"], crm_ts=[2], age=pa.array([7], pa.int32()))
    follower.batch()
    end = follower.offset
    shop.customers.widen_column("age", "bigint")
    write(shop.customers, "crm", id=[2], name=["Bob"], crm_ts=[2], age=[1 << 40])
    follower.restart()
    assert follower.schema["customer_age"].dataType.simpleString() == "bigint"
    assert brief(follower.read(start, end), "customer_age") == [
        (0, "update", ["customer"], 7),
        (1, "update", ["customer"], 7),
    ]
    assert brief(follower.batch(), "customer_age") == [(2, "update", ["customer"], 1 << 40)]


def test_a_restore_of_the_customers_fails_the_query_and_names_the_reference(shop: Shop) -> None:
    shop.customers.savepoint("good")
    shop.customer(1, "wrong", ts=2)
    follower = Follower(shop.orders)
    follower.batch()
    shop.customers.restore("good")
    with pytest.raises(OffsetInvalidated, match="reference 'customer': the table was restored"):
        follower.batch()


def test_customers_that_did_not_change_cost_no_scan_of_foreign_keys(shop: Shop) -> None:
    follower = Follower(shop.orders)
    follower.batch()
    start = follower.offset
    shop.order(7, 2)
    follower.batch()
    (task,) = follower.reader.partitions(start, follower.offset)
    assert {part.group for part in task.value.task.after.slices} == {
        part.group for part in task.value.task.touched.slices
    }
    assert task.value.read.__self__.referring == ()
    start = follower.offset
    shop.customer(2, "Bobby", ts=2)
    follower.batch()
    scan = follower.reader.partitions(start, follower.offset)[0].value.read.__self__
    assert [each.changes.after.scan.at for each in scan.referring] == [shop.customers.snapshot().cut]


@pytest.mark.usefixtures("small_tasks")
@settings(max_examples=12)
@given(st.lists(laws.steps, max_size=6), st.data())
def test_followed_changes_are_those_of_the_table_and_lead_to_its_snapshot(
    story: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    shop = laws.Shop()
    columns = data.draw(st.sampled_from([None, ["customer_name", "paid"], ["twin_id"]]), label="columns")
    require = data.draw(st.sampled_from([[], ["customer"], ["order"]]), label="require")
    options = {"columns": ",".join(columns)} if columns else {}
    follower = Follower(shop.orders, **options, **({"require": ",".join(require)} if require else {}))
    rows: dict[Any, Any] = {}
    for step in [*laws.FIRST, *story, None]:
        if step is not None:
            shop.run(step)
            if not data.draw(st.booleans(), label="follow"):
                continue
        if data.draw(st.booleans(), label="restart"):
            follower.restart()
        start = follower.offset
        limit = ReadMaxFiles(1) if step is not None and data.draw(st.booleans(), label="limit") else None
        changes = follower.batch(limit)
        by_table = shop.orders.changes(
            start.get("cut"), follower.offset["cut"], columns=columns, require=require
        ).read_all()
        assert sorted(map(repr, changes)) == sorted(map(repr, by_table.to_pylist()))
        for row in changes:
            key, kind, _ = row["order_id"], row.pop("_change"), row.pop("_changed_groups")
            assert (kind == "insert") != (key in rows)
            rows[key] = row
            if kind == "delete":
                del rows[key]
    wanted = ["order_id", *columns] if columns else None
    found = shop.orders.snapshot().to_arrow(wanted, require=require).to_pylist()
    assert sorted(map(repr, rows.values())) == sorted(map(repr, found))


def test_a_bounded_cut_of_a_table_without_references_names_none(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {})
    since = shop.orders.snapshot()
    shop.order(1, None)
    assert advance_cut(since, shop.orders.snapshot(), 1) == shop.orders.snapshot().cut
