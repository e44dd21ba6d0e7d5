"""Small tables and batches, drawn from a seed: few keys and few ordering values, so that collisions are frequent.

Every merge mode occurs: with and without ordering, alone and with other modes, in one file group and in several.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from tests.mergers import BALANCE_STATE
from tests.simulation.two_tables import FOREIGN
from tests.strategies import BALANCE, Config, Row

_MODES = ["latest", "latest", "latest_non_null", "sums", "extremes", "custom"]
_RETRACTABLE = {"sum", "count"}
_WORDS = ["a", "b", "c", None]
_INDEXED = ("bigint", "int", "string")
_ORDERING_VALUES = 5
_ROWS = [0, 1, 2, 3, 3, 4]
_FOREIGN_KEYS: Mapping[str, list[Any]] = {
    "bigint": [None, -1, 0, 1, 2, 7, 1 << 40],
    "int": [None, -1, 0, 1, 2, 7],
    "string": [None, "", "a", "b", "\x00", "é", "zz", "eu", "us"],
}
"""Values of foreign keys: those of keys, NULL, and some that no key has."""


def draw_config(chance: random.Random, *, distinct: bool) -> Config:
    """A configuration. ``distinct``: every group has an ordering column, so that no clock decides anything (S22)."""
    key = chance.choice([{"id": "bigint"}, {"id": "bigint"}, {"name": "string"}, {"region": "string", "id": "bigint"}])
    columns: dict[str, Any] = dict(key)
    groups: dict[str, Any] = {}
    for number in range(chance.choice([1, 2, 2, 3])):
        group_columns, group = _group(f"g{number}", chance.choice(_MODES))
        if distinct or chance.random() < 3 / 4:
            group_columns[f"g{number}_o"] = chance.choice(["bigint", "int"])
            group["ordering"] = [f"g{number}_o"]
        columns |= group_columns
        groups[f"g{number}"] = {"columns": list(group_columns), **group}
    return {
        "key": list(key),
        "partition_by": ["region"] if "region" in key and chance.random() < 1 / 2 else [],
        "buckets": chance.choice([1, 2, 2, 4]),
        "columns": columns,
        "groups": groups,
        "streams": _streams(chance, groups),
    }


def _group(name: str, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns with their types, and the group without its ordering."""
    match mode:
        case "latest":
            return {f"{name}_v": {"type": "string", "default": "none"}}, {}
        case "latest_non_null":
            return {f"{name}_v": "string", f"{name}_w": "int"}, {"merge": mode}
        case "sums":
            functions = {f"{name}_s": "sum", f"{name}_c": "count"}
            return {f"{name}_s": "int", f"{name}_c": "bigint"}, {"merge": "aggregate", "functions": functions}
        case "extremes":
            functions = {f"{name}_x": "max", f"{name}_l": "last", f"{name}_a": "collect_list"}
            types = {f"{name}_x": "int", f"{name}_l": "string", f"{name}_a": "array<bigint>"}
            return types, {"merge": "aggregate", "functions": functions}
    return {f"{name}_n": "bigint", f"{name}_t": "string"}, {"merge": BALANCE, "state": BALANCE_STATE}


def _streams(chance: random.Random, groups: Mapping[str, Any]) -> dict[str, Any]:
    """Streams that together write every group, some groups twice; with deletes only if they are allowed."""
    names = list(groups)
    fed = [names[i::2] for i in range(min(2, len(names)))] if chance.random() < 1 / 2 else [names]
    if chance.random() < 1 / 2:
        fed.append(chance.sample(names, chance.randint(1, len(names))))
    policies: dict[str, str] = {}
    streams = {}
    for number, stream_groups in enumerate(fed):
        policy = chance.choice(["group", "row", "ignore"])
        if any(_only_upserts(groups[name]) or policies.get(name, policy) != policy for name in stream_groups):
            policy = "ignore"
        if policy != "ignore":
            policies.update(dict.fromkeys(stream_groups, policy))
        streams[f"s{number}"] = {"groups": stream_groups, "on_delete": policy}
    return streams


def draw_overlays(seed: int, share: float) -> dict[str, bool]:
    """Whether compactions may write overlays. Drawn separately: no other decision depends on it."""
    return {"overlays": True} if random.Random(f"overlays {seed}").random() < share else {}


def draw_index(seed: int, config: Config) -> dict[str, list[str]]:
    """The indexed columns of some tables. Drawn separately: no other decision depends on them."""
    chance = random.Random(f"index {seed}")
    able = [name for name, kind in config["columns"].items() if kind in _INDEXED and name not in config["key"]]
    return {"index": chance.sample(able, min(2, len(able)))} if able and chance.random() < 1 / 4 else {}


def draw_lateness(seed: int, config: Config, lane: str, stream: str) -> int | None:
    """The lateness that a lane's writers declare, or None. Drawn separately: no other decision depends on it."""
    chance = random.Random(f"lateness {seed} {lane}")
    able = any(config["groups"][name].get("ordering") for name in config["streams"][stream]["groups"])
    return chance.choice([None, 0, 1, 3]) if able else None


def draw_finish(seed: int, lane: str) -> bool:
    """Whether the writers of a lane finish it. Drawn separately: no other decision depends on it."""
    return random.Random(f"finish {seed} {lane}").random() < 1 / 6


def _only_upserts(group: Mapping[str, Any]) -> bool:
    return not _RETRACTABLE.issuperset(group.get("functions", {}).values())


def draw_keys(chance: random.Random, config: Config) -> list[Row]:
    """The few keys of a table."""
    values = {"id": [-1, 0, 1, 2, 7, 1 << 40], "name": ["", "a", "b", "\x00", "é", "zz"], "region": ["eu", "us"]}
    return [{name: chance.choice(values[name]) for name in config["key"]} for _ in range(chance.choice([1, 3, 5]))]


def draw_batch(
    chance: random.Random, config: Config, keys: list[Row], stream: str, versions: Iterator[int] | None
) -> list[Row]:
    """Rows of one batch; ``versions`` gives ordering values that never repeat."""
    stream_groups = config["streams"][stream]["groups"]
    groups = (
        stream_groups
        if chance.random() < 3 / 4
        else chance.sample(stream_groups, chance.randint(1, len(stream_groups)))
    )
    with_op = chance.random() < 2 / 3
    rows = []
    for _ in range(chance.choice(_ROWS)):
        row = dict(chance.choice(keys))
        for name in groups:
            row |= _cells(chance, config["groups"][name], config["columns"], versions)
        if with_op:
            row["_op"] = _operation(chance, config, groups, row)
        rows.append(row)
    return rows


def _cells(
    chance: random.Random, group: Mapping[str, Any], columns: Mapping[str, Any], versions: Iterator[int] | None
) -> Row:
    row: Row = {}
    for column in group["columns"]:
        declared = columns[column] if isinstance(columns[column], str) else columns[column]["type"]
        if column in group.get("ordering", ()):
            drawn = chance.randrange(_ORDERING_VALUES) if versions is None else next(versions)
            row[column] = None if chance.random() < 1 / 16 else drawn
        elif column.startswith(FOREIGN):
            row[column] = chance.choice(_FOREIGN_KEYS[declared])
        else:
            row[column] = chance.choice(_WORDS) if declared == "string" else chance.randrange(-2, 6)
    return row


def _operation(chance: random.Random, config: Config, groups: list[str], row: Row) -> str | None:
    """An operation that is valid for the row: a delete or retraction without effect is bad input."""
    touched = [
        name for name in groups if all(row[column] is not None for column in config["groups"][name].get("ordering", ()))
    ]
    aggregates = [name for name in groups if config["groups"][name].get("merge") == "aggregate"]
    words: list[str | None] = [None, "U", "c"]
    if touched:
        words += ["delete", "D"]
    if not aggregates or set(aggregates).intersection(touched):
        words.append("-U")
    return chance.choice(words)
