"""Finds keys in the bytes of stored objects, without the code of `weft.storage.services.erase`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.strategies import Config
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core.merge.locate_keys import sort_keys
from weft.storage.core.types import encode_scalar

Key = tuple[Any, ...]


def has_keys(path: str, data: bytes, config: Config, keys: Iterable[Key]) -> bool:
    """Whether an object has one of the keys: in a row, or as an end of a key range in an index or footer."""
    wanted = set(keys)
    if "/_delta_log/" in path:
        return False  # `weft.storage.services.erase` does not read it, and says so
    if path.endswith((".parquet", ".arrow")):
        return not wanted.isdisjoint(_rows(path, data, config["key"]))
    return not _bounds(config, wanted).isdisjoint(_ends(path, data))


def _rows(path: str, data: bytes, names: list[str]) -> Iterator[Key]:
    source = pa.BufferReader(data)
    table = pq.read_table(source) if path.endswith(".parquet") else pa.ipc.open_file(source).read_all()
    yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _bounds(config: Config, keys: Iterable[Key]) -> set[Any]:
    """How an index stores the keys."""
    schema = build_schema(load_config(config))
    found = set()
    for key in keys:
        columns = zip(config["key"], key, strict=True)
        rows = {name: pa.array([value], schema.column_by_name[name].type) for name, value in columns}
        value = sort_keys(schema, rows)[0].as_py()
        found.add(encode_scalar(value))
    return found


def _ends(path: str, data: bytes) -> Iterator[Any]:
    if path.endswith(".entries"):
        header, body = data.partition(b"\n")[2].split(b"\n", 1)
        sizes = json.loads(header)["sizes"]
        rest = pa.decompress(body, sum(sizes), codec="zstd", asbytes=True)
        for size in sizes:
            yield from _ends_in(json.loads(rest[:size]))
            rest = rest[size:]
    elif path.endswith(".json") and data[:1] in {b"{", b"["}:
        yield from _ends_in(json.loads(data))
    elif "checkpoints/lanes/" in path:
        yield from _ends_in(json.loads(data.split(b"\n", 1)[1]))
    elif "checkpoints/table/" in path:
        rest, head, _, _ = data.rsplit(b"\n", 3)
        yield from _ends_in(json.loads(head))
        for groups in (fold["groups"] for fold in json.loads(head)["state"]["folds"]):
            text = pa.decompress(base64.b64decode(groups["packed"]), groups["size"], codec="zstd", asbytes=True)
            yield from _ends_in(json.loads(text))
        for part in json.loads(head)["parts"]:
            text = pa.decompress(rest[: part["packed"]], part["size"], codec="zstd", asbytes=True)
            yield from _ends_in(json.loads(text))
            rest = rest[part["packed"] :]


def _ends_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name in {"key_min", "key_max"}:
                yield from item
            else:
                yield from _ends_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ends_in(item)
