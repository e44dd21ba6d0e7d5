"""Hypothesis strategies: random table configurations, and random histories of one table.

Values come from small pools, so that keys collide, ordering values tie, and extremes turn up often. A history is plain
data (no table in it), so that one history can be replayed in several ways and against the oracle.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

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
    "decimal(38,10)": [Decimal(-1), Decimal("0.0000000001"), Decimal(10) ** 27, -(Decimal(10) ** 27)],
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
    """Compact the file groups whose place in the list, modulo 8, is among ``chosen``."""

    chosen: frozenset[int]


@dataclass(frozen=True)
class Remember:
    """Take a snapshot now and look at it again after every later step of this kind, and in the end."""


Step = Append | Compact | Remember
EVERY_GROUP = frozenset(range(8))


@dataclass(frozen=True)
class Story:
    """A table and what happens to it."""

    config: Config
    steps: list[Step] = field(default_factory=list)

    @property
    def appends(self) -> list[Append]:
        return [step for step in self.steps if isinstance(step, Append)]


def type_of(config: Config, column: str) -> str:
    given = config["columns"][column]
    return given["type"] if isinstance(given, dict) else given


@st.composite
def configs(draw: st.DrawFn, *, ordering: str = "any", max_groups: int = 4, defaults: bool = True) -> Config:
    """A valid configuration. ``ordering``: any, or distinct (one bigint ordering column in every group)."""
    key = [f"k{i}" for i in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    columns: dict[str, Any] = {name: draw(st.sampled_from(KEY_TYPES)) for name in key}
    groups: dict[str, Any] = {}
    odd = iter(draw(st.permutations(ODD_NAMES)))
    for g in range(draw(st.integers(1, max_groups))):
        ordering_types = ["bigint"] if ordering == "distinct" else draw(st.lists(_ordering_types(), max_size=3))
        value_types = draw(st.lists(st.sampled_from(VALUE_TYPES), min_size=0 if ordering_types else 1, max_size=3))
        own = {f"g{g}_o{i}": name for i, name in enumerate(ordering_types)}
        for i, name in enumerate(value_types):
            own[next(odd, f"g{g}_v{i}") if draw(st.booleans()) else f"g{g}_v{i}"] = name
        for name, type_name in own.items():
            wants_default = defaults and type_name in DEFAULT_TYPES and draw(st.integers(0, 3)) == 0
            columns[name] = (
                {"type": type_name, "default": draw(st.sampled_from(POOLS[type_name]))} if wants_default else type_name
            )
        groups[f"g{g}"] = {
            "columns": draw(st.permutations(list(own))),
            "ordering": [name for name in own if "_o" in name and name.startswith(f"g{g}_o")],
        }
    order = draw(st.permutations(list(columns)))
    return {
        "key": key,
        "partition_by": draw(st.sampled_from([[], [], key[:1], key])),
        "buckets": draw(st.sampled_from([1, 2, 4, 8])),
        "columns": {name: columns[name] for name in order},
        "groups": groups,
        "streams": draw(_streams(list(groups))),
    }


def _ordering_types() -> st.SearchStrategy[str]:
    return st.sampled_from(ORDERING_TYPES)


@st.composite
def _streams(draw: st.DrawFn, groups: list[str]) -> dict[str, Any]:
    """Streams that feed every group; `row` and `group` deletes are not mixed on one."""
    chosen = draw(st.lists(st.lists(st.sampled_from(groups), min_size=1, unique=True), min_size=1, max_size=4))
    fed = {group for own in chosen for group in own}
    if rest := [group for group in groups if group not in fed]:
        chosen.append(rest)
    policies: dict[str, str] = {}
    streams = {}
    for i, own in enumerate(chosen):
        policy = draw(st.sampled_from(["group", "row", "ignore"]))
        if any(policies.get(group, policy) != policy for group in own):
            policy = "ignore"
        if policy != "ignore":
            policies.update(dict.fromkeys(own, policy))
        streams[f"s{i}"] = {"groups": own, "on_delete": policy}
    return streams


@st.composite
def stories(draw: st.DrawFn, *, ordering: str = "any", max_steps: int = 12, max_rows: int = 8) -> Story:
    """A configuration and a history. ``ordering="distinct"``: no two events ever have equal ordering values."""
    config = draw(configs(ordering=ordering))
    keys = draw(_keys(config))
    steps: list[Step] = []
    # Sizes are drawn from lists: Hypothesis prefers small integers, and a short history has little to go wrong.
    for _ in range(draw(st.sampled_from([*[max_steps] * 4, max_steps // 2, 2]))):
        kind = draw(st.sampled_from(["append"] * 6 + ["compact"] * 3 + ["remember"]))
        if kind == "append":
            steps.append(draw(_appends(config, keys, max_rows)))
        elif kind == "compact":
            steps.append(Compact(draw(st.just(EVERY_GROUP) | st.frozensets(st.integers(0, 7)))))
        else:
            steps.append(Remember())
    if ordering == "distinct":
        _make_distinct(config, steps, draw(st.permutations(range(200))))
    return Story(config, steps)


@st.composite
def _keys(draw: st.DrawFn, config: Config) -> list[tuple[Any, ...]]:
    """The few keys of a history."""
    one = st.tuples(*(st.sampled_from(POOLS[type_of(config, name)]) for name in config["key"]))
    return draw(st.lists(one, min_size=1, max_size=6, unique=True))


@st.composite
def _appends(draw: st.DrawFn, config: Config, keys: list[tuple[Any, ...]], max_rows: int) -> Append:
    stream = draw(st.sampled_from(list(config["streams"])))
    groups = config["streams"][stream]["groups"]
    present = draw(st.just(groups) | st.lists(st.sampled_from(groups), min_size=1, unique=True))
    with_op = draw(st.sampled_from([True, True, False]))
    size = draw(st.sampled_from([max_rows, max_rows // 2, 2, 1, 0]))
    # Drawing every value would use up what Hypothesis spends on an example, and leave only the shortest histories.
    chance = random.Random(draw(st.integers(0, 2**32)))
    rows = [_row(chance, config, keys, present, with_op=with_op) for _ in range(size)]
    lane = draw(st.sampled_from([stream, stream, f"{stream}-backfill"]))
    return Append(stream, lane, rows)


def _row(
    chance: random.Random, config: Config, keys: list[tuple[Any, ...]], groups: list[str], *, with_op: bool
) -> Row:
    row: Row = dict(zip(config["key"], chance.choice(keys), strict=True))
    touched = False
    for group in groups:
        ordering = config["groups"][group]["ordering"]
        for name in config["groups"][group]["columns"]:
            floating = name not in ordering and type_of(config, name) in {"double", "float"}
            row[name] = chance.choice([None, *([NAN] if floating else []), *POOLS[type_of(config, name)]])
        touched |= not ordering or any(row[name] is not None for name in ordering)
    if with_op:
        # A delete that touches nothing is bad input, which has its own tests.
        words = [*UPSERTS, *DELETES * 2, *BEFORES] if touched else UPSERTS
        row["_op"] = chance.choice(words)
    return row


def _make_distinct(config: Config, steps: list[Step], numbers: list[int]) -> None:
    """Give every event another ordering value, in no order; rows with a null stay untouched ones."""
    shuffled = itertools.chain(numbers, itertools.count(len(numbers)))
    for step in steps:
        if isinstance(step, Append):
            for row in step.rows:
                for group in config["groups"].values():
                    (ordering,) = group["ordering"]
                    if row.get(ordering) is not None:
                        row[ordering] = next(shuffled)
