"""Tables with nested columns published as Iceberg: the other columns are read by pyiceberg."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from weft import Table
from weft.storage.publish.iceberg import publish_iceberg

NESTED = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "status": "string",
        "tags": "array<string>",
        "place": "struct<town:string,at:struct<x:double>>",
        "counts": "map<string,array<int>>",
        "seen": "array<string>",
    },
    "groups": {
        "order": {"columns": ["status", "tags", "place", "counts"], "merge": "latest_non_null"},
        "pages": {"columns": ["seen"], "merge": "aggregate", "functions": {"seen": "collect_set"}},
    },
    "streams": {"orders": {"groups": ["order", "pages"], "on_delete": "ignore"}},
}


def test_columns_beside_nested_ones_are_read_by_pyiceberg(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    table = Table.create(tmp_path / "wide", NESTED)
    with table.writer("orders") as writer:
        writer.append(
            pa.table(
                {
                    "id": [1, 2],
                    "status": ["new", None],
                    "tags": [["a"], None],
                    "place": [{"town": "Bern", "at": {"x": 1.0}}, None],
                    "counts": pa.array([[("n", [1])], None], pa.map_(pa.string(), pa.list_(pa.int32()))),
                    "seen": ["home", "cart"],
                }
            )
        )
    table.compact()
    assert publish_iceberg(table, catalog, "shop.orders", ["id", "status"]).rows == 2
    before = read(catalog)
    assert before == [{"id": 1, "status": "new"}, {"id": 2, "status": None}]
    table.add_column("order", "notes", "array<string>")  # the file of before lacks it
    with table.writer("orders") as writer:
        writer.append(pa.table({"id": [3], "status": ["sent"], "notes": [["n"]]}))
    table.compact()
    publish_iceberg(table, catalog, "shop.orders", ["id", "status"])
    assert read(catalog) == [*before, {"id": 3, "status": "sent"}]
    assert not publish_iceberg(table, catalog, "shop.orders", ["id", "status"]).changed


def read(catalog: SqlCatalog) -> list[dict[str, object]]:
    found: pa.Table = catalog.load_table("shop.orders").scan().to_arrow()
    return found.sort_by("id").to_pylist()
