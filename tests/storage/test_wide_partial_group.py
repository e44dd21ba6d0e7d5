"""Groups with mode latest_non_null of any number of columns: the numbers of suppliers get more than one byte."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.shop import new_uri
from weft import Table
from weft.storage.core.log.features import reader_features

KEYS = 3


def create(columns: int) -> Table:
    names = [f"c{i}" for i in range(columns)]
    return Table.create(
        new_uri(),
        {
            "key": ["id"],
            "buckets": 1,
            "columns": {"id": "bigint", "ts": "bigint", **dict.fromkeys(names, "bigint")},
            "groups": {"g": {"columns": ["ts", *names], "ordering": ["ts"], "merge": "latest_non_null"}},
            "streams": {"s": {"groups": ["g"]}},
        },
    )


class History:
    """What the events say of each key and column: the value with the largest ordering value."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table, self.chance = table, random.Random(seed)
        self.times = iter(self.chance.sample(range(1_000_000), 10_000))
        self.newest: dict[tuple[int, str], tuple[int, int]] = {}

    def append(self, events: int, first: int, last: int) -> None:
        """Events in any order, each of which supplies one column of ``first`` to ``last``."""
        rows: list[dict[str, Any]] = []
        for _ in range(events):
            key, name = self.chance.randrange(KEYS), f"c{self.chance.randrange(first, last)}"
            time, value = next(self.times), self.chance.randrange(1000)
            rows.append({"id": key, "ts": time, name: value})
            self.newest[key, name] = max(self.newest.get((key, name), (-1, 0)), (time, value))
        columns = [name for name in self.table.schema.column_by_name if any(name in row for row in rows)]
        with self.table.writer("s") as writer:
            writer.append(pa.table({name: pa.array([row.get(name) for row in rows]) for name in columns}))

    def check(self) -> None:
        shown = self.table.snapshot().to_arrow().to_pylist()
        got = {
            (row["id"], name): value
            for row in shown
            for name, value in row.items()
            if value is not None and name not in {"id", "ts"}
        }
        assert got == {place: value for place, (_, value) in self.newest.items()}


def features(table: Table) -> list[str]:
    return reader_features(table.schema, [])


@pytest.mark.parametrize("columns", [254, 255, 600])
def test_each_column_shows_its_newest_value(columns: int) -> None:
    history = History(create(columns), columns)
    for service in ("compact", "fold", "fold", "compact"):
        history.append(3 * columns, 0, columns)
        history.check()
        getattr(history.table, service)()
        history.check()
    assert ("wide-suppliers" in features(history.table)) == (columns > 254)
    assert history.table.verify().ok


@pytest.mark.parametrize("service", ["", "compact", "fold"])
def test_a_group_grows_beyond_what_a_byte_numbers(service: str) -> None:
    history = History(create(250), 1)
    history.append(600, 0, 250)
    if service:
        getattr(history.table, service)()
    assert "wide-suppliers" not in features(history.table)
    for i in range(250, 260):
        history.table.add_column("g", f"c{i}", "bigint")
    assert "wide-suppliers" in features(history.table)
    history.check()
    history.append(600, 200, 260)
    history.check()
    history.table.compact()
    history.check()
    for key in range(KEYS):
        explained = history.table.explain_row(key).versions
        supplied = {name: version.ordering["ts"] for version in explained for name in version.columns}
        assert {name: supplied[name] for at, name in history.newest if at == key} == {
            name: time for (at, name), (time, _) in history.newest.items() if at == key
        }
