"""Keys that differ stay different rows through every door: messages, appends, SQL, reads by key, erasure."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.streams.support.awkward_texts import AWKWARD
from weft import Table
from weft.storage.core.types import parse_type
from weft.storage.operations.row_keys import parse_key
from weft.streams.catalog.register import register_catalog
from weft.streams.cli.key_files import read_keys
from weft.streams.formats.debezium_json import decode_json_events
from weft.streams.formats.format_options import FormatSettings
from weft.streams.ui.site import key_query
from weft.streams.write.decode import decode_messages

VALUES = dict(zip(AWKWARD, range(len(AWKWARD)), strict=True))


CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "string", "v": "bigint"},
    "groups": {"g": {"columns": ["v"], "ordering": ["v"]}},
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}},
}


def rows(table: Table) -> dict[Any, Any]:
    return {row["id"]: row["v"] for row in table.snapshot().to_arrow().to_pylist()}


@pytest.mark.parametrize("partition_by", [[], ["id"]])
def test_texts_without_spark(tmp_path: Path, partition_by: list[str]) -> None:
    table = Table.create(tmp_path / "table", CONFIG | {"partition_by": partition_by})
    with table.writer("s") as writer:
        writer.append(pa.table({"id": list(VALUES), "v": list(VALUES.values())}))
    for _ in range(2):
        assert rows(table) == VALUES
        snapshot = table.snapshot()
        for text, number in VALUES.items():
            wanted = [{"id": text, "v": number}]
            assert (
                table.get([text]).to_pylist() == snapshot.to_arrow(filter=pc.field("id") == text).to_pylist() == wanted
            )
            for link in (f"id={text}", *parse_qs(key_query({"id": text}), keep_blank_values=True)["key"]):
                assert parse_key(snapshot.table_schema, [link], "key") == {"id": text}
            assert dict(table.explain_row(text).row)["v"] == number
        table.compact()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_erasure_takes_only_the_keys_of_the_file(tmp_path: Path, suffix: str) -> None:
    table = Table.create(tmp_path / "table", CONFIG)
    with table.writer("s") as writer:
        writer.append(pa.table({"id": list(VALUES), "v": list(VALUES.values())}))
    gone = [text for text in AWKWARD if text not in {"a", "7", "K", "e\u0301", "a=b"}]
    file = tmp_path / f"keys.{suffix}"
    write_keys(file, gone)
    assert read_keys(file, table.schema)["id"].to_pylist() == gone
    assert table.erase(read_keys(file, table.schema), expire_snapshots=True).complete
    assert rows(table) == {text: VALUES[text] for text in AWKWARD if text not in gone}


def write_keys(file: Path, texts: list[str]) -> None:
    if file.suffix == ".parquet":
        pq.write_table(pa.table({"id": texts}), file)
    elif file.suffix == ".csv":
        with file.open("w", newline="", encoding="utf-8") as target:
            csv.writer(target, quoting=csv.QUOTE_ALL).writerows([["id"], *([text] for text in texts)])
    else:
        file.write_text("".join(json.dumps({"id": text}) + "\n" for text in texts))


def test_texts_of_change_events() -> None:
    settings = FormatSettings(pa.schema([("id", parse_type("string"))]))
    events = [json.dumps({"op": "c", "after": {"id": text}}).encode() for text in AWKWARD]
    found = decode_json_events(settings, pa.array(events, pa.binary())).field("message").field("id")
    assert found.to_pylist() == list(AWKWARD)


def test_texts_of_messages(spark: SparkSession) -> None:
    for ascii_only in (True, False):
        values = [(json.dumps({"id": text}, ensure_ascii=ascii_only),) for text in AWKWARD]
        found = decode_messages(
            spark.createDataFrame(values, "value string"), {"id": "string"}, select=None, where=None
        )
        assert [row.id for row in found.collect()] == list(AWKWARD)


def create(spark: SparkSession, kind: str) -> None:
    properties = "'key'='id', 'group.g'='v', 'group.g.ordering'='v', 'stream.s'='g', 'stream.s.on_delete'='row'"
    spark.sql(f"CREATE TABLE weft.shop.keys (id {kind}, v BIGINT) TBLPROPERTIES ({properties})")


def test_texts_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    register_catalog(spark, "weft", tmp_path)
    create(spark, "STRING")
    spark.createDataFrame(list(VALUES.items()), "id string, v bigint").createOrReplaceTempView("given_keys")
    spark.sql("INSERT INTO weft.shop.keys.s SELECT * FROM given_keys")
    table = Table.open(tmp_path / "shop" / "keys")
    assert rows(table) == VALUES
    joined = spark.sql("SELECT a.v, b.v FROM weft.shop.keys a JOIN given_keys b ON a.id = b.id").collect()
    assert sorted(map(tuple, joined)) == [(number, number) for number in VALUES.values()]
    gone = [" a", "a\0", "\u212a", "é", "07"]
    for text in gone:
        [row] = spark.sql("SELECT v FROM weft.shop.keys WHERE id = :id", args={"id": text}).collect()
        assert row.v == VALUES[text]
        spark.sql("DELETE FROM weft.shop.keys.s WHERE id = :id", args={"id": text})
    assert rows(table) == {text: number for text, number in VALUES.items() if text not in gone}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("DECIMAL(10,2)", "1.100", ["1.001", "1.0049D"]),
        ("DATE", "DATE'2024-01-01'", ["TIMESTAMP'2024-01-01 05:00:00'"]),
        ("BIGINT", "7.0", ["7.5", "7.5D"]),
    ],
)
def test_an_insert_never_rounds_a_key(
    spark: SparkSession, tmp_path: Path, kind: str, good: str, bad: list[str]
) -> None:
    register_catalog(spark, "weft", tmp_path)
    create(spark, kind)
    spark.sql(f"INSERT INTO weft.shop.keys.s VALUES ({good}, 1)")
    for value in bad:
        with pytest.raises(PySparkException, match="key column 'id'"):
            spark.sql(f"INSERT INTO weft.shop.keys.s VALUES ({value}, 2)")
    assert list(rows(Table.open(tmp_path / "shop" / "keys")).values()) == [1]
