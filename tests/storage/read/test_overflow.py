"""A sum that does not fit its column shows NULL, is counted, and is shown again when it fits."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from weft import Table

CONFIG = {
    "key": ["k"],
    "buckets": 2,
    "columns": {"k": "bigint", "n": "int", "ts": "bigint"},
    "groups": {"g": {"columns": ["n", "ts"], "ordering": ["ts"], "merge": "aggregate", "functions": {"n": "sum"}}},
    "streams": {"s": {"groups": ["g"]}},
}


def rows(*values: tuple[int, int, int, str]) -> pa.Table:
    k, n, ts, op = zip(*values, strict=True)
    return pa.table({"k": k, "n": pa.array(n, pa.int32()), "ts": ts, "_op": op})


def test_overflowing_sums_are_counted_until_they_fit(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", CONFIG)
    largest = 2**31 - 1
    with table.writer("s") as writer:
        writer.append(rows((1, largest, 1, "I"), (1, 1, 2, "I"), (2, 5, 1, "I")))
        assert table.compact().overflows == {"n": 1}
        assert table.snapshot().to_arrow().sort_by("k").column("n").to_pylist() == [None, 5]
        writer.append(rows((1, 1, 3, "D")))
        assert table.compact().overflows == {}
        assert table.snapshot().to_arrow().sort_by("k").column("n").to_pylist() == [largest, 5]
