"""Files of one file group, and since when its commits wait: as the whole table says it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.storage.support.shop import SHOP, append, fill_with_every_state, new_uri, orders
from weft import Table
from weft.storage.errors import NotFound
from weft.storage.services.inspect.file_groups import group_files, stored_files, waiting_since
from weft.storage.services.inspect.inspect import Inspection


@pytest.fixture(scope="module")
def table() -> Table:
    table = Table.create(new_uri(), SHOP)
    fill_with_every_state(table)
    return table


def test_files_of_a_group_sum_up_to_its_report(table: Table) -> None:
    snapshot = table.snapshot()
    inspection = Inspection.of(snapshot)
    readers: dict[str, int] = defaultdict(int)
    for report in inspection.files():
        rows: dict[str, int] = defaultdict(int)
        files = group_files(snapshot, report.file_group)
        for file in files:
            rows[file.kind] += file.rows
            readers[file.path] += 1
            assert file.rows <= file.file_rows
            assert sum(count for _, _, count in file.blocks) == (0 if file.seq is None else file.rows)
        assert rows["base"] == report.base_rows
        assert rows["shadow"] == report.shadow_rows
        assert rows["log"] + rows["fold"] == report.log_rows
        assert len([file for file in files if file.seq is not None]) == report.log_files
    stored = {file.path: file for file in stored_files(snapshot)}
    assert readers == {path: file.file_groups for path, file in stored.items() if file.file_groups}


def test_a_log_file_that_no_file_group_reads_any_more_is_listed_until_it_is_covered() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1))
    append(table, orders(*range(20)))
    first = table.snapshot().files[0].file.file
    (group,) = (part.group for part in table.snapshot().slices if 0 in part.file)
    table.compact(lambda part: part.group == group)
    snapshot = table.snapshot()
    stored = {file.path: file for file in stored_files(snapshot)}
    assert (stored[first.path].file_groups, stored[first.path].rows, stored[first.path].seq) == (0, 1, 2)
    logs = {file.path: file.bytes for file in stored.values() if file.kind == "log"}
    assert logs == {live.file.file.path: live.file.file.size for live in snapshot.files}


def test_all_kinds_of_files_are_listed(table: Table) -> None:
    snapshot = table.snapshot()
    inspection = Inspection.of(snapshot)
    kinds = {file.kind for report in inspection.files() for file in group_files(snapshot, report.file_group)}
    assert kinds == {"base", "shadow", "log", "fold"}


def test_an_unknown_group_is_refused(table: Table) -> None:
    with pytest.raises(NotFound, match="no file group 'b02-9'"):
        group_files(table.snapshot(), "b02-9")


def test_waiting_since_is_the_oldest_entry_of_the_files_of_a_group(table: Table) -> None:
    snapshot = table.snapshot()
    inspection = Inspection.of(snapshot)
    times = {(entry.lane, entry.seq): entry.committed_at_ms for entry in inspection.timeline()}
    expected = {}
    for report in inspection.files():
        logs = [file for file in group_files(snapshot, report.file_group) if file.seq is not None]
        if logs:
            expected[report.file_group] = min(times[file.lane, file.seq] for file in logs if file.seq is not None)
    assert expected
    assert waiting_since(snapshot) == expected


def test_nothing_waits_after_a_compaction() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1, 2, 3))
    table.compact()
    assert waiting_since(table.snapshot()) == {}


def test_entries_of_a_lane_are_those_of_the_timeline(table: Table) -> None:
    snapshot = table.snapshot()
    inspection = Inspection.of(snapshot)
    by_lane = defaultdict(list)
    for entry in reversed(inspection.timeline()):
        by_lane[entry.lane].append(entry)
    assert inspection.heads() == {lane: entries[-1].seq for lane, entries in by_lane.items()}
    for lane, head in inspection.heads().items():
        assert inspection.entries({lane: (0, head)}) == {lane: by_lane[lane]}
        assert inspection.entries({lane: (head - 1, head)}) == {lane: by_lane[lane][-1:]}


def test_files_of_compactions_and_folds_name_the_entry_that_began_them(table: Table) -> None:
    snapshot = table.snapshot()
    inspection = Inspection.of(snapshot)
    timeline = inspection.timeline()
    results = {entry.plan for entry in timeline if entry.kind in {"BASE", "FOLD"}}
    for file in stored_files(snapshot):
        plan = inspection.plan_of(file.path)
        if file.kind == "log":
            assert plan is None
        else:
            assert plan in timeline
            assert plan.kind == "PLAN"
            assert plan.plan in results
