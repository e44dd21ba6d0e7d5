"""A small table of two streams for tests of erasing, and what its objects contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faulty_store import FakeClock
from tests.storage.support.erased import has_keys
from weft import Table
from weft.storage.environment import Environment, Tuning
from weft.storage.store.open_store import open_store

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "string", "a": "string", "ts": "bigint", "b": "string"},
    "groups": {"g": {"columns": ["a", "ts"], "ordering": ["ts"]}, "h": {"columns": ["b"]}},
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}},
    "buckets": 4,
}
GONE = "person-7"
ALL = [f"person-{number}" for number in range(12)]


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def objects(table: Table) -> dict[str, bytes]:
    root = folder_of(table)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def with_keys(table: Table, keys: Iterable[str], config: Mapping[str, Any] = CONFIG) -> list[str]:
    """The objects that have one of the keys, or the text of one anywhere in their bytes."""
    return sorted(
        path
        for path, data in objects(table).items()
        if has_keys(path, data, config, [(key,) for key in keys]) or any(key.encode() in data for key in keys)
    )


def append(table: Table, stream: str, keys: Iterable[str], number: int = 1, op: str | None = None) -> None:
    with table.writer(stream) as writer:
        writer.append(rows(stream, keys, number, op))


def rows(stream: str, keys: Iterable[str], number: int = 1, op: str | None = None) -> pa.Table:
    ids = list(keys)
    values = {"a": [f"a{number}"] * len(ids), "ts": [number] * len(ids)} if stream == "s" else {"b": ["b"] * len(ids)}
    return pa.table({"id": ids, **values} | ({"_op": [op] * len(ids)} if op else {}))


def ids(table: Table) -> list[str]:
    return sorted(table.snapshot().to_arrow(["id"]).column("id").to_pylist())


def errors_of(table: Table) -> list[str]:
    return [str(finding) for finding in table.verify().errors]


def small(tmp_path: Path, clock: FakeClock | None = None, **tuning: int) -> Table:
    """An empty table whose objects are small, so that all kinds of them exist."""
    env = Environment(open_store(str(tmp_path / "small")), clock or FakeClock(), tuning=Tuning(**tuning))
    return Table.create_in(env, CONFIG)
