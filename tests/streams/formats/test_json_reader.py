"""What the decoder makes of a text, compared with Python's parser: which texts are one JSON object, and their values.

The expected values come from the characters of the text: Python's parser says where a value begins and ends, and the
rest is `int`, `Decimal` and the characters themselves.

Intended differences: Jackson accepts `LENIENT` texts and Python's parser does not; `STRICT` is the reverse. The random
texts contain neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from json.decoder import scanstring
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.formats.json_reader import NOT_AN_OBJECT
from weft.streams.write.dead_letter import SOURCE
from weft.streams.write.decode import decode_messages

pytestmark = pytest.mark.timeout(900)

TEXT = {"id": "string", "name": "string"}
"""Any JSON value can be read as a string, so every object is decoded."""
TYPED = {
    "id": "bigint",
    "name": "string",
    "value": "struct<id:bigint,value:array<struct<id:string>>>",
    "v": "map<string,string>",
    "x": "array<string>",
    "é": "decimal(38,10)",
    "}": "double",
    "": "tinyint",
}

LENIENT = ['{"id": +INF}', '{"id": +Infinity}']
LIMITS = {
    '{"id": ' + "[" * 1000 + "]" * 1000 + "}": "nesting depth",
    '{"id": ' + "1" * 1001 + "}": "Number value length",
    '{"' + "x" * 50_001 + '": 1}': "Name length",
}
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
EXACT = Context(prec=2000, Emax=10**9, Emin=-(10**9))


class Refused(Exception):
    """A value is not of its type."""


def an_object(text: str) -> dict[str, Any] | None:
    """The object in a text; None if the text is not exactly one object. No name has half of a surrogate pair."""
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: {a_text(name): value for name, value in pairs})
    except (json.JSONDecodeError, Refused):
        return None
    return value if isinstance(value, dict) else None


def value_at(text: str, start: int) -> tuple[str, int]:
    """The characters of the value that begins there, and the place after it and the following space."""
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start:end], space_after(text, end)


def space_after(text: str, place: int) -> int:
    while text[place : place + 1] in {" ", "\t", "\n", "\r"}:
        place += 1
    return place


def items_of(text: str) -> list[str]:
    """The characters of the elements of an array."""
    found, place = [], space_after(text, 1)
    while text[place] != "]":
        item, place = value_at(text, place)
        found.append(item)
        place = space_after(text, place + (text[place] == ","))
    return found


def members_of(text: str) -> list[tuple[str, str]]:
    """The names of an object, and the characters of their values."""
    found, place = [], space_after(text, 1)
    while text[place] != "}":
        name, place = scanstring(text, place + 1)
        value, place = value_at(text, space_after(text, space_after(text, place) + 1))
        found.append((name, value))
        place = space_after(text, place + (text[place] == ","))
    return found


def a_text(value: str) -> str:
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        raise Refused
    return value


def expected(kind: str, text: str) -> Any:
    """The value that the characters of a JSON value stand for. Raises `Refused`."""
    inner = kind.partition("<")[2][:-1]
    if text == "null":
        return None
    if kind == "string":
        return a_text(json.loads(text)) if text[0] == '"' else text
    if kind in {"bigint", "tinyint"}:
        most = 2**63 if kind == "bigint" else 2**7
        if not re.fullmatch(r"-?\d+", text) or not -most <= int(text) < most:
            raise Refused
        return int(text)
    if kind.startswith("decimal"):
        characters = json.loads(text) if text[0] == '"' else text
        if not NUMBER.fullmatch(characters):
            raise Refused
        if Decimal(characters) and Decimal(characters).adjusted() >= 28:
            raise Refused
        fitted = Decimal(characters).quantize(Decimal("1E-10"), ROUND_HALF_UP, EXACT)
        if abs(fitted) >= 10**28:
            raise Refused
        return fitted or abs(fitted)  # a decimal has no negative zero
    if kind == "double":
        if text in {"NaN", "Infinity", "-Infinity"} or (text[0] == '"' and json.loads(text) in SPECIAL):
            return float(json.loads(text))
        if not NUMBER.fullmatch(text) or abs(float(text)) == float("inf"):
            raise Refused
        return float(int(text)) if text == "-0" else float(text)  # a whole number has no negative zero
    if text[0] != ("[" if kind.startswith("array") else "{"):
        raise Refused
    if kind.startswith("array"):
        return [expected(inner, item) for item in items_of(text)]
    members = members_of(text)
    if kind.startswith("map"):
        if len(dict(members)) < len(members):
            raise Refused
        return {a_text(name): expected(inner.partition(",")[2], value) for name, value in members}
    fields = dict(field.split(":", 1) for field in inner.split(",", 1))
    return row_of(fields, text)


def row_of(fields: Mapping[str, str], text: str) -> dict[str, Any]:
    """The declared members of an object."""
    found: dict[str, Any] = {}
    for name, value in members_of(text):
        if name in found:
            raise Refused
        if name in fields:
            found[name] = expected(fields[name], value)
    return {name: found.get(name) for name in fields}


SPECIAL = {"NaN", "Infinity", "-Infinity", "+INF", "INF", "-INF", "+Infinity"}


def reasons_and_values(
    spark: SparkSession, texts: Sequence[str], schema: dict[str, str]
) -> list[tuple[str | None, tuple[Any, ...]]]:
    """For each text why it was refused (None: it was decoded), and the values of its fields."""
    frame = spark.createDataFrame([(text,) for text in texts], "value string")
    rows = decode_messages(frame, schema, select=None, where=None, keep_source=True).collect()
    return [(row[SOURCE].reason, tuple(row[name] for name in schema)) for row in rows]


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


@st.composite
def written(draw: st.DrawFn) -> str:
    """An object as somebody else may write it: numbers of any form, spaces anywhere, names twice."""

    def value(depth: int) -> str:
        kinds = ["number", "text", "word", "array", "object"]
        match draw(st.sampled_from(kinds[: 5 if depth else 3])):
            case "number":
                return draw(NUMBERS)
            case "text":
                return json.dumps(draw(st.text(max_size=4) | TEXTS_OF_NUMBERS), ensure_ascii=draw(st.booleans()))
            case "word":
                return draw(
                    st.sampled_from(["null", "true", "false", "NaN", "-Infinity", r'"\ud800"', r'"\udc00\ud800"'])
                )
            case "array":
                items = [draw(spaces) + value(depth - 1) + draw(spaces) for _ in range(draw(st.integers(0, 2)))]
                return "[" + (",".join(items) or draw(spaces)) + "]"
        return an_object_of(st.sampled_from(["id", "value", "k"]), depth - 1, 2)

    def an_object_of(names_of_members: st.SearchStrategy[str], depth: int, most: int) -> str:
        members = [
            draw(spaces)
            + json.dumps(draw(names_of_members))
            + draw(spaces)
            + ":"
            + draw(spaces)
            + value(depth)
            + draw(spaces)
            for _ in range(draw(st.integers(0, most)))
        ]
        return "{" + (",".join(members) or draw(spaces)) + "}"

    return draw(spaces) + an_object_of(st.sampled_from(list(TYPED)), 3, 3) + draw(spaces)


NUMBERS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?\Z") | st.sampled_from(
    ["169299987.353451123456789", "1.10", "1E400", "-0", "-0.0", "9007199254740993", "1e3", "200", "1e-400",
     "1e999999999", "12345678901234567890.1234567890", "9223372036854775808", "-9223372036854775808",
     "0.00000000005", "1e28"]
)  # fmt: skip
TEXTS_OF_NUMBERS = st.sampled_from(["1.10", "1,5", " 1", "+1", "NaN", "Infinity", "1e3", ".5", "٣"])


def check(spark: SparkSession, texts: list[str], schema: dict[str, str]) -> None:
    for text, (reason, found) in zip(texts, reasons_and_values(spark, texts, schema), strict=True):
        if an_object(text) is None:
            assert (text, reason) == (text, NOT_AN_OBJECT)
            continue
        try:
            wanted = tuple(row_of(schema, text.strip(" \t\r\n")).values())
        except Refused:
            assert (text, reason in {None, NOT_AN_OBJECT}) == (text, False)
        else:
            assert (text, reason, repr(plain(found))) == (text, None, repr(plain(wanted)))


def plain(value: Any) -> Any:
    """Rows of Spark as dicts, so that values are compared with their types and their zeros."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in sorted(value.items())}
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, Decimal):  # Spark hands 1E-10 over in engineering notation, as 100E-12
        return value.quantize(Decimal("1E-10"), context=EXACT)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@settings(max_examples=15)
@given(batches)
def test_a_text_is_decoded_if_and_only_if_it_is_one_json_object(spark: SparkSession, texts: list[str]) -> None:
    check(spark, texts, TEXT)


@settings(max_examples=10)
@given(batches)
def test_damaged_texts_of_nested_types(spark: SparkSession, texts: list[str]) -> None:
    check(spark, texts, TYPED)


@settings(max_examples=20)
@given(st.lists(written(), min_size=30, max_size=100))
@example(['{"name": 169299987.353451123456789, "x": [1.10, {"a" : 1E400}], "v": {"a": [ -0.0,1.10 ]}}'])
@example(['{"\\u00e9": 0.00000000005}', '{"\\u00e9": 99.6E-12}'])
@example(['{"": 200}', '{"": -128}', '{"}": 1e400}', '{"é": 1e999999999}', '{"é": "1,5"}', '{"id": 1e3}'])
@example([r'{"name": "\ud800"}', r'{"v": {"\udc00": 1}}', '{"v": {"k": 1, "k": 1}}', '{"id": 1, "id": 1}'])
def test_values_are_those_of_the_characters(spark: SparkSession, texts: list[str]) -> None:
    check(spark, texts, TYPED)


def test_a_reason_names_the_place(spark: SparkSession) -> None:
    given_reasons = {
        r'{"name": "\ud800"}': "field 'name' has half of a surrogate pair, which is not a character",
        '{"v": {"k": 1, "k": 2}}': "field 'v' has a key twice",
        '{"id": 1, "id": 1}': "field 'id' is there twice",
        '{"value": {"id": 1.5}}': "field 'value.id' is not of type bigint",
        '{"value": {"value": [{}, 1]}}': "field 'value.value[]' is not of type struct<id:string>",
        r'{"v": {"k": "\udfff"}}': "field 'v{}' has half of a surrogate pair, which is not a character",
    }
    found = reasons_and_values(spark, list(given_reasons), TYPED)
    assert [reason for reason, _ in found] == list(given_reasons.values())


def test_times_do_not_overflow_and_lose_no_time_of_day(spark: SparkSession) -> None:
    texts = ['{"at": 18446744073710}', '{"at": 5}', '{"day": "2024-01-01T23:00:00Z"}', '{"day": "2024-01-01x"}']
    found = reasons_and_values(spark, texts, {"at": "timestamp_ntz", "day": "date"})
    assert [reason for reason, _ in found] == [
        "field 'at' is not of type timestamp_ntz",
        "field 'at' is not of type timestamp_ntz",
        "field 'day' is not of type date",
        "field 'day' is not of type date",
    ]
    found = reasons_and_values(spark, [*texts[:2], '{"at": -9223372036854775808}'], {"at": "timestamp"})
    wrong = "field 'at' is not of type timestamp"
    assert [reason for reason, _ in found] == [wrong, None, wrong]


def test_a_map_has_texts_as_keys(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="keys of a map in JSON are strings"):
        reasons_and_values(spark, [], {"id": "array<map<int,string>>"})


def test_limits_are_named(spark: SparkSession) -> None:
    assert [an_object(text) for text in LENIENT] == [None] * len(LENIENT)
    found = reasons_and_values(spark, LENIENT, {"id": "double"})
    assert [reason for reason, _ in found] == [None] * len(LENIENT)
    within = ['{"id": ' + "[" * 999 + "]" * 999 + "}", '{"id": ' + "1" * 1000 + "}", '{"' + "x" * 50_000 + '": 1}']
    found = reasons_and_values(spark, [*within, *LIMITS], {"other": "string"})
    assert [reason for reason, _ in found[: len(within)]] == [None] * len(within)
    for (reason, _), what in zip(found[len(within) :], LIMITS.values(), strict=True):
        assert reason is not None
        assert reason.startswith("the value exceeds a limit of JSON: ")
        assert what in reason


def test_a_text_may_be_as_long_as_its_message(spark: SparkSession) -> None:
    text = "x" * 20_000_001
    frame = spark.range(1).selectExpr("concat('{\"name\": \"', repeat('x', 20000001), '\"}') AS value")
    [row] = decode_messages(frame, {"name": "string"}, select=None, where=None, keep_source=True).collect()
    assert (row[SOURCE].reason, row.name == text) == (None, True)
