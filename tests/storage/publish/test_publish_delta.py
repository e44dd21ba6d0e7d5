"""Tables published as Delta, read by readers that know nothing of weft: delta-rs and Polars."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaProtocolError
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import Fault, FaultyStore
from tests.storage.publish.test_publish_iceberg import in_order
from tests.storage.support.every_type import EVERY_TYPE, MOMENT, append_every_type
from tests.storage.support.shop import SHOP, append, fill_with_every_state, orders, payments
from weft import Table
from weft.storage.core.predicate import ColumnRange
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, Conflict, CorruptData, InvalidInput, NotFound, StoreUnavailable
from weft.storage.publish.deletion_vector import inline_deletion_vector
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.delta_files import BOUND_LENGTH, _bounds
from weft.storage.store.open_store import open_store


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "orders", SHOP)


def root_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://")) / "base"


def by_datafusion(table: Table, where: str = "true") -> pa.Table:
    """The rows as delta-rs reads them with DataFusion."""
    builder = QueryBuilder().register("t", DeltaTable(root_of(table)))
    return pa.table(builder.execute(f"SELECT * FROM t WHERE {where}").read_all())


def by_polars(table: Table) -> pa.Table:
    return pl.scan_delta(root_of(table)).collect().to_arrow()


def check_same_rows(table: Table) -> None:
    """Two other readers show the rows and columns of a read-optimized read."""
    snapshot = table.snapshot()
    expected = snapshot.read_optimized().to_arrow(snapshot.table_columns.names)
    for shown in (by_datafusion(table), by_polars(table)):
        assert shown.column_names == expected.column_names
        assert repr(in_order(shown)) == repr(in_order(expected))  # NaN is not equal to itself


def compact_one(table: Table, number: int) -> None:
    chosen = table.snapshot().slices[number].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)


def entries(table: Table, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root_of(table) / f"_delta_log/{version:020d}.json").read_text().splitlines()]


def test_other_readers_show_the_rows_of_a_read_optimized_read(table: Table) -> None:
    fill_with_every_state(table)
    first = publish_delta(table)
    check_same_rows(table)
    assert first.rows == table.snapshot().read_optimized().to_arrow().num_rows == 966
    assert DeltaTable(root_of(table)).to_pyarrow_table().num_rows == 966  # without features every reader can read it
    table.compact()
    second = publish_delta(table)
    check_same_rows(table)
    assert (second.snapshot_id, second.removed, second.added) == (1, first.files, second.files)


def test_publishing_the_same_base_files_again_changes_nothing(table: Table) -> None:
    append(table, orders(*range(20)))
    table.compact()
    first, savepoints = publish_delta(table), table.savepoints()
    append(table, orders(1, ts=2))  # not in a base file
    again = publish_delta(table)
    assert (again.changed, again.added, again.removed, again.snapshot_id) == (False, 0, 0, first.snapshot_id)
    assert table.savepoints() == savepoints
    table.release_savepoint(savepoints[0].name)
    assert publish_delta(table).changed
    check_same_rows(table)


def test_a_table_without_base_files_is_published_without_rows(table: Table) -> None:
    append(table, orders(1))
    assert publish_delta(table).files == 0
    check_same_rows(table)
    table.compact()
    publish_delta(table)
    append(table, orders(1, ts=2, op="D"))
    table.compact()
    assert publish_delta(table).removed == 1
    check_same_rows(table)


def test_unused_rows_of_shared_files_are_deleted_by_vectors(table: Table) -> None:
    append(table, orders(*range(40), status="old"))
    table.compact()  # one file for all four file groups
    publish_delta(table)
    seen = []
    for number in range(4):
        append(table, orders(*range(40), status=f"new{number}", ts=2 + number))
        compact_one(table, number)
        published = publish_delta(table)
        check_same_rows(table)
        assert published.rows == 40
        seen.append(published.unused_rows)
    assert seen == [*sorted(seen[:3]), 0]  # the shared file is unused at last
    assert seen[2] > seen[0] > 0


def test_without_deletion_vectors_any_reader_can_read(tmp_path: Path) -> None:
    """A state that needs them is refused, and what was published before stays; then the feature is dropped."""
    table = Table.create(tmp_path / "shared", SHOP)
    append(table, orders(*range(40), status="old"))
    table.compact()  # one file for all file groups
    publish_delta(table, deletion_vectors=False)
    append(table, orders(*range(40), status="new", ts=5))
    first, *rest = [each.group for each in table.snapshot().slices]
    table.compact(only=lambda file_slice: file_slice.group == first)
    with pytest.raises(InvalidInput, match=r"rows? of 1 shared base file are not current") as caught:
        publish_delta(table, deletion_vectors=False)
    assert "deletion vectors" in caught.value.hint
    log = DeltaTable(root_of(table))
    assert set(log.to_pyarrow_table()["status"].to_pylist()) == {"old"}
    assert publish_delta(table).unused_rows
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        DeltaTable(root_of(table)).to_pyarrow_table()
    table.compact(only=lambda file_slice: file_slice.group in rest)
    assert publish_delta(table).unused_rows == 0
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        DeltaTable(root_of(table)).to_pyarrow_table()  # it is refused although there is none any more
    assert publish_delta(table, deletion_vectors=False).changed
    log = DeltaTable(root_of(table))
    assert set(log.to_pyarrow_table()["status"].to_pylist()) == {"new"}
    assert log.protocol().reader_features is None
    assert (root_of(table) / f"_delta_log/{log.version():020d}.checkpoint.parquet").exists()
    assert not publish_delta(table, deletion_vectors=False).changed


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 1)],
        [(3, 5), (6, 7), (65_535, 65_537), (131_072, 131_073)],
        [(0, 300_000)],
        [(number, number + 1) for number in range(0, 330_000, 30_011)],
        [(0, 65_536), (399_999, 400_000)],
    ],
)
def test_a_deletion_vector_is_what_other_readers_decode(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    write_deltalake(
        tmp_path,
        pa.table({"n": pa.array(range(400_000), pa.int64())}),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    log = tmp_path / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"] |= {"deletionVector": inline_deletion_vector(spans)}
    log.write_text("\n".join(map(json.dumps, actions)))
    deleted = {number for span in spans for number in range(*span)}
    expected = [number for number in range(400_000) if number not in deleted]
    reader = QueryBuilder().register("t", DeltaTable(tmp_path)).execute("SELECT n FROM t ORDER BY n").read_all()
    assert pa.table(reader)["n"].to_pylist() == expected
    assert pl.scan_delta(tmp_path).collect()["n"].sort().to_list() == expected


@given(st.lists(st.text(max_size=40), min_size=1))
def test_bounds_of_texts_are_short_and_cover_all(texts: list[str]) -> None:
    column = ColumnRange(pa.string(), min(texts), max(texts, key=str.encode), 0, len(texts))
    least, largest = (None if bound is None else json.loads(bound) for bound in _bounds(pa.string(), [column]))
    assert least is not None
    assert len(least) <= BOUND_LENGTH
    assert least.encode() <= min(text.encode() for text in texts)
    if largest is None:
        assert max(texts)[:BOUND_LENGTH] == "\U0010ffff" * BOUND_LENGTH
    else:
        assert len(largest) <= BOUND_LENGTH
        assert largest.encode() >= max(text.encode() for text in texts)


@given(st.datetimes(), st.sampled_from([dt.UTC, None]))
def test_bounds_of_times_cover_them_to_the_millisecond(value: dt.datetime, zone: dt.tzinfo | None) -> None:
    value = value.replace(tzinfo=zone)
    column = ColumnRange(pa.timestamp("us", None if zone is None else "UTC"), value, value, 0, 1)
    least, largest = (json.loads(bound) for bound in _bounds(column.type, [column]) if bound is not None)
    assert dt.datetime.fromisoformat(least) <= value
    # Readers add a millisecond to the upper bound, because other writers cut it.
    assert value - dt.datetime.fromisoformat(largest) <= dt.timedelta(milliseconds=1)
    assert least.endswith("Z") == largest.endswith("Z") == (zone is not None)


def test_other_engines_refuse_to_write_and_to_vacuum(table: Table) -> None:
    append(table, orders(*range(20)))
    table.compact()
    publish_delta(table)
    append(table, orders(*range(20), status="newest", ts=2))
    table.compact()  # its files are not in the published table: a vacuum would delete them
    published = DeltaTable(root_of(table))
    with pytest.raises(CommitFailedError, match="weftPublished"):
        published.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    with pytest.raises(CommitFailedError, match="weftPublished"):
        published.delete()
    assert set(table.snapshot().read_optimized().to_arrow()["status"].to_pylist()) == {"newest"}
    assert table.verify().findings == ()


def test_cleaning_keeps_the_log_and_the_files_of_the_last_two_versions(table: Table) -> None:
    for number in range(4):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        table.compact()
        publish_delta(table)
    append(table, orders(*range(20), status="newest", ts=9))
    table.compact()
    assert table.clean(dt.timedelta(0)).foreign_files == 0
    shown = []
    for version in (2, 3):
        loaded = DeltaTable(root_of(table), version=version)
        shown.append(set(loaded.to_pyarrow_table()["status"].to_pylist()))
    assert shown == [{"v2"}, {"v3"}]
    assert len(table.savepoints()) == 2
    publish_delta(table)
    check_same_rows(table)


def test_a_long_log_has_checkpoints_and_old_entries_are_deleted(table: Table) -> None:
    append(table, orders(*range(40)))
    table.compact()
    publish_delta(table)
    for number in range(34):
        append(table, orders(*range(40), status=f"v{number}", ts=2 + number))
        compact_one(table, number % len(table.snapshot().slices))
        publish_delta(table)
    names = sorted(path.name for path in (root_of(table) / "_delta_log").iterdir())
    checkpoints = [name for name in names if "checkpoint" in name]
    assert len(checkpoints) == 2
    assert names[0].split(".")[0] == checkpoints[0].split(".")[0]
    assert len(names) < 24
    check_same_rows(table)
    assert publish_delta(Table.open(table.uri)).changed is False
    for checkpoint in checkpoints:
        assert pq.read_metadata(root_of(table) / "_delta_log" / checkpoint).num_rows > 3


def test_every_type_is_read_and_files_are_pruned_by_their_statistics(tmp_path: Path) -> None:
    nested = {"tags": "array<string>", "pairs": "map<string,int>", "inner": "struct<a:int,b:timestamp_ntz>"}
    groups = {"values": {**EVERY_TYPE["groups"]["values"]}}
    groups["values"]["columns"] = [*groups["values"]["columns"], *nested]
    table = Table.create(
        tmp_path / "types", EVERY_TYPE | {"columns": {**EVERY_TYPE["columns"], **nested}, "groups": groups}
    )
    days = ["2024-01-01", "a/b %", "", "\U0010ffff" * 40, "z" * 40, 'q"\\']

    def others(number: int, day: str) -> dict[str, Any]:
        return {
            "double": float("nan") if number % 2 else 0.5,
            "large_price": decimal.Decimal(f"1234567890123456789{number}.0123456789"),
            "tags": [day],
            "pairs": [("a", number)],
            "inner": {"a": number, "b": MOMENT.replace(tzinfo=None)},
        }

    append_every_type(table, days, others)
    publish_delta(table)
    check_same_rows(table)
    for number, day in enumerate(days):
        text = day.replace("'", "''")
        for condition, rows in {
            f"id = {2 * number}": 1,
            f"day = '{text}'": 2,
            f"price = {number}.1234": 1,
            f"small_price = -{number}.25": 1,
            f"large_price = cast('1234567890123456789{number}.0123456789' as decimal(38,10))": 1,
        }.items():
            assert by_datafusion(table, condition).num_rows == rows, condition
    for condition in ("instant = '2024-05-06T07:08:09.123456Z'", "local = '2024-05-06T07:08:09.123456'"):
        assert by_datafusion(table, condition).num_rows == len(days), condition
    statistics = [json.loads(action["add"]["stats"]) for action in entries(table, 0) if "add" in action]
    assert {each["maxValues"]["instant"] for each in statistics} == {"2024-05-06T07:08:09.124Z"}
    assert all("double" not in each["maxValues"] for each in statistics)
    assert all(each["nullCount"]["text"] == 1 for each in statistics)
    assert len(statistics) == len(days)


def test_added_columns_are_null_in_older_files(table: Table) -> None:
    append(table, orders(1, 2, 3))
    table.compact()
    publish_delta(table)
    table.add_column("order", "gift", "boolean", comment="wrapped")
    publish_delta(table)
    fields = DeltaTable(root_of(table)).schema().fields
    assert {field.name: field.metadata for field in fields if field.metadata} == {"gift": {"comment": "wrapped"}}
    check_same_rows(table)
    append(table, orders(3, 4).append_column("gift", pa.array([True, False])))
    table.compact()
    publish_delta(table)
    check_same_rows(table)
    assert by_datafusion(table, "gift")["id"].to_pylist() == [3]


@pytest.mark.parametrize("checkpoint", [1, 100])
def test_the_comment_of_the_table_is_published(table: Table, monkeypatch: pytest.MonkeyPatch, checkpoint: int) -> None:
    monkeypatch.setattr("weft.storage.publish.delta.CHECKPOINT_EVERY", checkpoint)
    append(table, orders(1))
    table.compact()
    for comment in ("all orders", "of all shops", ""):
        table.set_comment(comment)
        assert publish_delta(table).changed
        assert (DeltaTable(root_of(table)).metadata().description or "") == comment
        assert not publish_delta(table).changed


def test_what_cannot_be_published_is_refused_and_nothing_is_stored(tmp_path: Path, table: Table) -> None:
    table.add_column("order", "a b", "string")
    with pytest.raises(InvalidInput, match="'a b' has a name that Delta does not allow"):
        publish_delta(table)
    with pytest.raises(InvalidInput, match="key column id"):
        publish_delta(table, ["status"])
    with pytest.raises(NotFound, match="nope"):
        publish_delta(table, ["id", "nope"])
    assert not root_of(table).exists()
    assert table.savepoints() == []
    publish_delta(table, ["status", "id"])
    assert by_datafusion(table).column_names == ["status", "id"]
    narrow = Table.create(tmp_path / "narrow", {**SHOP, "columns": {**SHOP["columns"], "id": "int"}})
    append(narrow, pa.table({"id": pa.array([1], pa.int32()), "status": ["a"], "ots": [1]}))
    narrow.compact()
    narrow.widen_column("id", "bigint")
    with pytest.raises(InvalidInput, match="narrower type of key column id"):
        publish_delta(narrow)


def test_a_log_of_another_table_is_refused(table: Table) -> None:
    write_deltalake(root_of(table), pa.table({"id": [1]}))
    with pytest.raises(Conflict, match="belongs to another table"):
        publish_delta(table)
    assert table.savepoints() == []


def test_a_damaged_log_is_reported(table: Table) -> None:
    publish_delta(table)
    publish_delta(table, ["id", "status"])
    log = root_of(table) / "_delta_log"
    (log / f"{1:020d}.json").write_text("{")
    with pytest.raises(CorruptData, match="does not decode"):
        publish_delta(table)
    (log / f"{1:020d}.json").rename(log / f"{2:020d}.json")
    with pytest.raises(CorruptData, match=r"00001\.json is missing"):
        publish_delta(table)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(open_store(str(tmp_path / "faulty")))


@pytest.fixture
def faulty(store: FaultyStore) -> Table:
    """A table that is published, and was compacted since."""
    table = Table.create_in(Environment(store), SHOP)
    append(table, orders(*range(20)))
    table.compact()
    publish_delta(table)
    append(table, orders(*range(20), status="new", ts=2))
    table.compact()
    return table


def test_a_publication_that_is_overtaken_leaves_nothing_behind(faulty: Table, store: FaultyStore) -> None:
    other = Table.open(store.uri)

    def overtake() -> None:
        append(other, orders(7, status="late", ts=9))
        other.compact()
        publish_delta(other)

    store.faults.append(Fault("put_if_absent", "_delta_log", action=overtake))
    with pytest.raises(Conflict, match="publish again"):
        publish_delta(faulty)
    check_same_rows(faulty)
    assert by_datafusion(faulty, "status = 'late'").num_rows == 1
    assert len(faulty.savepoints()) == 2
    assert not publish_delta(faulty).changed


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), OSError("no answer")])
def test_a_store_that_fails_leaves_at_most_one_savepoint_for_the_next_publication(
    faulty: Table, store: FaultyStore, error: Exception
) -> None:
    before = faulty.savepoints()
    store.faults.append(Fault("put_if_absent", "_delta_log", error=error))
    known = isinstance(error, StoreUnavailable)
    with pytest.raises(StoreUnavailable if known else CommitUnknown):
        publish_delta(faulty)
    assert len(faulty.savepoints()) - len(before) == (0 if known else 1)  # the answer could still come
    assert publish_delta(faulty).changed
    assert len(faulty.savepoints()) == 2
    check_same_rows(faulty)


def test_a_publication_whose_answer_is_lost_is_found(faulty: Table, store: FaultyStore) -> None:
    store.faults.append(Fault("put_if_absent", "_delta_log", when="after", error=OSError("no answer")))
    assert publish_delta(faulty).changed
    check_same_rows(faulty)
    assert not publish_delta(faulty).changed
    assert len(faulty.savepoints()) == 2


def test_a_restore_to_before_a_publication_is_published(table: Table) -> None:
    append(table, orders(*range(20)))
    table.compact()
    publish_delta(table)
    table.savepoint("before")
    append(table, orders(*range(20), status="wrong", ts=9))
    compact_one(table, 0)
    publish_delta(table)
    table.restore("before")
    assert publish_delta(table).changed
    check_same_rows(table)
    append(table, payments(1, 2), "payments")
    table.compact()
    publish_delta(table)
    check_same_rows(table)
