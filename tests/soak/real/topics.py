"""The pipeline of the soak with a real broker: four topics in four formats, one table, and how rows become messages.

Pure functions and values. Rows are Python dicts; this module writes them as a producer would, with fastavro and
Google's protobuf, and shares no code with weft's decoders.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import fastavro
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from weft.streams.spark.settings import QUICK_START, SERIAL

PARTITIONS: Final = 2
UNKNOWN_ID: Final = 999_999
"""An id that no schema of the registry has."""

_CONFIG: Final[Mapping[str, Any]] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {
        "id": "bigint",
        "hits": "bigint",
        "visits": "bigint",
        "click_seq": "bigint",
        "status": "string",
        "amount": "bigint",
        "lsn": "bigint",
        "paid": "double",
        "method": "string",
        "pay_seq": "bigint",
        "city": "string",
        "note": "string",
        "profile_seq": "bigint",
    },
    "groups": {
        "click": {
            "columns": ["hits", "visits", "click_seq"],
            "ordering": ["click_seq"],
            "merge": "aggregate",
            "functions": {"hits": "sum", "visits": "count"},
        },
        "order": {"columns": ["status", "amount", "lsn"], "ordering": ["lsn"]},
        "payment": {"columns": ["paid", "method", "pay_seq"], "ordering": ["pay_seq"]},
        "profile": {
            "columns": ["city", "note", "profile_seq"],
            "ordering": ["profile_seq"],
            "merge": "latest_non_null",
        },
    },
    "streams": {
        "clicks": {"groups": ["click"]},
        "orders": {"groups": ["order"]},
        "payments": {"groups": ["payment"]},
        "profiles": {"groups": ["profile"]},
    },
}
FORMATS: Final[Mapping[str, str]] = {
    "clicks": "json",
    "orders": "debezium",
    "payments": "avro",
    "profiles": "protobuf",
}
"""Format of each topic; topics, streams, writers and lanes have the same names."""
NEW_COLUMN: Final = ("payment", "currency", "string")
"""Group, name and type of the column that is added while the pipeline runs."""
_ORDERING: Final = {"clicks": "click_seq", "orders": "lsn", "payments": "pay_seq", "profiles": "profile_seq"}


def table_config(*, evolved: bool) -> dict[str, Any]:
    """Configuration of the table, before or after the column is added."""
    config: dict[str, Any] = copy.deepcopy(dict(_CONFIG))
    if evolved:
        group, name, kind = NEW_COLUMN
        config["columns"][name] = kind
        config["groups"][group]["columns"].append(name)
    return config


def write_pipeline(
    folder: Path, bootstrap_servers: str, registry: str, *, evolved: bool, lossy: Collection[str] = ()
) -> Path:
    """Write the pipeline file; returns its path. Commits, compactions and cleans are frequent.

    Args:
        folder: The file is ``pipeline.yaml`` in it, the table ``table``.
        bootstrap_servers: Of the broker.
        registry: URL of the registry.
        evolved: Whether it has the added column.
        lossy: Writers with failOnDataLoss=false, because their topic was created again.
    """
    config = table_config(evolved=evolved)
    writers: dict[str, Any] = {}
    for stream, name in FORMATS.items():
        (group,) = config["streams"][stream]["groups"]
        columns = {column: config["columns"][column] for column in config["groups"][group]["columns"]}
        fields = {column: kind for column, kind in columns.items() if column != "lsn"}
        source: dict[str, Any] = {"type": "kafka", "topic": stream, "format": name, "starting_offsets": "earliest"}
        if stream in lossy:
            source["options"] = {"failOnDataLoss": "false"}
        writers[stream] = {
            "source": {**source, "max_offsets_per_trigger": 5000},
            "schema": {"id": "bigint", **fields},
            "select": {"id": "id", **{column: column for column in columns}},
            "trigger": "1 second",
            "resume": "table",
        }
    writers["orders"]["select"]["lsn"] = "_debezium.source.lsn"
    pipeline = {
        "table": {"uri": "./table", "config": config},
        "kafka": {"bootstrap.servers": bootstrap_servers},
        "registry": {"url": registry},
        "spark": {
            "spark.master": "local[1]",
            "spark.driver.extraJavaOptions": f"{SERIAL} {QUICK_START}",
            "spark.driver.memory": "512m",
        },
        "writers": writers,
        "compaction": {"every": "3 seconds", "min_commits": 8},
        "clean": {"every": "10 seconds", "retain": "2 minutes", "abandon_after": "1 minute"},
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False), encoding="utf-8")
    return path


# --- rows ------------------------------------------------------------------------------------------------------------


def make_row(stream: str, seq: int, key: int, rng: random.Random, *, evolved: bool) -> dict[str, Any]:
    """One event of a stream; ``seq`` orders it and is used once in its stream."""
    row: dict[str, Any] = {"_op": "u", "id": key}
    match stream:
        case "clicks":
            row |= {"hits": rng.randrange(100), "visits": 1}
        case "orders":
            row |= {"_op": rng.choice("cuuuuurd"), "status": rng.choice(["new", "paid", None]), "amount": seq % 997}
        case "payments":
            row |= {"paid": seq / 4, "method": rng.choice(["card", "cash", None])}
            if evolved:
                row["currency"] = rng.choice(["EUR", "USD", None])
        case _:
            row |= {"city": rng.choice(["Köln", None]), "note": rng.choice([f"n{seq}", None])}
    return {**row, _ORDERING[stream]: seq}


def _avro_schema(*, evolved: bool) -> dict[str, Any]:
    names = {"id": "long", "paid": "double", "method": "string", "pay_seq": "long"}
    if evolved:
        names = {**names, "currency": "string"}
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in names.items()]
    return {"type": "record", "name": "Payment", "namespace": "soak", "fields": fields}


def _profile_type() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="soak/profile.proto", package="soak", syntax="proto3")
    message = file.message_type.add(name="Profile")
    types = {"id": kinds.TYPE_INT64, "city": kinds.TYPE_STRING, "note": kinds.TYPE_STRING}
    for number, (name, kind) in enumerate({**types, "profile_seq": kinds.TYPE_INT64}.items(), 1):
        field = message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
        if name in {"city", "note"}:  # a field with presence is in a group of its own
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("soak.Profile"))


_PROFILE: Final = _profile_type()
_AVRO: Final = {evolved: fastavro.parse_schema(_avro_schema(evolved=evolved)) for evolved in (False, True)}

Register = Callable[[str, str, str], int]
"""Registers a schema under a subject: subject, schema, kind; returns its id."""


class Encoder:
    """Writes rows as messages. Schemas are registered when they are first needed."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._ids: dict[tuple[str, bool], int] = {}

    def schema_id(self, stream: str, *, evolved: bool) -> int:
        """The id of the value's schema.

        Raises:
            OSError: The registry does not answer.
        """
        wanted = (stream, evolved and stream == "payments")
        if wanted not in self._ids:
            if stream == "payments":
                schema, kind = json.dumps(_avro_schema(evolved=evolved)), "AVRO"
            else:
                described = descriptor_pb2.FileDescriptorProto()
                _PROFILE.DESCRIPTOR.file.CopyToProto(described)
                schema, kind = base64.b64encode(described.SerializeToString()).decode(), "PROTOBUF"
            self._ids[wanted] = self._register(f"{stream}-value", schema, kind)
        return self._ids[wanted]

    def messages(self, stream: str, row: Mapping[str, Any]) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of the messages of one event: one, and after a delete of Debezium also a tombstone."""
        key = json.dumps({"id": row["id"]}).encode()
        fields = {name: value for name, value in row.items() if name != "_op"}
        match stream:
            case "clicks":
                return [(key, json.dumps(fields).encode())]
            case "orders":
                change = _change(row)
                return [(key, change), (key, None)] if row["_op"] == "d" else [(key, change)]
            case "payments":
                evolved = "currency" in row
                file = io.BytesIO()
                fastavro.schemaless_writer(file, _AVRO[evolved], fields)
                return [(key, self._framed(stream, file.getvalue(), evolved=evolved))]
        given = {name: value for name, value in fields.items() if value is not None}
        return [(key, self._framed(stream, b"\0" + _PROFILE(**given).SerializeToString()))]

    def bad_values(self, stream: str) -> list[bytes]:
        """Values that the writer of a stream cannot store, of several kinds."""
        match stream:
            case "clicks":
                return [b"not JSON {", b"\xff\xfe{}", b'{"id": "text", "click_seq": 1}', b'{"hits": 1, "click_seq": 1}']
            case "orders":
                truncate = json.dumps({"op": "t", "source": {"lsn": 1}, "before": None, "after": None}).encode()
                return [truncate, b'{"id": 1, "status": "flat"}', b"\xff\xfe", b"[1, 2"]
            case "payments":
                return [b"\1no header", _framed(UNKNOWN_ID, b"\2\2"), self._framed(stream, b"\2")]
        return [b"", b"\0\0", _framed(UNKNOWN_ID, b"\0"), self._framed(stream, b"\0\x12\xff")]

    def _framed(self, stream: str, body: bytes, *, evolved: bool = False) -> bytes:
        return _framed(self.schema_id(stream, evolved=evolved), body)


def _framed(schema_id: int, body: bytes) -> bytes:
    """The wire format of Confluent's registry."""
    return b"\0" + schema_id.to_bytes(4, "big") + body


def _change(row: Mapping[str, Any]) -> bytes:
    image = {name: row[name] for name in ("id", "status", "amount")}
    deleted = row["_op"] == "d"
    event = {
        "before": image if deleted else None,
        "after": None if deleted else image,
        "source": {"connector": "postgresql", "lsn": row["lsn"]},
        "op": row["_op"],
        "ts_ms": 1_700_000_000_000,
    }
    return json.dumps(event).encode()
