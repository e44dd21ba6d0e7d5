"""Rows a second of each message format, beside plain JSON in the same run: `python -m tests.benchmarks.formats`.

The same rows (5 fields: a number, two texts, a decimal and a timestamp) are written as messages of each format, with
an encoder of its own, and stored in a Parquet file. One core decodes them as a writer does, with the source of each
message, and throws the rows away. Runs are interleaved; medians of the wall clock, without that of reading the file.
The registry is a small server in this process: each schema is fetched once by a worker.
"""

from __future__ import annotations

import argparse
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
from confluent_kafka.schema_registry.confluent.types import decimal_pb2  # noqa: F401 - makes its descriptor known
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from streams.write.decode import decode_messages
from tests.benchmarks.spark_session import session
from tests.streams.formats.debezium_messages import Kind, base64_text, connect, micros, twos_complement, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import logical, record, written
from tests.streams.formats.test_protobuf import ROW, serializer

Row = Mapping[str, Any]
SCHEMA = {"id": "bigint", "name": "string", "note": "string", "amount": "decimal(12,2)", "at": "timestamp"}
WHERE = "id IS NOT NULL"
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

    return {
        "json": ("json", plain_json),
        "json-schema": ("json-schema", lambda row: b"\0\0\0\0\1" + plain_json(row)),
        "avro": ("avro", lambda row: written(parsed, row, avro_id)),
        "protobuf": ("protobuf", protobuf),
        "debezium": ("debezium", lambda row: write_event(kinds, "c", after=row, source=source, envelope=False)),
        "debezium with schema": ("debezium", lambda row: write_event(kinds, "c", after=row, source=source)),
        "debezium-avro": ("debezium-avro", event_avro),
    }


def frames(stored: DataFrame, registry: SchemaRegistry, formats: Mapping[str, str]) -> dict[str, DataFrame]:
    found = {}
    for name, message_format in formats.items():
        select = {field: field for field in SCHEMA} | {"note": "lower(note)"}
        if message_format.startswith("debezium"):
            select["lsn"] = "_debezium.source.lsn"
        found[name] = decode_messages(
            stored.select(F.col(name).alias("value"), "key", "topic", "partition", "offset", "timestamp"),
            SCHEMA,
            message_format=message_format,
            format_options={"timestamps": "micros", "decimals": "base64"} if message_format == "debezium" else None,
            registry={"url": registry.url},
            select=select,
            where=WHERE,
            keep_source=True,
        )
    return found


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
        }
        pq.write_table(pa.table(columns), Path(folder) / "messages.parquet", compression="none")
        stored = spark.read.parquet(folder)
        found = frames(stored, registry, {name: message_format for name, (message_format, _) in made.items()})
        check(found)
        reads = {f"read {name}": stored.select(name) for name in found}
        taken: dict[str, list[float]] = defaultdict(list)
        for number in range(asked.rounds + 1):
            for name, frame in {**found, **reads}.items():
                spent = seconds(frame)
                if number:  # the first one warms up
                    taken[name].append(spent)
        print(f"{asked.messages:,} messages on one core, median of {asked.rounds} rounds")
        spent = {name: statistics.median(taken[name]) - statistics.median(taken[f"read {name}"]) for name in found}
        for name, value in spent.items():
            rate, bytes_each = asked.messages / value, sizes[name]
            print(f"  {name:22} {bytes_each:6.0f} bytes {rate:10,.0f} rows/s   {spent['json'] / value:5.2f} x json")
    spark.stop()


if __name__ == "__main__":
    main()
