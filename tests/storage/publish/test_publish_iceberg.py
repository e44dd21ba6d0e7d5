"""Tables published as Iceberg, read by readers that know nothing of weft: pyiceberg and Polars."""

from __future__ import annotations

import datetime as dt
import decimal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable

from tests.storage.support.every_type import EVERY_TYPE, append_every_type
from tests.storage.support.shop import SHOP, append, fill_with_every_state, orders, payments
from tests.tuning import tune
from weft import Table
from weft.storage.core.model import FIELD_ID
from weft.storage.environment import open_environment
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.iceberg_snapshot import SnapshotFiles
from weft.storage.publish.publication import Published
from weft.storage.publish.upper_bound import cut_up

NAME = "shop.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "orders", SHOP)


def in_order(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


def by_polars(published: IcebergTable) -> pa.Table:
    """The rows as Polars reads them: pyiceberg lists the files, and Polars itself decodes them and applies deletes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        return pl.scan_iceberg(published, reader_override="native").collect().to_arrow()


def check_same_rows(table: Table, catalog: Catalog) -> None:
    """Two other readers show the rows and columns of a read-optimized read."""
    snapshot = table.snapshot()
    expected = snapshot.read_optimized().to_arrow(snapshot.table_columns.names)
    published = catalog.load_table(NAME)
    by_pyiceberg = published.scan().to_arrow()
    assert by_pyiceberg.column_names == expected.column_names
    assert in_order(by_pyiceberg) == in_order(expected)
    assert in_order(by_polars(published)) == in_order(expected)


def files_of(catalog: Catalog, row_filter: str = "true") -> int:
    return len(list(catalog.load_table(NAME).scan(row_filter).plan_files()))


def objects(catalog: SqlCatalog) -> set[Path]:
    root = Path(catalog.properties["warehouse"].removeprefix("file://"))
    return {path for path in root.rglob("*") if path.is_file() and not path.name.endswith("metadata.json")}


def test_other_readers_show_the_rows_of_a_read_optimized_read(table: Table, catalog: SqlCatalog) -> None:
    fill_with_every_state(table)
    first = publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    assert first.rows == table.snapshot().read_optimized().to_arrow().num_rows == 966
    table.compact()
    second = publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    assert (second.removed, second.added) == (first.files, second.files)


def test_publishing_the_same_base_files_again_changes_nothing(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(*range(20)))
    table.compact()
    first = publish_iceberg(table, catalog, NAME)
    place, stored, savepoints = catalog.load_table(NAME).metadata_location, objects(catalog), table.savepoints()
    append(table, orders(1, ts=2))  # not in a base file
    again = publish_iceberg(table, catalog, NAME)
    assert (again.changed, again.added, again.removed, again.snapshot_id) == (False, 0, 0, first.snapshot_id)
    assert catalog.load_table(NAME).metadata_location == place
    assert (objects(catalog), table.savepoints()) == (stored, savepoints)


def test_a_table_that_was_never_compacted_is_published_without_rows(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(1))
    assert publish_iceberg(table, catalog, NAME).files == 0
    check_same_rows(table, catalog)


def test_a_file_that_is_only_removed_is_no_longer_published(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(1, 2, 3))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    append(table, orders(1, 2, 3, ts=2, op="D"))
    table.compact()
    published = publish_iceberg(table, catalog, NAME)
    assert (published.added, published.removed, published.rows) == (0, 1, 0)
    check_same_rows(table, catalog)


def test_the_bounds_of_a_file_cover_all_its_row_groups(tmp_path: Path, catalog: SqlCatalog) -> None:
    table = Table.create_in(open_environment(tmp_path / "orders").tuned(row_group_rows=8), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    published = catalog.load_table(NAME)
    for number in (0, 50, 99):
        assert published.scan(f"id = {number}").to_arrow().num_rows == 1
    assert files_of(catalog, "id > 99") == 0


BOUND = 16
FOLLOWED_BY_NONE = "\U0010ffff" * (BOUND + 1)


@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff", "\uffff", "z", "\x7f"])
@pytest.mark.parametrize("first", ["a", "\ud7ff", "\U0010ffff"])
def test_bounds_of_texts_whose_character_at_the_end_has_no_next_one(
    first: str, last: str, table: Table, catalog: SqlCatalog
) -> None:
    texts = [first * (BOUND - 1) + last + "tail", first * BOUND + last, first]
    append(table, orders(1, 2, 3).set_column(1, "status", [texts]))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    for text in texts:
        found = catalog.load_table(NAME).scan(EqualTo(Reference("status"), text)).to_arrow()
        assert text in found["status"].to_pylist()
    assert files_of(catalog, f"status > '{FOLLOWED_BY_NONE}'") <= 1


@given(text=st.text(st.characters(codec="utf-8"), max_size=6), length=st.integers(1, 5))
@example(text="ab\ud7ff", length=3).via("the character before the surrogates")
@example(text="\ud7ff" * 4, length=3)
@example(text="\U0010ffff" * 4, length=3)
def test_a_cut_text_is_not_smaller(text: str, length: int) -> None:
    end = cut_up(text, length)
    if end is None:
        assert set(text[:length]) == {"\U0010ffff"}
    else:
        assert len(end) <= length
        assert end.encode() >= text.encode()


def test_field_ids_of_base_files_are_not_above_the_last_one(table: Table, catalog: SqlCatalog) -> None:
    """ClickHouse takes a higher one for damage, and others for columns that were dropped."""
    fill_with_every_state(table)
    table.compact()
    publish_iceberg(table, catalog, NAME)
    metadata = catalog.load_table(NAME).metadata
    files = [task.file.file_path for task in catalog.load_table(NAME).scan().plan_files()]
    ids = {int(field.metadata[FIELD_ID]) for file in files for field in pq.read_schema(file.removeprefix("file://"))}
    assert max(ids) <= metadata.last_column_id < 2_147_483_447, "higher ones are reserved"
    shown = catalog.load_table(NAME).schema()
    assert shown.schema_id == metadata.current_schema_id
    assert [field.name for field in shown.fields] == table.schema.arrow.names
    assert all(snapshot.schema_id == shown.schema_id for snapshot in metadata.snapshots)
    assert not publish_iceberg(table, catalog, NAME).changed
    assert catalog.load_table(NAME).metadata.last_updated_ms == metadata.last_updated_ms
    check_same_rows(table, catalog)


def test_unused_rows_of_shared_files_are_listed_as_deleted(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(*range(40), status="old"))
    table.compact()  # one file for all four file groups
    publish_iceberg(table, catalog, NAME)
    seen = []
    for number in range(4):
        append(table, orders(*range(40), status=f"new{number}", ts=2 + number))
        chosen = table.snapshot().slices[number].group
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group == chosen)
        published = publish_iceberg(table, catalog, NAME)
        check_same_rows(table, catalog)
        assert published.rows == 40
        seen.append(published.unused_rows)
    assert seen == [*sorted(seen[:3]), 0]  # the shared file is unused at last
    assert seen[2] > seen[0] > 0
    summary = catalog.load_table(NAME).metadata.current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    counted = summary.summary.additional_properties
    assert (counted["total-data-files"], counted["total-delete-files"], counted["total-records"]) == ("4", "0", "40")


def test_each_file_with_unused_rows_has_its_own_delete_file(table: Table, catalog: SqlCatalog) -> None:
    """Polars' own reader refuses others, and a delete file stays as long as its data file has the same unused rows."""
    append(table, orders(*range(40), status="old"))
    groups = [part.group for part in table.snapshot().slices]
    shared = groups[:2], groups[2:]
    for chosen in shared:
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group in chosen)
    append(table, orders(*range(40), status="new", ts=2))

    def publish_after_compacting(group: str) -> set[str]:
        table.compact(only=lambda file_slice: file_slice.group == group)
        publish_iceberg(table, catalog, NAME)
        check_same_rows(table, catalog)
        published = catalog.load_table(NAME)
        listed = SnapshotFiles.of(published.io, published.current_snapshot())
        assert len(listed.deletes) == 1
        summary = published.metadata.snapshots[-1].summary
        assert summary is not None
        counted = summary.additional_properties
        assert int(counted["total-delete-files"]) == len(listed.delete_paths)
        rows = sum(entry.data_file.record_count for _, entries in listed.deletes for entry in entries)
        assert int(counted["total-position-deletes"]) == rows > 0
        return set(listed.delete_paths)

    first = publish_after_compacting(shared[0][0])
    both = publish_after_compacting(shared[1][0])
    assert (len(first), len(both)) == (1, 2)
    assert first < both
    assert publish_after_compacting(shared[0][1]) == both - first, "nothing of the first file is current"


def test_cleaning_keeps_the_files_of_the_last_two_publications(table: Table, catalog: SqlCatalog) -> None:
    for number in range(4):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        table.compact()
        publish_iceberg(table, catalog, NAME)
    append(table, orders(*range(20), status="newest", ts=9))
    table.compact()
    table.clean(dt.timedelta(0))
    published = catalog.load_table(NAME)
    last = sorted(published.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)[-2:]
    shown = [set(published.scan(snapshot_id=kept.snapshot_id).to_arrow()["status"].to_pylist()) for kept in last]
    assert shown == [{"v2"}, {"v3"}]
    assert len(table.savepoints()) == 2


def test_snapshots_that_weft_has_expired_are_removed_with_their_metadata(table: Table, catalog: SqlCatalog) -> None:
    for number in range(4):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        chosen = table.snapshot().slices[0].group
        table.compact(only=lambda file_slice, number=number, chosen=chosen: number == 0 or file_slice.group == chosen)
        publish_iceberg(table, catalog, NAME)
    before = objects(catalog)
    assert len(catalog.load_table(NAME).snapshots()) == 4
    table.clean(dt.timedelta(0))
    assert not publish_iceberg(table, catalog, NAME).changed
    published = catalog.load_table(NAME)
    assert len(published.snapshots()) == 2
    for snapshot in published.snapshots():
        assert published.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 20
    assert objects(catalog) < before
    check_same_rows(table, catalog)


def test_every_type_is_read_and_files_are_pruned_by_their_bounds(tmp_path: Path, catalog: SqlCatalog) -> None:
    days = ["2024-01-01", "a/b %", "", "\U0010ffff" * 20, "z" * 40]
    table = Table.create(tmp_path / "types", EVERY_TYPE)
    append_every_type(table, days)
    publish_iceberg(table, catalog, NAME)
    published = catalog.load_table(NAME)
    expected = in_order(table.snapshot().read_optimized().to_arrow())
    for shown in (published.scan().to_arrow(), by_polars(published)):
        assert repr(in_order(shown)) == repr(expected)  # NaN is not equal to itself
    assert len(expected) == 2 * len(days)
    assert files_of(catalog) == len(days)
    for number, day in enumerate(days):
        for condition in (
            f"id = {2 * number}",
            f"day = '{day}'",
            f"price = {number}.1234",
            f"small_price = -{number}.25",
        ):
            assert files_of(catalog, condition) <= (2 if "day" in condition else 1), condition
            assert published.scan(condition).to_arrow().num_rows == (2 if "day" in condition else 1), condition
    assert files_of(catalog, "instant < '2024-05-06T07:08:09+00:00'") == 0


def test_added_and_widened_columns(tmp_path: Path, catalog: SqlCatalog) -> None:
    table = Table.create(tmp_path / "orders", SHOP | {"columns": {**SHOP["columns"], "id": "int"}})
    first = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "status": ["old"] * 3, "ots": [1] * 3})
    append(table, first)
    table.compact()
    publish_iceberg(table, catalog, NAME)
    table.widen_column("id", "bigint")
    table.add_column("order", "gift", "boolean")
    publish_iceberg(table, catalog, NAME)  # the files are older than the schema
    check_same_rows(table, catalog)
    append(table, orders(3, 4).append_column("gift", pa.array([True, False])))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    assert catalog.load_table(NAME).scan("gift = true").to_arrow()["id"].to_pylist() == [3]
    assert [field.field_id for field in catalog.load_table(NAME).schema().fields] == [1, 2, 3, 4, 5, 6]


def test_a_column_that_older_files_show_differently_is_refused_by_name(table: Table, catalog: SqlCatalog) -> None:
    append(table, payments(1, 2), "payments")
    table.compact()
    publish_iceberg(table, catalog, NAME)
    shown = in_order(catalog.load_table(NAME).scan().to_arrow())
    table.add_column("order", "gift", "boolean", default=False)
    with pytest.raises(InvalidInput, match="gift"):
        publish_iceberg(table, catalog, NAME)
    assert in_order(catalog.load_table(NAME).scan().to_arrow()) == shown
    names = [name for name in table.schema.arrow.names if name != "gift"]
    assert not publish_iceberg(table, catalog, NAME, names).changed
    append(table, payments(1, 2, ts=5), "payments")
    table.compact()
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)


def test_what_cannot_be_published_is_refused_and_nothing_is_created(tmp_path: Path, catalog: SqlCatalog) -> None:
    columns = {**SHOP["columns"], "tags": "array<string>"}
    groups = {**SHOP["groups"], "order": {"columns": ["status", "ots", "tags"], "ordering": ["ots"]}}
    table = Table.create(tmp_path / "nested", SHOP | {"columns": columns, "groups": groups})
    with pytest.raises(InvalidInput, match="tags has a nested type"):
        publish_iceberg(table, catalog, NAME)
    with pytest.raises(InvalidInput, match="key column id"):
        publish_iceberg(table, catalog, NAME, ["status"])
    with pytest.raises(NotFound, match="nope"):
        publish_iceberg(table, catalog, NAME, ["id", "nope"])
    assert not catalog.table_exists(NAME)
    publish_iceberg(table, catalog, NAME, ["id", "status"])
    with pytest.raises(Conflict, match="not published from"):
        publish_iceberg(Table.create(tmp_path / "other", SHOP), catalog, NAME)


def test_a_table_with_references_is_published_without_the_columns_of_other_tables(
    tmp_path: Path, catalog: SqlCatalog
) -> None:
    states = {"key": ["status"], "columns": {"status": "string", "label": "string"}}
    states |= {"groups": {"label": {"columns": ["label"]}}, "streams": {"labels": {"groups": ["label"]}}}
    other = Table.create(tmp_path / "states", states)
    reference = {"table": "../states", "on": "status", "columns": ["label"]}
    table = Table.create(tmp_path / "orders", SHOP | {"references": {"state": reference}})
    for number in range(3):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        table.compact()
        assert publish_iceberg(table, catalog, NAME).changed
        check_same_rows(table, catalog)
    table.clean(dt.timedelta(0))
    assert not publish_iceberg(table, catalog, NAME).changed
    assert (len(table.savepoints()), other.savepoints()) == (2, [])


class OvertakenCatalog(SqlCatalog):
    """A catalog in which another publication commits just before the next commit."""

    other: Table | None = None
    overtaken: Published | None = None

    def commit_table(self, table: IcebergTable, *arguments: Any) -> CommitTableResponse:
        if (other := self.other) is not None:
            self.other = None
            append(other, orders(7, status="late", ts=9))
            other.compact()
            self.overtaken = publish_iceberg(other, self, NAME)
        return super().commit_table(table, *arguments)


def test_a_publication_that_is_overtaken_leaves_nothing_behind(table: Table, tmp_path: Path) -> None:
    catalog = OvertakenCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    append(table, orders(*range(20)))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    append(table, orders(1, status="new", ts=2))
    table.compact()
    catalog.other = Table.open(table.uri)
    with pytest.raises(Conflict, match="publish again"):
        publish_iceberg(table, catalog, NAME)
    assert catalog.overtaken is not None
    current = catalog.load_table(NAME).current_snapshot()
    assert current is not None
    assert current.snapshot_id == catalog.overtaken.snapshot_id
    check_same_rows(table, catalog)
    assert all(point.note.startswith(f"published as {NAME} of catalog test in") for point in table.savepoints())
    assert len(table.savepoints()) == 2
    listed = {str(path) for path in objects(catalog)}
    needed = {
        manifest.manifest_path.removeprefix("file://")
        for snapshot in catalog.load_table(NAME).snapshots()
        for manifest in snapshot.manifests(catalog.load_table(NAME).io)
    }
    needed |= {snapshot.manifest_list.removeprefix("file://") for snapshot in catalog.load_table(NAME).snapshots()}
    assert {path for path in listed if "/metadata/" in path} == needed
    catalog.close()


def test_many_publications_keep_few_manifests(
    table: Table, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.storage.publish.iceberg_snapshot.MAX_MANIFESTS", 3)
    append(table, orders(*range(40)))
    for number in range(5):
        append(table, orders(*range(40), status=f"v{number}", ts=2 + number))
        slices = table.snapshot().slices
        chosen = slices[number % len(slices)].group
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group == chosen)
        publish_iceberg(table, catalog, NAME)
        check_same_rows(table, catalog)
        current = catalog.load_table(NAME).current_snapshot()
        assert current is not None
        assert len(current.manifests(catalog.load_table(NAME).io)) <= 4


def test_rows_that_another_engine_writes_are_removed_again(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(*range(20)))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    published = catalog.load_table(NAME)
    published.append(published.scan("id = 3").to_arrow())
    assert published.scan().to_arrow().num_rows == 21
    assert publish_iceberg(table, catalog, NAME).removed == 1
    check_same_rows(table, catalog)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [*range(-20, 20)]),
        ("smallint", [*range(-20, 20)]),
        ("string", [f"ü{number}" for number in range(40)]),
        ("binary", [f"b{number}".encode() for number in range(40)]),
        ("date", [dt.date(1969, 12, 20) + dt.timedelta(number) for number in range(40)]),
        ("timestamp", [dt.datetime(1969, 12, 31, 23, 59, number, 5, dt.UTC) for number in range(40)]),
        ("decimal(20,3)", [decimal.Decimal(f"{number}.125") for number in range(-20, 20)]),
    ],
)
def test_a_reader_that_looks_for_a_key_reads_the_files_of_its_bucket(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, kind: str, values: list[Any]
) -> None:
    """Buckets are declared as Iceberg's transform, and each file has the rows that this says."""
    tune(monkeypatch, small_group_bytes=1)
    table = Table.create(tmp_path / "keys", {**SHOP, "columns": {**SHOP["columns"], "id": kind}})
    key = table.snapshot().schema.field("id").type
    append(table, pa.table({"id": pa.array(values, key), "status": ["new"] * len(values), "ots": [1] * len(values)}))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    published = catalog.load_table(NAME)
    assert files_of(catalog) == 4
    (field,) = published.specs()[1].fields
    transform = field.transform.transform(published.schema().find_field("id").field_type)
    for task in published.scan().plan_files():
        rows = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["id"])["id"].to_pylist()
        assert {transform(value_of(value, key)) for value in rows} == {task.file.partition[0]}
    for value in values[:5]:
        assert len(list(published.scan(EqualTo(Reference("id"), literal_of(value))).plan_files())) == 1


def value_of(value: Any, kind: pa.DataType) -> Any:
    """A key as Iceberg stores it: dates and times as numbers."""
    if not isinstance(value, dt.date):
        return value
    return pa.scalar(value, kind).cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).as_py()


def literal_of(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value


def test_shared_files_and_files_of_one_bucket_are_in_one_table(table: Table, catalog: SqlCatalog) -> None:
    append(table, orders(*range(40), status="old"))
    table.compact()
    for number in range(4):
        publish_iceberg(table, catalog, NAME)
        check_same_rows(table, catalog)
        published = catalog.load_table(NAME)
        specs = sorted(task.file.spec_id for task in published.scan().plan_files())
        assert specs == [0, *[1] * number]
        append(table, orders(*range(40), status=f"v{number}", ts=2 + number))
        chosen = table.snapshot().slices[number].group
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group == chosen)
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    assert all(files_of(catalog, f"id = {number}") == 1 for number in range(40))
    assert len(catalog.load_table(NAME).specs()) == 2
