"""Type names and stored values round-trip."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import POOLS
from weft.storage.core.types import decode_scalar, encode_scalar, format_type, parse_type
from weft.storage.errors import InvalidInput

SCALARS = [(name, value) for name, values in POOLS.items() if "<" not in name for value in values]


@pytest.mark.parametrize("name", POOLS)
def test_canonical_type_names_round_trip(name: str) -> None:
    assert format_type(parse_type(name)) == name


@given(
    st.recursive(
        st.sampled_from([name for name in POOLS if "<" not in name]),
        lambda inner: st.one_of(
            inner.map(lambda one: f"array<{one}>"),
            st.tuples(inner, inner).map(lambda two: f"map<{two[0]},{two[1]}>"),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda fields: f"struct<{','.join(f'f{i}:{one}' for i, one in enumerate(fields))}>"
            ),
        ),
        max_leaves=6,
    )
)
def test_nested_type_names_round_trip(name: str) -> None:
    assert format_type(parse_type(name)) == name
    assert parse_type(name.upper().replace("F", "f")) is not None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("INT", "int"),
        (" integer ", "int"),
        ("long", "bigint"),
        ("decimal", "decimal(10,0)"),
        ("decimal( 5 , 2 )", "decimal(5,2)"),
        ("numeric(7)", "decimal(7,0)"),
        ("timestamp_ltz", "timestamp"),
        ("struct<`a b`: int, `c``d`: string>", "struct<`a b`:int,`c``d`:string>"),
    ],
)
def test_other_spellings_are_accepted(text: str, meant: str) -> None:
    assert format_type(parse_type(text)) == meant


@pytest.mark.parametrize(
    "text", ["", "varchar", "array", "array<>", "map<int>", "struct<>", "int int", "decimal(0)", "a<b"]
)
def test_invalid_type_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_type(text)
    assert error.value.hint


@pytest.mark.parametrize(("name", "value"), SCALARS)
def test_stored_values_round_trip_exactly(name: str, value: Any) -> None:
    arrow_type = parse_type(name)
    stored = pa.scalar(value, arrow_type).as_py()
    back = decode_scalar(encode_scalar(stored), arrow_type)
    assert back == stored
    assert repr(pa.scalar(back, arrow_type)) == repr(pa.scalar(stored, arrow_type))
