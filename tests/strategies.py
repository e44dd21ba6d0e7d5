"""Hypothesis strategies: random table configurations, and random histories of one table.

Values come from small pools, so that keys collide, ordering values tie, and extreme values are frequent. A history is
plain data without a table, so that it can be replayed in several ways and against the oracle.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.mergers import BALANCE_STATE
from weft.storage import mergers

_UTC = dt.UTC

POOLS: Mapping[str, Sequence[Any]] = {
    "tinyint": [-128, -1, 0, 1, 127],
    "smallint": [-32768, -1, 0, 1, 32767],
    "int": [-(2**31), -1, 0, 1, 2**31 - 1],
    "bigint": [-(2**63), -1, 0, 1, 2, 2**53 + 1, 2**63 - 1],
    "string": ["", "a", "aa", "b", "\x00", "a\x00", "a\x00b", "é", "z" * 40, "../x", "k=v/1"],
    "binary": [b"", b"\x00", b"\x00\xff", b"\xff", b"a", b"a\x00", b"\xff\xfe"],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 28), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=_UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, _UTC),
        dt.datetime(1970, 1, 1, tzinfo=_UTC),
        dt.datetime(2026, 2, 28, 12, 0, 0, 1, _UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, _UTC),
    ],
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(1970, 1, 1), dt.datetime(2026, 2, 28, 12, 0, 0, 1)],  # noqa: DTZ001
    "decimal(12,2)": [Decimal("-9999999999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("1.50"), Decimal("9.00")],
    "decimal(30,2)": [Decimal("-9999999999.99"), Decimal("0.01"), 9 * Decimal(10) ** 27],
    "decimal(38,10)": [Decimal(-1), Decimal("0.0000000001"), *(n * 10**27 for n in map(Decimal, (9, 1, -9)))],
    "double": [float("-inf"), -1.5, -0.0, 0.0, 1e-300, 2.5, float("inf")],
    "float": [-1.5, 0.0, 2.5],
    "boolean": [True, False],
    "array<int>": [[], [1], [None, 2], [1, 2, 3]],
    "array<string>": [[], ["x"], [None, ""]],
    "map<string,bigint>": [[], [("a", 1)], [("a", None), ("b", 2)]],
    "struct<x:int,y:string>": [{"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": 2, "y": None}],
    "array<struct<n:bigint,tags:array<string>>>": [[], [{"n": 1, "tags": ["p", None]}, {"n": None, "tags": None}]],
}
NAN = float("nan")
KEY_TYPES = [
    *("bigint", "int", "string", "binary", "date", "timestamp", "timestamp_ntz"),
    *("decimal(12,2)", "decimal(38,10)", "tinyint", "smallint"),
]
ORDERING_TYPES = [
    *("bigint", "int", "smallint", "tinyint", "decimal(12,2)", "decimal(38,10)"),
    *("date", "timestamp", "timestamp_ntz", "string", "double"),
]
VALUE_TYPES = list(POOLS)
DEFAULT_TYPES = [name for name in POOLS if "<" not in name]
SCALAR_TYPES = DEFAULT_TYPES
INTEGER_TYPES = ["tinyint", "smallint", "int", "bigint"]
MODES = ["latest", "latest_non_null", "latest_non_null", "aggregate", "aggregate", "custom"]
BALANCE = "tests.mergers:balance"
_FUNCTION_TYPES: Mapping[str, Sequence[str]] = {
    "sum": [*INTEGER_TYPES, "decimal(12,2)", "decimal(38,10)"],
    "count": INTEGER_TYPES,
    "min": SCALAR_TYPES,
    "max": SCALAR_TYPES,
    "first": VALUE_TYPES,
    "last": VALUE_TYPES,
    "bool_and": ["boolean"],
    "bool_or": ["boolean"],
    "collect_set": [f"array<{name}>" for name in SCALAR_TYPES],
    "collect_list": [f"array<{name}>" for name in VALUE_TYPES],
    "listagg": ["string"],
}
RETRACTABLE = {"sum", "count"}
_COUNTED_ANYTHING = re.compile(r"_any(\d+)$")
ODD_NAMES = ["é col", "a.b", "x-y", "select", "tab\tbed"]

UPSERTS = [None, "upsert", "I", "U", "+I", "+U", "c", "u", "r", "insert", "update"]
DELETES = ["delete", "D", "-D", "d"]
BEFORES = ["-U", "update_before"]

Config = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Append:
    """One commit of a lane; all rows have the same keys (columns)."""

    stream: str
    lane: str
    rows: list[Row]


@dataclass(frozen=True)
class Compact:
    """Compact the file groups whose position in the list, modulo 8, is in ``chosen``."""

    chosen: frozenset[int]


@dataclass(frozen=True)
class Fold:
    """Fold the waiting logs."""


@dataclass(frozen=True)
class Remember:
    """Take a snapshot, and read it again after every later step of this kind and at the end."""


Step = Append | Compact | Fold | Remember
EVERY_GROUP = frozenset(range(8))


@dataclass(frozen=True)
class Pools:
    """The values of the rows of one history: few, so that keys collide and ordering values tie."""

    keys: list[tuple[Any, ...]]
    ordering: Mapping[str, list[Any]]


@dataclass(frozen=True)
class Story:
    """A configuration, and the steps of its history."""

    config: Config
    steps: list[Step] = field(default_factory=list)

    @property
    def appends(self) -> list[Append]:
        return [step for step in self.steps if isinstance(step, Append)]


def type_of(config: Config, column: str) -> str:
    given = config["columns"][column]
    return given["type"] if isinstance(given, dict) else given


def mode_of(config: Config, group: str) -> str:
    return config["groups"][group].get("merge", "latest")


def function_of(config: Config, column: str) -> str | None:
    """Name of the aggregate function of a column, if it has one."""
    for group in config["groups"].values():
        given = group.get("functions", {}).get(column)
        if given is not None:
            return _function_name(given)
    return None


def _function_name(given: Any) -> str:
    return given if isinstance(given, str) else next(iter(given))


def input_type(config: Config, column: str) -> str:
    """Type that batches have: collect functions take elements, count takes anything."""
    declared, function = type_of(config, column), function_of(config, column)
    if function in {"collect_set", "collect_list"}:
        return declared[len("array<") : -1]
    if function == "count" and (found := _COUNTED_ANYTHING.search(column)):
        return VALUE_TYPES[int(found.group(1))]
    return declared


@st.composite
def configs(
    draw: st.DrawFn,
    *,
    ordering: str = "any",
    max_groups: int = 4,
    defaults: bool = True,
    modes: Sequence[str] = MODES,
) -> Config:
    """A valid configuration. ``ordering``: any, or distinct (one bigint ordering column in every group)."""
    key = [f"k{i}" for i in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    columns: dict[str, Any] = {name: draw(st.sampled_from(KEY_TYPES)) for name in key}
    groups: dict[str, Any] = {}
    odd = iter(draw(st.permutations(ODD_NAMES)))
    for g in range(draw(st.integers(1, max_groups))):
        mode = draw(st.sampled_from(modes))
        ordering_types = ["bigint"] if ordering == "distinct" else draw(st.lists(_ordering_types(), max_size=3))
        orders = {f"g{g}_o{i}": name for i, name in enumerate(ordering_types)}
        group: dict[str, Any] = {"ordering": list(orders)}
        if mode == "custom":
            mergers.allow("tests.mergers")  # whichever test draws it first in this process
            values = {f"g{g}_n": "bigint", f"g{g}_t": "string"}
            group |= {"merge": BALANCE, "state": BALANCE_STATE}
        elif mode == "aggregate":
            values, functions = draw(_aggregates(f"g{g}", least=0 if orders else 1))
            group |= {"merge": "aggregate", "functions": functions}
        else:
            most = 3 if mode == "latest" else 5  # the columns of one row can have that many versions
            types = draw(st.lists(st.sampled_from(VALUE_TYPES), min_size=0 if orders else 1, max_size=most))
            names = [
                next(odd, f"g{g}_v{i}") if draw(st.integers(0, 4)) == 0 else f"g{g}_v{i}" for i in range(len(types))
            ]
            values = dict(zip(names, types, strict=True))
            if mode != "latest" or draw(st.booleans()):
                group["merge"] = mode
        group_columns = orders | values
        for name, type_name in group_columns.items():
            wants_default = defaults and type_name in DEFAULT_TYPES and draw(st.integers(0, 3)) == 0
            columns[name] = (
                {"type": type_name, "default": draw(st.sampled_from(POOLS[type_name]))} if wants_default else type_name
            )
        groups[f"g{g}"] = {"columns": draw(st.permutations(list(group_columns))), **group}
    order = draw(st.permutations(list(columns)))
    return {
        "key": key,
        "partition_by": draw(st.sampled_from([[], [], key[:1], key])),
        "buckets": draw(st.sampled_from([1, 2, 4, 8])),
        "columns": {name: columns[name] for name in order},
        "groups": groups,
        "streams": draw(_streams(groups)),
        "overlays": draw(st.booleans()),
    }


@st.composite
def _aggregates(draw: st.DrawFn, prefix: str, least: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Columns with their types, and their functions."""
    # Some groups have only retractable functions, so that streams with deletes may write them.
    known = sorted(RETRACTABLE) if draw(st.integers(0, 2)) == 0 else list(_FUNCTION_TYPES)
    chosen = draw(st.lists(st.sampled_from(known), min_size=least, max_size=6))
    types: dict[str, str] = {}
    functions: dict[str, Any] = {}
    for i, function in enumerate(chosen):
        name = f"{prefix}_v{i}"
        if function == "count" and draw(st.booleans()):
            name += f"_any{draw(st.integers(0, len(VALUE_TYPES) - 1))}"
        types[name] = draw(st.sampled_from(_FUNCTION_TYPES[function]))
        functions[name] = function
        if function == "listagg" and draw(st.booleans()):
            functions[name] = {"listagg": {"delimiter": draw(st.sampled_from(["", ";", ", "]))}}
    return types, functions


def _ordering_types() -> st.SearchStrategy[str]:
    return st.sampled_from(ORDERING_TYPES)


@st.composite
def _streams(draw: st.DrawFn, groups: Mapping[str, Any]) -> dict[str, Any]:
    """Streams that write every group; `row` and `group` deletes are not mixed in a group, and only sent if allowed."""
    only_upserts = {
        name
        for name, group in groups.items()
        if not all(function in RETRACTABLE for function in map(_function_name, group.get("functions", {}).values()))
    }
    chosen = draw(st.lists(st.lists(st.sampled_from(list(groups)), min_size=1, unique=True), min_size=1, max_size=4))
    fed = {group for stream_groups in chosen for group in stream_groups}
    if rest := [group for group in groups if group not in fed]:
        chosen.append(rest)
    policies: dict[str, str] = {}
    streams = {}
    for i, stream_groups in enumerate(chosen):
        policy = draw(st.sampled_from(["group", "row", "ignore"]))
        if only_upserts.intersection(stream_groups) or any(
            policies.get(group, policy) != policy for group in stream_groups
        ):
            policy = "ignore"
        if policy != "ignore":
            policies.update(dict.fromkeys(stream_groups, policy))
        streams[f"s{i}"] = {"groups": stream_groups, "on_delete": policy}
    return streams


@st.composite
def stories(
    draw: st.DrawFn,
    *,
    ordering: str = "any",
    max_steps: int = 12,
    max_rows: int = 8,
    max_groups: int = 4,
    modes: Sequence[str] = MODES,
) -> Story:
    """A configuration and a history. ``ordering="distinct"``: no two events ever have equal ordering values."""
    config = draw(configs(ordering=ordering, modes=modes, max_groups=max_groups))
    pool = draw(pools(config))
    steps: list[Step] = []
    # Sizes are drawn from lists, because Hypothesis prefers small integers, and short histories find few errors.
    for _ in range(draw(st.sampled_from([*[max_steps] * 4, max_steps // 2, 2]))):
        kind = draw(st.sampled_from(["append"] * 7 + ["compact"] * 2 + ["fold"] * 3 + ["remember"]))
        if kind == "append":
            steps.append(draw(appends(config, pool, max_rows)))
        elif kind == "compact":
            steps.append(Compact(draw(st.just(EVERY_GROUP) | st.frozensets(st.integers(0, 7)))))
        else:
            steps.append(Fold() if kind == "fold" else Remember())
    if ordering == "distinct":
        _make_distinct(config, steps, draw(st.permutations(range(200))))
    return Story(config, steps)


@st.composite
def pools(draw: st.DrawFn, config: Config) -> Pools:
    """The few keys and ordering values of a history."""
    one = st.tuples(*(st.sampled_from(POOLS[type_of(config, name)]) for name in config["key"]))
    columns = [name for group in config["groups"].values() for name in group["ordering"]]
    values = {name: st.sampled_from(POOLS[type_of(config, name)]) for name in columns}
    return Pools(
        draw(st.lists(one, min_size=1, max_size=draw(st.sampled_from([1, 2, 6])), unique=True)),
        {name: draw(st.lists(value, min_size=2, max_size=3)) for name, value in values.items()},
    )


@st.composite
def appends(draw: st.DrawFn, config: Config, pool: Pools, max_rows: int) -> Append:
    stream = draw(st.sampled_from(list(config["streams"])))
    groups = config["streams"][stream]["groups"]
    present = draw(st.just(groups) | st.lists(st.sampled_from(groups), min_size=1, unique=True))
    columns = [name for group in present for name in config["groups"][group]["columns"]]
    partial = [group for group in present if mode_of(config, group) == "latest_non_null"]
    for group in partial:
        ordering = config["groups"][group]["ordering"]
        values = [name for name in config["groups"][group]["columns"] if name not in ordering]
        omitted = draw(st.just([]) | st.lists(st.sampled_from(values), unique=True)) if values else []
        if ordering or len(omitted) < len(values):
            columns = [name for name in columns if name not in omitted]
    cells = {name: [None, *_values(config, pool, name)] for name in columns}
    for name in (name for group in partial for name in config["groups"][group]["columns"]):
        if name in cells and name not in pool.ordering:
            cells[name] = [None] * len(cells[name]) + cells[name]  # an older event supplies the value instead
    # Any column of the groups may be named as supplied, even if the batch omits it: its value is then NULL.
    supplies = [name for group in partial for name in config["groups"][group]["columns"]]
    if not draw(st.booleans()):
        supplies = []
    with_op = draw(st.sampled_from([True, True, False]))
    size = draw(st.sampled_from([max_rows, max_rows // 2, 2, 1, 0]))
    # Drawing every value would exceed Hypothesis' budget for an example, and leave only short histories.
    chance = random.Random(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(size):
        row = dict(zip(config["key"], chance.choice(pool.keys), strict=True))
        row |= {name: chance.choice(values) for name, values in cells.items()}
        if supplies:
            row["_supplied"] = chance.choice([None, chance.choices(supplies, k=chance.randrange(3))])
        if with_op:
            row["_op"] = chance.choice(_words(config, present, row))
        rows.append(row)
    lane = draw(st.sampled_from([stream, stream, f"{stream}-backfill"]))
    return Append(stream, lane, rows)


def _values(config: Config, pool: Pools, column: str) -> Sequence[Any]:
    type_name = input_type(config, column)
    if column in pool.ordering:
        return pool.ordering[column]
    return [NAN, *POOLS[type_name]] if type_name in {"double", "float"} else POOLS[type_name]


def _words(config: Config, groups: list[str], row: Row) -> list[str | None]:
    """Operations that are valid for a row: a delete that touches no group is bad input, which other tests cover."""
    touched = [group for group in groups if _touches(config, group, row)]
    aggregates = [group for group in groups if mode_of(config, group) == "aggregate"]
    words = [*UPSERTS, *(DELETES * 2 if touched else [])]
    # A retraction that touches no aggregate is bad input, too.
    return words if aggregates and not set(aggregates).intersection(touched) else [*words, *BEFORES]


def _touches(config: Config, group: str, row: Row) -> bool:
    ordering = config["groups"][group]["ordering"]
    return not ordering or any(row[name] is not None for name in ordering)


def _make_distinct(config: Config, steps: list[Step], numbers: list[int]) -> None:
    """Give every event a different ordering value, in random order; rows with a null still touch no group."""
    shuffled = itertools.chain(numbers, itertools.count(len(numbers)))
    for step in steps:
        if isinstance(step, Append):
            for row in step.rows:
                for group in config["groups"].values():
                    (ordering,) = group["ordering"]
                    if row.get(ordering) is not None:
                        row[ordering] = next(shuffled)
