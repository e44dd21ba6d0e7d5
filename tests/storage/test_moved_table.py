"""A table that is moved, deleted or replaced beside open writers and services: what they publish is an error (W8)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.errors import CorruptData

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "bigint", "v": "string", "ts": "bigint"},
    "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
    "streams": {"a": {"groups": ["g"]}},
    "buckets": 1,
}


def rows(key: int) -> pa.Table:
    return pa.table({"id": [key], "v": ["x"], "ts": [key]})


def keys(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow(["id"]).column("id").to_pylist())


def moved(folder: Path) -> None:
    (folder / "table").rename(folder / "elsewhere")


def deleted(folder: Path) -> None:
    shutil.copytree(folder / "table", folder / "elsewhere")
    shutil.rmtree(folder / "table")


def replaced(folder: Path) -> None:
    """Another table with as many entries in the lane, so that the next slot is the same."""
    moved(folder)
    with Table.create(str(folder / "table"), CONFIG).writer("a") as other:
        other.append(rows(1))


@pytest.mark.parametrize("happens", [moved, deleted, replaced])
def test_a_commit_is_refused_and_written_again_when_the_table_is_back(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    table = Table.create(str(tmp_path / "table"), CONFIG)
    with table.writer("a", query_id="q") as writer:
        writer.append(rows(1), batch=("q", 0))
        happens(tmp_path)
        with pytest.raises(CorruptData, match="was moved, deleted or replaced") as refused:
            writer.append(rows(2), batch=("q", 1))
        assert "move it back" in str(refused.value.hint)
        with pytest.raises(CorruptData, match="moved"):
            writer.append(rows(2), batch=("q", 1))
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "elsewhere").rename(tmp_path / "table")
    table = Table.open(str(tmp_path / "table"))
    assert keys(table) == [1]
    with table.writer("a", query_id="q") as writer:
        assert not writer.append(rows(2), batch=("q", 1)).replayed
    assert keys(table) == [1, 2]
    assert table.verify().ok


@pytest.mark.parametrize(
    "publish",
    [
        lambda table: table.savepoint("kept"),
        lambda table: table.compact(),
        lambda table: table.writer("a").__enter__(),
        lambda table: table.writer("a", lane="new").__enter__(),
    ],
    ids=["a savepoint", "a compaction", "a claim", "a new lane"],
)
def test_what_others_publish_is_refused_too(tmp_path: Path, publish: Callable[[Table], Any]) -> None:
    table = Table.create(str(tmp_path / "table"), CONFIG)
    with table.writer("a") as writer:
        writer.append(rows(1))
    other = Table.open(table.uri)
    other.snapshot()
    moved(tmp_path)
    with pytest.raises(CorruptData, match=r"moved|first entry"):
        publish(other)
