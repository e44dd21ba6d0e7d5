"""The diff of two states of the same rows, compared with a diff in plain Python."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.changing import State, expected, got
from tests.storage.support.world import canonical
from tests.strategies import NAN, POOLS
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core import names
from weft.storage.core.merge.diff import ChangeShape, diff, differing
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput, NotFound

TYPES = [*POOLS, "map<string,array<double>>", "struct<x:double,y:array<struct<z:float>>>"]
MORE: dict[str, list[Any]] = {
    "double": [NAN],
    "map<string,array<double>>": [[], [("a", [])], [("a", [NAN])], [("a", None)], [("a", [1.0, None]), ("b", [2.0])]],
    "struct<x:double,y:array<struct<z:float>>>": [
        {"x": NAN, "y": []},
        {"x": None, "y": None},
        {"x": 1.0, "y": [{"z": 1.0}, None]},
        {"x": 1.0, "y": [{"z": NAN}, None]},
        {"x": 1.0, "y": [{"z": None}, None]},
    ],
}


@pytest.mark.parametrize("name", TYPES)
def test_values_differ_exactly_if_they_differ_in_python(name: str) -> None:
    pairs = list(itertools.product([None, *POOLS.get(name, []), *MORE.get(name, [])], repeat=2))
    # Includes arrays that begin in the middle of their buffers.
    columns = [pa.array([pairs[-1][i], *(pair[i] for pair in pairs)], parse_type(name)).slice(1) for i in (0, 1)]
    assert differing(*columns).tolist() == [canonical(old) != canonical(new) for old, new in pairs]
    assert differing(columns[0][:0], columns[1][:0]).tolist() == []


def schema_of(key: dict[str, str], **arguments: Any) -> TableSchema:
    config = {
        "key": list(key),
        "columns": {
            "n": "bigint",
            "o": "bigint",
            "d": {"type": "double", "default": 7.0},
            "l": "array<int>",
            "p": "bigint",
            **key,
            "t": "string",
        },
        "groups": {
            "one": {"columns": ["n", "o", "d"], "ordering": ["o"]},
            "two": {"columns": ["l", "p"], "ordering": ["p"]},
            "three": {"columns": ["t"]},
        },
        "streams": {"s": {"groups": ["one", "two", "three"]}},
        **arguments,
    }
    return build_schema(load_config(config))


KEYS: list[tuple[dict[str, str], list[tuple[Any, ...]]]] = [
    ({"k": "bigint"}, [(n,) for n in (-(2**63), -1, 0, 1, 2**63 - 1)]),
    ({"k": "string"}, [(n,) for n in ("", "a", "a\x00", "é", "b")]),
    ({"k": "int", "j": "string"}, [(1, "a"), (1, "a\x00"), (2, "a"), (2, ""), (-1, "b")]),
    ({"k": "decimal(12,2)"}, [(pa.scalar(n, pa.decimal128(12, 2)).as_py(),) for n in (-1, 0, 1, 2, 3)]),
]


def random_state(chance: random.Random, schema: TableSchema, pool: list[tuple[Any, ...]]) -> State:
    state: State = {}
    for key in chance.sample(pool, chance.randrange(len(pool) + 1)):
        has = frozenset(chance.sample(["one", "two", "three"], chance.randrange(1, 4)))
        row = dict(zip(schema.key, key, strict=True))
        for group in schema.groups:
            for name in group.columns:
                column = schema.column_by_name[name]
                values = {"bigint": [0, 1], "double": [7.0, NAN], "array<int>": [[], [1]], "string": ["", "x"]}
                known = next(v for type_name, v in values.items() if parse_type(type_name) == column.type)
                row[name] = chance.choice([None, *known]) if group.name in has else column.default
        state[canonical(key)] = ({name: canonical(row[name]) for name in row}, has)
    return state


def image(schema: TableSchema, state: State) -> dict[str, pa.Array]:
    """A state in the form of a scan's result."""

    def plain(value: Any) -> Any:
        return NAN if value == "NaN" else list(value) if isinstance(value, tuple) else value

    columns = {
        column.name: pa.array([plain(row[column.name]) for row, _ in state.values()], column.type)
        for column in schema.columns
    }
    for group in schema.groups:
        columns[names.arrival(group.id)] = pa.array(
            [5 if group.name in has else None for _, has in state.values()], "i8"
        )
    return columns


def parts(chance: random.Random, state: State) -> list[State]:
    """The rows in another order, in several parts; some are empty."""
    items = list(state.items())
    chance.shuffle(items)
    edge = chance.randrange(len(items) + 1)
    return [dict(items[:edge]), {}, dict(items[edge:])]


@given(st.integers(0, 2**32), st.sampled_from(KEYS))
def test_the_diff_equals_a_row_by_row_comparison(seed: int, keys: tuple[dict[str, str], list[Any]]) -> None:
    chance = random.Random(seed)
    images = chance.random() < 0.5
    schema = schema_of(keys[0])
    columns = chance.choice([None, ["n", "t"], ["t", *keys[0]], ["d", "p", "l"]])
    before, after = random_state(chance, schema, keys[1]), random_state(chance, schema, keys[1])
    shape = ChangeShape.of(schema, columns, before=images)
    shuffled = dict(chance.sample(list(before.items()), len(before)))
    batches = list(diff(shape, image(schema, shuffled), [image(schema, part) for part in parts(chance, after)]))
    assert all(len(batch) for batch in batches)
    answer = got(schema, pa.Table.from_batches(batches, shape.arrow))
    assert answer == expected(schema, before, after, columns, images=images)
    # The earlier values of unchanged groups are not needed.
    updated = {name for row in answer.values() if row["_change"] == "update" for name in row["_changed_groups"]}
    known = replace(shape, touched=frozenset(schema.group_by_name[name].id for name in updated))
    needed = {*known.earlier, *(names.arrival(group.id) for group in schema.groups)}
    old = {name: column for name, column in image(schema, shuffled).items() if name in needed}
    again = pa.Table.from_batches(list(diff(known, old, [image(schema, after)])), shape.arrow)
    assert got(schema, again) == answer


def test_the_result_has_keys_first_then_the_requested_columns() -> None:
    schema = schema_of({"k": "int", "j": "string"})
    shape = ChangeShape.of(schema, ["t", "j", "t"], before=True)
    assert shape.columns == ("k", "t", "j")
    assert shape.arrow.names == ["k", "t", "j", "_change", "_changed_groups", "_before"]
    assert shape.arrow.field("_before").type == pa.struct([pa.field("t", pa.string())])
    assert not shape.arrow.field("j").nullable
    assert shape.arrow.field("t").nullable
    assert [group.name for group in shape.groups] == ["three"]


def test_with_key_columns_only_there_are_inserts_and_deletes() -> None:
    schema = schema_of({"k": "bigint"})
    shape = ChangeShape.of(schema, ["k"], before=False)
    columns = [{"k": pa.array(key_values, pa.int64())} for key_values in ([1, 2], [3, 2])]
    (first, second) = diff(shape, columns[0], [columns[1]])
    assert first.to_pylist() == [{"k": 3, "_change": "insert", "_changed_groups": []}]
    assert second.to_pylist() == [{"k": 1, "_change": "delete", "_changed_groups": []}]


def test_column_lists_that_cannot_be_returned_are_refused() -> None:
    schema = schema_of({"k": "bigint"})
    with pytest.raises(NotFound, match="no column 'zz'"):
        ChangeShape.of(schema, ["zz"], before=False)
    with pytest.raises(InvalidInput, match="only key columns are listed"):
        ChangeShape.of(schema, ["k"], before=True)
    clashing = build_schema(
        load_config(
            {
                "key": ["k"],
                "columns": {"k": "bigint", "_Change": "string", "_before": "string"},
                "groups": {"g": {"columns": ["_Change", "_before"]}},
                "streams": {"s": {"groups": ["g"]}},
            }
        )
    )
    with pytest.raises(InvalidInput, match="'_Change' of the table has the same name as"):
        ChangeShape.of(clashing, None, before=False)
    with pytest.raises(InvalidInput, match="'_before'"):
        ChangeShape.of(clashing, ["k", "_before"], before=True)
    assert ChangeShape.of(clashing, ["_before"], before=False).columns == ("k", "_before")
