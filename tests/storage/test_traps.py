"""Histories that merge kernels often get wrong, each by name. Every one runs with and without compactions.

Reviews of the semantics found those of the first part, property tests of this kernel those of the second.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.mergers import BALANCE_STATE
from tests.strategies import input_type
from weft.storage import Table, mergers
from weft.storage.core.types import parse_type

Rows = list[dict[str, Any]]
RESERVED = {"_op": pa.string(), "_supplied": pa.list_(pa.string())}
NAN = float("nan")


class Story:
    """Appends to a table in one of several equivalent ways; `rows` reads all columns at once and one by one."""

    def __init__(self, *, compacting: bool) -> None:
        self.compacting = compacting

    def __call__(self, columns: Mapping[str, str], groups: Mapping[str, Any], streams: Mapping[str, Any]) -> Story:
        """Create a table with the key ``k`` and these columns and groups."""
        self.config = {"key": ["k"], "buckets": 1, "columns": {"k": "int", **columns}, "groups": groups}
        self.config["streams"] = streams
        self.table = Table.create(f"memory://traps/{uuid.uuid4().hex}", self.config)
        return self

    def put(self, stream: str, *rows: dict[str, Any], lane: str | None = None) -> None:
        """One commit."""
        given = {name for row in rows for name in row}
        types = {name: parse_type(input_type(self.config, name)) for name in self.config["columns"]} | RESERVED
        arrays = {n: pa.array([row.get(n) for row in rows], t) for n, t in types.items() if n in given}
        with self.table.writer(stream, lane=lane) as writer:
            writer.append(pa.table(arrays))
        if self.compacting:
            self.table.compact()

    def rows(self, *columns: str) -> Rows:
        snapshot = self.table.snapshot()
        names = list(columns or self.config["columns"])
        whole = snapshot.to_arrow(names).to_pylist()
        for name in names:
            single = [row[name] for row in snapshot.to_arrow([name]).to_pylist()]
            assert sorted(map(repr, single)) == sorted(repr(row[name]) for row in whole), f"SELECT {name}"
        return sorted(whole, key=repr)


@pytest.fixture(params=[False, True], ids=["logs", "compacted"])
def story(request: pytest.FixtureRequest) -> Story:
    return Story(compacting=request.param)


def partial(**extra: Any) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    columns = {"a": "string", "b": "string", "ts": "bigint"}
    group = {"columns": list(columns), "ordering": ["ts"], "merge": "latest_non_null"}
    return columns, {"g": group}, {"s": {"groups": ["g"], **extra}}


def one(
    function: Any, column_type: str, *, ordering: bool = True, **stream: Any
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    columns = {"v": column_type} | ({"ts": "bigint"} if ordering else {})
    group = {
        "columns": list(columns),
        "ordering": ["ts"] if ordering else [],
        "merge": "aggregate",
        "functions": {"v": function},
    }
    return columns, {"g": group}, {"s": {"groups": ["g"], **stream}}


# Found by reviews of the semantics


def test_late_upsert_below_a_floor_has_no_effect(story: Story) -> None:
    story(*partial())
    story.put("s", {"k": 1, "ts": 5, "a": None, "_op": "D"})
    story.put("s", {"k": 1, "ts": 7, "a": "x"})
    story.put("s", {"k": 1, "ts": 3, "b": "late"})
    assert story.rows() == [{"k": 1, "a": "x", "b": None, "ts": 7}]


def test_late_insert_does_not_resurrect_a_deleted_group_of_a_live_row(story: Story) -> None:
    columns = {"a": "string", "a_ts": "bigint", "b": "string", "b_ts": "bigint"}
    groups = {
        "A": {"columns": ["a", "a_ts"], "ordering": ["a_ts"]},
        "B": {"columns": ["b", "b_ts"], "ordering": ["b_ts"]},
    }
    story(columns, groups, {"as": {"groups": ["A"]}, "bs": {"groups": ["B"]}})
    story.put("as", {"k": 1, "a": "live", "a_ts": 1})
    story.put("bs", {"k": 1, "b": "x", "b_ts": 5})
    story.put("bs", {"k": 1, "b": None, "b_ts": 9, "_op": "D"})
    story.put("bs", {"k": 1, "b": "late", "b_ts": 8})
    assert story.rows() == [{"k": 1, "a": "live", "a_ts": 1, "b": None, "b_ts": None}]


def test_columns_of_one_batch_have_separate_versions(story: Story) -> None:
    story(*partial())
    story.put("s", {"k": 1, "a": "@1", "b": None, "ts": 1}, {"k": 1, "a": None, "b": "@3", "ts": 3})
    story.put("s", {"k": 1, "a": "@2", "ts": 2}, lane="other")
    assert story.rows() == [{"k": 1, "a": "@2", "b": "@3", "ts": 3}]


@pytest.mark.parametrize("word", ["D", "-U"])
def test_retraction_that_arrives_before_what_it_retracts(story: Story, word: str) -> None:
    story(*one("sum", "bigint"))
    story.put("s", {"k": 1, "v": 5, "ts": 2, "_op": word})
    assert story.rows() == []
    story.put("s", {"k": 1, "v": 5, "ts": 1})
    assert story.rows() == [{"k": 1, "v": 0, "ts": 1}]


def test_first_is_that_of_the_smallest_version(story: Story) -> None:
    story(*one("first", "string", on_delete="ignore"))
    story.put("s", {"k": 1, "v": "four", "ts": 4})
    story.put("s", {"k": 1, "v": "two", "ts": 2})
    story.put("s", {"k": 1, "v": "three", "ts": 3})
    assert story.rows() == [{"k": 1, "v": "two", "ts": 4}]


def test_hidden_row_is_updated_and_reappears(story: Story) -> None:
    columns = {"o": "string", "o_ts": "bigint", "p": "string", "p_ts": "bigint", "n": "bigint"}
    groups = {
        "owner": {"columns": ["o", "o_ts"], "ordering": ["o_ts"]},
        "pay": {"columns": ["p", "p_ts"], "ordering": ["p_ts"], "merge": "latest_non_null"},
        "hits": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    }
    streams = {
        "owners": {"groups": ["owner"], "on_delete": "row"},
        "pays": {"groups": ["pay"]},
        "hits": {"groups": ["hits"]},
    }
    story(columns, groups, streams)
    story.put("owners", {"k": 1, "o": "x", "o_ts": 1})
    story.put("owners", {"k": 1, "o": None, "o_ts": 5, "_op": "D"})
    for number in (1, 2):
        story.put("pays", {"k": 1, "p": f"p{number}", "p_ts": number})
        story.put("hits", {"k": 1, "n": 10})
        story.table.compact()
        assert story.rows() == []
    story.put("owners", {"k": 1, "o": "late", "o_ts": 4})
    assert story.rows() == []
    story.put("owners", {"k": 1, "o": "back", "o_ts": 6})
    assert story.rows() == [{"k": 1, "o": "back", "o_ts": 6, "p": "p2", "p_ts": 2, "n": 20}]


def test_a_deleted_row_reappears_with_its_floor_kept(story: Story) -> None:
    story(*partial(on_delete="row"))
    story.put("s", {"k": 1, "a": "old", "ts": 1})
    story.put("s", {"k": 1, "a": None, "ts": 5, "_op": "D"})
    assert story.rows() == []
    story.put("s", {"k": 1, "b": "back", "ts": 6})
    assert story.rows() == [{"k": 1, "a": None, "b": "back", "ts": 6}]


def test_one_column_sees_rows_that_other_groups_make_visible_or_hide(story: Story) -> None:
    columns = {"a": "string", "b": "string", "b_ts": "bigint"}
    groups = {"A": {"columns": ["a"]}, "B": {"columns": ["b", "b_ts"], "ordering": ["b_ts"]}}
    story(columns, groups, {"as": {"groups": ["A"]}, "bs": {"groups": ["B"], "on_delete": "row"}})
    story.put("as", {"k": 1, "a": "x"}, {"k": 2, "a": "y"})
    story.put("bs", {"k": 3, "b": "only b", "b_ts": 1}, {"k": 2, "b": "z", "b_ts": 1})
    assert sorted(map(repr, story.rows("a"))) == ["{'a': 'x'}", "{'a': 'y'}", "{'a': None}"]
    story.put("bs", {"k": 2, "b": None, "b_ts": 2, "_op": "D"}, {"k": 3, "b": None, "b_ts": 2, "_op": "D"})
    assert story.rows("a") == [{"a": "x"}]
    assert story.rows("k") == [{"k": 1}]


# Found by the properties


def test_delete_and_upsert_of_one_commit_with_equal_ordering_values(story: Story) -> None:
    """Their positions decide, and the result must not change when positions are no longer stored."""
    story(*partial())
    story.put("s", {"k": 1, "a": None, "ts": 5, "_op": "D"}, {"k": 1, "a": "after", "ts": 5, "_op": None})
    story.put("s", {"k": 2, "a": "before", "ts": 5, "_op": None}, {"k": 2, "a": None, "ts": 5, "_op": "D"})
    story.put("s", {"k": 1, "b": "late", "ts": 4}, {"k": 2, "b": "late", "ts": 4})
    assert story.rows() == [{"k": 1, "a": "after", "b": None, "ts": 5}]


def test_null_of_an_omitted_column_can_be_supplied(story: Story) -> None:
    story(*partial())
    story.put("s", {"k": 1, "a": "x", "b": "y", "ts": 1})
    story.put("s", {"k": 1, "ts": 2, "_supplied": ["b"]})
    assert story.rows() == [{"k": 1, "a": "x", "b": None, "ts": 2}]


def test_supplied_names_stay_with_their_rows_when_versions_are_sorted(story: Story) -> None:
    story(*partial())
    story.put("s", {"k": 1, "a": "x", "b": "y", "ts": 1})
    newest = {"k": 1, "a": None, "b": "new", "ts": 3, "_supplied": ["a"]}
    story.put("s", newest, {"k": 1, "a": "old", "b": None, "ts": 2, "_supplied": None})
    assert story.rows() == [{"k": 1, "a": None, "b": "new", "ts": 3}]


def test_three_versions_of_one_row_are_kept_in_its_slice(story: Story) -> None:
    columns = dict.fromkeys("abc", "string") | {"ts": "bigint"}
    group = {"columns": list(columns), "ordering": ["ts"], "merge": "latest_non_null"}
    story(columns, {"g": group}, {"s": {"groups": ["g"]}})
    for ts, name in ((10, "a"), (20, "b"), (30, "c")):
        story.put("s", {"k": 1, name: f"@{ts}", "ts": ts})
    story.put("s", {"k": 1, "a": "@15", "b": "@15", "c": "@15", "ts": 15})
    story.put("s", {"k": 1, "a": "@12", "b": "@12", "c": "@12", "ts": 12})
    assert story.rows() == [{"k": 1, "a": "@15", "b": "@20", "c": "@30", "ts": 30}]


def test_update_before_is_dropped_where_deletes_are_ignored(story: Story) -> None:
    story(*one("sum", "bigint", on_delete="ignore"))
    story.put("s", {"k": 1, "v": 5, "ts": 1, "_op": None}, {"k": 1, "v": 5, "ts": 1, "_op": "-U"})
    story.put("s", {"k": 1, "v": 5, "ts": 2, "_op": "D"})
    assert story.rows() == [{"k": 1, "v": 5, "ts": 1}]


def test_the_later_commit_wins_ties_across_a_compaction(story: Story) -> None:
    story(*partial())
    story.put("s", {"k": 1, "a": "first", "b": "first", "ts": 1})
    story.put("s", {"k": 1, "a": "second", "ts": 1}, lane="other")
    assert story.rows() == [{"k": 1, "a": "second", "b": "first", "ts": 1}]
    columns = {"v": "string", "ts": "bigint"}
    story(columns, {"g": {"columns": list(columns), "ordering": ["ts"]}}, {"s": {"groups": ["g"]}})
    story.put("s", {"k": 1, "v": "first", "ts": 1})
    story.table.compact()
    story.put("s", {"k": 1, "v": "second", "ts": 1}, lane="other")
    assert story.rows() == [{"k": 1, "v": "second", "ts": 1}]


def test_count_accepts_any_type(story: Story) -> None:
    columns, groups, streams = one("count", "tinyint", ordering=False)
    story(columns, groups, streams)
    for value in ("x", None, [1]):
        with story.table.writer("s") as writer:
            writer.append(pa.table({"k": pa.array([1], pa.int32()), "v": [value]}))
    assert story.rows() == [{"k": 1, "v": 2}]


def test_count_of_nothing_is_zero_and_other_functions_show_null(story: Story) -> None:
    columns = {"c": "bigint", "s": "bigint", "l": "array<int>"}
    functions = {"c": "count", "s": "sum", "l": "collect_list"}
    group = {"columns": list(columns), "merge": "aggregate", "functions": functions}
    story(columns, {"g": group}, {"s": {"groups": ["g"], "on_delete": "ignore"}})
    story.put("s", {"k": 1, "c": None, "s": None, "l": None})
    assert story.rows() == [{"k": 1, "c": 0, "s": None, "l": None}]


def test_collected_lists_are_in_version_order_and_sets_are_sorted(story: Story) -> None:
    columns = {"l": "array<string>", "s": "array<double>", "t": "string", "ts": "bigint"}
    functions = {"l": "collect_list", "s": "collect_set", "t": {"listagg": {"delimiter": "; "}}}
    group = {"columns": list(columns), "ordering": ["ts"], "merge": "aggregate", "functions": functions}
    story(columns, {"g": group}, {"s": {"groups": ["g"], "on_delete": "ignore"}})
    story.put("s", {"k": 1, "l": "c", "s": NAN, "t": "c", "ts": 3}, {"k": 1, "l": "a", "s": 2.0, "t": "a", "ts": 1})
    story.put("s", {"k": 1, "l": None, "s": 1.0, "t": None, "ts": 9})
    story.put("s", {"k": 1, "l": "b", "s": NAN, "t": "b", "ts": 2}, {"k": 1, "l": "a", "s": 2.0, "t": "a", "ts": 4})
    (row,) = story.rows()
    assert (row["t"], row["ts"]) == ("a; b; c; a", 9)
    assert row["l"] == ["a", "b", "c", "a"]
    assert repr(row["s"]) == "[1.0, 2.0, nan]"


@pytest.mark.parametrize(("function", "shown"), [("min", 1.0), ("max", NAN)])
def test_nan_is_the_largest_value(story: Story, function: str, shown: float) -> None:
    story(*one(function, "double", on_delete="ignore"))
    for ts, value in enumerate([2.0, NAN, 1.0]):
        story.put("s", {"k": 1, "v": value, "ts": ts})
    assert repr(story.rows("v")) == repr([{"v": shown}])


def test_sum_that_does_not_fit_shows_null_until_it_fits_again(story: Story) -> None:
    story(*one("sum", "tinyint"))
    story.put("s", {"k": 1, "v": 127, "ts": 1})
    story.put("s", {"k": 1, "v": 1, "ts": 2})
    assert story.rows("v") == [{"v": None}]
    story.put("s", {"k": 1, "v": 8, "ts": 3, "_op": "D"})
    assert story.rows("v") == [{"v": 120}]


def test_sum_of_exactly_one_too_many_digits_shows_null(story: Story) -> None:
    story(*one("sum", "decimal(38,10)"))
    story.put("s", {"k": 1, "v": Decimal(9) * 10**27, "ts": 1})
    story.put("s", {"k": 1, "v": Decimal(1) * 10**27, "ts": 2})
    assert story.rows("v") == [{"v": None}]


def test_sum_is_exact_far_beyond_what_its_state_can_hold(story: Story) -> None:
    """128 bits wrap after about 17 such values."""
    story(*one("sum", "decimal(38,10)"))
    large = Decimal(9) * 10**27
    for ts in range(3):
        story.put("s", *({"k": 1, "v": large, "ts": ts} for _ in range(10)))
    assert story.rows("v") == [{"v": None}]
    story.put("s", *({"k": 1, "v": large, "ts": 9, "_op": "D"} for _ in range(30)))
    story.put("s", {"k": 1, "v": Decimal("0.0000000001"), "ts": 10})
    assert story.rows("v") == [{"v": Decimal("0.0000000001")}]


def test_delete_of_an_aggregate_is_never_a_tombstone(story: Story) -> None:
    """Not even a delete of a stream whose deletes hide the row in its other groups."""
    columns = {"v": "bigint", "a": "string"}
    groups = {"g": {"columns": ["v"], "merge": "aggregate", "functions": {"v": "sum"}}, "A": {"columns": ["a"]}}
    story(columns, groups, {"s": {"groups": ["g"], "on_delete": "row"}, "as": {"groups": ["A"]}})
    story.put("s", {"k": 1, "v": 3})
    story.put("s", {"k": 1, "v": 3, "_op": "D"})
    assert story.rows() == [{"k": 1, "v": 0, "a": None}]


def test_update_before_is_dropped_outside_aggregates(story: Story) -> None:
    columns = {"v": "bigint", "a": "string"}
    groups = {"g": {"columns": ["v"], "merge": "aggregate", "functions": {"v": "sum"}}, "A": {"columns": ["a"]}}
    story(columns, groups, {"s": {"groups": ["g", "A"]}})
    story.put("s", {"k": 1, "v": 3, "a": "old", "_op": "+I"})
    story.put("s", {"k": 1, "v": 3, "a": "old", "_op": "-U"}, {"k": 1, "v": 4, "a": "new", "_op": "+U"})
    story.put("s", {"k": 1, "v": 1, "a": "never", "_op": "update_before"})
    assert story.rows() == [{"k": 1, "v": 3, "a": "new"}]


def test_default_of_an_aggregated_column_is_not_part_of_the_state(story: Story) -> None:
    columns = {"v": {"type": "bigint", "default": 100}, "a": "string"}
    groups = {"g": {"columns": ["v"], "merge": "aggregate", "functions": {"v": "max"}}, "A": {"columns": ["a"]}}
    story(columns, groups, {"s": {"groups": ["g"], "on_delete": "ignore"}, "as": {"groups": ["A"]}})
    story.put("as", {"k": 1, "a": "x"})
    assert story.rows() == [{"k": 1, "v": 100, "a": "x"}]
    story.put("s", {"k": 1, "v": 3})
    assert story.rows() == [{"k": 1, "v": 3, "a": "x"}]


def balance(story: Story) -> None:
    mergers.allow("tests.mergers")
    columns = {"g_n": "bigint", "g_t": {"type": "string", "default": "none"}, "ts": "bigint", "a": "string"}
    group = {
        "columns": ["g_n", "g_t", "ts"],
        "ordering": ["ts"],
        "merge": "tests.mergers:balance",
        "state": BALANCE_STATE,
    }
    story(columns, {"g": group, "A": {"columns": ["a"]}}, {"s": {"groups": ["g"]}, "as": {"groups": ["A"]}})


def test_merger_sees_deletes_and_may_make_a_group_absent(story: Story) -> None:
    balance(story)
    story.put("as", {"k": 1, "a": "x"})
    story.put("s", {"k": 1, "g_n": 7, "g_t": "one", "ts": 1}, {"k": 2, "g_n": 8, "g_t": "two", "ts": 1})
    story.put("s", {"k": 1, "ts": 9, "g_n": None, "g_t": None, "_op": "D"})
    story.put("s", {"k": 2, "ts": 9, "g_n": None, "g_t": None, "_op": "D"})
    assert story.rows() == [{"k": 1, "g_n": None, "g_t": "none", "ts": None, "a": "x"}]
    story.put("s", {"k": 1, "ts": 0, "g_n": 3, "g_t": "late", "_op": None})
    assert story.rows() == [{"k": 1, "g_n": 7, "g_t": "one", "ts": 1, "a": "x"}]


def test_merger_sees_deletes_that_arrive_first(story: Story) -> None:
    balance(story)
    story.put("s", {"k": 1, "ts": 9, "g_n": None, "g_t": None, "_op": "D"})
    story.put("s", {"k": 1, "g_n": 7, "g_t": "one", "ts": 1})
    assert story.rows() == []
    story.put("s", {"k": 1, "g_n": 5, "g_t": "two", "ts": 3})
    assert story.rows() == [{"k": 1, "g_n": 7, "g_t": "two", "ts": 3, "a": None}]


def test_row_hidden_by_a_mergers_upsert_is_hidden_for_other_columns(story: Story) -> None:
    mergers.allow("tests.mergers")
    group = {"columns": ["g_t"], "merge": "tests.mergers:hiding", "state": {"word": "string"}}
    groups = {"g": group, "A": {"columns": ["a"]}}
    story({"g_t": "string", "a": "string"}, groups, {"s": {"groups": ["g"]}, "as": {"groups": ["A"]}})
    story.put("s", {"k": 1, "g_t": "one"}, {"k": 2, "g_t": "hide"}, {"k": 3, "g_t": "three"})
    assert story.rows("a") == [{"a": None}, {"a": None}]
    story.put("s", {"k": 3, "g_t": "hide"})
    assert story.rows("a") == [{"a": None}]
    assert story.rows() == [{"k": 1, "g_t": "one", "a": None}]
    story.put("as", {"k": 3, "a": "x"})
    assert story.rows() == [{"k": 1, "g_t": "one", "a": None}, {"k": 3, "g_t": None, "a": "x"}]
