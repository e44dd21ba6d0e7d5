"""Wrong rows in slices: verify recomputes what entries say about rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.storage.support.damage import Damage, shop, with_column, wrong
from tests.storage.support.shop import append, contents, new_uri, orders
from tests.tuning import tune
from weft import Table
from weft.storage.core.keys import buckets

Do = Callable[[Damage], object]

pytestmark = pytest.mark.usefixtures("own_files")  # each file has one slice


@pytest.fixture
def table() -> Table:
    return shop(new_uri())


@pytest.fixture
def damage(table: Table) -> Damage:
    return Damage(table)


def home_of(key: int) -> int:
    """The bucket of a key."""
    return int(buckets([pa.array([key])], 2)[0])


def other_key(bucket: int) -> int:
    """A key that belongs to another bucket."""
    candidates = np.arange(1_000, 2_000)
    (found, *_) = candidates[buckets([pa.array(candidates)], 2) == bucket].tolist()
    return found


def moved(rows: pa.Table) -> pa.Table:
    """Replace the last key by one of another file group."""
    ids = rows.column("id").to_pylist()
    home = int(buckets([pa.array(ids[:1])], 2)[0])
    return with_column(rows, "id", [*ids[:-1], other_key((home + 1) % 4)])


def doubled(rows: pa.Table) -> pa.Table:
    ids = rows.column("id").to_pylist()
    return with_column(rows, "id", [ids[0], *ids[:1], *ids[2:]])


def arrivals(change: Callable[[int], int]) -> Callable[[pa.Table], pa.Table]:
    def changed(rows: pa.Table) -> pa.Table:
        name = "__weft_g1_arrival"
        first, *rest = rows.column(name).to_pylist()
        return with_column(rows, name, [change(first), *rest])

    return changed


def hidden(rows: pa.Table) -> pa.Table:
    """The first row exists, but none of its groups is present."""
    for group in (1, 2):
        name = f"__weft_g{group}_arrival"
        rows = with_column(rows, name, [None, *rows.column(name).to_pylist()[1:]])
    return rows


ROWS: dict[str, tuple[Do, list[str]]] = {
    "keys in no order": (
        lambda d: d.rewrite("base", lambda rows: rows.take(pa.array(range(len(rows)))[::-1])),
        ["S15"],
    ),
    "a key twice": (lambda d: d.rewrite("base", doubled), ["S15"]),
    "a key of another file group": (lambda d: d.rewrite("base", moved), ["S15"]),
    "a base row that is not visible": (lambda d: d.rewrite("base", hidden), ["S12"]),
    "rows of a commit that never was": (lambda d: d.rewrite("base", arrivals(lambda a: a - (7 << 20))), ["S5"]),
    "rows of a lane that never was": (lambda d: d.rewrite("base", arrivals(lambda a: a + 7)), ["S5"]),
    "another number of rows": (
        lambda d: (d.edit_slice(lambda f: f["base"].update(rows=1)), d.paths("base")[0])[1],
        ["S7"],
    ),
}


@pytest.mark.parametrize(("do", "invariants"), [pytest.param(*case, id=name) for name, case in ROWS.items()])
def test_rows_that_should_not_be_in_a_slice(table: Table, damage: Damage, do: Do, invariants: list[str]) -> None:
    where = do(damage)
    found = wrong(table)
    assert [finding.invariant for finding in found] == invariants, "\n".join(map(str, found))
    assert [finding.where for finding in found] == [where]


def test_rows_of_a_commit_beyond_the_slices_cut(table: Table, damage: Damage) -> None:
    waiting = damage.entries("orders")[4]
    path = damage.rewrite("base", arrivals(lambda _: waiting.stamp << 20 | 1))
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S8", path)]


def test_rows_that_a_restore_has_rolled_back(table: Table, damage: Damage) -> None:
    table.savepoint("kept")
    append(table, orders(0, ts=9))
    table.restore("kept")
    table.compact()
    *_, rolled_back = [entry for entry in damage.entries("orders") if entry.kind == "DATA"]
    path = damage.rewrite("base", arrivals(lambda _: rolled_back.stamp << 20 | 1))
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S18", path)]


def test_a_visible_row_in_a_shadow(table: Table, damage: Damage) -> None:
    base = [entry for entry in damage.entries("") if entry.kind == "BASE"][-1]
    (number, *_) = [i for i, file in enumerate(base.slices) if file.shadow is not None]

    def visible(rows: pa.Table) -> pa.Table:
        return with_column(rows, "__weft_g1_arrival", [damage.entries("orders")[1].stamp << 20 | 1] * len(rows))

    path = damage.rewrite("shadow", visible, number)
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S12", path)]


def test_a_key_in_base_and_shadow(table: Table, damage: Damage) -> None:
    base = [entry for entry in damage.entries("") if entry.kind == "BASE"][-1]
    (number, *_) = [i for i, file in enumerate(base.slices) if file.shadow is not None]
    shown = contents(table, ["id"])
    home = base.slices[number].bucket
    (key, *_) = [key for (key,) in shown if int(buckets([pa.array([key])], 2)[0]) == home and key > 20]
    damage.rewrite("shadow", lambda rows: with_column(rows.slice(0, 1), "id", [key]), number)
    assert [finding.invariant for finding in wrong(table)] == ["S15"]


def swapped(rows: pa.Table, first: int) -> pa.Table:
    """Swap a row with the next one."""
    order = list(range(len(rows)))
    order[first : first + 2] = first + 1, first
    return rows.take(pa.array(order))


@pytest.mark.parametrize("across", [False, True])
def test_unsorted_rows_of_a_log_file(table: Table, monkeypatch: pytest.MonkeyPatch, *, across: bool) -> None:
    """Within a block, or across two blocks."""
    tune(monkeypatch, block_min_bytes=40, block_max_bytes=160)
    same_bucket = [key for key in range(100) if home_of(key) == 1]
    append(Table.open(table.uri), orders(*same_bucket, ts=30), batch=("q", 4))
    damage = Damage(table)
    first, *others = damage.entries("orders")[-1].files[0].index.blocks.rows
    assert others
    path = damage.rewrite_log(lambda rows: swapped(rows, first - 1 if across else 0))
    (finding,) = wrong(table)
    assert (finding.invariant, finding.where) == ("S15", path)
    assert f"block {int(across)}: keys are not ascending: readers miss some: (id=" in finding.what


def test_rows_of_a_log_file_in_the_wrong_file_group(table: Table, damage: Damage) -> None:
    path = damage.rewrite_log(lambda rows: with_column(rows, "id", [other_key(3), *rows.column("id").to_pylist()[1:]]))
    found = wrong(table)
    assert {(finding.invariant, finding.where) for finding in found} == {("S15", path)}
    assert "keys belong to another file group" in found[0].what


@pytest.mark.parametrize("said", ["ordering_max", "overflows", "groups"])
def test_statistics_of_a_slice_are_recomputed(table: Table, damage: Damage, said: str) -> None:
    others: dict[str, Any] = {"ordering_max": {"1": 99, "2": 1}, "overflows": {"3": 1}, "groups": [1]}
    damage.edit_slice(lambda file: file.update({said: others[said]}))
    (finding,) = wrong(table)
    assert finding.where == "slice of b02-00000"


TWO_KEYS = {
    "key": ["country", "id"],
    "partition_by": ["country"],
    "buckets": 2,
    "columns": {"country": "string", "id": "bigint", "v": "bigint", "ts": "bigint"},
    "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
    "streams": {"s": {"groups": ["g"]}},
}


@pytest.fixture
def partitioned() -> Damage:
    table = Table.create(new_uri(), TWO_KEYS)
    ids = list(range(12))
    rows = {"country": ["se", "no"] * 6, "id": ids, "v": ids, "ts": ids}
    append(table, pa.table(rows), "s")
    table.compact()
    return Damage(table)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("country", ["dk"], "another file group"),
        ("__weft_key", [b"\x00"], "sort key is not that of the key columns"),
    ],
)
def test_composite_keys_and_partitions_are_recomputed(
    partitioned: Damage, name: str, values: list[object], message: str
) -> None:
    def change(rows: pa.Table) -> pa.Table:
        return with_column(rows, name, [*values, *rows.column(name).to_pylist()[1:]])

    path = partitioned.rewrite("base", change)
    found = wrong(Table.open(partitioned.uri))
    assert {(finding.invariant, finding.where) for finding in found} == {("S15", path)}
    assert message in "".join(finding.what for finding in found)
    assert "country=" in found[0].what
