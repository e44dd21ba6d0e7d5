"""Pruning: data that cannot match is not read, and no row is lost."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.predicates import predicates
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.storage.support.world import World, bag
from tests.strategies import Story, configs, stories
from tests.tuning import tuned
from weft import Table
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.files import base_file
from weft.storage.files.fetch_blocks import LogBlocks
from weft.storage.read.plan import pruning

K = pc.field("id")
PARTITIONED: dict[str, Any] = {
    "key": ["day", "shop", "id"],
    "partition_by": ["day", "shop"],
    "buckets": 4,
    "columns": {"day": "date", "shop": "string", "id": "bigint", "v": "bigint"},
    "groups": {"g": {"columns": ["v"]}},
    "streams": {"s": {"groups": ["g"]}},
}


class Reads:
    """Records the row groups of bases and the blocks of logs that are read."""

    def __init__(self) -> None:
        self.row_groups = self.blocks = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    decode, plan = base_file._decode, LogBlocks.__init__

    def count_row_groups(parquet: pq.ParquetFile, footer: Any, together: Any, columns: Any) -> Any:
        found.row_groups += len(together)
        return decode(parquet, footer, together, columns)

    def count_blocks(self: LogBlocks, store: Any, files: Any, blocks: Any, columns: Any) -> None:
        found.blocks += sum(map(len, blocks.values()))
        plan(self, store, files, blocks, columns)

    monkeypatch.setattr(base_file, "_decode", count_row_groups)
    monkeypatch.setattr(LogBlocks, "__init__", count_blocks)
    return found


@pytest.mark.usefixtures("small_files")
@given(st.data())
def test_a_filtered_read_equals_filtering_all_rows(data: st.DataObject) -> None:
    """M4 under every kind of filter: over keys, partitions, values, in slices with and without logs."""
    story: Story = data.draw(stories(max_steps=8))
    with World(story.config) as world:
        world.run(story.steps)
        snapshot = world.table.snapshot()
        whole = snapshot.to_arrow()
        for _ in range(4):
            predicate = data.draw(predicates(story.config))
            assert bag(snapshot.to_arrow(filter=predicate)) == bag(whole.filter(predicate)), predicate


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8), st.data())
def test_get_returns_exactly_the_rows_of_the_keys(story: Story, data: st.DataObject) -> None:
    with World(story.config) as world:
        world.run(story.steps)
        snapshot = world.table.snapshot()
        whole = snapshot.to_arrow()
        key = story.config["key"]
        known = [tuple(row[name] for name in key) for row in whole.select(key).to_pylist()]
        appended = [tuple(row[name] for name in key) for one in story.appends for row in one.rows]
        asked = data.draw(st.lists(st.sampled_from(appended), max_size=3)) if appended else []
        found = snapshot.get(asked)
        chosen = pa.array([row_key in set(asked) for row_key in known], pa.bool_())
        assert bag(found) == bag(whole.filter(chosen))


@pytest.fixture
def shop(reads: Reads) -> Table:
    """4 file groups of 1000 orders, in row groups of 100, with logs of a few."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(4000)))
    tuned(table, row_group_rows=100).compact()
    reads.row_groups = reads.blocks = 0
    return table


def test_keys_in_a_filter_choose_file_groups_and_row_groups(shop: Table, reads: Reads) -> None:
    snapshot = shop.snapshot()
    assert snapshot.scan(filter=K == 17).skipped == 3
    assert snapshot.scan(filter=K.isin([17, 17])).skipped == 3
    assert snapshot.scan(filter=(K == 17) & (K == 18)).tasks == ()
    assert snapshot.scan(filter=(K == 17) | (pc.field("status") == "new")).skipped == 0
    assert snapshot.to_arrow(["id"], filter=K == 17).to_pylist() == [{"id": 17}]
    assert reads.row_groups == 1
    assert snapshot.to_arrow(["id"], filter=K == 5000).to_pylist() == []
    assert reads.row_groups <= 2


@pytest.mark.usefixtures("own_files")
def test_ranges_and_values_choose_row_groups_by_statistics(shop: Table, reads: Reads) -> None:
    snapshot = shop.snapshot()
    assert sorted(snapshot.to_arrow(["id"], filter=(K >= 10) & (K < 20))["id"].to_pylist()) == list(range(10, 20))
    assert reads.row_groups == 4
    assert snapshot.to_arrow(filter=pc.field("status") == "old").num_rows == 0
    assert snapshot.to_arrow(filter=pc.field("paid").is_valid()).num_rows == 0
    assert reads.row_groups == 4


def test_row_groups_with_keys_in_the_logs_are_read_despite_statistics(shop: Table, reads: Reads) -> None:
    shop = tuned(shop, scan_run_bytes=1)
    append(shop, orders(40, 4711, status="old", ts=2))
    old = pc.field("status") == "old"
    assert sorted(shop.snapshot().to_arrow(["id"], filter=old)["id"].to_pylist()) == [40, 4711]
    assert reads.row_groups == 1
    append(shop, orders(40, status="new", ts=3))
    assert shop.snapshot().to_arrow(["id"], filter=old)["id"].to_pylist() == [4711]


@pytest.mark.usefixtures("own_files")
def test_row_groups_are_read_only_for_keys_whose_log_may_match(shop: Table, reads: Reads) -> None:
    shop = tuned(shop, scan_run_bytes=1)
    append(shop, orders(*range(0, 1000, 3), status="paid", ts=2))  # keys of every row group
    old, snapshot = pc.field("status") == "old", shop.snapshot()
    assert snapshot.to_arrow(["id"], filter=old).num_rows == 0
    assert reads.row_groups == 0
    append(shop, orders(40, status="old", ts=0))  # older than the row that the base has
    append(shop, orders(41, 4711, status="old", ts=3))
    assert sorted(shop.snapshot().to_arrow(["id"], filter=old)["id"].to_pylist()) == [41, 4711]
    assert 1 <= reads.row_groups <= 2
    assert shop.snapshot().to_arrow(["id"], filter=old & (pc.field("paid") > 0)).num_rows == 0


def test_get_reads_one_row_group_and_the_blocks_that_can_have_the_key(shop: Table, reads: Reads) -> None:
    shop = tuned(shop, block_min_bytes=40, block_max_bytes=160)
    append(shop, payments(*range(0, 4000, 3)), "payments")
    append(shop, payments(3, 6, 9), "payments")
    found = shop.get([3], ["id", "status", "paid"])
    assert found.to_pylist() == [{"id": 3, "status": "new", "paid": 1.0}]
    assert (reads.row_groups, reads.blocks) == (1, 2)
    assert shop.get([3, 3, 10_000], ["id"]).to_pylist() == [{"id": 3}]
    assert shop.get([], ["id"]).to_pylist() == []
    assert shop.get([4, 3], ["id"], require=["payment"]).to_pylist() == [{"id": 3}]
    assert shop.get(pa.table({"id": pa.array([5], pa.int32())}), ["id"]).to_pylist() == [{"id": 5}]


def test_get_reads_the_requested_snapshot(shop: Table) -> None:
    before = str(shop.snapshot().cut)
    append(shop, orders(3, op="D", ts=9))
    assert shop.get([3]).num_rows == 0
    assert shop.get([3], ["status"], as_of=before).to_pylist() == [{"status": "new"}]
    append(shop, payments(3), "payments")
    assert shop.get([3]).num_rows == 0  # it was deleted
    shop.compact()
    append(shop, orders(3, ts=10))
    assert shop.get([3], ["id", "paid"]).to_pylist() == [{"id": 3, "paid": 1.0}]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["x"], "the keys do not fit the table"),
        ([None], "a key contains null"),
        ([(1, 2)], "2 values"),
        (pa.table({"no": [1]}), "the keys do not fit the table"),
        ([1.5], "the keys do not fit the table"),
        ("17", "a str is not a list of keys"),
        (b"17", "a bytes is not a list of keys"),
        ({17: 1}, "a dict is not a list of keys"),
        (["17"], "string is not int64"),
        ([True], "bool is not int64"),
        (pa.table({"id": ["17"]}), "string is not int64"),
        ([dt.date(2024, 1, 1)], "date32.* is not int64"),
    ],
)
def test_invalid_keys_are_refused(shop: Table, keys: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        shop.get(keys)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("date", dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)),  # a cast would drop the time of day, and take another key
        ("date", 19_723),
        ("timestamp", 1_704_067_200_000_000),
        ("decimal(10,2)", Decimal("1.001")),
        ("string", b"17"),
        ("binary", "17"),
    ],
)
def test_a_key_is_never_changed_to_fit(kind: str, key: Any) -> None:
    table = Table.create(new_uri(), {**SHOP, "columns": {**SHOP["columns"], "id": kind}})
    with pytest.raises(InvalidInput, match="do not fit the table"):
        table.get([key])


def test_keys_are_accepted_in_any_form_of_their_type() -> None:
    table = Table.create(new_uri(), PARTITIONED)
    day = pa.array([20_000], pa.int32()).cast(pa.date32())
    with table.writer("s") as writer:
        writer.append(pa.table({"day": day, "shop": ["a"], "id": [1], "v": [5]}))
    for text_type in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        keys = pa.table({"day": day.cast(pa.timestamp("us")), "shop": pa.array(["a"], text_type), "id": [1.0]})
        assert table.get(keys, ["v"]).to_pylist() == [{"v": 5}]
    with pytest.raises(InvalidInput, match="int64 is not string"):
        table.get([(day[0].as_py(), 1, 1)])


def test_get_refuses_unknown_columns(shop: Table) -> None:
    with pytest.raises(NotFound, match="no column 'nope'"):
        shop.get([1], ["nope"])


def test_partitions_are_pruned_by_values_and_by_ranges() -> None:
    table = Table.create(new_uri(), PARTITIONED)
    days, shops = pa.array(["2026-01-01", "2026-01-02", "2026-01-03"]).cast(pa.date32()), ["a", "b/c", "", "d~e"]
    rows = [(day, shop, number) for day in days for shop in shops for number in range(20)]
    with table.writer("s") as writer:
        day, shop, number = zip(*rows, strict=True)
        writer.append(pa.table({"day": pa.array([d.as_py() for d in day]), "shop": shop, "id": number, "v": number}))
    snapshot = table.snapshot()
    whole = snapshot.to_arrow()
    groups = len(snapshot.slices)

    def check(predicate: pc.Expression, most: int) -> None:
        scan = snapshot.scan(filter=predicate)
        assert groups - scan.skipped <= most
        assert bag(snapshot.to_arrow(filter=predicate)) == bag(whole.filter(predicate))

    check(pc.field("day") == days[1], 16)
    check(pc.field("day") > days[1], 16)
    check((pc.field("shop") == "b/c") & (pc.field("day") < days[1]), 4)
    check(pc.field("shop").isin(["a", "d~e"]), 24)
    check(pc.field("shop") == "", 12)
    check(pc.field("shop") < "a", 24)  # the folders of "" and "d~e" do not have the values
    check((pc.field("shop") == "a") & (pc.field("day") == days[0]) & (pc.field("id") == 7), 1)
    check(pc.field("day") > days[2], 0)


def test_the_values_of_many_partitions_are_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(new_uri(), PARTITIONED)
    with table.writer("s") as writer:
        day = pa.array(range(50), pa.int32()).cast(pa.date32())
        writer.append(pa.table({"day": day, "shop": ["a"] * 50, "id": range(50), "v": range(50)}))
    seen = Counter[str]()
    folder = pruning._folder

    def count(name: str, value: Any, arrow_type: pa.DataType) -> str:
        seen[name] += 1
        return folder(name, value, arrow_type)

    monkeypatch.setattr(pruning, "_folder", count)
    wanted = pa.array(range(49, 149), pa.int32()).cast(pa.date32())
    assert table.snapshot().scan(filter=pc.field("day").isin(wanted)).skipped == 49
    assert seen == {"day": 100}


def test_a_long_chain_of_conditions_prunes(shop: Table, reads: Reads) -> None:
    chain = reduce(or_, [pc.field("id") == number for number in range(0, 2000, 2)])
    assert shop.snapshot().to_arrow(["id"], filter=chain).num_rows == 1000
    assert reads.row_groups <= 24


@given(st.data())
def test_filters_prune_file_groups_for_every_type_of_key(data: st.DataObject) -> None:
    config = data.draw(configs())
    table = Table.create(f"memory://pruning/{uuid.uuid4().hex}", config)
    scan = table.snapshot().scan(filter=data.draw(predicates(config)))
    assert scan.tasks == ()


def test_slices_of_an_older_schema_are_not_pruned_by_older_defaults() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, payments(1, 2, 3), "payments")
    table.compact()
    table.set_default("status", "unknown")
    assert contents(table, ["status"]) == [("unknown",)] * 3
    assert table.snapshot().to_arrow(filter=pc.field("status") == "unknown").num_rows == 3
    assert table.snapshot().to_arrow(filter=pc.field("status").is_null()).num_rows == 0
    assert table.snapshot().to_arrow(filter=(pc.field("status") == "unknown") & (K == 2)).num_rows == 1
