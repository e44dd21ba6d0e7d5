"""Time to live: which rows and deletes an expiry removes, and what everything else in the table shows of it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Append, Compact, Story, mode_of, stories, type_of
from weft import Table
from weft.storage.config.table_config import build_schema, configuration, load_config
from weft.storage.core.names import LaneName
from weft.storage.errors import InvalidInput

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)
DAY = dt.timedelta(days=1)
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "a": "string",
        "at": {"type": "timestamp", "default": dt.datetime(1990, 1, 1, tzinfo=dt.UTC)},
        "b": "string",
        "n": "bigint",
    },
    "groups": {
        "g": {"columns": ["a", "at"], "ordering": ["at"]},
        "h": {"columns": ["b"]},
        "k": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}, "w": {"groups": ["k"]}},
    "buckets": 1,
}


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def now_ms(self) -> int:
        return (self.now - EPOCH) // MILLISECOND

    def sleep(self, seconds: float) -> None:
        self.now += dt.timedelta(seconds=seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make(clock: ManualClock, ttl: dict[str, Any] | None) -> Table:
    config = CONFIG if ttl is None else CONFIG | {"ttl": ttl}
    return Table.create(f"memory://ttl/{uuid.uuid4().hex}", config, clock=clock)


def write(table: Table, ids: list[int], at: dt.datetime, op: str | None = None) -> None:
    size = len(ids)
    operations = pa.array([op] * size, pa.string())
    with table.writer("s") as writer:
        writer.append(pa.table({"id": ids, "a": ["x"] * size, "at": [at] * size, "_op": operations}))


def write_other(table: Table, ids: list[int]) -> None:
    with table.writer("u") as writer:
        writer.append(pa.table({"id": ids, "b": ["y"] * len(ids)}))


def ids(table: Table, as_of: str | None = None) -> list[int]:
    return sorted(table.snapshot(as_of).to_arrow(["id"]).column("id").to_pylist())


def hidden(table: Table) -> int:
    return sum(made.shadow_rows for made in table.state().slices.values())


def test_rows_expire_by_a_column_and_those_without_a_value_by_their_last_event(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "by": "at", "within": "1 day"})
    write(table, [1], clock.now - 9 * DAY)
    write(table, [2], clock.now - 20 * DAY)
    write(table, [4], clock.now + 90 * DAY)
    write_other(table, [2, 3])
    table.compact()
    result = table.apply_ttl()
    assert (result.rows, result.deletes, result.skipped) == (1, 0, 0)
    assert ids(table) == [1, 3, 4]
    clock.now += 12 * DAY
    assert table.apply_ttl().rows == 2
    assert ids(table) == [4], "row 3 has no time, and its last event is old; the default of the column does not count"
    assert table.verify().ok


def test_a_file_group_is_rewritten_only_when_something_in_it_is_overdue(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "by": "at", "within": "2 days"})
    for number in range(4):
        write(table, [number], clock.now - number * DAY)
    table.compact()
    clock.now += 8 * DAY + MILLISECOND  # rows 2 and 3 are older than 10 days, and neither is overdue
    head = table.state().head
    assert table.apply_ttl().file_groups == 0
    assert table.state().head == head
    assert ids(table) == [0, 1, 2, 3], "until the expiry runs, every read shows the rows"
    clock.now += DAY
    assert table.apply_ttl().rows == 3, "row 1 is not overdue, but old, and its file group is rewritten"
    assert ids(table) == [0]


def test_an_old_event_in_the_log_is_found_without_a_compaction_service(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "by": "at", "within": "1 day"})
    write(table, [1], clock.now - 20 * DAY)
    assert table.apply_ttl().file_groups == 0, "log rows are judged when they have waited for the time of within"
    clock.now += DAY + MILLISECOND
    assert table.apply_ttl().rows == 1
    assert ids(table) == []


class TickingClock(ManualClock):
    """A millisecond passes whenever somebody looks at it."""

    def now_ms(self) -> int:
        self.now += MILLISECOND
        return super().now_ms()


def test_an_event_in_the_log_is_old_by_its_stamp_which_is_before_the_time_of_its_commit() -> None:
    table = make(TickingClock(), {"rows": "1 hour", "within": "0 s"})
    write(table, [1], EPOCH)
    entry = table.snapshot().table_log.commit_log.entry(LaneName("s"), table.snapshot().cut.lanes[LaneName("s")])
    assert entry is not None
    assert entry.stamp < entry.committed_at_ms
    moment = EPOCH + entry.stamp * MILLISECOND + dt.timedelta(hours=1)
    assert table.apply_ttl(moment).rows == 0
    assert table.apply_ttl(moment + MILLISECOND).rows == 1


def test_deletes_are_known_for_the_declared_time(clock: ManualClock) -> None:
    table = make(clock, {"deletes": "7 days", "within": "0 s"})
    at = clock.now
    write(table, [1, 2], at)
    write_other(table, [2])
    write(table, [1, 2], at + DAY, "D")
    clock.now += 7 * DAY
    table.compact()
    write(table, [3], at, "D")
    table.apply_ttl()
    write(table, [1], at)
    assert ids(table) == [], "an older event does not undo the delete"
    clock.now += 60_000 * MILLISECOND  # stamps of commits of the same millisecond differ
    result = table.apply_ttl()
    assert (result.rows, result.deletes) == (0, 1), (
        "row 2 is hidden, and a newer event would show its other group again"
    )
    write(table, [1, 3], at - DAY)
    assert ids(table) == [1], "nothing is known of the delete, so an older event is new data"
    write(table, [2], at + 2 * DAY)
    assert table.get([2]).column("b").to_pylist() == ["y"]


def test_with_a_time_to_live_of_rows_hidden_rows_end_too(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "deletes": "20 days", "within": "0 s"})
    write(table, [1, 2], clock.now)
    write_other(table, [1])
    write(table, [1], clock.now + DAY, "D")
    with table.writer("w") as writer:
        writer.append(pa.table({"id": [3], "n": [1], "_op": ["-U"]}))
    table.compact()
    clock.now += 15 * DAY
    assert table.apply_ttl().rows == 1
    assert hidden(table) == 2, "the delete of row 1 is known for 20 days"
    clock.now += 5 * DAY + 60_000 * MILLISECOND
    assert table.apply_ttl().deletes == 1
    assert hidden(table) == 1, "of row 3 only a value that was taken back is known: it has no last event"


def test_a_delete_is_an_event_of_the_row(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "deletes": "3 days", "within": "0 s"})
    at = clock.now
    write(table, [1], at)
    write_other(table, [1])
    clock.now += 5 * DAY
    write(table, [1], at + DAY, "D")
    table.compact()
    clock.now += 6 * DAY
    assert table.apply_ttl().deletes == 0, "the last event of row 1 is its delete, which is 6 days old"
    clock.now += 5 * DAY
    assert table.apply_ttl().deletes == 1


def test_time_travel_restore_and_changes(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "by": "at", "within": "0 s"})
    write(table, [1], clock.now - 20 * DAY)
    write(table, [2], clock.now)
    table.compact()
    table.savepoint("before")
    since = str(table.snapshot().cut)
    table.apply_ttl()
    assert (ids(table, since), ids(table, "before"), ids(table)) == ([1, 2], [1, 2], [2])
    changes = table.changes(since).read_all().select(["id", "_change"]).to_pylist()
    assert changes == [{"id": 1, "_change": "delete"}]
    table.restore("before")
    assert ids(table) == [1, 2], "a restore brings the rows back"
    assert table.apply_ttl().rows == 1
    assert ids(table) == [2], "until the next expiry"
    assert table.verify().ok


def test_the_limits_are_in_the_log(clock: ManualClock) -> None:
    table = make(clock, {"rows": "10 days", "by": "at", "deletes": "5 days", "within": "0 s"})
    write(table, [1], clock.now - 20 * DAY)
    table.compact()
    (entry,) = table.apply_ttl().entries
    stored = table.env.store.get(f"_weft/timeline/table/{entry:020d}.json")
    assert stored is not None
    expected = (
        "time to live: rows by at before 2025-12-22T00:00:00.000+00:00, deletes before 2025-12-27T00:00:00.000+00:00"
    )
    assert expected in stored.decode()


def test_the_setting_changes_beside_writers(clock: ManualClock) -> None:
    table = make(clock, None)
    with pytest.raises(InvalidInput, match="no time to live"):
        table.apply_ttl()
    assert "ttl" not in table.state().writer_features
    with table.writer("s") as writer:
        assert table.set_ttl(rows=10 * DAY, by="at").changed
        assert not table.set_ttl(rows="240 hours", by="at").changed
        assert "ttl" in table.state().writer_features
        writer.append(pa.table({"id": [1], "a": ["x"], "at": [clock.now - 30 * DAY]}))
    reopened = Table.open(table.uri, clock=clock)
    assert reopened.schema.ttl == table.schema.ttl
    assert build_schema(load_config(configuration(table.schema))).ttl == table.schema.ttl
    table.compact()
    assert table.apply_ttl().rows == 1
    assert table.set_ttl().changed
    assert table.schema.ttl is None
    assert not table.set_ttl().changed


@pytest.mark.parametrize(
    ("ttl", "words"),
    [
        ({}, "neither rows nor deletes"),
        ({"within": "1 day"}, "neither rows nor deletes"),
        ({"rows": "0 s"}, "ttl.rows: must be above 0"),
        ({"rows": "1 day", "deletes": "0 s"}, "ttl.deletes: must be above 0"),
        ({"rows": "soon"}, "ttl.rows: 'soon' is not a duration"),
        ({"rows": "40000 days"}, "longer than 100 years"),
        ({"deletes": "1 day", "by": "at"}, "ttl.by: rows do not expire"),
        ({"rows": "1 day", "by": "none"}, "ttl.by: there is no 'none'"),
        ({"rows": "1 day", "by": "a"}, "ttl.by: column 'a' has type string"),
        ({"rows": "1 day", "by": "id"}, "ttl.unit: is missing, because column 'id' is bigint"),
        ({"rows": "1 day", "by": "at", "unit": "seconds"}, "ttl.unit: column 'at' is timestamp"),
        ({"rows": "1 day", "unit": "seconds"}, "ttl.unit: is set without by"),
        ({"rows": "1 day", "by": "n", "unit": "seconds"}, "merged by aggregate"),
        ({"rows": "1 day", "every": "1 day"}, "ttl.every: is not a known field"),
    ],
)
def test_refusals(clock: ManualClock, ttl: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make(clock, ttl)
    table = make(clock, {"rows": "5 days"})
    head = table.state().head
    known = {name: value for name, value in ttl.items() if name != "every"}
    if known and known == ttl:
        with pytest.raises(InvalidInput, match=words):
            table.set_ttl(**known)
        assert table.state().head == head


@pytest.mark.parametrize(
    ("kind", "unit", "value"),
    [
        ("date", None, dt.date(2026, 1, 5)),
        ("timestamp_ntz", None, dt.datetime(2026, 1, 5)),  # noqa: DTZ001 - has no time zone
        ("int", "seconds", 1767571200),
        ("bigint", "milliseconds", 1767571200_000),
        ("bigint", "microseconds", 1767571200_000_000),
    ],
)
def test_every_kind_of_time(clock: ManualClock, kind: str, unit: str | None, value: Any) -> None:
    config = {
        "key": ["id", "t"],
        "columns": {"id": "bigint", "t": kind, "v": "string"},
        "groups": {"g": {"columns": ["v"]}},
        "streams": {"s": {"groups": ["g"]}},
        "ttl": {"rows": "1 day", "by": "t", "unit": unit, "within": "0 s"},
    }
    table = Table.create(f"memory://ttl/{uuid.uuid4().hex}", config, clock=clock)
    clock.now = dt.datetime(2026, 1, 6, tzinfo=dt.UTC)
    with table.writer("s") as writer:
        writer.append(pa.table({"id": [1], "t": pa.array([value], table.schema.column("t").type), "v": ["x"]}))
    table.compact()
    assert table.apply_ttl().rows == 0
    clock.now += MILLISECOND
    assert table.apply_ttl().rows == 1


def as_time(value: Any) -> dt.datetime | None:
    """The time that a value of a column means; None if a time to live of 100 years does not reach it."""
    match value:
        case dt.datetime():
            return value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        case dt.date():
            return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
        case int():
            return EPOCH + value * MILLISECOND if 0 <= value < 10**12 else None
    return None


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8), st.data())
def test_the_table_shows_what_the_events_of_other_keys_say(story: Story, data: st.DataObject) -> None:
    """M10."""
    columns = [("", None, None)] + [
        (name, column, type_of(story.config, column))
        for name, declared in story.config["groups"].items()
        if mode_of(story.config, name) in {"latest", "latest_non_null"}
        for column in declared["columns"]
        if type_of(story.config, column) in {"date", "timestamp", "timestamp_ntz", "int", "bigint"}
    ]
    with World(story.config) as world:
        committed: dict[int, int] = {}
        for step in story.steps:
            world.run([step])
            if isinstance(step, Append):
                committed[world.arrival] = last_stamp(world, step)
                if data.draw(st.booleans(), label="expire"):
                    expire(world, story, committed, data, columns)
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()
        assert world.table.verify().ok


def last_stamp(world: World, step: Append) -> int:
    table = Table.open(world.uri)
    snapshot = table.snapshot()
    entry = snapshot.table_log.commit_log.entry(step.lane, snapshot.cut.lanes[step.lane])  # type: ignore[index,arg-type]
    assert entry is not None
    return entry.stamp


def expire(world: World, story: Story, committed: dict[int, int], data: st.DataObject, columns: list[Any]) -> None:
    """Set a time to live of which something in the table is older, apply it, and erase the same keys in the oracle."""
    group, column, kind = data.draw(st.sampled_from(columns), label="column")
    now = max(committed.values()) + 10_000
    stamps = st.sampled_from(sorted(committed.values()))
    deletes = data.draw(stamps, label="deletes") + data.draw(st.integers(0, 1))
    rows: int | None = data.draw(stamps | st.none(), label="rows")
    by = None
    if column is not None:
        seen = [as_time(row[column]) for each in story.appends for row in each.rows if row.get(column) is not None]
        times = [(time - EPOCH) // MILLISECOND for time in seen if time is not None]
        rows = data.draw(st.sampled_from(times), label="value") if times else None
        assume(rows is not None and 0 < now - rows < 10**12)
        assert rows is not None
        limit = EPOCH + rows * MILLISECOND
        by = (group, column, {
            "date": (limit + DAY - MILLISECOND).date,
            "timestamp": lambda: limit,
            "timestamp_ntz": lambda: limit.replace(tzinfo=None),
        }.get(kind, lambda: rows)())  # fmt: skip
    world.table.set_ttl(
        rows=None if rows is None else (now - rows) * MILLISECOND,
        by=column,
        unit="milliseconds" if kind in {"int", "bigint"} else None,
        deletes=(now - deletes) * MILLISECOND,
        within="0 s",
    )
    gone = world.oracle.expired(rows, deletes, committed, by)
    result = world.table.apply_ttl(EPOCH + now * MILLISECOND)
    assert result.rows + result.deletes == len(gone)
    assert result.rows == len(gone & world.oracle.read().keys())
    world.oracle.erase(gone)
