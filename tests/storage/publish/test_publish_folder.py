"""Tables published as Iceberg into folders, without a catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.storage.publish.test_publish_iceberg import NAME, by_polars, check_same_rows, in_order
from tests.storage.support.shop import SHOP, append, fill_with_every_state, orders
from weft import Table
from weft.storage.errors import Conflict, InvalidInput
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.open_catalog import open_catalog
from weft.storage.publish.targets import IcebergTarget
from weft.storage.services.split import set_buckets


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "orders", SHOP)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "ware house"


def properties(warehouse: Path) -> dict[str, str]:
    return {"type": "folder", "warehouse": str(warehouse)}


def versions(warehouse: Path) -> list[int]:
    found = (warehouse / "shop/orders/metadata").glob("v*.metadata.json")
    return sorted(int(path.name.split(".")[0][1:]) for path in found)


def test_readers_need_nothing_but_the_folder(table: Table, warehouse: Path) -> None:
    fill_with_every_state(table)
    target = IcebergTarget(table=NAME, properties=properties(warehouse))
    for _ in range(2):
        assert target.publish(table).changed
        folder = warehouse / "shop/orders"
        expected = in_order(table.snapshot().read_optimized().to_arrow())
        static = StaticTable.from_metadata(str(folder))
        assert in_order(static.scan().to_arrow()) == expected
        assert in_order(by_polars(static)) == expected
        table.compact()
    assert target.publish(table).changed is False
    check_same_rows(table, open_catalog("any", properties(warehouse)))


def test_comments_of_columns_are_published(table: Table, warehouse: Path) -> None:
    append(table, orders(1))
    table.compact()
    catalog = open_catalog("any", properties(warehouse))
    publish_iceberg(table, catalog, NAME)
    table.set_comment("of today", "status")
    assert publish_iceberg(table, catalog, NAME).changed
    published = catalog.load_table(NAME).schema()
    assert {field.name: field.doc for field in published.fields if field.doc} == {"status": "of today"}
    assert not publish_iceberg(table, catalog, NAME).changed
    for comment in ("all orders", "of all shops", ""):
        table.set_comment(comment)
        publish_iceberg(table, catalog, NAME)
        assert catalog.load_table(NAME).properties.get("comment", "") == comment
    before = versions(warehouse)
    assert not publish_iceberg(table, catalog, NAME).changed
    assert versions(warehouse) == before, "the same comment is not written again"


def test_many_publications_keep_few_metadata_files(table: Table, warehouse: Path) -> None:
    catalog = open_catalog("any", properties(warehouse))
    for number in range(15):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        table.compact()
        publish_iceberg(table, catalog, NAME)
    assert versions(warehouse) == list(range(6, 17))
    assert (warehouse / "shop/orders/metadata/version-hint.text").read_text() == "16"
    check_same_rows(table, catalog)


def test_of_two_commits_one_fails(table: Table, warehouse: Path) -> None:
    append(table, orders(*range(20)))
    table.compact()
    catalog = open_catalog("any", properties(warehouse))
    publish_iceberg(table, catalog, NAME)
    stale = catalog.load_table(NAME)
    catalog.load_table(NAME).transaction().set_properties({"a": "b"}).commit_transaction()
    append(table, orders(1, status="new", ts=2))
    table.compact()
    before = versions(warehouse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "load_table", lambda _: stale)
        with pytest.raises(Conflict, match="publish again"):
            publish_iceberg(table, catalog, NAME)
    assert versions(warehouse) == before
    assert len(table.savepoints()) == 1
    publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)


def test_a_commit_after_so_many_that_its_number_is_free_again_fails(table: Table, warehouse: Path) -> None:
    catalog = open_catalog("any", properties(warehouse))
    publish_iceberg(table, catalog, NAME)
    stale = catalog.load_table(NAME)
    for number in range(15):
        catalog.load_table(NAME).transaction().set_properties({"a": str(number)}).commit_transaction()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "load_table", lambda _: stale)
        append(table, orders(1))
        table.compact()
        with pytest.raises(Conflict, match="publish again"):
            publish_iceberg(table, catalog, NAME)
    assert min(versions(warehouse)) > 3
    assert catalog.load_table(NAME).properties["a"] == "14"


def test_a_missing_warehouse_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInput, match="folder of Iceberg tables is missing"):
        IcebergTarget(table=NAME, properties={"type": "folder"}).publish(table)


def test_buckets_are_split_between_publications(table: Table, warehouse: Path) -> None:
    """Files of the old number stay in the spec in which they were published; new ones of it are in none."""
    table = Table(table.env.tuned(small_group_bytes=0))
    append(table, orders(*range(300)))
    table.compact()
    target = IcebergTarget(table=NAME, properties=properties(warehouse))
    specs = []

    def check() -> None:
        target.publish(table)
        static = StaticTable.from_metadata(str(warehouse / "shop/orders"))
        expected = in_order(table.snapshot().read_optimized().to_arrow())
        assert in_order(static.scan().to_arrow()) == expected
        for key in range(0, 300, 37):
            assert len(static.scan(row_filter=f"id = {key}").to_arrow()) == 1
        specs.append({len(spec.fields) and spec.fields[0].transform.num_buckets for spec in static.specs().values()})

    check()
    set_buckets(table.writable(), 16)
    append(table, orders(*range(50, 100), ts=2))
    table.compact(lambda part: part.group.bucket == 1)
    check()
    table.split(16)
    check()
    table.split(4)
    check()
    assert specs == [{0, 4}, {0, 4, 16}, {0, 4, 16}, {0, 4, 16}]
