"""Reading many small commits: their rows are coalesced, and the result does not change."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.shop import new_uri
from tests.tuning import tune
from weft import Table
from weft.storage.core.merge.collapse import LogRange
from weft.storage.files.log_reader import LogReader

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "status": "string", "ts": "bigint", "paid": "string"},
    "groups": {
        "order": {"columns": ["status", "ts"], "ordering": ["ts"]},
        "payment": {"columns": ["paid"], "ordering": []},
    },
    "streams": {
        "orders": {"groups": ["order"]},
        "payments": {"groups": ["payment"]},
        "both": {"groups": ["order", "payment"]},
    },
}
ORDER = {"id": [1], "ts": [10]}


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the ranges of events that are collapsed."""
    found: list[int] = []
    events = LogReader._events

    def counted(self: LogReader, *arguments: Any) -> Iterator[LogRange]:
        for log_range in events(self, *arguments):
            found.append(len(log_range))
            yield log_range

    monkeypatch.setattr(LogReader, "_events", counted)
    return found


def test_the_later_commit_wins_ties_between_streams() -> None:
    table = Table.create(new_uri(), CONFIG)
    with table.writer("both") as both, table.writer("orders") as orders:
        both.append(pa.table({**ORDER, "status": ["a"], "paid": ["x"]}))
        orders.append(pa.table({**ORDER, "status": ["b"]}))
        assert table.snapshot().to_arrow(["status"])["status"].to_pylist() == ["b"]
        both.append(pa.table({**ORDER, "status": ["c"], "paid": ["y"]}))
    assert table.snapshot().to_arrow(["status", "paid"]).to_pylist() == [{"status": "c", "paid": "y"}]


def test_commits_of_interleaved_streams_are_coalesced_per_stream(ranges: list[int]) -> None:
    table = Table.create(new_uri(), CONFIG)
    with table.writer("orders") as orders, table.writer("payments") as payments:
        for number in range(10):
            orders.append(pa.table({"id": [number, 99], "ts": [number, number], "status": [str(number)] * 2}))
            payments.append(pa.table({"id": [number], "paid": [str(number)]}))
    rows = table.snapshot().to_arrow(["id", "status", "paid"]).sort_by("id").to_pylist()
    assert rows == [
        *({"id": i, "status": str(i), "paid": str(i)} for i in range(10)),
        {"id": 99, "status": "9", "paid": None},
    ]
    assert sorted(ranges) == [10, 20]


def test_coalesced_ranges_are_bounded(ranges: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, coalesce_rows=4)
    table = Table.create(new_uri(), CONFIG)
    with table.writer("payments") as payments:
        for number in range(5):
            payments.append(pa.table({"id": [1, number], "paid": [f"one {number}", str(number)]}))
    assert table.get([1, 4], ["id", "paid"]).sort_by("id")["paid"].to_pylist() == ["one 4", "4"]
    assert ranges == [3, 2, 2]
    ranges.clear()
    assert len(table.snapshot().to_arrow()) == 5
    assert ranges == [4, 4, 2]


def test_a_look_up_does_not_filter_ranges_column_by_column() -> None:
    """The number of calls that filter a range does not depend on the number of columns."""
    calls = [look_up_calls(width) for width in (5, 100)]
    assert calls[0] == calls[1] > 0


def look_up_calls(width: int) -> int:
    """Calls by which a look-up filters the events of a table with this number of value columns."""
    columns = {f"c{number}": "bigint" for number in range(width)}
    table = Table.create(
        new_uri(),
        {
            "key": ["id"],
            "buckets": 1,
            "columns": {"id": "bigint", **columns},
            "groups": {"g": {"columns": list(columns)}},
            "streams": {"s": {"groups": ["g"]}},
        },
    )
    with table.writer("s") as writer:
        writer.append(pa.table({name: [1, 2, 3] for name in ("id", *columns)}))
    profile, snapshot = cProfile.Profile(), table.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        log_range = LogReader._log_range

        def profiled(self: LogReader, *arguments: Any) -> Iterator[LogRange]:
            yield from profile.runcall(list, log_range(self, *arguments))

        patch.setattr(LogReader, "_log_range", profiled)
        assert snapshot.get([2]).num_rows == 1
    return sum(count for count, *_ in pstats.Stats(profile).stats.values())  # type: ignore[attr-defined]
