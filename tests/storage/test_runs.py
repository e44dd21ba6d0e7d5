"""Small file groups are read together; the answer is that of each by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage import Table, base_file, scan
from storage.core.slices import joined
from tests.storage.shop import SHOP, append, contents, new_uri, orders, payments
from tests.storage.world import bag

MANY = 64


@pytest.fixture(params=[(base_file.ROW_GROUP_ROWS, base_file.SHARED_ROW_GROUP_ROWS), (60, 20)], ids=["one", "many"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Table:
    """64 file groups in every state: bases, shadows, events and folds above them, some without logs.

    In one row group a file, and in many of which some are decoded together.
    """
    monkeypatch.setattr(base_file, "ROW_GROUP_ROWS", request.param[0])
    monkeypatch.setattr(base_file, "SHARED_ROW_GROUP_ROWS", request.param[1])
    table = Table.create(new_uri(), {**SHOP, "buckets": MANY})
    append(table, orders(*range(1000)))
    append(table, payments(*range(0, 1200, 3)), "payments")
    append(table, orders(*range(0, 1000, 10), op="D", ts=2))
    table.compact()
    append(table, orders(*range(500, 600), status="late", ts=3))
    table.fold()
    append(table, orders(*range(590, 640), 1500, 1501, status="later", ts=4))
    append(table, payments(10, 20, 30, paid=7.0, ts=9), "payments")  # hidden: in shadows
    append(table, orders(20, status="back", ts=9))
    return table


def alone(table: Table, **arguments: Any) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "RUN_BYTES", 0)
        return bag(table.snapshot().to_arrow(**arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"columns": ["status"]},
        {"columns": []},
        {"columns": ["id", "paid"], "require": ["payment"]},
        {"filter": pc.field("status") == "late"},
        {"filter": pc.field("id").isin([20, 10, 595, 1501, 7])},
    ],
    ids=str,
)
def test_together_as_alone(table: Table, arguments: dict[str, Any]) -> None:
    found = table.snapshot().to_arrow(**arguments)
    assert bag(found) == alone(table, **arguments)
    assert found.num_rows


def test_what_the_answer_is(table: Table) -> None:
    found = dict(contents(table, ["id", "status"]))
    assert {found.get(n) for n in range(500, 590) if n % 10} == {"late"}
    assert {found[n] for n in [*range(590, 640), 1500, 1501]} == {"later"}
    assert found[20] == "back"
    assert 10 not in found
    assert dict(contents(table, ["id", "paid"]))[30 + 3] == 1.0


def test_pieces_that_follow_each_other_are_one_and_others_are_not(table: Table) -> None:
    slices = [own for own in table.snapshot().slices if len(own.rows)]
    whole = joined(slices)
    assert len(whole.rows) < sum(len(own.rows) for own in slices) / 4
    assert whole.rows.sum() == sum(own.rows.sum() for own in slices)
    parts = joined(slices[::2])
    assert parts.rows.sum() == sum(own.rows.sum() for own in slices[::2])
    keys = pa.array([row[0] for row in contents(table, ["id"])][::7])
    assert sorted(table.get(keys.to_pylist(), ["id"])["id"].to_pylist()) == sorted(keys.to_pylist())


def test_few_bytes_of_many_rows_are_not_held_at_once() -> None:
    """Values that repeat are small in files alone."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(120_000)))
    logs = [len(batch) for batch in table.snapshot().to_reader(["status"])]
    table.compact()
    base = [len(batch) for batch in table.snapshot().to_reader(["status"])]
    for sizes in (logs, base):
        assert sum(sizes) == 120_000
        assert 2 <= len(sizes) <= 4
        assert max(sizes) <= scan.RUN_ROWS
