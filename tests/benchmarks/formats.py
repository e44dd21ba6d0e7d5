"""Rows a second of each message format, beside plain JSON in the same run: `python -m tests.benchmarks.formats`.

The same rows (5 fields: a number, two texts, a decimal and a timestamp) are written as messages of each format, with
an encoder of its own, and stored in a Parquet file. One core decodes them as a writer does, with the source of each
message, and throws the rows away. Runs are interleaved; medians of the wall clock, without that of reading the file.
The registry is a small server in this process: each schema is fetched once by a worker.

The same rows as files of JSON lines, CSV and Parquet are read as a writer with a source of files reads them; their
seconds are those of the batch of a streaming query, with reading the files.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from confluent_kafka.schema_registry.confluent.types import decimal_pb2  # noqa: F401 - makes its descriptor known
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tests.benchmarks.spark_session import session
from tests.streams.formats.debezium_messages import Kind, base64_text, connect, micros, twos_complement, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import logical, record, written
from tests.streams.formats.test_protobuf import ROW, serializer
from weft.streams.kafka.fetch import HEADERS
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.decode import decode_messages
from weft.streams.write.writer_job import read_events

Row = Mapping[str, Any]
SCHEMA = {"id": "bigint", "name": "string", "note": "string", "amount": "decimal(12,2)", "at": "timestamp"}
WHERE = "id IS NOT NULL"
KAFKA = ("key", "topic", "partition", "offset", "timestamp")
VALIDATED = "json-schema, validated"
OPTIONS = {"debezium": {"timestamps": "micros", "decimals": "base64"}, VALIDATED: {"validate": "true"}}
PARTS = "json with key, header, time"
EVENT: Any = {"type": "bytes", "connect.name": "org.apache.kafka.connect.data.Decimal", "scale": 2, "precision": 12}
INSTANT: Any = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}


def rows(count: int) -> list[Row]:
    chance = random.Random(7)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    return [
        {
            "id": chance.randrange(count),
            "name": f"customer-{chance.randrange(10_000)}",
            "note": chance.choice(("NEW", "PAID", "SENT")),
            "amount": Decimal(chance.randrange(1_000_000)).scaleb(-2),
            "at": start + dt.timedelta(microseconds=number * 1_000_003),
        }
        for number in range(count)
    ]


def plain_json(row: Row) -> bytes:
    return json.dumps({**row, "amount": float(row["amount"]), "at": row["at"].isoformat()}).encode()


def encoders(registry: SchemaRegistry) -> dict[str, tuple[str, Callable[[Row], bytes]]]:
    """By name: the format, and how a row becomes a message."""
    kinds = {
        "id": Kind("bigint", connect("int64"), None),
        "name": Kind("string", connect("string"), None),
        "note": Kind("string", connect("string"), None),
        "amount": Kind(
            "decimal(12,2)",
            connect("bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
            None,
            lambda value: base64_text(twos_complement(int(value * 100))),
        ),
        "at": Kind("timestamp", connect("int64", "io.debezium.time.MicroTimestamp"), None, micros),
    }
    source = {
        "version": "3.0.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_700_000_000_000, "db": "shop",
        "sequence": '["24023128","24023200"]', "schema": "public", "table": "orders", "txId": 777, "lsn": 24_023_200,
    }  # fmt: skip
    fields = {
        "id": "long",
        "name": "string",
        "note": "string",
        "amount": logical("bytes", "decimal", precision=12, scale=2),
        "at": logical("long", "timestamp-micros"),
    }
    flat = record(fields)
    parsed = fastavro.parse_schema(flat)
    avro_id = registry.register("flat-value", json.dumps(flat))
    value = {**record({**fields, "amount": EVENT, "at": INSTANT}), "name": "Value"}
    places = [{"name": name, "type": "long" if isinstance(given, int) else "string"} for name, given in source.items()]
    event = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop",
        "fields": [
            {"name": "before", "type": ["null", value]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": places}},
            {"name": "op", "type": "string"},
        ],
    }
    parsed_event = fastavro.parse_schema(event)
    event_id = registry.register("event-value", json.dumps(event))
    serialize = serializer(registry, ROW)

    def event_avro(row: Row) -> bytes:
        after = {**row, "amount": twos_complement(int(row["amount"] * 100)), "at": micros(row["at"])}
        return written(parsed_event, {"before": None, "after": after, "op": "c", "source": source}, event_id)

    def protobuf(row: Row) -> bytes:
        message = ROW(id=row["id"], name=row["name"], note=row["note"])
        message.amount.value = twos_complement(int(row["amount"] * 100))
        message.amount.scale = 2
        message.at.FromDatetime(row["at"])
        return bytes(serialize(message))

    kinds_of_json = {"id": "integer", "amount": "number"}
    properties = {name: {"type": kinds_of_json.get(name, "string")} for name in SCHEMA}
    json_id = registry.register("json-value", json.dumps({"type": "object", "properties": properties}), "JSON")

    def json_schema(row: Row) -> bytes:
        return b"\0" + json_id.to_bytes(4, "big") + plain_json(row)

    return {
        "json": ("json", plain_json),
        "json-schema": ("json-schema", json_schema),
        VALIDATED: ("json-schema", json_schema),
        "avro": ("avro", lambda row: written(parsed, row, avro_id)),
        "protobuf": ("protobuf", protobuf),
        "debezium": ("debezium", lambda row: write_event(kinds, "c", after=row, source=source, envelope=False)),
        "debezium with schema": ("debezium", lambda row: write_event(kinds, "c", after=row, source=source)),
        "debezium-avro": ("debezium-avro", event_avro),
    }


def message_parts(stored: DataFrame) -> DataFrame:
    """JSON with the key, a header and the timestamp of the Kafka message, besides the fields."""
    select = {field: field for field in SCHEMA} | {
        "note": "lower(note)",
        "key": "decode(_kafka.key, 'UTF-8')",
        "origin": "decode(filter(_kafka.headers, h -> h.key = 'origin')[0].value, 'UTF-8')",
        "sent": "_kafka.timestamp",
    }
    rows = stored.select(F.col("json").alias("value"), *KAFKA, "headers")
    return decode_messages(rows, SCHEMA, select=select, where=WHERE, keep_source=True)


def frames(stored: DataFrame, registry: SchemaRegistry, formats: Mapping[str, str]) -> dict[str, DataFrame]:
    found = {}
    for name, message_format in formats.items():
        select = {field: field for field in SCHEMA} | {"note": "lower(note)"}
        if message_format.startswith("debezium"):
            select["lsn"] = "_debezium.source.lsn"
        found[name] = decode_messages(
            stored.select(F.col(name).alias("value"), *KAFKA),
            SCHEMA,
            message_format=message_format,
            format_options=OPTIONS.get(VALIDATED if name == VALIDATED else message_format),
            registry={"url": registry.url},
            select=select,
            where=WHERE,
            keep_source=True,
        )
    return found


def write_files(given: list[Row], folder: Path) -> dict[str, Path]:
    """The rows as one file of each format; returns the folders by format."""
    folders = {name: folder / name for name in ("json", "csv", "parquet")}
    for place in folders.values():
        place.mkdir()
    (folders["json"] / "rows.json").write_bytes(b"\n".join(map(plain_json, given)))
    kinds = {"id": pa.int64(), "amount": pa.decimal128(12, 2), "at": pa.timestamp("us", "UTC")}
    columns = {name: pa.array([row[name] for row in given], kinds.get(name, pa.string())) for name in SCHEMA}
    pq.write_table(pa.table(columns), folders["parquet"] / "rows.parquet")
    with (folders["csv"] / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(SCHEMA))
        writer.writeheader()
        writer.writerows({**row, "at": row["at"].isoformat()} for row in given)
    return folders


def file_writers(folders: Mapping[str, Path], folder: Path) -> dict[str, WriterSpec]:
    """A writer for the files of each format, by a name for the report."""
    writers = {
        name: {
            "source": {
                "type": "files",
                "format": name,
                "path": str(place),
                "options": {"header": True} if name == "csv" else {},
            },
            "schema": SCHEMA,
            "select": {field: field for field in SCHEMA} | {"note": "lower(note)"},
            "where": WHERE,
        }
        for name, place in folders.items()
    }
    file = folder / "files.yaml"
    file.write_text(yaml.safe_dump({"table": {"uri": "./table"}, "writers": writers}, sort_keys=False))
    return {f"files of {name}": load_pipeline(file, {}).writer(name) for name in folders}


def file_seconds(spark: SparkSession, writer: WriterSpec) -> float:
    """Seconds of the batches of a query that reads all files."""
    with tempfile.TemporaryDirectory() as checkpoint:
        made = read_events(spark, writer).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = made.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(batch.durationMs.get("addBatch", 0) for batch in query.recentProgress) / 1000


def seconds(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def check(found: Mapping[str, DataFrame]) -> None:
    """Every format must give the same rows."""
    checks = ("count(*)", "sum(id)", "sum(amount)", "sum(unix_micros(at) % 1000003)", "count(note)")
    sums = {name: frame.selectExpr(*checks).collect() for name, frame in found.items()}
    assert len({str(values) for values in sums.values()}) == 1, sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    spark = session(cores=1)
    with tempfile.TemporaryDirectory() as folder, SchemaRegistry() as registry:
        made = encoders(registry)
        given = rows(asked.messages)
        columns: dict[str, Any] = {
            name: pa.array([encode(row) for row in given], pa.binary()) for name, (_, encode) in made.items()
        }
        sizes = {name: column.nbytes / len(column) for name, column in columns.items()}
        columns |= {
            "key": pa.array([b"key"] * asked.messages),
            "topic": pa.array(["orders"] * asked.messages),
            "partition": pa.array([0] * asked.messages, pa.int32()),
            "offset": pa.array(range(asked.messages), pa.int64()),
            "timestamp": pa.array([1_700_000_000_000_000] * asked.messages, pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("trace", b"1"), ("origin", b"shop")]] * asked.messages, HEADERS.type),
        }
        pq.write_table(pa.table(columns), Path(folder) / "messages.parquet", compression="none")
        stored = spark.read.parquet(str(Path(folder) / "messages.parquet"))
        found = frames(stored, registry, {name: message_format for name, (message_format, _) in made.items()})
        reads = {f"read {name}": stored.select(name) for name in found}
        found[PARTS] = message_parts(stored)
        reads[f"read {PARTS}"] = stored.select("json", "key", "headers", "timestamp")
        sizes[PARTS] = sizes["json"]
        check(found)
        folders = write_files(given, Path(folder))
        writers = file_writers(folders, Path(folder))
        taken: dict[str, list[float]] = defaultdict(list)
        for number in range(asked.rounds + 1):
            for name, frame in {**found, **reads}.items():
                spent = seconds(frame)
                if number:  # the first one warms up
                    taken[name].append(spent)
            for name, writer in writers.items():
                spent_on_file = file_seconds(spark, writer)
                if number:
                    taken[name].append(spent_on_file)
        print(f"{asked.messages:,} messages on one core, median of {asked.rounds} rounds")
        spent = {name: statistics.median(taken[name]) - statistics.median(taken[f"read {name}"]) for name in found}
        for name, place in zip(writers, folders.values(), strict=True):
            spent[name] = statistics.median(taken[name])
            sizes[name] = sum(file.stat().st_size for file in place.iterdir()) / asked.messages
        for name, value in spent.items():
            rate, bytes_each = asked.messages / value, sizes[name]
            print(f"  {name:28} {bytes_each:6.0f} bytes {rate:10,.0f} rows/s   {spent['json'] / value:5.2f} x json")
    spark.stop()


if __name__ == "__main__":
    main()
