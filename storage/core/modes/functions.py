"""The aggregate functions by name. A new function needs a class (`AggregateFunction`) and an entry in `FUNCTIONS`.

Functions ignore NULLs. MERGE.md, "aggregate", describes each function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from weft.storage.core.model import Function
from weft.storage.core.modes.aggregate_function import AggregateFunction
from weft.storage.core.modes.extremes import Edge, Extreme, Logical
from weft.storage.core.modes.lists import Collect, CollectSet
from weft.storage.core.modes.sums import Count, Sum

FUNCTIONS: Final[Mapping[str, AggregateFunction]] = MappingProxyType(
    {
        "sum": Sum(),
        "count": Count(),
        "min": Extreme(largest=False),
        "max": Extreme(largest=True),
        "first": Edge(largest=False),
        "last": Edge(largest=True),
        "bool_and": Logical(conjunction=True),
        "bool_or": Logical(conjunction=False),
        "collect_set": CollectSet(),
        "collect_list": Collect(as_string=False),
        "listagg": Collect(as_string=True),
    }
)

_IN_MERGE_AGGREGATE: Final = frozenset(
    ["sum", "count", "min", "max", "first", "last", "bool_and", "bool_or", "collect_set", "collect_list", "listagg"]
)
"""Functions that every version with the feature ``merge-aggregate`` supports. Later functions have own features."""


def find_function(name: str) -> AggregateFunction:
    """Look up a function by its name.

    Raises:
        KeyError: This version does not have the function.
    """
    return FUNCTIONS[name]


def function_names() -> tuple[str, ...]:
    """Names of all functions."""
    return tuple(FUNCTIONS)


def function_features(names: Iterable[str]) -> frozenset[str]:
    """The reader features that a table with these functions needs besides ``merge-aggregate``."""
    return frozenset(f"function-{name}" for name in names if name not in _IN_MERGE_AGGREGATE)


def input_type(function: Function, column: pa.DataType) -> pa.DataType:
    """Type of a column in batches; `count` converts the values of batches to numbers on writing."""
    return column.value_type if find_function(function.name).takes == "elements" else column
