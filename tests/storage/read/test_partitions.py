"""Partitions: each text has a different folder, and no text leads out of the table's folder."""

from __future__ import annotations

from pathlib import Path as LocalPath

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.core.names import encode_partition

CONFIG = {
    "key": ["tenant", "id"],
    "partition_by": ["tenant"],
    "buckets": 2,
    "columns": {"tenant": "string", "id": "bigint", "v": "bigint"},
    "groups": {"g": {"columns": ["v"]}},
    "streams": {"s": {"groups": ["g"]}},
}
TENANTS = [
    *("", "a", "A", ".", "..", "../../etc", "/", "a/b", "a=b", "a%2Fb", "%", "é", "日本" * 10, "\x00", "\n", " "),
    *("__empty__", "__null__", "x" * 255, "x" * 300, "x" * 301, "日本" * 50, "y" * 5_000),
]


def test_any_text_can_be_a_partition_value(tmp_path: LocalPath) -> None:
    table = Table.create(tmp_path / "table", CONFIG)
    rows = pa.table({"tenant": TENANTS, "id": [1] * len(TENANTS), "v": list(range(len(TENANTS)))})
    with table.writer("s") as writer:
        writer.append(rows)
        expected = sorted(rows.to_pylist(), key=repr)
        assert sorted(table.snapshot().to_arrow().to_pylist(), key=repr) == expected
        table.compact()
        writer.append(rows.slice(3, 5))
        table.compact()
    assert sorted(Table.open(table.uri).snapshot().to_arrow().to_pylist(), key=repr) == expected
    assert {path.name for path in tmp_path.iterdir()} == {"table"}
    assert {path.name for path in (tmp_path / "table").iterdir()} == {"_weft", "log", "base"}


@pytest.mark.parametrize("text", TENANTS, ids=range(len(TENANTS)))
def test_a_partition_folder_has_a_bounded_length(text: str) -> None:
    folder = encode_partition("a column / with = signs", text)
    assert "/" not in folder
    assert folder not in {".", ".."}
    assert len(folder.encode()) <= 255
    assert folder.isascii()


def test_different_texts_are_different_folders() -> None:
    texts = [text for text in TENANTS if text != "__empty__"]  # shares only the folder with the empty text
    assert len({encode_partition("t", text) for text in texts}) == len(texts)
