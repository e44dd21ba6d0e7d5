"""A table that refers to another one: its configuration, and the expected rows of both.

The referenced table is a table like any other, with actors of its own. MERGE.md, "References"; law M11: a read equals
the LEFT JOIN of the tables at the cuts that its cut names.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.changes import Change
from tests.simulation.scheduler import Violation
from tests.simulation.table_lane import Entry, TableLane
from tests.storage.support.world import canonical
from tests.strategies import Config, mode_of
from weft.storage.core.log.cut import Cut, JoinedCut
from weft.storage.core.model import Column, Group
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import parse_type

LOCATION = "../referenced"
FOREIGN = "f_"
"""Prefix of the columns that hold the key of the referenced table."""

Rows = Mapping[Any, Mapping[str, Any]]


def draw_references(chance: random.Random, config: Config, other: Config) -> tuple[Config, list[Change]]:
    """A configuration with foreign keys and references to another table, and the changes that add or drop references.

    Most tables are created with their references. A second reference, under another prefix, shows other columns of the
    same rows, or the row whose key equals the key of the table.
    """
    config = copy.deepcopy(config)
    foreign = {f"{FOREIGN}{name}": chance.choice(_foreign_types(other["columns"][name])) for name in other["key"]}
    config["columns"] |= foreign
    group = _group_of_foreign_keys(chance, config)
    group["columns"] = [*group["columns"], *foreign]
    values = [name for name in other["columns"] if name not in other["key"]]
    given = {"r": _reference(chance, list(foreign), values, "r_")}
    if chance.random() < 1 / 2:
        same_key = [config["columns"][name] for name in config["key"]] == [other["columns"][n] for n in other["key"]]
        on = config["key"] if same_key and chance.random() < 1 / 2 else foreign
        given["again"] = _reference(chance, list(on), [*values, *other["key"]], chance.choice(["again_", "x"]))
    later = [name for name in given if chance.random() < 1 / 4]
    changes = [Change("add_reference", {"name": name, **given[name]}) for name in later]
    changes += [Change("drop_reference", {"name": name}) for name in given if chance.random() < 1 / 6]
    config["references"] = {name: reference for name, reference in given.items() if name not in later}
    return config, changes


def _foreign_types(key: str) -> list[str]:
    return ["bigint", "int"] if key == "bigint" else [key]


def _group_of_foreign_keys(chance: random.Random, config: Config) -> dict[str, Any]:
    """A group that shows what its newest events say; a new one of the first stream if the table has none."""
    able = [name for name in config["groups"] if mode_of(config, name) in {"latest", "latest_non_null"}]
    if able:
        return config["groups"][chance.choice(able)]
    config["columns"]["gf_o"] = "bigint"
    group = config["groups"]["gf"] = {"columns": ["gf_o"], "ordering": ["gf_o"]}
    first = next(iter(config["streams"].values()))
    first["groups"] = [*first["groups"], "gf"]
    return group


def _reference(chance: random.Random, on: list[str], columns: list[str], prefix: str) -> dict[str, Any]:
    shown = chance.sample(columns, chance.randint(1, len(columns)))
    return {"table": LOCATION, "on": on, "columns": shown, "prefix": prefix}


def refer(chance: random.Random, config: Config, rows: list[dict[str, Any]], keys: list[tuple[Any, ...]]) -> None:
    """Let most rows of a batch that have foreign keys name keys of the referenced table that its batches have."""
    foreign = [name for name in config["columns"] if name.startswith(FOREIGN)]
    narrow = [number for number, name in enumerate(foreign) if config["columns"][name] == "int"]
    fitting = [key for key in keys if all(-(1 << 31) <= key[number] < 1 << 31 for number in narrow)]
    for row in rows:
        if fitting and foreign and foreign[0] in row and chance.random() < 3 / 4:
            row.update(zip(foreign, chance.choice(fitting), strict=True))


def references_of(config: Config) -> Mapping[str, Any]:
    """The references of a configuration, by name."""
    return config.get("references", {})


def shown(name: str, reference: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The columns of a reference: their names here, and there."""
    return [(f"{reference.get('prefix', f'{name}_')}{column}", column) for column in reference["columns"]]


def joined(
    rows: Rows, references: Mapping[str, Any], others: Mapping[str, Rows], require: Iterable[str] = ()
) -> tuple[dict[Any, dict[str, Any]], dict[Any, frozenset[str]]]:
    """The LEFT JOIN of rows with those of the referenced tables, row by row.

    Args:
        rows: The rows of the table.
        references: The references whose columns are shown.
        others: The rows of the referenced table by key, for each reference that the snapshot has.
        require: References whose row must exist.

    Returns:
        The rows by key, and the references of each whose row exists.
    """
    found: dict[Any, dict[str, Any]] = {}
    present: dict[Any, frozenset[str]] = {}
    for key, row in rows.items():
        result, there = dict(row), set()
        for name, reference in references.items():
            foreign = canonical(tuple(row[column] for column in reference["on"]))
            other = others.get(name, {}).get(foreign)
            if other is not None:
                there.add(name)
            result |= {here: None if other is None else other[column] for here, column in shown(name, reference)}
        if there.issuperset(require):
            found[key], present[key] = result, frozenset(there)
    return found, present


def with_groups(schema: TableSchema, config: Config, other: Config) -> TableSchema:
    """The schema with a column group for each reference, as `changes` treats them."""
    columns, groups = list(schema.columns), list(schema.groups)
    for name, reference in references_of(config).items():
        for here, column in shown(name, reference):
            columns.append(Column(len(columns) + 1, here, parse_type(_type(other["columns"][column]))))
        names = tuple(here for here, _ in shown(name, reference))
        groups.append(Group(groups[-1].id + 1, name, names, (), "latest"))
    return replace(schema, columns=tuple(columns), groups=tuple(groups), references=())


def _type(declared: str | Mapping[str, Any]) -> str:
    return declared if isinstance(declared, str) else declared["type"]


def cuts_of(at: Cut) -> Mapping[str, Cut]:
    """The cuts of the referenced table that a cut names, by reference."""
    return at.references if isinstance(at, JoinedCut) else {}


def check_no_savepoint_is_left(table: TableLane, referenced: TableLane) -> None:
    """L3: without faults, a savepoint that was made in the referenced table ends with the one that it was made for.

    Raises:
        Violation: One is left.
    """
    needed = {there["savepoint"] for kept in table.kept.values() for there in kept.values()}
    left = [name for name in referenced.savepoints if "." in name and name not in needed]
    if left:
        raise Violation(f"L3: savepoints {left} of the referenced table belong to no savepoint")


def kept_cut(savepoint: Entry) -> str:
    """The text of the cut of a savepoint, with those of the referenced table."""
    named = {name: Cut(there["table"], there["lanes"]) for name, there in savepoint.get("references", {}).items()}
    return str(JoinedCut(savepoint["table"], savepoint["lanes"], named))


def check_savepoints(table: TableLane, referenced: TableLane) -> None:
    """S16: what a savepoint needs of the referenced table is kept there by a savepoint as long as it exists.

    Raises:
        Violation: It is not.
    """
    for name, kept in table.kept.items():
        for reference, there in kept.items():
            lanes = {lane: seq for lane, seq in there["lanes"].items() if seq}
            if referenced.savepoints.get(there["savepoint"]) != (there["table"], lanes):
                raise Violation(
                    f"S16 CleanSafe: savepoint {name} has no savepoint of the table of {reference}: {there}"
                )
