"""Histories in which the schema changes under live writers, and a world that runs them beside the oracle.

A sender has the columns and types of some earlier schema, and keeps using them after schema changes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from tests.oracle import Oracle
from tests.storage.support.world import World, to_arrow
from tests.strategies import (
    BALANCE,
    EVERY_GROUP,
    MODES,
    POOLS,
    RETRACTABLE,
    Append,
    Compact,
    Config,
    Fold,
    Pools,
    Remember,
    Step,
    appends,
    configs,
    function_of,
    mode_of,
    pools,
    type_of,
)
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.errors import InvalidInput

WIDER: Mapping[str, list[str]] = {
    "tinyint": ["smallint", "int", "bigint"],
    "smallint": ["int", "bigint"],
    "int": ["bigint"],
    "float": ["double"],
    "decimal(12,2)": ["decimal(30,2)"],
}
KINDS = (
    ["add_column"] * 4
    + ["add_group"] * 2
    + ["add_stream", "set_default", "set_default"]
    + ["widen_column"] * 3
    + ["set_comment"]
)


@dataclass(frozen=True)
class Change:
    """A call of a method of the table, and the configuration that the table has after it."""

    method: str
    arguments: dict[str, Any]
    config: Config


@dataclass(frozen=True)
class Sent:
    """An append by a sender that knows configuration number ``version``; 0 is the first."""

    append: Append
    version: int


@dataclass(frozen=True)
class Evolution:
    """A configuration, and the steps of its history."""

    config: Config
    steps: list[Sent | Change | Step] = field(default_factory=list)


class Row(dict[str, Any]):
    """A row whose sender did not know all columns: the others are NULL and not supplied."""

    def __missing__(self, name: str) -> None:
        return None


class EvolvingWorld(World):
    """Runs an `Evolution`; writers stay open during changes."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.versions = [config]

    def do(self, step: Sent | Change | Step) -> None:
        match step:
            case Sent():
                self.send(step)
            case Change():
                getattr(self.table, step.method)(**step.arguments)
                self.evolve(step.config)
                self.check_comments()
            case _:
                self.run([step])

    def check_comments(self) -> None:
        """The comments are those of the configuration: a change of another kind keeps them."""
        schema, columns = self.table.schema, self.config["columns"]
        assert schema.comment == self.config.get("comment", "")
        assert {name: column.comment for name, column in schema.column_by_name.items()} == {
            name: spec.get("comment", "") if isinstance(spec, dict) else "" for name, spec in columns.items()
        }

    def send(self, sent: Sent) -> None:
        append = sent.append
        self.writer(append).append(to_arrow(self.versions[sent.version], append.rows, append.stream))
        self.arrival += 1
        self.oracle.append(append.stream, [Row(row) for row in append.rows], self.arrival)

    def evolve(self, config: Config) -> None:
        """Give the oracle the new schema; its events do not change."""
        oracle = Oracle(config)
        oracle.events = self.oracle.events
        self.config, self.oracle = config, oracle
        self.versions.append(config)


@st.composite
def evolutions(draw: st.DrawFn, *, max_steps: int = 12, max_rows: int = 8, modes: Sequence[str] = MODES) -> Evolution:
    """A configuration with groups of the given modes, and a history of it."""
    first = draw(configs(max_groups=2 if modes is MODES else 1, modes=modes))
    versions: list[tuple[Config, Pools]] = [(first, draw(pools(first)))]
    steps: list[Sent | Change | Step] = []
    for number in range(draw(st.sampled_from([max_steps, max_steps, max_steps // 2]))):
        kind = draw(st.sampled_from(["append"] * 6 + ["change"] * 4 + ["compact"] * 3 + ["fold", "remember"]))
        if kind == "append":
            version = draw(st.sampled_from([len(versions) - 1, draw(st.integers(0, len(versions) - 1))]))
            config, pool = versions[version]
            steps.append(Sent(draw(appends(config, pool, max_rows)), version))
        elif kind == "change":
            change = draw(_changes(versions[-1][0], number))
            if change is not None:
                steps.append(change)
                versions.append((change.config, _more(versions[-1][1], change)))
        elif kind == "compact":
            steps.append(Compact(draw(st.just(EVERY_GROUP) | st.frozensets(st.integers(0, 7)))))
        else:
            steps.append(Fold() if kind == "fold" else Remember())
    return Evolution(first, steps)


def _more(pool: Pools, change: Change) -> Pools:
    """Ordering values of a new group or of a wider type."""
    config = change.config
    ordering = dict(pool.ordering)
    for group in config["groups"].values():
        for name in group["ordering"]:
            if name not in ordering:
                ordering[name] = list(POOLS[type_of(config, name)][:3])
            elif change.arguments.get("name") == name:
                ordering[name] = [*ordering[name], *POOLS[type_of(config, name)][-2:]]
    return replace(pool, ordering=ordering)


@st.composite
def _changes(draw: st.DrawFn, config: Config, number: int) -> Change | None:
    """A change of the table; None if a change of this kind is not possible."""
    kind = draw(st.sampled_from(KINDS))
    after = copy.deepcopy(config)
    if kind == "add_column":
        arguments = draw(_column(after, f"x{number}_"))
    elif kind == "add_group":
        arguments = draw(_group(after, f"x{number}_"))
    elif kind == "add_stream":
        arguments = draw(_stream(after, f"x{number}"))
    elif kind == "widen_column":
        arguments = draw(_wider(after))
    elif kind == "set_comment":
        arguments = draw(_comment(after))
    else:
        arguments = draw(_default(after))
    return Change(kind, arguments, after) if arguments is not None else None


@st.composite
def _column(draw: st.DrawFn, config: Config, prefix: str) -> dict[str, Any] | None:
    open_groups = [name for name in config["groups"] if mode_of(config, name) != BALANCE]
    if not open_groups:
        return None
    group = draw(st.sampled_from(open_groups))
    other = draw(configs(max_groups=1, modes=[mode_of(config, group)]))
    values = [name for name in other["groups"]["g0"]["columns"] if name not in other["groups"]["g0"]["ordering"]]
    if _deleted_from(config, group):
        values = [name for name in values if (function_of(other, name) or "sum") in RETRACTABLE]
    if not values:
        return None
    column = draw(st.sampled_from(values))
    name, spec = prefix + column, _spec(other, column)
    function = other["groups"]["g0"].get("functions", {}).get(column)
    config["columns"][name] = spec
    config["groups"][group]["columns"] = [*config["groups"][group]["columns"], name]
    if function is not None:
        config["groups"][group]["functions"] = {**config["groups"][group]["functions"], name: function}
    return {"group": group, "name": name, "function": function, **spec}


def _deleted_from(config: Config, group: str) -> bool:
    return any(
        group in stream["groups"] and stream.get("on_delete", "group") != "ignore"
        for stream in config["streams"].values()
    )


def _spec(config: Config, column: str) -> dict[str, Any]:
    given = config["columns"][column]
    return {"default": None, **(given if isinstance(given, dict) else {"type": given})}


@st.composite
def _group(draw: st.DrawFn, config: Config, prefix: str) -> dict[str, Any]:
    other = draw(configs(max_groups=1))
    group = other["groups"]["g0"]
    new_group = {
        **group,
        "columns": [prefix + name for name in group["columns"]],
        "ordering": [prefix + name for name in group["ordering"]],
    }
    if "functions" in group:
        new_group["functions"] = {prefix + name: function for name, function in group["functions"].items()}
    columns = {prefix + name: other["columns"][name] for name in group["columns"]}
    name = f"{prefix}g"
    config["columns"] = {**config["columns"], **columns}
    config["groups"][name] = new_group
    removed = {part: value for part, value in new_group.items() if part != "columns"}
    stream = draw(st.sampled_from(list(config["streams"])))
    config["streams"][stream]["groups"] = [*config["streams"][stream]["groups"], name]
    if draw(st.booleans()) and _is_valid(config):
        return {"name": name, "columns": columns, "streams": [stream], **removed}
    config["streams"][stream]["groups"].remove(name)
    policy = draw(st.sampled_from(["group", "row", "ignore"]))
    config["streams"][f"{prefix}s"] = {"groups": [name], "on_delete": policy}
    if not _is_valid(config):
        config["streams"][f"{prefix}s"]["on_delete"] = policy = "ignore"
    return {"name": name, "columns": columns, "new_streams": {f"{prefix}s": policy}, **removed}


@st.composite
def _stream(draw: st.DrawFn, config: Config, prefix: str) -> dict[str, Any]:
    groups = draw(st.lists(st.sampled_from(list(config["groups"])), min_size=1, unique=True))
    policy = draw(st.sampled_from(["group", "row", "ignore"]))
    config["streams"][f"{prefix}s"] = {"groups": groups, "on_delete": policy}
    if not _is_valid(config):
        config["streams"][f"{prefix}s"]["on_delete"] = policy = "ignore"
    return {"name": f"{prefix}s", "groups": groups, "on_delete": policy}


def _is_valid(config: Config) -> bool:
    try:
        build_schema(load_config(config))
    except InvalidInput:
        return False
    return True


@st.composite
def _wider(draw: st.DrawFn, config: Config) -> dict[str, Any] | None:
    custom = {
        column
        for name, group in config["groups"].items()
        if mode_of(config, name) == BALANCE
        for column in group["columns"]
    }
    narrow = [name for name in config["columns"] if name not in custom and type_of(config, name) in WIDER]
    if not narrow:
        return None
    name = draw(st.sampled_from(narrow))
    # Key columns of few bits are stored as integers.
    known = "int" if name in config["key"] and type_of(config, name).endswith("int") else type_of(config, name)
    type_name = draw(st.sampled_from(WIDER[known]))
    config["columns"][name] = {**_spec(config, name), "type": type_name}
    return {"name": name, "type": type_name}


@st.composite
def _default(draw: st.DrawFn, config: Config) -> dict[str, Any] | None:
    names = [name for name in config["columns"] if name not in config["key"] and "<" not in type_of(config, name)]
    if not names:
        return None
    name = draw(st.sampled_from(names))
    value = draw(st.sampled_from([None, *POOLS[type_of(config, name)]]))
    config["columns"][name] = {**_spec(config, name), "default": value}
    return {"name": name, "value": value}


@st.composite
def _comment(draw: st.DrawFn, config: Config) -> dict[str, Any]:
    """A comment for the table or a column, or none again."""
    name = draw(st.none() | st.sampled_from(list(config["columns"])))
    comment = draw(st.sampled_from(["", "text", 'it\'s "another"\n\u00e4']))
    if name is None:
        config["comment"] = comment
    else:
        config["columns"][name] = {**_spec(config, name), "comment": comment}
    return {"comment": comment, "column": name}
