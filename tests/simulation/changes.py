"""Schema changes of a schedule: drawn in advance and independent of each other, so that any order of them is valid.

A change is a method of the table with its arguments. Operators make changes at any time; a job whose batch has a new
column first makes the change itself, like a user who deploys a new version of a job.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.strategies import Config, mode_of

_WIDER = {"int": "bigint"}
_NUMBERS = [-1, 0, 3, 1 << 33]
_TABLE = ""  # whose comment is that of the table


@dataclass(frozen=True)
class Change:
    """``column``: the column that batches may have afterwards; None if the change adds no column."""

    method: str
    arguments: Mapping[str, Any]
    column: str | None = None


def draw_changes(chance: random.Random, config: Config) -> list[Change]:
    """The changes of a schedule; most schedules have no changes."""
    kinds = chance.choice([[], [], [_add_column], [_add_column, _widen, _set_default, _add_group, _set_comment]])
    drawn = (chance.choice(kinds)(chance, config, f"x{number}") for number in range(3) if kinds)
    return [change for change in drawn if change is not None]


def _add_column(chance: random.Random, config: Config, name: str) -> Change | None:
    group = chance.choice(list(config["groups"]))
    function = None
    match mode_of(config, group):
        case "latest" | "latest_non_null":
            kind = chance.choice(["bigint", "string"])
        case "aggregate":
            kind = "bigint"
            functions = set(config["groups"][group]["functions"].values())
            function = chance.choice(["sum", "count"] if functions <= {"sum", "count"} else ["max", "sum"])
        case _:
            return None  # a custom merger only works for its columns
    default = 7 if kind == "bigint" and chance.random() < 1 / 2 else None
    arguments = {"group": group, "name": name, "type": kind, "default": default, "function": function}
    return Change("add_column", arguments, name)


def _widen(chance: random.Random, config: Config, _: str) -> Change | None:
    custom = {c for g in config["groups"] if ":" in mode_of(config, g) for c in config["groups"][g]["columns"]}
    narrow = [c for c, kind in config["columns"].items() if kind in list(_WIDER) and c not in custom]
    if not narrow:
        return None
    column = chance.choice(narrow)
    return Change("widen_column", {"name": column, "type": _WIDER[config["columns"][column]]}, None)


def _set_default(chance: random.Random, config: Config, _: str) -> Change | None:
    values = {"bigint": _NUMBERS, "string": ["none", "other", None]}
    given = {
        column: spec if isinstance(spec, str) else spec["type"]
        for group in config["groups"].values()
        for column in group["columns"]
        for spec in [config["columns"][column]]
    }
    able = [column for column, kind in given.items() if kind in values]
    if not able:
        return None
    column = chance.choice(able)
    return Change("set_default", {"name": column, "value": chance.choice(values[given[column]])})


def _add_group(chance: random.Random, config: Config, name: str) -> Change | None:
    columns = {f"{name}_v": "string", f"{name}_o": "bigint"}
    return Change(
        "add_group",
        {
            "name": f"{name}g",
            "columns": columns,
            "ordering": [f"{name}_o"],
            "streams": [chance.choice(list(config["streams"]))],
        },
    )


def _set_comment(chance: random.Random, config: Config, name: str) -> Change | None:
    return Change("set_comment", {"comment": f"by {name}", "column": chance.choice([None, *config["columns"]])})


def with_column(config: Config, change: Change) -> Config:
    """The configuration that a sender knows after a change that adds a column."""
    after = copy.deepcopy(config)
    arguments = change.arguments
    group = after["groups"][arguments["group"]]
    after["columns"][change.column] = {"type": arguments["type"], "default": arguments["default"]}
    group["columns"] = [*group["columns"], change.column]
    if arguments["function"] is not None:
        group["functions"] = {**group["functions"], change.column: arguments["function"]}
    return after


def config_of(schema: Mapping[str, Any]) -> Config:
    """The configuration that the schema in a CREATE or SCHEMA entry describes."""
    return {
        "key": schema["key"],
        "columns": {c["name"]: {"type": c["type"], "default": c["default"]} for c in schema["columns"]},
        "groups": {
            group["name"]: {
                "columns": group["columns"],
                "ordering": group["ordering"],
                "merge": group["merge"],
                "functions": {f["column"]: f["name"] for f in group["functions"]},
            }
            for group in schema["groups"]
        },
        "streams": {s["name"]: {"groups": s["groups"], "on_delete": s["on_delete"]} for s in schema["streams"]},
        "references": {
            r["name"]: {part: r[part] for part in ("table", "on", "columns", "prefix")}
            for r in schema.get("references", ())
        },
        "comments": {
            _TABLE: schema.get("comment", ""),
            **{c["name"]: c.get("comment", "") for c in schema["columns"]},
        },
    }


def lost(before: Config, after: Config, words: str = "") -> list[str]:
    """The parts of an older schema that this one lacks; ``words``: the change in between, as its entry describes it."""
    _, is_comment, column = f"{words} of ".partition("set comment of ")
    meant = {column.removesuffix(" of ")} if is_comment else set()
    parts = [
        (f"{kind} {name}", old, after[kind].get(name, {}))
        for kind in ("columns", "groups", "streams")
        for name, old in before[kind].items()
    ]
    gone = [what for what, old, now in parts if not _grown(old, now)]
    texts = after["comments"]
    return gone + [
        f"comment of {name or 'the table'}"
        for name, text in before["comments"].items()
        if name not in meant and texts.get(name) != text
    ]


def _grown(old: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    for part, value in old.items():
        if part in {"columns", "groups"}:
            if not set(value) <= set(now.get(part, ())):
                return False
        elif part == "functions":
            if not set(value.items()) <= set(now.get(part, {}).items()):
                return False
        elif part == "type":
            if now.get(part) not in {value, _WIDER.get(value)}:
                return False
        elif part != "default" and now.get(part) != value:
            return False
    return True
