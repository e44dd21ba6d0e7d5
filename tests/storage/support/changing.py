"""The oracle of changes: two complete results compared row by row in plain Python, and changes applied to a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.oracle import Event, Oracle
from tests.storage.support.world import canonical
from tests.strategies import Config
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.read.snapshot import Snapshot

Key = tuple[Any, ...]
Row = dict[str, Any]
Present = frozenset[str]
State = dict[Key, tuple[Row, Present]]
"""Values and present groups of each visible row, by key."""
Changed = dict[Key, dict[str, Any]]


def state_of(snapshot: Snapshot, require: Sequence[str] = ()) -> State:
    """The visible rows and their groups: a group is present in the rows that a read that requires the group returns."""
    key = snapshot.table_schema.key
    rows = by_key(key, snapshot.to_arrow(require=require))
    present = {
        group.name: set(by_key(key, snapshot.to_arrow(list(key), require=[*require, group.name])))
        for group in snapshot.table_schema.groups
    }
    return {k: (row, frozenset(name for name, there in present.items() if k in there)) for k, row in rows.items()}


def oracle_state(config: Config, events: Sequence[Event], require: Sequence[str] = ()) -> State:
    """The oracle's rows after the first ``count`` events, under the configuration at that time or a later one."""
    oracle = Oracle(config)
    oracle.events = list(events)
    present = {name: {canonical(key) for key in oracle.read([*require, name])} for name in config["groups"]}
    return {
        canonical(key): (
            {name: canonical(value) for name, value in row.items()},
            frozenset(name for name, there in present.items() if canonical(key) in there),
        )
        for key, row in oracle.read(require).items()
    }


def under(snapshot: Snapshot, later: Snapshot) -> Snapshot:
    """The rows of a snapshot under the schema of a later one."""
    state = replace(snapshot.state, schema=later.state.schema, schema_rev=later.state.schema_rev)
    return Snapshot(snapshot.table_log, state, snapshot.at)


def by_key(key: Sequence[str], table: pa.Table) -> dict[Key, Row]:
    result: dict[Key, Row] = {}
    for row in table.to_pylist():
        row_key = canonical(tuple(row[name] for name in key))
        assert row_key not in result, f"key {row_key} comes twice"
        result[row_key] = {name: canonical(value) for name, value in row.items()}
    return result


def expected(
    schema: TableSchema, before: State, after: State, columns: Iterable[str] | None = None, *, images: bool = True
) -> Changed:
    """The definition of changes, row by row."""
    wanted = list(columns) if columns is not None else [column.name for column in schema.columns]
    groups = [group for group in schema.groups if set(group.columns) & set(wanted)]
    shown = [*schema.key, *(name for name in wanted if name not in schema.key)]
    result: Changed = {}
    for key in {**before, **after}:
        old, had = before.get(key, ({}, frozenset()))
        new, has = after.get(key, ({}, frozenset()))
        changed = []
        for group in groups:
            values = [name for name in group.columns if name in wanted]
            there = (group.name in had, group.name in has)
            if key not in after or key not in before:
                if any(there):
                    changed.append(group.name)
            elif there[0] != there[1] or any(old[name] != new[name] for name in values):
                changed.append(group.name)
        if key in before and key in after and not changed:
            continue
        kind = "insert" if key not in before else "delete" if key not in after else "update"
        row = {name: canonical(new.get(name)) for name in shown}
        row |= {name: key[number] for number, name in enumerate(schema.key)}
        row |= {"_change": kind, "_changed_groups": tuple(changed)}
        if images:
            row["_before"] = tuple((n, old[n]) for n in shown if n not in schema.key) if key in before else None
        result[key] = row
    return result


def got(schema: TableSchema, changes: pa.RecordBatchReader | pa.Table) -> Changed:
    table = changes.read_all() if isinstance(changes, pa.RecordBatchReader) else changes
    table.validate(full=True)
    return by_key(schema.key, table)


def applied(schema: TableSchema, answer: Mapping[Key, Row], changes: pa.RecordBatchReader) -> dict[Key, Row]:
    """A consumer that keeps a result, and applies changes to it."""
    result = dict(answer)
    for key, row in by_key(schema.key, changes.read_all()).items():
        kind = row.pop("_change")
        del row["_changed_groups"]
        if kind == "delete":
            del result[key]
        else:
            assert (key in result) == (kind == "update"), (kind, key)
            result[key] = row
    return result
