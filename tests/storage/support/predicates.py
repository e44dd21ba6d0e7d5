"""Random filters over the columns of a table, with values that its rows have."""

from __future__ import annotations

from functools import reduce
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc

from tests.strategies import POOLS, Config, type_of
from weft.storage.core.types import parse_type


@st.composite
def predicates(draw: st.DrawFn, config: Config, *, depth: int = 2) -> pc.Expression:
    """Comparisons, sets and NULL tests, joined by AND, OR, NOT."""
    if depth and draw(st.booleans()):
        parts = draw(st.lists(predicates(config, depth=depth - 1), min_size=1, max_size=3))
        if len(parts) == 1:
            return ~parts[0]
        whole = reduce(lambda a, b: a & b, parts) if draw(st.booleans()) else reduce(lambda a, b: a | b, parts)
        return whole if draw(st.booleans()) else pc.if_else(parts[0], whole, pa.scalar(None, pa.bool_()))
    scalar = [name for name in config["columns"] if "<" not in type_of(config, name)]
    # Half of them are about the key, by which whole file groups are pruned.
    name = draw(st.sampled_from(config["key"]) | st.sampled_from(scalar))
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "valid"]))
    field = pc.field(name)
    if kind == "null":
        return field.is_null()
    if kind == "valid":
        return field.is_valid()
    values = POOLS[type_of(config, name)]
    if kind == "in":
        return field.isin(pa.array(draw(st.lists(st.sampled_from([None, *values]), max_size=4)), _type(config, name)))
    literal = pc.scalar(pa.scalar(draw(st.sampled_from(values)), _type(config, name)))
    compare = draw(
        st.sampled_from([pc.equal, pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal])
    )
    return compare(field, literal) if draw(st.booleans()) else compare(literal, field)


def _type(config: Config, name: str) -> pa.DataType:
    return parse_type(type_of(config, name))


@st.composite
def tuples(draw: st.DrawFn, config: Config) -> list[list[tuple[str, str, Any]]]:
    """Filters as tuples: OR of ANDs of comparisons and sets, also over the key."""
    scalar = [name for name in config["columns"] if "<" not in type_of(config, name)]

    def one() -> tuple[str, str, Any]:
        name = draw(st.sampled_from(config["key"]) | st.sampled_from(scalar))
        value = st.sampled_from(POOLS[type_of(config, name)])
        if draw(st.booleans()):
            values = draw(st.lists(value | st.none(), max_size=4))
            return name, draw(st.sampled_from(["in", "not in"])), pa.array(values, _type(config, name))
        operator = draw(st.sampled_from(["=", "==", "!=", "<", "<=", ">", ">="]))
        return name, operator, pa.scalar(draw(value), _type(config, name))

    return [[one() for _ in range(draw(st.integers(1, 3)))] for _ in range(draw(st.integers(1, 3)))]
