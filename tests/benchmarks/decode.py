"""The cost of decoding, compared with Spark's `from_json` with the same fields: `python -m tests.benchmarks.decode`.

Flat messages (5 fields) and nested ones (structs, an array of structs, a map) are in a Parquet file. One core decodes
them, computes the same ``select`` and ``where``, and throws the rows away. *weft* is `decode_messages` as a writer uses
it, with the source of each message; *unguarded* is the same without the source; *from_json* ignores text after an
object, does not distinguish a wrong type from NULL, and fails the query if an expression fails. Runs are interleaved;
medians of wall clock and of the CPU seconds of the tasks, each without those of reading the file. *arrow* is
`pyarrow.json` in this process: what another decoder could save, if it gave the same answers. It does not (README.md).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tests.benchmarks.spark_session import session
from weft.storage.core.types import parse_type
from weft.streams.write.decode import decode_messages

FLAT = {
    "order_id": "bigint",
    "status": "string",
    "amount": "decimal(12,2)",
    "customer": "string",
    "updated": "timestamp",
}
NESTED = {
    "order_id": "bigint",
    "status": "string",
    "customer": "struct<name:string,address:struct<street:string,city:string,zip:string>>",
    "lines": "array<struct<sku:string,count:int,price:double>>",
    "tags": "map<string,string>",
}
WHERE = "order_id IS NOT NULL"


def write_messages(file: Path, count: int) -> None:
    """Columns ``flat`` and ``nested``, and the metadata of Kafka messages."""
    chance = random.Random(7)
    flat, nested = [], []
    for number in range(count):
        order = {"order_id": chance.randrange(count), "status": chance.choice(("NEW", "PAID"))}
        name = f"customer-{chance.randrange(10_000)}"
        updated = f"2024-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        flat.append({**order, "amount": chance.randrange(100_000) / 100, "customer": name, "updated": updated})
        address = {"street": "Main Street 5", "city": "Berlin", "zip": "12345"}
        lines = [{"sku": f"sku-{line}", "count": line, "price": 1.5 * line} for line in range(4)]
        tags = {"channel": "web", "campaign": "spring"}
        nested.append({**order, "customer": {"name": name, "address": address}, "lines": lines, "tags": tags})
    columns: dict[str, Any] = {
        "flat": pa.array([json.dumps(message).encode() for message in flat]),
        "nested": pa.array([json.dumps(message).encode() for message in nested]),
        "key": pa.array([b"key"] * count),
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), file, compression="none")


def task_seconds(spark: SparkSession) -> float:
    """CPU seconds of the tasks of the last job: without planning, compilation and garbage collection."""
    scala: Any = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    store = scala.statusStore()
    stages = store.job(scala.dagScheduler().nextJobId() - 1).stageIds().mkString(",").split(",")
    return sum(float(store.lastStageAttempt(int(stage)).executorCpuTime()) for stage in stages) / 1e9


def ways(messages: DataFrame, schema: dict[str, str]) -> dict[str, DataFrame]:
    select = {name: name for name in schema} | {"status": "lower(status)"}
    fields = ", ".join(f"{name} {kind}" for name, kind in schema.items())
    parsed = messages.select(F.from_json(F.col("value").cast("string"), fields).alias("message")).select("message.*")
    return {
        "read": messages,
        "from_json": parsed.where(WHERE).selectExpr(*(f"{text} AS {name}" for name, text in select.items())),
        "weft": decode_messages(messages, schema, select=select, where=WHERE, keep_source=True),
        "unguarded": decode_messages(messages, schema, select=select, where=WHERE),
    }


def arrow_seconds(file: Path, rounds: int) -> float:
    """CPU seconds of Arrow's JSON reader for the flat messages, a line for each, on one thread."""
    lines = io.BytesIO(b"\n".join(pq.read_table(file, columns=["flat"])["flat"].to_pylist()))
    schema = pa.schema([(name, parse_type(kind)) for name, kind in FLAT.items()])
    seconds = []
    for _ in range(rounds):
        lines.seek(0)
        began = time.process_time()
        pj.read_json(lines, pj.ReadOptions(use_threads=False), pj.ParseOptions(explicit_schema=schema))
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def measured(spark: SparkSession, run: Callable[[], None]) -> tuple[float, float]:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began, task_seconds(spark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    spark = session(cores=1)
    with tempfile.TemporaryDirectory() as folder:
        write_messages(Path(folder) / "messages.parquet", asked.messages)
        arrow = arrow_seconds(Path(folder) / "messages.parquet", asked.rounds)
        stored = spark.read.parquet(folder)
        for kind, schema in (("flat", FLAT), ("nested", NESTED)):
            messages = stored.select(F.col(kind).alias("value"), "key", "topic", "partition", "offset", "timestamp")
            taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for number in range(asked.rounds + 2):
                for name, frame in ways(messages, schema).items():
                    target = frame.write.format("noop").mode("overwrite")
                    seconds = measured(spark, target.save)
                    if number > 1:  # the first ones warm up
                        taken[name].append(seconds)
            medians = {
                name: [statistics.median(of) for of in zip(*found, strict=True)] for name, found in taken.items()
            }
            wall, cpu = ({name: found[i] - medians["read"][i] for name, found in medians.items()} for i in (0, 1))
            print(f"{asked.messages:,} {kind} messages, median of {asked.rounds} rounds")
            for name in ("from_json", "weft", "unguarded"):
                print(
                    f"  {name:10} {wall[name]:6.2f} s   CPU {cpu[name]:6.2f} s"
                    f"   {cpu[name] / cpu['from_json']:.2f} x from_json (CPU)"
                )
            if kind == "flat":
                print(f"  {'arrow':10} {'':10}   CPU {arrow:6.2f} s   {arrow / cpu['from_json']:.2f} x from_json (CPU)")
    spark.stop()


if __name__ == "__main__":
    main()
