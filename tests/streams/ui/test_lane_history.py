"""The log as arrays: what is aggregated for charts equals a count of single entries."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Table
from storage.engine import Inspection
from streams.ui import lane_history
from streams.ui.lane_history import KINDS, LaneHistory
from tests.storage.shop import SHOP, append, fill_with_every_state, orders, payments


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = Table.create(tmp_path_factory.mktemp("history") / "wide", SHOP)
    fill_with_every_state(table)
    table.savepoint("here")
    table.restore("here")
    for number in range(20):
        append(table, orders(number, ts=50), "orders")
    return table


def inspection(table: Table) -> Inspection:
    return Inspection.of(table.snapshot(references=False))


def loaded(table: Table) -> LaneHistory:
    history = LaneHistory()
    history.update(inspection(table))
    deadline = time.monotonic() + 30
    while history.loaded < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return history


def kind_of(name: str) -> str:
    return lane_history.KINDS[lane_history._NUMBER[name]]


@given(data=st.data())
def test_cells_count_each_entry_of_the_span_once(table: Table, data: st.DataObject) -> None:
    history = loaded(table)
    first, last = history.span()
    begin = data.draw(st.integers(first - 2, last + 2), "begin")
    end = data.draw(st.integers(begin, last + 5), "end")
    parts = data.draw(st.integers(1, 50), "parts")
    cells = history.cells(begin, end, parts)
    expected: Counter[tuple[str, str]] = Counter()
    rows: Counter[tuple[str, str]] = Counter()
    for entry in inspection(table).timeline():
        if begin <= entry.committed_at_ms <= end:
            expected[entry.lane, kind_of(entry.kind)] += 1
            rows[entry.lane, kind_of(entry.kind)] += entry.rows or 0
    found: Counter[tuple[str, str]] = Counter()
    summed: Counter[tuple[str, str]] = Counter()
    for lane, part, kind, count, total in zip(cells.lane, cells.part, cells.kind, cells.count, cells.rows, strict=True):
        assert 0 <= part < parts
        found[cells.lanes[lane], KINDS[kind]] += count
        summed[cells.lanes[lane], KINDS[kind]] += total
    assert found == expected
    assert +summed == +rows


def test_a_cell_names_the_last_of_its_entries(table: Table) -> None:
    history = loaded(table)
    cells = history.cells(*history.span(), 1)
    place = cells.lanes.index("orders")
    last = max(seq for lane, seq in zip(cells.lane, cells.seq, strict=True) if lane == place)
    assert last == inspection(table).heads()["orders"]


def test_every_kind_of_entry_is_drawn(table: Table) -> None:
    assert {entry.kind for entry in inspection(table).timeline()} <= lane_history._NUMBER.keys()


def test_a_long_log_is_read_in_pages_from_its_end(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_history, "_FIRST", 2)
    monkeypatch.setattr(lane_history, "_LEAST", 2)
    monkeypatch.setattr(lane_history, "_PAGE", 3)
    whole, paged = LaneHistory(), loaded(table)
    monkeypatch.undo()
    whole.update(inspection(table))
    span = whole.span()
    assert paged.cells(*span, 40) == whole.cells(*span, 40)


def test_new_entries_are_read_with_the_next_question(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    history = loaded(table)
    append(table, orders(1, 2, 3))
    append(table, payments(1), "payments")
    history.update(inspection(table))
    now = int(time.time() * 1000) + 1
    rates = history.rows_per_second({"orders": ["orders"], "payments": ["payments"], "none": ["none"]}, now, 60, 1)
    assert rates == {"orders": [3 / 60], "payments": [1 / 60], "none": [0.0]}
    assert history.claims("orders", 0) == 1
    assert history.claims("orders", now) == 0
