"""Kafka messages to columns: JSON by a declared schema, then the user's own SQL.

    value  --from_json-->  message fields  --where-->  rows that are wanted  --select-->  columns of a stream

Rules of this room:

1. **No message is lost silently.** A message is decoded whole or it is *undecodable*: the value is null (a Kafka
   tombstone has nothing to decode), is not UTF-8, is not exactly one JSON object, or one of its declared fields does
   not have the declared type. Two objects in one value are undecodable too: Spark alone would take the first and drop
   the other. Only `where` drops rows, on purpose; it never sees an undecodable message.
2. **Undecodable messages stay rows.** With ``keep_source`` they travel on in the hidden column `SOURCE` to the sink
   (`streams.sink`), which sets them aside or stops. Without it the query fails at the first of them.
3. **JSON is parsed once.** Spark copies an expensive expression into every filter above it; a generator (`inline`) is
   what it never copies.

What Spark's JSON reader does with single values is kept and worth knowing: fields that are not declared are ignored,
declared ones that are missing are NULL (names are case-sensitive), decimals are rounded to the declared scale, numbers
are taken for strings but not the other way round, and a number given for a timestamp counts seconds. An expression of
`select` or `where` that fails for a value (Spark's ANSI mode: an overflow, a bad cast) fails the query: use `try_cast`
and its kin where a message may be wrong in that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from storage.errors import InvalidInput
from streams.dead_letter import SOURCE

KAFKA: Final = "_kafka"
"""Name under which `select` and `where` see where a message came from: a struct of `METADATA`."""
METADATA: Final = ("topic", "partition", "offset", "timestamp", "key", "headers")
"""Fields of `KAFKA`, as far as the source has them."""

SOURCE_TYPE: Final = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (
                ("topic", "string"),
                ("partition", "integer"),
                ("offset", "long"),
                ("value", "binary"),
                ("reason", "string"),
            )
        ],
    },
)
"""Type of `SOURCE`."""

_HIDDEN: Final = "__weft_"
_MESSAGE: Final = "__weft_message"
_CORRUPT: Final = "__weft_corrupt"

_OPTIONS: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}

TOMBSTONE: Final = "the message has no value (a tombstone)"
NOT_UTF8: Final = "the value is not UTF-8"
NOT_AN_OBJECT: Final = "the value is not one JSON object"
WRONG_TYPE: Final = "a field of the value does not have its declared type"


def decode_json(
    df: DataFrame,
    schema: Mapping[str, str],
    *,
    select: Mapping[str, str] | None,
    where: str | None,
    keep_source: bool = False,
) -> DataFrame:
    """Decode messages whose value is a JSON object.

    Args:
        df: From Kafka, or shaped like it: ``value`` (binary or string), and of `METADATA` what there is.
        schema: Fields of the message and their Spark SQL types, nested types too.
        select: Column name to SQL expression over the message's fields and `KAFKA`, for example
            ``{"order_id": "id", "status": "lower(status)", "seen": "_kafka.timestamp"}``. All fields by default.
        where: SQL condition over the same names; rows for which it is not true are dropped.
        keep_source: Add the column `SOURCE`, which `streams.sink` needs to set undecodable messages aside. Without it
            the first of them fails the query.

    Returns:
        Columns of ``select`` in its order, then `SOURCE` where asked for. As lazy as ``df``; no shuffle.

    Raises:
        InvalidInput: ``df`` has no value, a type or an expression is wrong; the message names the field or column.
    """
    messages = _parsed(df, _message_type(schema))
    if not keep_source:
        messages = _all_decoded(messages)
    if where is not None:
        messages = _filtered(messages, where)
    fields = {name: F.col("`" + name.replace("`", "``") + "`") for name in schema}
    selected = _selected(messages, fields if select is None else select)
    return selected if keep_source else selected.drop(SOURCE)


def _message_type(schema: Mapping[str, str]) -> StructType:
    if not schema:
        raise InvalidInput("the message schema is empty", hint="declare at least one field: {order_id: bigint}")
    fields = []
    for name, kind in schema.items():
        if name.lower() == KAFKA or name.lower().startswith(_HIDDEN):
            raise InvalidInput(f"message field {name!r}: the name is reserved", hint=f"not {KAFKA}, not {_HIDDEN}*")
        try:
            fields.append(StructField(name, DataType.fromDDL(kind)))
        except PySparkException as error:
            raise InvalidInput(
                f"message field {name!r}: {kind!r} is not a Spark SQL type: {_message(error)}",
                hint="for example bigint, decimal(12,2), timestamp, array<string>, struct<a:int,b:string>",
            ) from None
    _refuse_alike("message field", schema)
    return StructType(fields)


def _refuse_alike(what: str, names: Mapping[str, object]) -> None:
    folded = Counter(name.lower() for name in names)
    for name in names:
        if folded[name.lower()] > 1:
            raise InvalidInput(
                f"{what} {name!r}: two names differ only in case", hint="Spark SQL ignores case: leave one out"
            )


def _parsed(df: DataFrame, message: StructType) -> DataFrame:
    """One row a message: its fields, `KAFKA` if there is any metadata, `SOURCE`."""
    given = {field.name: field.dataType for field in df.schema}
    if not isinstance(given.get("value"), BinaryType | StringType):
        raise InvalidInput(
            f"the messages have no column 'value' of type binary or string; columns: {', '.join(df.columns)}",
            hint="decode the frame of a Kafka source, or rename its payload to value",
        )
    known = [name for name in METADATA if name in given]
    value = F.col(f"{_HIDDEN}value")
    text = value.cast("string")
    # Wrapped, so that whatever follows the first object is a syntax error instead of being ignored.
    wrapped = F.concat(F.lit(f'{{"{_MESSAGE}":'), text, F.lit("}"))
    envelope = StructType([StructField(_MESSAGE, message), StructField(_CORRUPT, StringType())])
    rows = df.select(*(F.col(name).alias(f"{_HIDDEN}{name}") for name in (*known, "value"))).select(
        "*", F.inline(F.array(F.from_json(wrapped, envelope, _OPTIONS)))
    )
    reason = (
        F.when(value.isNull(), TOMBSTONE)
        .when(~F.is_valid_utf8(text), NOT_UTF8)
        .when(F.col(_MESSAGE).isNull(), NOT_AN_OBJECT)
        .when(F.col(_CORRUPT).isNotNull(), WRONG_TYPE)
    )
    origin = {name: F.col(f"{_HIDDEN}{name}") for name in (*known, "value")} | {"reason": reason}
    source = F.struct(
        *(origin.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in SOURCE_TYPE)
    )
    metadata = [F.struct(*(origin[name].alias(name) for name in known)).alias(KAFKA)] if known else []
    return rows.select(f"{_MESSAGE}.*", *metadata, source.alias(SOURCE))


def _filtered(messages: DataFrame, where: str) -> DataFrame:
    try:
        _ = messages.where(F.expr(where)).schema  # alone it must be a condition; inside a CASE, Spark would cast it
        return messages.where(_decoded(F.expr(where)).otherwise(F.lit(True)))
    except PySparkException as error:
        raise _refused("where", where, messages, error) from None


def _all_decoded(messages: DataFrame) -> DataFrame:
    """The same rows; the query fails at an undecodable one."""
    source = F.col(SOURCE)
    position = [
        F.concat(F.lit(f", {name} "), F.coalesce(source[name].cast("string"), F.lit("unknown")))
        for name in ("topic", "partition", "offset")
    ]
    message = F.concat(F.lit("a message cannot be decoded: "), source["reason"], *position)
    return messages.where(_decoded(F.lit(True)).otherwise(F.raise_error(message).cast("boolean")))


def _selected(messages: DataFrame, columns: Mapping[str, Column | str]) -> DataFrame:
    """The chosen columns, then `SOURCE`; all NULL where the message is undecodable."""
    if not columns:
        raise InvalidInput("select is empty", hint="leave it out to get all fields of the message")
    _refuse_alike("select", columns)
    if SOURCE in columns:
        raise InvalidInput(f"select: the name {SOURCE!r} is reserved", hint="choose another name")
    chosen: list[Column] = []
    for name, expression in columns.items():
        try:
            # One at a time, so that Spark's complaint can be given to the column it belongs to. The condition is also
            # what keeps out generators and aggregates: neither gives one value for one message.
            column = _decoded(F.expr(expression) if isinstance(expression, str) else expression).alias(name)
            _ = messages.select(column, SOURCE).schema
        except PySparkException as error:
            raise _refused(f"select: column {name!r}", str(expression), messages, error) from None
        chosen.append(column)
    return messages.select(*chosen, SOURCE)


def _decoded(value: Column) -> Column:
    return F.when(F.col(SOURCE)["reason"].isNull(), value)


def _refused(what: str, expression: str, messages: DataFrame, error: PySparkException) -> InvalidInput:
    names = [name for name in messages.columns if name != SOURCE]
    return InvalidInput(
        f"{what}: the expression {expression!r} was refused: {_message(error)}",
        hint=f"an SQL expression that gives one value for each message, over: {', '.join(names)}",
    )


def _message(error: PySparkException) -> str:
    """Spark's complaint without its quotation of the plan."""
    return str(error).split(";\n", 1)[0].strip()
