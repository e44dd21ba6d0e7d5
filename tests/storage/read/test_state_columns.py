"""State columns: whether a group is present in a row, and the arrival of its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from weft import Table
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core.schema.state_columns import state_columns
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "status": {"type": "string", "default": "unknown"},
        "at": "bigint",
        "paid": "double",
        "n": "bigint",
    },
    "groups": {
        "order": {"columns": ["status", "at"], "ordering": ["at"]},
        "payment": {"columns": ["paid"]},
        "clicks": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {
        "o": {"groups": ["order"], "on_delete": "row"},
        "p": {"groups": ["payment"]},
        "c": {"groups": ["clicks"]},
    },
}
ASKED = ["id", "_present_payment", "_arrival_payment", "_present_order", "_arrival_order", "_present_clicks"]


def append(table: Table, stream: str, **columns: Any) -> int:
    """The arrival of the commit."""
    with table.writer(stream) as writer:
        commit = writer.append(pa.table(columns))
    lane = table.state().lanes[commit.lane]
    entry = table._table_log.commit_log.entry(lane.name, commit.seq)
    assert entry is not None
    return entry.stamp << 20 | lane.lane_id


def fill(table: Table) -> dict[int, dict[str, Any]]:
    """Write rows 1 to 6; returns the expected state columns by key."""
    first = append(table, "o", id=[1, 2, 3, 4, 5], status=["a", None, "c", "d", "e"], at=[10, 10, 10, 10, 10])
    paid = append(table, "p", id=[1, 3, 5, 6], paid=[1.0, None, 2.0, 3.0])
    append(table, "c", id=[3], n=[7])
    later = append(table, "o", id=[1, 3], status=["b", "lost"], at=[11, 9])
    append(table, "p", id=[5], paid=[None], _op=["delete"])
    append(table, "o", id=[4], status=[None], at=[12], _op=["delete"])
    arrivals = {}
    for key, payment, order, clicks in (
        (1, paid, later, False), (2, None, first, False), (3, paid, first, True), (5, None, first, False),
        (6, paid, None, False),
    ):  # fmt: skip
        arrivals[key] = dict(
            zip(ASKED, (key, payment is not None, payment, order is not None, order, clicks), strict=True)
        )
    return arrivals


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", CONFIG)


def by_key(rows: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in rows.to_pylist()}


@pytest.mark.parametrize("kept_as", ["logs", "folds", "base", "base and logs"])
def test_presence_and_arrival_match_the_shown_values(table: Table, kept_as: str) -> None:
    arrivals = fill(table)
    if kept_as == "folds":
        table.fold()
    if kept_as.startswith("base"):
        table.compact()
    if kept_as == "base and logs":
        newest = append(table, "p", id=[2], paid=[4.0])
        arrivals[2] |= {"_present_payment": True, "_arrival_payment": newest}
    snapshot = table.snapshot()
    rows = snapshot.to_arrow(ASKED)
    assert by_key(rows) == arrivals
    assert rows.schema == pa.schema([
        pa.field("id", pa.int64(), nullable=False),
        pa.field("_present_payment", pa.bool_(), nullable=False), ("_arrival_payment", pa.int64()),
        pa.field("_present_order", pa.bool_(), nullable=False), ("_arrival_order", pa.int64()),
        pa.field("_present_clicks", pa.bool_(), nullable=False),
    ])  # fmt: skip
    assert snapshot.to_reader(ASKED).schema == rows.schema
    assert by_key(snapshot.to_reader(ASKED).read_all()) == arrivals
    assert by_key(table.get([1, 6, 4], ASKED)) == {key: arrivals[key] for key in (1, 6)}
    required = snapshot.to_arrow(ASKED, require=["payment"])
    assert by_key(required) == {key: row for key, row in arrivals.items() if row["_present_payment"]}
    # Alone, with values of the same group, and without the group's values.
    alone = snapshot.to_arrow(["_present_payment"])["_present_payment"].to_pylist()
    assert sorted(alone) == sorted(row["_present_payment"] for row in arrivals.values())
    beside = snapshot.to_arrow(["paid", "_present_payment", "id"]).to_pylist()
    assert {(row["id"], row["paid"]) for row in beside if row["_present_payment"]} >= {(1, 1.0), (3, None), (6, 3.0)}
    if kept_as == "base":
        assert by_key(snapshot.to_arrow(ASKED, read_optimized=True)) == arrivals


def test_filters_can_use_state_columns(table: Table) -> None:
    arrivals = fill(table)
    for _ in ("logs", "base"):
        snapshot = table.snapshot()

        def found(condition: pc.Expression, columns: list[str] | None = None, now: Any = snapshot) -> list[int]:
            return sorted(now.to_arrow(columns or ["id"], filter=condition)["id"].to_pylist())

        assert found(pc.field("_present_payment")) == [1, 3, 6]
        assert found(~pc.field("_present_order"), ["id", "_arrival_order"]) == [6]
        assert found(pc.field("_present_payment") & (pc.field("id") > 1), ["_present_clicks", "id"]) == [3, 6]
        newest = pc.field("_arrival_order") >= arrivals[1]["_arrival_order"]
        assert found(newest) == [1]
        assert found(pc.is_null(pc.field("paid")) & pc.field("_present_payment")) == [3]
        table.compact()


def test_wrong_state_columns_are_refused(table: Table) -> None:
    fill(table)
    for wrong in ("_present_nobody", "_arrival_", "_present_paid"):
        with pytest.raises(NotFound, match=f"no column '{wrong}'"):
            table.snapshot().to_arrow([wrong])
    with pytest.raises(NotFound, match="does not fit the table"):
        table.snapshot().to_arrow(filter=pc.field("_present_nobody"))
    with pytest.raises(InvalidInput, match="not a condition"):
        table.snapshot().to_arrow(filter=pc.field("_arrival_order"))
    assert "_present_order" not in table.snapshot().to_arrow().column_names


@pytest.mark.parametrize("name", ["_present_order", "_Arrival_Payment"])
def test_a_new_table_has_no_column_of_such_a_name(name: str) -> None:
    config = {
        **CONFIG,
        "columns": {**CONFIG["columns"], name: "bigint"},
        "groups": {**CONFIG["groups"], "more": {"columns": [name]}},
        "streams": {"m": {"groups": ["more"]}},
    }
    with pytest.raises(InvalidInput, match=f"(?s)columns.{name}: reads use this name.*rename"):
        build_schema(load_config(config))


def test_an_older_table_keeps_a_user_column_of_such_a_name() -> None:
    text = json.dumps(build_schema(load_config(CONFIG)).to_json()).replace('"paid"', '"_present_order"')
    schema = TableSchema.from_json(json.loads(text))
    assert set(state_columns(schema)) == {
        *(f"_arrival_{group}" for group in CONFIG["groups"]),
        *("_present_payment", "_present_clicks"),
    }
