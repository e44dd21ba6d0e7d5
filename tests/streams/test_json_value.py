"""Texts that the decoder accepts as one JSON object, compared with Python's parser.

Intended differences: Spark's reader accepts `LENIENT` texts and Python's does not; `STRICT` is the reverse. The random
texts contain neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from streams.formats.json_format import NOT_AN_OBJECT, WRONG_TYPE, wrong_type
from streams.write.dead_letter import SOURCE
from streams.write.decode import decode_messages

pytestmark = pytest.mark.timeout(300)

TEXT = {"id": "string", "name": "string"}
"""Any JSON value can be read as a string, so every object is decoded."""
NESTED = {"id": "bigint", "name": "struct<id:bigint,value:array<struct<id:bigint>>>", "value": "map<string,bigint>"}

LENIENT = ['{"id": +INF}', '{"id": +Infinity}']
STRICT = [
    '{"id": ' + "[" * 1000 + "]" * 1000 + "}",
    '{"id": ' + "1" * 1001 + "}",
    '{"' + "x" * 50_001 + '": 1}',
]


def an_object(text: str) -> dict[str, Any] | None:
    """The object in a text; None if the text is not exactly one object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def reasons_and_values(
    spark: SparkSession, texts: Sequence[str], schema: dict[str, str]
) -> list[tuple[str | None, tuple[Any, ...]]]:
    """For each text why it was refused (None: it was decoded), and the values of its fields."""
    frame = spark.createDataFrame([(text,) for text in texts], "value string")
    rows = decode_messages(frame, schema, select=None, where=None, keep_source=True).collect()
    return [(row[SOURCE].reason, tuple(row[name] for name in schema)) for row in rows]


def has_lone_surrogate(text: str) -> bool:
    """Whether a text cannot be UTF-8; Spark reads such an escape as a question mark."""
    return any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


names = st.sampled_from(["id", "name", "value", "v", "x", "", "é", 'a"b', "\\", "}", "a}]"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    names,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
spaces = st.text(" \t\n\r", max_size=2)


@st.composite
def one_value(draw: st.DrawFn) -> str:
    objects = st.dictionaries(names, values, max_size=3)
    value = draw(objects if draw(st.integers(0, 4)) else values)
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([(",", ":"), (" , ", " : ")])),
    )
    return draw(spaces) + text + draw(spaces)


@st.composite
def closed_and_opened_again(draw: st.DrawFn) -> str:
    """A text that tries to close the wrapping object and to open it again."""
    closed = "".join(draw(st.lists(st.sampled_from(["}", "]", ',"x":1', ",null"]), max_size=3)))
    opened = "".join(draw(st.lists(st.sampled_from(["{", "[", '"v":', '"x":']), max_size=4)))
    return draw(one_value()) + closed + draw(st.sampled_from([",", "", " "])) + opened + draw(one_value())


PIECES = [
    *'{}[],:"\\ /#0-+.eE\n\t\0\x1f\x7f\x0b\xa0\ufeff\u2028',
    "null", "true", "NaN", "-Infinity", "01", "1.", "'", "//x\n", "/**/", "{}", '""', '"id"', ',"x":1', ',"x":{}',
    '"id":', "}}", "]}", r"\u", r"\x", r"\ud800", "a",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(one_value())
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 2)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.just("")) + text[end:]
    return text


batches = st.lists(
    st.one_of(one_value(), damaged(), closed_and_opened_again(), st.lists(st.sampled_from(PIECES)).map("".join)),
    min_size=20,
    max_size=60,
)


@settings(max_examples=15)
@given(batches)
def test_a_text_is_decoded_if_and_only_if_it_is_one_json_object(spark: SparkSession, texts: list[str]) -> None:
    for text, (reason, found) in zip(texts, reasons_and_values(spark, texts, TEXT), strict=True):
        expected = an_object(text)
        assert (text, reason is None) == (text, expected is not None)
        if expected is not None:
            for name, value in zip(TEXT, found, strict=True):
                given_value = expected.get(name)
                if given_value is None or (isinstance(given_value, str) and not has_lone_surrogate(given_value)):
                    assert (text, name, value) == (text, name, given_value)


@settings(max_examples=10)
@given(batches)
def test_decoded_texts_of_nested_types_are_one_json_object(spark: SparkSession, texts: list[str]) -> None:
    wrong = {WRONG_TYPE, *map(wrong_type, StructType.fromDDL(",".join(f"{n} {t}" for n, t in NESTED.items())))}
    for text, (reason, (number, *_)) in zip(texts, reasons_and_values(spark, texts, NESTED), strict=True):
        expected = an_object(text)
        if expected is None:
            assert reason in {NOT_AN_OBJECT, *wrong}, text
        else:
            assert reason in {None, *wrong}, text
            if reason is None:
                assert (text, number) == (text, expected.get("id"))


def test_where_the_two_parsers_differ(spark: SparkSession) -> None:
    assert [an_object(text) for text in LENIENT] == [None] * len(LENIENT)
    found = reasons_and_values(spark, LENIENT, {"id": "double"})
    assert [reason for reason, _ in found] == [None] * len(LENIENT)
    limits = ['{"id": ' + "[" * 997 + "]" * 997 + "}", '{"id": ' + "1" * 1000 + "}", '{"' + "x" * 50_000 + '": 1}']
    found = reasons_and_values(spark, [*limits, *STRICT], {"other": "string"})
    assert [reason for reason, _ in found] == [None] * len(limits) + [NOT_AN_OBJECT] * len(STRICT)
