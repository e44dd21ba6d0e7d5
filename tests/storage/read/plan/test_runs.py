"""Small file groups are read together; the result equals reading each separately."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.storage.support.shop import SHOP, append, contents, fill_with_every_state, new_uri, orders
from tests.storage.support.world import bag
from tests.tuning import tune, tuned
from weft.storage import Table, mergers
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.plan.slices import combine_slices, plan_slices
from weft.storage.environment import Tuning
from weft.storage.errors import InvalidInput
from weft.storage.read.scan import read_runs

MANY = 64


@pytest.fixture(params=[(Tuning().row_group_rows, Tuning().shared_row_group_rows), (60, 20)], ids=["one", "many"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Table:
    """64 file groups in every state: with bases, shadows, events and folds; some without logs.

    Files with one row group, and with many of which some are decoded together.
    """
    tune(monkeypatch, row_group_rows=request.param[0], shared_row_group_rows=request.param[1])
    table = Table.create(new_uri(), {**SHOP, "buckets": MANY})
    fill_with_every_state(table)
    return table


def alone(table: Table, **arguments: Any) -> list[Any]:
    return bag(tuned(table, scan_run_bytes=1).snapshot().to_arrow(**arguments))


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
def test_reading_file_groups_together_gives_the_same_rows(table: Table, arguments: dict[str, Any]) -> None:
    found = table.snapshot().to_arrow(**arguments)
    assert bag(found) == alone(table, **arguments)
    assert found.num_rows


def test_the_result_of_a_run_is_correct(table: Table) -> None:
    found = dict(contents(table, ["id", "status"]))
    assert {found.get(n) for n in range(500, 590) if n % 10} == {"late"}
    assert {found[n] for n in [*range(590, 640), 1500, 1501]} == {"later"}
    assert found[20] == "back"
    assert 10 not in found
    assert dict(contents(table, ["id", "paid"]))[30 + 3] == 1.0


def test_only_adjacent_ranges_are_combined(table: Table) -> None:
    slices = [file_slice for file_slice in table.snapshot().slices if len(file_slice.rows)]
    whole = combine_slices(slices)
    assert len(whole.rows) < sum(len(file_slice.rows) for file_slice in slices) / 4
    assert whole.rows.sum() == sum(file_slice.rows.sum() for file_slice in slices)
    parts = combine_slices(slices[::2])
    assert parts.rows.sum() == sum(file_slice.rows.sum() for file_slice in slices[::2])
    keys = pa.array([row[0] for row in contents(table, ["id"])][::7])
    assert sorted(table.get(keys.to_pylist(), ["id"])["id"].to_pylist()) == sorted(keys.to_pylist())


def test_planning_some_file_groups_equals_planning_all(table: Table) -> None:
    snapshot = table.snapshot()
    whole = snapshot.slices
    elsewhere = [FileGroup("", 6, 999), FileGroup("day=1", 6, 0)]
    for chosen in (whole, whole[::3], whole[5:6], []):
        found = plan_slices(
            snapshot.state, snapshot.files, only=[*elsewhere, *(file_slice.group for file_slice in reversed(chosen))]
        )
        assert repr(list(found)) == repr(list(chosen))
    assert any(len(file_slice.rows) == 0 for file_slice in whole)


@pytest.mark.slow
def test_runs_work_for_every_type_of_key() -> None:
    """Keys: numbers that are far apart, texts, and several columns; hidden rows, and bases in several batches."""
    numbers = [*range(-200, 200), *(place * 2**53 for place in range(-1000, 1000, 19))]
    for key_type, keys in (
        ("bigint", numbers),
        ("string", [f"key{number}" for number in numbers]),
        ("timestamp", [abs(number) % 2**57 for number in numbers]),
    ):
        config = {**SHOP, "buckets": MANY, "columns": {**SHOP["columns"], "id": key_type}}
        table = Table.create(new_uri(), config)
        key_values = pa.array(sorted(set(keys)))
        key_values = key_values.view(pa.timestamp("us", tz="UTC")) if key_type == "timestamp" else key_values
        for step in (1, 5, 7):
            rows = pa.table({"id": key_values[:: step if step > 1 else 2]})
            columns = {"status": pa.array([f"at {step}"] * len(rows)), "ots": pa.array([step] * len(rows))}
            deletes = pa.array(["delete" if step == 5 and i % 3 == 0 else "upsert" for i in range(len(rows))])
            append(table, pa.table({"id": rows["id"], **columns, "_op": deletes}))
            if step < 7:
                tuned(table, row_group_rows=60, shared_row_group_rows=20).compact()
        assert bag(table.snapshot().to_arrow()) == alone(table), key_type
        assert bag(table.snapshot().to_arrow(["status"])) == alone(table, columns=["status"]), key_type


def test_a_failing_merger_in_a_run_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mergers.VARIABLE, "tests.mergers")
    groups = {"own": {"columns": ["c_n", "c_t"], "merge": "tests.mergers:failing"}}
    config = {
        "key": ["id"],
        "buckets": 8,
        "columns": {"id": "bigint", "c_n": "bigint", "c_t": "string"},
        "groups": groups,
        "streams": {"owns": {"groups": ["own"]}},
    }
    table = Table.create(new_uri(), config)
    append(table, pa.table({"id": [70_001, 70_002, 70_003], "c_n": [1, 2, 3], "c_t": ["x", "y", "z"]}), "owns")
    with pytest.raises(InvalidInput, match=r"failed for key 7000[123]"):
        table.snapshot().to_arrow()


def test_runs_are_bounded_by_rows_as_well() -> None:
    """Repeated values are small in files, but not in memory."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(120_000)))
    logs = [len(batch) for batch in table.snapshot().to_reader(["status"])]
    table.compact()
    base = [len(batch) for batch in table.snapshot().to_reader(["status"])]
    for sizes in (logs, base):
        assert sum(sizes) == 120_000
        assert 2 <= len(sizes) <= 4
        assert max(sizes) <= read_runs.RUN_ROWS
