"""Finds the stored versions that the columns of an aggregate group come from.

Every event of the group counts. ``min``, ``max``, ``first`` and ``last`` show one value, so their column comes only
from versions with that value; columns of other functions come from every version with a value. The ordering columns
come from the newest upsert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.merge.outcomes import Version
from weft.storage.core.model import Group, Op
from weft.storage.core.modes import Registers
from weft.storage.core.modes.aggregate_function import Context
from weft.storage.core.modes.functions import find_function
from weft.storage.core.names import LaneName
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.read.explain.explanation import StoredIn

_EXTREMES: Final = frozenset({"min", "max"})
_EDGES: Final = frozenset({"first", "last"})

Edge = tuple[Any, ...]
"""Ordering values and arrival of the event whose value ``first`` or ``last`` shows."""


@dataclass(frozen=True, slots=True)
class Located:
    """A version, and where it is stored.

    Attributes:
        version: The version as input of the merge.
        values: As in `StoredVersion`.
        stored_in, file: As in `StoredVersion`.
        lane, commit: Lane and sequence number of the commit; None if the file does not say.
        register: The row of a slice or fold with its state; None for an event.
    """

    version: Version
    values: Mapping[str, Any]
    stored_in: StoredIn
    file: str
    lane: LaneName | None = None
    commit: int | None = None
    register: Arrays | None = None


def contributed_columns(
    schema: TableSchema,
    group: Group,
    stored: Sequence[Located],
    merged: Registers | None,
    row: Mapping[str, Any],
) -> list[tuple[str, ...]]:
    """For each stored version, the columns of the row that come from it.

    Args:
        schema: Schema of the snapshot.
        group: An aggregate group.
        stored: All stored versions, in (arrival, position) order.
        merged: Their merged register; None if no event touches the group.
        row: The values of the row, as the explanation shows them.
    """
    columns_of: list[set[str]] = [set() for _ in stored]
    if merged is None or not merged.columns[names.arrival(group.id)][0].is_valid:
        return [()] * len(stored)
    newest = _edge(merged.columns, [*group.ordering, names.arrival(group.id)])
    newest_upserts = [
        i for i, located in enumerate(stored) if _is_upsert(located.version) and _own_edge(located.version) == newest
    ]
    if newest_upserts:
        columns_of[newest_upserts[-1]].update(group.ordering)
    for function in group.functions:
        name = function.column
        sources = [i for i, located in enumerate(stored) if name in located.version.supplied]
        if function.name in _EXTREMES:
            sources = [i for i in sources if _are_equal(stored[i].values.get(name), row.get(name))]
        elif function.name in _EDGES:
            ordering = tuple(schema.column_by_name[column] for column in group.ordering)
            context = Context(group, schema.column_by_name[name], ordering, function)
            hidden = list(find_function(function.name).state(context))
            edge = _edge(merged.columns, hidden)
            equal = [i for i in sources if _edge_of(stored[i], hidden) == edge]
            sources = equal[-1:] if function.name == "last" else equal[:1]
        for i in sources:
            columns_of[i].add(name)
    return [tuple(name for name in group.columns if name in columns) for columns in columns_of]


def _is_upsert(version: Version) -> bool:
    return version.op is None or version.op == Op.UPSERT


def _own_edge(version: Version) -> Edge:
    return (*version.ordering, version.arrival)


def _edge_of(located: Located, hidden: Sequence[str]) -> Edge:
    return _own_edge(located.version) if located.register is None else _edge(located.register, hidden)


def _edge(columns: Mapping[str, Any], names: Sequence[str]) -> Edge:
    return tuple(columns[name][0].as_py() for name in names)


def _are_equal(value: Any, other: Any) -> bool:
    """Whether two values are equal; NaN equals NaN."""
    return bool(value == other or (value != value and other != other))  # noqa: PLR0124 - NaN differs from itself
