"""Files as a source of a writer: each row is stored once, bad rows are dead letters with the file that they are in."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.streams.support.pipelines import CONFIG, pipeline_file
from tests.streams.write.sink.rig import TEST_SECONDS, run
from weft import Table
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.errors import InvalidInput
from weft.streams.letters.letter_files import default_folder
from weft.streams.letters.letter_folder import LetterFolder, State
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.check_expressions import expression_problems
from weft.streams.write.dead_letter import open_dead_letters
from weft.streams.write.replay import replay
from weft.streams.write.replay_frame import spark_run
from weft.streams.write.sink import CommitReport
from weft.streams.write.writer_job import read_events

pytestmark = [pytest.mark.spark, pytest.mark.timeout(TEST_SECONDS)]

SCHEMA = {"id": "bigint", "a": "string", "at": "bigint"}


class Backfill:
    """A folder of files, a table, and a writer that reads the one into the other."""

    def __init__(self, spark: SparkSession, folder: Path, file_format: str, **source: Any) -> None:
        self.spark, self.folder = spark, folder
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.table = Table.create(folder / "wide", CONFIG)
        self.source = {"type": "files", "format": file_format, "path": "./landing", **source}
        self.fields: dict[str, Any] = {"schema": SCHEMA}
        self.reports: list[CommitReport] = []

    def writer(self) -> Any:
        return load_pipeline(pipeline_file(self.folder, writers={"sa": {"source": self.source, **self.fields}})).writer(
            "sa"
        )

    def run(self) -> None:
        events = read_events(self.spark, self.writer())
        run(events, self.table, self.folder, "sa", on_commit=self.reports.append)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.table.snapshot().to_arrow(["id", "a", "at"]).to_pylist())

    def letters(self) -> LetterFolder:
        store = open_dead_letters(default_folder(self.table.uri, "sa"), self.table.uri, None)
        return LetterFolder.of(store, "sa", self.table, None)

    def waiting(self) -> list[dict[str, Any]]:
        return [dict(letter.content) for letter in self.letters().survey().chosen(State.WAITING)]


def put(path: Path, text: str) -> None:
    hidden = path.with_name(f"_{path.name}")
    hidden.write_text(text)
    hidden.rename(path)


def test_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "json", max_files_per_trigger=1)
    put(backfill.landing / "1.json", '{"id": 1, "a": "x", "at": 5}\n\n{"id": 2, "a": "y", "at": 6}\nbroken\n')
    put(backfill.landing / "2.json", '{"id": 3, "a": "z", "at": "seven"}\n{"id": null, "a": "z", "at": 7}\n')
    backfill.run()
    assert backfill.rows() == [(1, "x", 5), (2, "y", 6)]
    found = backfill.waiting()
    assert {letter["value"]: letter["reason"] for letter in found} == {
        "broken": "the value is not one JSON object",
        '{"id": 3, "a": "z", "at": "seven"}': "field 'at' is not of type bigint",
        '{"id": null, "a": "z", "at": 7}': "column 'id': NULL in a key column",
    }
    assert {letter["value"]: letter["topic"].rpartition("/")[2] for letter in found}["broken"] == "1.json"
    assert all(letter["timestamp_ms"] for letter in found)

    # Only new files are read, and a batch that Spark repeats is not stored again.
    put(backfill.landing / "3.json", '{"id": 4, "a": "w", "at": 8}\n')
    last = max(int(path.name) for path in (tmp_path / "checkpoint/commits").glob("[0-9]*"))
    (tmp_path / f"checkpoint/commits/{last}").unlink()
    (tmp_path / f"checkpoint/commits/.{last}.crc").unlink()
    count = len(backfill.reports)
    backfill.run()
    assert [report.commit.replayed for report in backfill.reports[count:]] == [True, False]
    assert backfill.rows() == [(1, "x", 5), (2, "y", 6), (4, "w", 8)]
    assert len(backfill.waiting()) == 3


def test_letters_of_files_are_replayed(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "json")
    put(backfill.landing / "1.json", '{"id": 3, "a": "z", "at": "7"}\n{"id": 4, "a": "z", "at": 8}\n')
    backfill.run()
    backfill.fields = {
        "schema": {**SCHEMA, "at": "string"},
        "select": {"id": "id", "a": "regexp_extract(_kafka.topic, '[^/]+$', 0)", "at": "bigint(at)"},
    }
    letters = backfill.letters()
    [done] = replay(letters, backfill.table, "sa", spark_run(spark, backfill.table, backfill.writer(), letters.store))
    assert (done.rows, done.failed) == (1, 0)
    assert backfill.rows() == [(3, "1.json", 7), (4, "z", 8)]


def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "csv", options={"header": True, "sep": ";"})
    put(backfill.landing / "1.csv", 'a;at;id\n"x; ""y""";5;1\n;6;2\nz;7;three\nz;4\nz;8;5;9\n')
    put(backfill.landing / "2.csv", "a;at;id\né;9;6\n")
    backfill.run()
    assert backfill.rows() == [(1, 'x; "y"', 5), (2, None, 6), (6, "é", 9)]
    found = backfill.waiting()
    assert {letter["value"] for letter in found} == {"z;7;three", "z;4", "z;8;5;9"}
    assert {letter["reason"] for letter in found} == {"the line does not have the declared fields and types"}
    assert {letter["topic"].rpartition("/")[2] for letter in found} == {"1.csv"}


def test_a_csv_header_with_other_fields_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "csv", options={"header": True})
    put(backfill.landing / "1.csv", "a,id,at\nx,1,5\n")
    with pytest.raises(StreamingQueryException, match="header"):
        backfill.run()
    assert backfill.rows() == []


def test_parquet(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "parquet")
    pq.write_table(
        pa.table({"id": [1, None, 3], "a": ["x", "y", "z"], "at": [5, 6, 7]}), backfill.landing / "1.parquet"
    )
    backfill.run()
    assert backfill.rows() == [(1, "x", 5), (3, "z", 7)]
    [letter] = backfill.waiting()
    assert letter["topic"].endswith("/1.parquet")
    assert letter["offset"] == 1
    assert json.loads(letter["value"]) == {"a": "y", "at": 6}


def test_values_of_parquet_are_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "id": "bigint",
        "day": "date",
        "moment": "timestamp",
        "price": "decimal(20,4)",
        "ratio": "double",
        "raw": "binary",
        "flag": "boolean",
        "tags": "array<string>",
        "pair": "struct<x:int,y:string>",
        "by_name": "map<string,bigint>",
    }
    config = {
        "key": ["id"],
        "buckets": 1,
        "columns": types,
        "groups": {"g": {"columns": list(types)[1:]}},
        "streams": {"sa": {"groups": ["g"]}},
    }
    values: dict[str, Any] = {
        "id": 1,
        "day": dt.date(1999, 12, 31),
        "moment": dt.datetime(2024, 2, 29, 12, 0, 0, 123456, dt.UTC),
        "price": decimal.Decimal("1234567890123456.7891"),
        "ratio": 0.1 + 0.2,
        "raw": b"\x00\xff",
        "flag": True,
        "tags": ["a", None, ""],
        "pair": {"x": -1, "y": "\u00e9"},
        "by_name": [("k", 2**62)],
    }
    backfill = Backfill(spark, tmp_path / "new", "parquet") if (tmp_path / "new").mkdir() is None else None
    assert backfill is not None
    backfill.table = Table.create(tmp_path / "typed", config)
    backfill.fields = {"schema": types}
    schema = build_schema(load_config(config)).arrow
    row = pa.Table.from_pylist([values, {"id": 2}], schema=pa.schema([pa.field(f.name, f.type) for f in schema]))
    pq.write_table(row, backfill.landing / "1.parquet")
    events = read_events(spark, _writer_of(backfill, config))
    run(events, backfill.table, tmp_path, "sa")
    stored = {row["id"]: row for row in backfill.table.snapshot().to_arrow().to_pylist()}
    assert stored[1] == values
    assert set(stored[2].values()) == {2, None}


def _writer_of(backfill: Backfill, config: dict[str, Any]) -> Any:
    path = pipeline_file(
        backfill.folder,
        table={"uri": "./typed", "config": config},
        writers={"sa": {"source": backfill.source, **backfill.fields}},
    )
    return load_pipeline(path).writer("sa")


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_expressions_over_files_are_checked(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    backfill = Backfill(spark, tmp_path, file_format)
    backfill.fields["select"] = {"id": "id", "a": "concat(a, _kafka.topic)", "at": "nothing"}
    schema = build_schema(load_config(CONFIG))
    found = [problem.message for problem in expression_problems(spark, backfill.writer(), schema)]
    assert [message.split(": ")[0] for message in found] == ["writers.sa.select.at"]


def test_a_folder_that_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    backfill = Backfill(spark, tmp_path, "parquet")
    backfill.landing.rmdir()
    with pytest.raises(InvalidInput, match=r"writers.sa.source: .*landing"):
        backfill.run()
