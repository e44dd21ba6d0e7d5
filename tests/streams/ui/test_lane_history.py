"""The log as arrays: what is aggregated for charts equals a count of single entries."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.shop import SHOP, append, fill_with_every_state, new_uri, orders, payments
from weft import Table
from weft.storage.services.inspect.inspect import Inspection, TimelineEntry
from weft.streams.ui import lane_history
from weft.streams.ui.lane_history import KINDS, LaneHistory


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
    deadline = time.monotonic() + 120
    while history.loaded < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return history


def kind_of(name: str) -> str:
    return lane_history.KIND_OF[name]


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


@pytest.mark.parametrize("first", [600, 1], ids=["whole", "the newest first"])
def test_closing_lanes_and_replays_are_no_restores(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """The entry that ends a closing says only which one began it, and that may be among those that are read later."""
    monkeypatch.setattr(lane_history, "_FIRST_ENTRIES", first)
    monkeypatch.setattr(lane_history, "_MIN_PER_LANE", first)
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1))
    table.savepoint("here")
    table.restore("here")
    with table.writer("orders", "orders-replay-0123456789abcdef", query_id="replay-0123456789abcdef") as writer:
        writer.append(orders(2), batch=("replay-0123456789abcdef", 0))
    table.close_lane("orders-replay-0123456789abcdef")
    history = loaded(table)
    kinds = {
        (entry.kind, kind) for entry, kind in zip_kinds(history, table) if entry.kind in {"INTENT", "DONE", "DATA"}
    }
    assert kinds == {
        *(("INTENT", "restore"), ("DONE", "restore"), ("INTENT", "closing"), ("DONE", "closing")),
        *(("DATA", "commit"), ("DATA", "replay")),
    }
    begin, end = history.span()
    cells = history.cells(begin, end, 1)
    count = {KINDS[kind]: number for kind, number in zip(cells.kind, cells.count, strict=True)}
    assert (count["restore"], count["closing"], count["replay"]) == (2, 2, 1)
    rates = history.rows_per_second({"orders": list(cells.lanes)}, end + 1, 60, 1)
    assert round(rates["orders"][0] * 60) == 2, "what a replay stores is stored"


def zip_kinds(history: LaneHistory, table: Table) -> list[tuple[TimelineEntry, str]]:
    look = inspection(table)
    entries = history.newest(look, 100)
    return list(zip(entries, history.kinds(look, entries), strict=True))


def test_a_cell_names_the_last_of_its_entries(table: Table) -> None:
    history = loaded(table)
    cells = history.cells(*history.span(), 1)
    place = cells.lanes.index("orders")
    last = max(seq for lane, seq in zip(cells.lane, cells.seq, strict=True) if lane == place)
    assert last == inspection(table).heads()["orders"]


@pytest.mark.parametrize("count", [1, 7, 50, 1_000])
@pytest.mark.parametrize("first", [1, 20, 600])
def test_the_newest_entries_are_those_of_the_log(
    table: Table, monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    monkeypatch.setattr(lane_history, "_FIRST_ENTRIES", first)
    monkeypatch.setattr(lane_history, "_MIN_PER_LANE", 1)
    history, looked = LaneHistory(), inspection(table)
    history.update(looked)
    found, expected = history.newest(looked, count), looked.timeline(count)
    assert [entry.committed_at_ms for entry in found] == [entry.committed_at_ms for entry in expected]
    whole = {(entry.lane, entry.seq): entry for entry in looked.timeline()}
    assert all(whole[entry.lane, entry.seq] == entry for entry in found)
    assert len({(entry.lane, entry.seq) for entry in found}) == len(found)


def test_what_was_not_read_is_estimated_from_a_sample(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loaded(table)
    monkeypatch.setattr(lane_history, "_FIRST_ENTRIES", 1)
    monkeypatch.setattr(lane_history, "_MIN_PER_LANE", 1)
    monkeypatch.setattr(LaneHistory, "_read_older", LaneHistory._sample)
    history, looked = LaneHistory(), inspection(table)
    history.update(looked)
    while history.loaded < 1 and history._older is not None and history._older.is_alive():
        time.sleep(0.01)
    assert history.span() == whole.span()
    found, exact = (each.cells(*whole.span(), 20) for each in (history, whole))
    assert any(found.guessed)
    assert not any(exact.guessed)
    assert sum(found.count) == sum(exact.count)


def test_compactions_and_folds_are_bars_from_begin_to_end(table: Table) -> None:
    history = loaded(table)
    first, last = history.span()
    entries = [entry for entry in inspection(table).timeline() if entry.plan]
    expected = {}
    for entry in reversed(entries):
        begin = expected.get(entry.plan, (entry.committed_at_ms, 0, entry.seq))
        expected[entry.plan] = (begin[0], entry.committed_at_ms, begin[2])
    found = history.plans(first, last, 0)
    assert [(span.begin_ms, span.end_ms, span.seq) for span in found] == sorted(
        expected.values(), key=lambda span: span[2]
    )
    assert {span.kind for span in found} == {"compaction", "fold"}
    assert not any(span.open for span in found)
    assert history.plans(last + 1, last + 2, 0) == []


def test_an_open_compaction_lasts_until_now(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))

    class Stop(Exception):
        pass

    def stop(_: object) -> list[object]:
        raise Stop

    with contextlib.suppress(Stop):
        table.compact(execute=stop)
    history = loaded(table)
    (span,) = history.plans(0, 1 << 52, 1 << 50)
    assert (span.open, span.end_ms, span.kind) == (bool(inspection(table).open_plans()), 1 << 52, "plan")


def test_every_kind_of_entry_is_drawn(table: Table) -> None:
    assert {entry.kind for entry in inspection(table).timeline()} <= lane_history.KIND_OF.keys()


def test_a_long_log_is_read_in_pages_from_its_end(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_history, "_FIRST_ENTRIES", 2)
    monkeypatch.setattr(lane_history, "_MIN_PER_LANE", 2)
    monkeypatch.setattr(lane_history, "_PAGE_ENTRIES", 3)
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
