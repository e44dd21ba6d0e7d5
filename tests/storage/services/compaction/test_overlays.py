"""Overlays: compactions that write only the column groups that have changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.damage import Damage, wrong
from tests.storage.support.overlay_table import GROUPS, ROWS, compact, config, groups_of, newest, small_table, write
from tests.storage.support.shop import contents, new_uri
from tests.storage.support.world import World, expected_bag, snapshot_bag
from tests.strategies import EVERY_GROUP, Compact, Story, stories
from tests.tuning import tune
from weft import Table
from weft.storage.core.log import features
from weft.storage.core.log.features import OVERLAYS
from weft.storage.errors import InvalidInput, UnsupportedFormat
from weft.storage.publish.delta import publish_delta
from weft.storage.services.inspect.measure import sample
from weft.storage.services.steps.parallel_tasks import in_threads


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return small_table(monkeypatch)


# What is written ------------------------------------------------------------------------------------------------------


def test_a_compaction_writes_the_changed_group_alone(table: Table) -> None:
    base, rows = newest(table).base, contents(table)
    write(table, "b", [3, 700], 2)
    result = table.compact()
    assert base is not None
    assert newest(table).base == base
    (overlay,) = newest(table).overlays
    assert overlay.groups == [2]
    assert overlay.file.size == result.bytes_written < base.size / 2
    assert result.rows == ROWS
    file = table.env.store.open_input(overlay.file.path, overlay.file.size)
    names = pq.read_schema(file).names
    assert names[:3] == ["id", "b_v", "b_t"]
    assert not any(name.startswith(("a_", "c_")) for name in names)
    changed = {row[0] for row in set(contents(table)) ^ set(rows)}
    assert changed == {3, 700}
    assert not wrong(table)


def test_each_group_is_in_one_overlay(table: Table) -> None:
    for at, (group, expected) in enumerate(
        [("a", [[1]]), ("b", [[1], [2]]), ("a", [[2], [1]]), ("c", []), ("c", [[3]])], start=2
    ):
        write(table, group, [at, 2 * at], at)
        compact(table)
        assert groups_of(table) == expected, at  # the third group would make an overlay of all, which is a base
    assert sorted(table.snapshot().to_arrow(["id"])["id"].to_pylist()) == list(range(ROWS))


def test_groups_that_change_together_share_an_overlay(table: Table) -> None:
    write(table, "a", [1], 2)
    compact(table)
    write(table, "a", [2], 3)
    write(table, "b", [3], 3)
    table = Table(table.env.tuned(overlay_percent=1000), table._table_log.stamps)
    compact(table)
    assert groups_of(table) == [[1, 2]]
    write(table, "b", [4], 4)
    compact(table)
    assert groups_of(table) == [[1], [2]]  # of the older file only one group is read
    assert [overlay.file.rows for overlay in newest(table).overlays] == [ROWS, ROWS]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: write(table, "b", [ROWS], 2),
        lambda table: write(table, "a", [5], 2, "delete"),
        lambda table: write(table, "b", [ROWS], 2, "delete"),
        lambda table: [write(table, group, range(ROWS), 2) for group in GROUPS],
    ],
    ids=["a new row", "a hidden row", "a delete of an unknown key", "everything"],
)
def test_a_base_is_written_otherwise(table: Table, change: Callable[[Table], object]) -> None:
    base = newest(table).base
    change(table)
    compact(table)
    assert newest(table).base != base
    assert not newest(table).overlays


def test_deletes_of_a_group_and_of_rows_that_stay_hidden(table: Table) -> None:
    write(table, "b", [1, 2], 2, "delete")  # the rows have other groups
    compact(table)
    assert groups_of(table) == [[2]]
    write(table, "a", [7], 2, "delete")
    compact(table)
    assert not newest(table).overlays
    write(table, "c", [7, 8], 3)  # row 7 is in the shadow
    compact(table)
    assert not newest(table).overlays
    write(table, "c", [8], 4)
    compact(table)
    assert groups_of(table) == [[3]]
    assert newest(table).shadow is not None
    write(table, "a", [7], 9)
    compact(table)
    assert {row[0] for row in contents(table)} == set(range(ROWS))


def test_late_events_and_folds(table: Table) -> None:
    write(table, "b", range(0, ROWS, 7), 5)
    table.fold()
    write(table, "b", range(0, ROWS, 5), 3)
    compact(table)
    assert groups_of(table) == [[2]]
    assert newest(table).ordering_max == {1: 1, 2: 5, 3: 1}
    assert snapshot_rows(table, pc.field("b_t") == 5) == len(range(0, ROWS, 7))


def snapshot_rows(table: Table, condition: pc.Expression) -> int:
    return table.snapshot().to_arrow(["id"], filter=condition).num_rows


def test_columns_that_are_newer_than_the_base_end_it(table: Table) -> None:
    write(table, "b", [1], 2)
    compact(table)
    table.add_column("b", "b_w", "double", default=1.5)
    table.set_default("a_v", "x")
    assert groups_of(table) == [[2]]  # read under a newer schema
    assert snapshot_rows(table, pc.field("b_w").is_null()) == ROWS
    assert table.snapshot().to_arrow(["b_t", "a_t"]).num_rows == ROWS
    before = contents(table)
    write(table, "c", [1], 2)
    compact(table)
    assert not newest(table).overlays
    assert [row[:5] for row in contents(table)] == [row[:5] for row in before]


# The setting ----------------------------------------------------------------------------------------------------------


def test_older_versions_refuse_the_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OVERLAYS in table.state().writer_features
    assert OVERLAYS not in Table.create(new_uri(), config(overlays=False)).state().writer_features
    known = features.readable_features() - {OVERLAYS}
    monkeypatch.setattr("weft.storage.core.log.apply_entries.readable_features", lambda: known)
    with pytest.raises(UnsupportedFormat, match="overlays"):
        Table.open(table.uri)


def test_overlays_can_be_switched_on_and_off() -> None:
    table = Table.create(new_uri(), config(overlays=False))
    table = Table(table.env.tuned(overlay_percent=1000), table._table_log.stamps)
    for group in GROUPS:
        write(table, group, range(9), 1)
    compact(table)
    write(table, "b", [1], 2)
    compact(table)
    assert not newest(table).overlays
    assert table.set_overlays(on=True).changed
    assert not table.set_overlays(on=True).changed
    write(table, "b", [1], 3)
    compact(table)
    assert groups_of(table) == [[2]]
    assert table.set_overlays(on=False).changed
    assert OVERLAYS in table.state().writer_features  # there are some still
    assert not table.compact().done  # nothing was committed since
    write(table, "b", [1], 4)
    compact(table)
    assert not newest(table).overlays
    with pytest.raises(InvalidInput, match="overlays"):
        table.set_overlays(on="perhaps")  # type: ignore[arg-type]


def test_overlays_of_file_groups_without_logs_end_when_they_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, small_group_bytes=0, overlay_percent=1000)
    table = Table.create(new_uri(), config(buckets=4))
    for group in GROUPS:
        write(table, group, range(50), 1)
    table.compact()
    write(table, "b", range(50), 2)
    compact(table)
    assert all(made.overlays for made in table.state().slices.values())
    table.set_overlays(on=False)
    write(table, "b", [1], 3)
    assert len(table.compact().done) == 4
    assert not any(made.overlays for made in table.state().slices.values())
    assert not wrong(table)


# Reads ----------------------------------------------------------------------------------------------------------------


def test_files_that_have_all_columns_need_no_merge(table: Table) -> None:
    write(table, "b", [1, 2], 2)
    compact(table)
    base, (overlay,) = newest(table).base, newest(table).overlays

    def read(*columns: str, **more: Any) -> list[str] | None:
        files = table.snapshot().scan(list(columns), **more).clean_files
        return None if files is None else [file.path for file in files]

    assert base is not None
    assert read() == read("id") == read("a_v", "id") == read("c_t", "a_v") == [base.path]
    assert read("b_v") == read("id", "b_t") == read("b_t", filter=pc.field("id") < 5) == [overlay.file.path]
    assert read("a_v", "b_v") is read("b_v", filter=pc.field("c_t") > 0) is None


def test_parts_of_a_file_group_read_their_rows_of_all_files(table: Table) -> None:
    write(table, "b", [1, 500, 999], 2)
    compact(table)
    write(table, "c", [2, 501], 2)
    table = Table(table.env.tuned(task_bytes=1, task_min_bytes=1), table._table_log.stamps)
    snapshot = table.snapshot()
    scan = snapshot.scan(["id", "a_v", "b_v", "c_v"], parallelism=4)
    assert scan.divided
    assert sorted(map(repr, scan.to_arrow().to_pylist())) == sorted(
        map(repr, snapshot.to_arrow(["id", "a_v", "b_v", "c_v"]).to_pylist())
    )
    assert snapshot_rows(table, (pc.field("b_t") == 2) & (pc.field("a_t") == 1)) == 3
    assert snapshot_rows(table, (pc.field("b_t") == 2) & (pc.field("id") < 501)) == 2
    assert table.snapshot().to_arrow(["b_v"], filter=pc.field("id") == 500)["b_v"].to_pylist() == ["b2-500"]


def test_other_engines_get_no_columns_with_newer_values_elsewhere(table: Table) -> None:
    write(table, "b", [1], 2)
    compact(table)
    base = table.snapshot().read_optimized()
    assert base.to_arrow().num_rows == base.dataset(["id", "a_v"]).count_rows() == ROWS
    assert snapshot_bag(base, ["id", "b_v"]) == snapshot_bag(table.snapshot(), ["id", "b_v"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="b_v, b_t") as refused:
        base.dataset()
    assert "to_arrow" in refused.value.hint
    with pytest.raises(InvalidInput, match="b_v, b_t") as refused:
        publish_delta(table)
    assert "set-overlays" in refused.value.hint
    assert publish_delta(table, ["id", "a_v", "c_v"]).rows == ROWS


def test_where_a_value_is_stored(table: Table) -> None:
    write(table, "b", [5], 2)
    write(table, "b", range(100), 3, "delete")
    compact(table)
    found = table.explain_row(5)
    (of_a,), (of_b,) = found.of_group("a"), found.of_group("b")
    assert (of_a.stored_in, of_b.stored_in) == ("base", "overlay")
    assert of_b.file == newest(table).overlays[0].file.path
    assert sample(table.snapshot()).fill == {"a": 1.0, "b": 0.9, "c": 1.0}


# Other services -------------------------------------------------------------------------------------------------------


def test_cleaning_keeps_a_base_as_long_as_an_overlay_needs_it(table: Table) -> None:
    base = newest(table).base
    assert base is not None
    for at in (2, 3):
        write(table, "b", [at], at)
        compact(table)
    stored = Damage(table)
    assert len(stored.paths("overlay")) == 2
    table.clean(dt.timedelta(0))
    assert stored.paths("base") == [base.path]
    assert stored.paths("overlay") == [newest(table).overlays[0].file.path]
    assert not wrong(table)
    write(table, "b", [ROWS], 4)
    compact(table)
    table.clean(dt.timedelta(0))
    assert stored.paths("overlay") == []
    assert base.path not in stored.paths("base")


def test_savepoints_and_restores_to_slices_that_share_a_base(table: Table) -> None:
    table.savepoint("before")
    plain = contents(table)
    write(table, "b", [1], 2)
    compact(table)
    table.savepoint("with")
    overlaid = contents(table)
    write(table, "a", [ROWS], 2)
    compact(table)
    table.clean(dt.timedelta(0))
    assert contents(table, as_of="before") == plain
    assert contents(table, as_of="with") == overlaid
    assert not wrong(table)
    table.restore("with")
    assert contents(table) == overlaid
    write(table, "c", [1], 3)
    compact(table)
    assert groups_of(table) == [[2], [3]]
    table.restore("before")
    assert contents(table) == plain
    assert not wrong(table)


def test_changes_between_slices_that_share_a_base(table: Table) -> None:
    since = str(table.snapshot().cut)
    write(table, "b", [1, 7], 2)
    compact(table)
    rows = table.changes(since).read_all()
    assert sorted(rows["id"].to_pylist()) == [1, 7]
    assert rows["_changed_groups"].to_pylist() == [["b"], ["b"]]


def test_an_erase_finds_keys_in_all_files(table: Table) -> None:
    write(table, "b", [1, 2], 2)
    compact(table)
    result = table.erase([1], expire_snapshots=True)
    assert not result.remains
    assert not newest(table).overlays
    assert not Damage(table).paths("overlay")
    assert {row[0] for row in contents(table)} == {*range(ROWS)} - {1}
    assert not wrong(table)


def test_a_rewrite_changes_newest_values(table: Table) -> None:
    write(table, "b", [1], 2)
    compact(table)
    table.rewrite("b_v", pc.utf8_upper)
    assert dict(contents(table, ["id", "b_v"]))[1] == "B2-1"
    assert not newest(table).overlays
    assert not wrong(table)


def test_a_file_that_another_compaction_needs_is_not_deleted(table: Table) -> None:
    """Of two compactions of one file group the second drops its overlay, and not the base that both have."""
    write(table, "b", [1], 2)
    rows = contents(table)
    other = Table.open(table.uri)

    def run(tasks: Any) -> Any:
        tasks = list(tasks)
        other.compact()
        return in_threads(1)(tasks)

    result = table.compact(execute=run)
    assert not result.done
    assert result.bytes_dropped == result.bytes_written > 0
    assert contents(table) == rows
    assert len(Damage(table).paths("overlay")) == 1
    assert not wrong(table)


# Laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_files", "own_files")
@given(stories(max_steps=12), st.data())
def test_overlays_change_no_read(story: Story, data: st.DataObject) -> None:
    """Every read equals the oracle, whatever is in overlays; and all files are as verify computes them."""
    columns = list(story.config["columns"])
    with World({**story.config, "overlays": True}) as world:
        for step in story.steps:
            world.run([step])
            world.check()
            chosen = data.draw(st.lists(st.sampled_from(columns), unique=True, max_size=3), label="columns")
            assert snapshot_bag(world.table.snapshot(), chosen) == expected_bag(world.expected(), chosen)
        world.compact(Compact(EVERY_GROUP))
        world.check()
        assert not wrong(world.table)
        world.remembered.clear()  # they expire
        world.table.clean(dt.timedelta(0))
        world.check()
        assert not wrong(world.table)
