"""Tables of other formats, written by their libraries, or by hand where a library does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "status": ["new", None, "sent"],
        "ts": pa.array([10, 20, 30], pa.int64()),
        "paid": [1.5, 2.5, None],
        "paid_ts": pa.array([5, 6, None], pa.timestamp("ms")),
    }
)


def parquet(folder: Path, rows: pa.Table = ROWS, files: int = 1) -> str:
    folder.mkdir(parents=True)
    size = -(-len(rows) // files)
    for number in range(files):
        pq.write_table(rows.slice(number * size, size), folder / f"{number}.parquet")
    return str(folder)


def hudi(folder: Path, logical_type: str = "timestamp-micros") -> str:
    """A copy-on-write table with one commit; hudi-rs reads tables, and does not write them."""
    rows = ROWS.set_column(4, "paid_ts", ROWS["paid_ts"].cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")))
    moment, file_id = "20260101000000000", "5d1ab0a2-0000-4000-8000-000000000001-0"
    name = f"{file_id}_0-1-0_{moment}.parquet"
    meta = folder / ".hoodie"
    meta.mkdir(parents=True)
    properties = {
        "hoodie.table.name": "orders",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": "6",
        "hoodie.timeline.layout.version": "1",
        "hoodie.table.recordkey.fields": "id",
        "hoodie.table.precombine.field": "ts",
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    }
    (meta / "hoodie.properties").write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    hidden = {
        "_hoodie_commit_time": [moment] * len(rows),
        "_hoodie_commit_seqno": [f"{moment}_0_{i}" for i in range(len(rows))],
        "_hoodie_record_key": [str(key) for key in rows["id"].to_pylist()],
        "_hoodie_partition_path": [""] * len(rows),
        "_hoodie_file_name": [name] * len(rows),
    }
    pq.write_table(pa.table({**hidden, **dict(zip(rows.column_names, rows.columns, strict=True))}), folder / name)
    stats = {"fileId": file_id, "path": name, "prevCommit": "null", "partitionPath": "", "numWrites": len(rows)}
    commit = {"partitionToWriteStats": {"": [stats]}, "compacted": False, "operationType": "INSERT"}
    avro = {"string": "string", "int64": "long", "double": "double"}
    time = {"type": "long", "logicalType": logical_type}
    fields: list[Any] = [
        {
            "name": f.name,
            "type": ["null", avro.get(str(f.type), time)],
        }
        for f in rows.schema
    ]
    schema = {"type": "record", "name": "orders_record", "fields": fields}
    commit["extraMetadata"] = {"schema": json.dumps(schema)}
    (meta / f"{moment}.commit").write_text(json.dumps(commit))
    for state in ("commit.requested", "inflight"):
        (meta / f"{moment}.{state}").touch()
    return str(folder)


PAIMON_TYPES = {
    "id": "BIGINT NOT NULL",
    "status": "STRING",
    "ts": "BIGINT",
    "paid": "DOUBLE",
    "paid_ts": "TIMESTAMP(3)",
}


def paimon(
    warehouse: Path,
    options: Mapping[str, str],
    rows: Sequence[pa.Table] = (ROWS,),
    options_of_writes: Mapping[str, str] | None = None,
) -> str:
    """A table with a commit for each of ``rows``; the library does not create tables, so its schema file is written."""
    from pypaimon_rust.datafusion import PaimonCatalog

    folder = warehouse / "shop.db" / "orders"
    (folder / "schema").mkdir(parents=True)

    def declare(given: Mapping[str, str]) -> Any:
        fields = [{"id": i, "name": name, "type": kind} for i, (name, kind) in enumerate(PAIMON_TYPES.items())]
        schema = {"version": 3, "id": 0, "fields": fields, "highestFieldId": len(fields) - 1, "timeMillis": 1}
        keys = {"partitionKeys": [], "primaryKeys": ["id"], "options": given, "comment": None}
        (folder / "schema" / "schema-0").write_text(json.dumps({**schema, **keys}))
        return PaimonCatalog({"warehouse": str(warehouse)}).get_table("shop.orders")

    for number, table in enumerate(rows):
        builder = declare(options_of_writes or options).new_batch_write_builder()
        writer = builder.new_write()
        for batch in table.combine_chunks().to_batches():
            writer.write_arrow(batch)
        builder.new_commit().commit(writer.prepare_commit())
        assert (folder / "snapshot" / f"snapshot-{number + 1}").exists()
    declare(options)
    return str(folder)
