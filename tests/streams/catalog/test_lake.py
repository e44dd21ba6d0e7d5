"""Names of tables in a catalog, and the folders that they mean; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import Table
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.lake_session import is_lake
from weft.streams.catalog.relations import Reading
from weft.streams.pipeline.file.model import TableLocation

CONFIG = {"key": ["id"], "columns": {"id": "bigint", "a": "string"}, "groups": {"g": {"columns": ["a"]}}}
CONFIG |= {"streams": {"s": {"groups": ["g"]}}}


@pytest.fixture(params=["folder", "url", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    root = {"folder": str(tmp_path), "url": tmp_path.as_uri(), "memory": f"memory://{tmp_path}"}[request.param]
    return Lake(root, {})


def make(lake: Lake, *names: str) -> None:
    Table.create(lake.location(names), CONFIG)


def test_folders_with_a_table_are_tables_and_all_others_namespaces(lake: Lake) -> None:
    for names in (("top",), ("shop", "orders"), ("shop", "eu", "orders"), ("shop", "100 % \u00e4-b.c")):
        make(lake, *names)
    assert lake.tables(()) == ["top"]
    assert lake.namespaces(()) == ["shop"]
    assert lake.tables(("shop",)) == ["100 % \u00e4-b.c", "orders"]
    assert lake.namespaces(("shop",)) == ["eu"]
    assert lake.table(("shop", "100 % \u00e4-b.c")).schema.key == ("id",)
    assert lake.tables(("shop", "orders")) is None, "a table is not a namespace"
    assert lake.namespaces(("nowhere",)) is None
    assert lake.has_namespace(("shop", "eu"))
    assert not lake.has_namespace(("shop", "orders"))
    assert not lake.has_namespace(("nowhere",))


def test_the_last_part_of_a_name_may_be_a_part_of_a_table(lake: Lake) -> None:
    make(lake, "shop", "orders")
    assert lake.resolve(("shop", "orders")) == (("shop", "orders"), "")
    assert lake.resolve(("shop", "orders", "files")) == (("shop", "orders"), "files")
    for names in (("shop",), ("shop", "order"), ("shop", "orders", "files", "x"), ("shop", "_weft", "timeline")):
        with pytest.raises(NotFound, match="has no table"):
            lake.resolve(names)


def test_a_table_that_is_created_after_it_was_missed_is_found(lake: Lake) -> None:
    assert not lake.has_table(("new",))
    make(lake, "new")
    assert lake.has_table(("new",))


def test_a_folder_is_a_catalog_unless_it_is_missing_or_a_table(tmp_path: Path) -> None:
    assert is_lake(TableLocation(str(tmp_path), {})), "the first table can be created in it"
    assert not is_lake(TableLocation(str(tmp_path / "missing"), {}))
    Table.create(tmp_path / "shop" / "orders", CONFIG)
    assert is_lake(TableLocation(str(tmp_path), {}))
    assert not is_lake(TableLocation(str(tmp_path / "shop" / "orders"), {}))


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "_weft", "a\\b"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name"):
        Lake(str(tmp_path), {}).location((name,))


@pytest.mark.parametrize(
    "reading",
    [
        Reading(("shop", "orders")),
        Reading(("a/b?c#d", "\u00e4 '`\"\\"), "files"),
        Reading.of(("t",), "", {"require": "a,b", "as_of": "cut:1:7:orders=12", "note": "", "x": "a=1&b='2'"}),
    ],
)
def test_the_text_of_a_relation_names_it_completely(reading: Reading) -> None:
    assert Reading.parse(str(reading)) == reading
    assert not set(str(reading)) & set("'\"\\`"), "it is put between quotes"
