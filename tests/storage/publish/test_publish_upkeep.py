"""What publications as Iceberg leave behind: nothing of erased keys, and nothing of dropped tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.storage.publish.test_publish_iceberg import NAME, check_same_rows
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.iceberg_folder import FolderCatalog

NAMED = {**SHOP, "columns": {**SHOP["columns"], "id": "string"}}
SECRET = "mallory@example"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


def customers(*names: str, ts: int = 1) -> pa.Table:
    return pa.table({"id": list(names), "status": ["new"] * len(names), "ots": [ts] * len(names)})


def places_of(text: str, folder: Path) -> list[str]:
    """Files below a folder whose content has a text; manifests are compressed."""
    found = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        if path.suffix == ".avro":
            with path.open("rb") as stream:
                whole = repr(list(fastavro.reader(stream))).encode()
        if text.encode() in whole:
            found.append(path.name)
    return found


def test_one_publication_after_an_erase_leaves_no_metadata_with_the_key(tmp_path: Path, catalog: SqlCatalog) -> None:
    table = Table.create(tmp_path / "customers", NAMED)
    for number in range(3):
        append(table, customers("alice", "bob", SECRET, ts=number))
        table.compact()
        publish_iceberg(table, catalog, NAME)
    assert places_of(SECRET, tmp_path / "warehouse")  # as a bound
    assert not table.erase([SECRET], release_savepoints=True, expire_snapshots=True).remains
    assert publish_iceberg(table, catalog, NAME).rows == 2
    assert places_of(SECRET, tmp_path) == []
    check_same_rows(table, catalog)
    assert len(catalog.load_table(NAME).snapshots()) == 1


def in_catalog(folder: Path) -> Catalog:
    return SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


def in_folder(folder: Path) -> Catalog:
    return FolderCatalog("test", warehouse=f"{folder}/other")


def drop_from_catalog(_: Path, catalog: Catalog) -> None:
    catalog.drop_table(NAME)


def drop_folder(folder: Path, _: Catalog) -> None:
    for path in (folder / "other/shop/orders/metadata").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("opened", "drop"), [(in_catalog, drop_from_catalog), (in_folder, drop_folder)], ids=["catalog", "folder"]
)
def test_a_table_that_somebody_drops_is_published_anew_and_keeps_no_files(
    tmp_path: Path, opened: Callable[[Path], Catalog], drop: Callable[[Path, Catalog], None]
) -> None:
    table, catalog = Table.create(tmp_path / "orders", SHOP), opened(tmp_path)
    others = [each(tmp_path) for each in (in_catalog, in_folder) if each is not opened]
    for number in range(3):
        append(table, orders(*range(20), status=f"v{number}", ts=number))
        table.compact()
        publish_iceberg(table, catalog, NAME)
        publish_iceberg(table, others[0], NAME)
        publish_delta(table)
    drop(tmp_path, catalog)
    kept = {each.name for each in table.savepoints()}
    assert publish_iceberg(table, catalog, NAME).changed
    check_same_rows(table, catalog)
    now = {each.name for each in table.savepoints()}
    assert (len(kept - now), len(now - kept)) == (2, 1)  # those of the other published tables stay
    for number in range(2):
        append(table, orders(*range(20), status=f"w{number}", ts=9 + number))
        table.compact()
        for each in (catalog, *others):
            publish_iceberg(table, each, NAME)
        publish_delta(table)
    table.clean(dt.timedelta(0))
    assert len(table.savepoints()) == 6
    assert len(list((tmp_path / "orders/base").rglob("*.parquet"))) == 2
    check_same_rows(table, catalog)
    check_same_rows(table, others[0])
    for each in (catalog, *others):
        each.close()
