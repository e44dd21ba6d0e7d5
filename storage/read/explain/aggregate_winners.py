"""Which stored versions give the columns that an aggregate group shows.

Every event of the group counts. Of ``min``, ``max``, ``first`` and ``last`` one value is shown, so only versions with
that value give the column; of the other functions every version with a value does. The ordering columns come from the
newest upsert.
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
        version: The version as the merge sees it.
        values: As in `StoredVersion`.
        stored_in, file: As in `StoredVersion`.
        lane, commit: Lane and slot of the commit, if the file tells.
        register: The row of a slice or fold with its state; None for an event.
    """

    version: Version
    values: Mapping[str, Any]
    stored_in: StoredIn
    file: str
    lane: LaneName | None = None
    commit: int | None = None
    register: Arrays | None = None


def given_columns(
    schema: TableSchema,
    group: Group,
    stored: Sequence[Located],
    merged: Registers | None,
    shown: Mapping[str, Any],
) -> list[tuple[str, ...]]:
    """The columns of the row that come from each stored version.

    Args:
        schema: Schema of the snapshot.
        group: An aggregate group.
        stored: All stored versions, in (arrival, position) order.
        merged: The merge of them; None if nothing touches the group.
        shown: The values of the row, as the explanation shows them.
    """
    found: list[set[str]] = [set() for _ in stored]
    if merged is None or not merged.columns[names.arrival(group.id)][0].is_valid:
        return [()] * len(stored)
    newest = _edge(merged.columns, [*group.ordering, names.arrival(group.id)])
    tops = [i for i, one in enumerate(stored) if _is_upsert(one.version) and _own_edge(one.version) == newest]
    if tops:
        found[tops[-1]].update(group.ordering)
    for function in group.functions:
        name = function.column
        having = [i for i, one in enumerate(stored) if name in one.version.supplied]
        if function.name in _EXTREMES:
            having = [i for i in having if _same(stored[i].values.get(name), shown.get(name))]
        elif function.name in _EDGES:
            ordering = tuple(schema.column_by_name[column] for column in group.ordering)
            context = Context(group, schema.column_by_name[name], ordering, function)
            hidden = list(find_function(function.name).state(context))
            edge = _edge(merged.columns, hidden)
            equal = [i for i in having if _edge_of(stored[i], hidden) == edge]
            having = equal[-1:] if function.name == "last" else equal[:1]
        for i in having:
            found[i].add(name)
    return [tuple(name for name in group.columns if name in columns) for columns in found]


def _is_upsert(version: Version) -> bool:
    return version.op is None or version.op == Op.UPSERT


def _own_edge(version: Version) -> Edge:
    return (*version.ordering, version.arrival)


def _edge_of(one: Located, hidden: Sequence[str]) -> Edge:
    return _own_edge(one.version) if one.register is None else _edge(one.register, hidden)


def _edge(columns: Mapping[str, Any], wanted: Sequence[str]) -> Edge:
    return tuple(columns[name][0].as_py() for name in wanted)


def _same(value: Any, shown: Any) -> bool:
    """Whether two values are equal; NaN equals NaN."""
    return bool(value == shown or (value != value and shown != shown))  # noqa: PLR0124 - NaN differs from itself
