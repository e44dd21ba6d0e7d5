"""Of a table with very many file groups only those are planned that the filter allows: the same scan, less unpacked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.storage.support.shop import new_uri
from tests.storage.support.world import bag
from tests.tuning import tune
from weft import Table
from weft.storage.core.log import newest_slices
from weft.storage.read.scan import plan_scan
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot import Snapshot

DAYS = 12
CONFIG: dict[str, Any] = {
    "key": ["day", "id"],
    "partition_by": ["day"],
    "buckets": 2,
    "columns": {"day": "bigint", "id": "bigint", "v": "string", "ts": "bigint"},
    "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
    "streams": {"s": {"groups": ["g"]}},
}
FILTERS = {
    "a partition": pc.field("day") == 3,
    "partitions": pc.field("day").isin([3, 11, 40]),
    "a partition with logs only": pc.field("day") == DAYS,
    "no partition": pc.field("day") == 99,
    "a key": (pc.field("day") == 3) & (pc.field("id") == 2),
    "no filter of the partition": pc.field("v") == "x3",
    "a range": pc.field("day") > 9,
}


@pytest.fixture(params=[0, 1 << 40], ids=["own files", "shared files"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Table:
    """12 partitions with slices, of which some have newer slices, logs or folds; and one with logs only."""
    tune(monkeypatch, small_group_bytes=request.param)
    monkeypatch.setattr(newest_slices, "PART_SLICES", 2)
    monkeypatch.setattr(plan_scan, "MIN_PARTS", 2)
    table = Table.create(new_uri(), CONFIG)
    append(table, range(DAYS), 1)
    table.compact()
    table._table_log.checkpoints.save_table(table.state(), always=True)
    append(table, [1, 3, 4], 2)
    table.compact(lambda each: each.group.partition == "day=4")
    table.fold()
    append(table, [3, 5, DAYS], 3)
    return table


def append(table: Table, days: Any, ts: int) -> None:
    with table.writer("s") as writer:
        rows = [(day, number) for day in days for number in range(8)]
        values = {"day": [day for day, _ in rows], "id": [number for _, number in rows]}
        writer.append(pa.table({**values, "v": [f"x{number}" for _, number in rows], "ts": [ts] * len(rows)}))


def planned(snapshot: Snapshot, condition: Any) -> Scan:
    scan = snapshot.scan(filter=condition)
    assert isinstance(scan, Scan)
    return scan


@pytest.mark.parametrize("condition", FILTERS.values(), ids=FILTERS)
def test_the_scan_is_that_of_all_file_groups(table: Table, condition: Any) -> None:
    whole = Table.open(table.uri).snapshot()
    assert len(whole.slices) == 2 * DAYS + 2
    expected = planned(whole, condition)
    scan = planned(Table.open(table.uri).snapshot(), condition)
    assert [str(each.group) for each in scan.slices] == [str(each.group) for each in expected.slices]
    assert bag(scan.to_arrow()) == bag(expected.to_arrow())
    assert scan.clean_files == expected.clean_files


def test_parts_of_other_partitions_stay_packed(table: Table, request: pytest.FixtureRequest) -> None:
    snapshot = Table.open(table.uri).snapshot()
    assert len(snapshot.state.slices.parts) == DAYS
    scan = planned(snapshot, pc.field("day") == 7)
    assert len(scan.slices) == 2
    unpacked = sum(part.is_unpacked for part in snapshot.state.slices.parts)
    # Whether a shared file has unused rows depends on all its file groups.
    assert unpacked == DAYS if "shared" in request.node.name else unpacked == 1
    assert len(snapshot.state.slices) == 2 * DAYS
