"""Rewrite: values of a column change at a cut; versions, later events and other columns do not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.elsewhere import elsewhere
from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from weft import Table
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.storage.store.open_store import open_store

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "email": {"type": "string", "default": "none@x"},
        "ts": "bigint",
        "city": "string",
        "tags": "array<string>",
        "pts": "bigint",
        "n": "bigint",
    },
    "groups": {
        "person": {"columns": ["email", "ts"], "ordering": ["ts"]},
        "place": {"columns": ["city", "tags", "pts"], "ordering": ["pts"], "merge": "latest_non_null"},
        "sums": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {"s": {"groups": ["person"], "on_delete": "row"}, "t": {"groups": ["place"]}, "u": {"groups": ["sums"]}},
    "buckets": 4,
}


def hidden(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("#", pc.utf8_length(values).cast(pa.string()), "")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", CONFIG)
    persons(table, [1, 2, 3], ["a@x", "bb@x", None], 10)
    table.compact()
    persons(table, [2, 4], ["ccc@x", "d@x"], 20)
    table.fold()
    persons(table, [5], ["eeeee@x"], 20)
    with table.writer("u") as writer:
        writer.append(pa.table({"id": [1, 9], "n": [1, 2]}))
    return table


def persons(table: Table, ids: Iterable[int], emails: Iterable[str | None], ts: int, op: str | None = None) -> None:
    ids = list(ids)
    columns = {"id": ids, "email": pa.array(list(emails), pa.string()), "ts": [ts] * len(ids)}
    with table.writer("s") as writer:
        writer.append(pa.table(columns | ({"_op": [op] * len(ids)} if op else {})))


def emails(table: Table) -> dict[int, str | None]:
    rows = table.snapshot().to_arrow(["id", "email"]).to_pylist()
    return {row["id"]: row["email"] for row in rows}


BEFORE = {1: "a@x", 2: "ccc@x", 3: None, 4: "d@x", 5: "eeeee@x", 9: "none@x"}
AFTER = {1: "#3", 2: "#5", 3: None, 4: "#3", 5: "#7", 9: "none@x"}


class TestValues:
    def test_all_values_change_and_nulls_and_defaults_stay(self, table: Table) -> None:
        assert emails(table) == BEFORE
        result = table.rewrite("email", hidden, note="ticket 8")
        assert emails(table) == emails(Table.open(table.uri)) == AFTER
        assert (result.entry, result.rows) == (table.state().rewritten, 6)
        assert table.verify().ok

    def test_other_processes_can_do_the_work(self, table: Table) -> None:
        table.rewrite("email", hidden, execute=elsewhere)
        assert emails(table) == AFTER

    def test_versions_stay_so_later_events_win_or_lose_as_before(self, table: Table) -> None:
        table.rewrite("email", hidden)
        persons(table, [1, 2, 4], ["late", "late", "newer"], 15)
        persons(table, [4], ["newer"], 30)
        assert emails(table) == AFTER | {1: "late", 4: "newer"}
        table.compact()
        assert emails(table) == AFTER | {1: "late", 4: "newer"}

    def test_hidden_rows_change_too(self, table: Table) -> None:
        with table.writer("t") as writer:
            writer.append(pa.table({"id": [1], "city": ["Rome"], "tags": [["a", "b"]], "pts": [1]}))
        persons(table, [1], [None], 40, "D")
        table.rewrite("city", hidden)
        persons(table, [1], ["back"], 50)
        row = table.get([1]).to_pylist()[0]
        assert (row["email"], row["city"], row["tags"]) == ("back", "#4", ["a", "b"])

    def test_nested_values(self, table: Table) -> None:
        with table.writer("t") as writer:
            writer.append(pa.table({"id": [1, 2], "city": ["R", None], "tags": [["a", "b"], None], "pts": [1, 1]}))
        table.rewrite("tags", lambda values: pa.array([[str(len(tags))] for tags in values.to_pylist()]))
        assert table.get([1]).column("tags").to_pylist() == [["2"]]
        assert table.get([2]).column("tags").to_pylist() == [None]

    def test_old_values_are_gone_after_cleaning(self, table: Table) -> None:
        table.rewrite("email", hidden)
        table.clean(dt.timedelta(0))
        root = Path(table.uri.removeprefix("file://"))
        for path in root.rglob("*.parquet"):
            assert "ccc@x" not in str(pq.read_table(path).to_pylist())
        assert list(root.rglob("*.arrow")) == []

    def test_again_and_on_an_idle_table(self, table: Table) -> None:
        table.rewrite("email", hidden)
        table.rewrite("email", pc.ascii_reverse)
        assert emails(table) == {key: value and value[::-1] if key != 9 else value for key, value in AFTER.items()}
        assert table.verify().ok

    def test_file_groups_without_rows(self, table: Table) -> None:
        table.erase([1, 2, 3, 4, 5], expire_snapshots=True)
        table.rewrite("email", hidden)
        assert emails(table) == {9: "none@x"}
        assert table.erase([9], expire_snapshots=True).complete
        table.rewrite("email", hidden)
        assert emails(table) == {}

    def test_an_empty_table(self, tmp_path: Path) -> None:
        assert Table.create(tmp_path / "empty", CONFIG).rewrite("email", hidden).entry == 0


class TestBeside:
    def test_a_live_writer_goes_on_and_its_values_are_its_own(self, table: Table) -> None:
        with table.writer("s") as writer:
            store = FaultyStore(open_store(table.uri))
            late = pa.table({"id": [1, 7], "email": ["m", "n"], "ts": [60, 60]})
            store.faults.append(Fault("open_output", "base/", action=lambda: writer.append(late) and None))
            other_process(table.uri, FakeClock(), store).rewrite("email", hidden)
            writer.append(pa.table({"id": [8], "email": ["o"], "ts": [60]}))
        assert emails(table) == AFTER | {1: "m", 7: "n", 8: "o"}

    def test_a_compaction_that_publishes_first_changes_nothing_and_no_value_changes_twice(self, table: Table) -> None:
        store = FaultyStore(open_store(table.uri))
        store.faults.append(Fault("open_output", "base/", action=lambda: table.compact() and None))
        result = other_process(table.uri, FakeClock(), store).rewrite("email", hidden)
        assert emails(table) == AFTER
        kinds = [entry.kind for entry in _table_lane(table)]
        assert kinds.count("BASE") == 3
        assert result.entry == len(kinds)

    def test_earlier_snapshots_and_changes(self, table: Table) -> None:
        table.savepoint("before")
        cut = str(table.snapshot().cut)
        table.rewrite("email", hidden)
        persons(table, [11], ["new"], 1)
        for since in (cut, "before"):
            found = table.changes(since).read_all().to_pylist()
            changed = {row["id"]: (row["_change"], row["email"]) for row in found}
            assert changed == {key: ("update", AFTER[key]) for key in (1, 2, 4, 5)} | {11: ("insert", "new")}
        rows = table.snapshot("before").to_arrow(["id", "email"]).to_pylist()
        assert {row["id"]: row["email"] for row in rows} == BEFORE
        table.restore("before")
        assert emails(table) == BEFORE


class TestRefusals:
    @pytest.mark.parametrize(
        ("column", "error", "words"),
        [
            ("nothing", NotFound, "nothing"),
            ("id", InvalidInput, "key"),
            ("ts", InvalidInput, "orders the events"),
            ("n", InvalidInput, "aggregate"),
        ],
    )
    def test_columns(self, table: Table, column: str, error: type[Exception], words: str) -> None:
        head = table.state().head
        with pytest.raises(error, match=words):
            table.rewrite(column, hidden)
        assert table.state().head == head

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda values: values[1:], "one value for each"),
            (lambda _: "x", "one value for each"),
            (lambda values: pa.array([[1]] * len(values)), "is not string"),
            (lambda _: 1 / 0, "ZeroDivisionError"),
        ],
    )
    def test_functions(self, table: Table, function: Any, words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            table.rewrite("email", function)
        assert emails(table) == BEFORE
        assert table.state().plans == {}
        assert table.verify().ok

    def test_endless_races(self, table: Table) -> None:
        """The others' clock differs by years, so its reservations do not hold for them (K6)."""
        store = FaultyStore(open_store(table.uri))

        def first() -> None:
            persons(table, [1], ["a@x"], 10)
            table.compact()

        store.faults.append(Fault("open_output", "base/", times=100, action=first))
        with pytest.raises(Conflict, match="published first"):
            other_process(table.uri, FakeClock(), store).rewrite("email", hidden)
        assert emails(table) == BEFORE


def _table_lane(table: Table) -> list[Any]:
    from weft.storage.core.names import TABLE_LANE
    from weft.storage.log.commit_log import CommitLog

    return CommitLog(table.env).read_after(TABLE_LANE, 0)
