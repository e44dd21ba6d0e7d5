"""Decodes messages into columns: the value by its format and the declared schema, then the SQL of the user.

    value  --format-->  message fields  --where-->  matching rows  --select-->  columns of a stream

1. **No message is lost silently.** A message is decoded as a whole, or it is *undecodable*: the format gives a reason
   (`weft.streams.formats`), or the value is null and tombstones are dead letters (`weft.streams.write.tombstones`).
   Only `where` drops rows, and it is not applied to undecodable messages.
2. **Undecodable messages remain rows.** With ``keep_source`` they go to the sink (`weft.streams.write.sink`) in the
   hidden column `SOURCE`; the sink stores them as dead letters or stops. The same happens to messages for which an
   expression of `select` or `where` fails (in Spark's ANSI mode: an overflow, a bad cast). Without ``keep_source`` the
   query fails at the first such message.
3. **Values are parsed once.** Spark copies an expensive expression into every filter above it, but never a generator
   (`inline`).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, get_args

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from weft.storage.core.merge.events import OP_COLUMN
from weft.storage.errors import InvalidInput
from weft.streams.formats import load_format
from weft.streams.formats.message_format import Extras, MessageFormat
from weft.streams.formats.registry import KEY_HEADER, VALUE_HEADER
from weft.streams.pipeline.file.check import KAFKA, KEY
from weft.streams.pipeline.file.model import Tombstones
from weft.streams.spark.sql_text import quoted, spark_message
from weft.streams.write.dead_letter import IGNORED, SOURCE
from weft.streams.write.left_out import ABSENT, OPERATION, REASON, UNAVAILABLE, leave_out
from weft.streams.write.tombstones import DECODED_KEY, KEY_REASON, NO_KEY, add_key

METADATA: Final = ("topic", "partition", "offset", "timestamp", "key", "headers")
"""Fields of the struct `KAFKA`, if the source has them."""

UNREADABLE: Final = "unreadable"
"""Optional column of messages, string: why the source could not read the message; NULL if it could."""

SOURCE_TYPE: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", LongType()),
        StructField("key", BinaryType()),
        StructField("headers", ArrayType(StructType().add("key", "string").add("value", "binary"))),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)
"""Type of `SOURCE`."""
SOURCE_TYPES: Final = (SOURCE_TYPE, StructType([*SOURCE_TYPE, StructField("schema_id", IntegerType())]))
"""Types of `SOURCE`: without and with the id of the message's schema in a registry."""

_ORIGIN: Final = [field for field in SOURCE_TYPE if field.name != "reason"]
_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`")
_HIDDEN: Final = "__weft_"
_VALUE: Final = "__weft_value"
SCHEMA_ID: Final = "__weft_schema_id"
_MESSAGE: Final = "__weft_message"
_REASON: Final = REASON
_CONDITION: Final = "__weft_condition"

TOMBSTONE: Final = "the message has no value (a tombstone)"


def decode_messages(
    df: DataFrame,
    schema: Mapping[str, str],
    *,
    message_format: str = "json",
    format_options: Mapping[str, str] | None = None,
    registry: Mapping[str, str] | None = None,
    select: Mapping[str, str] | None,
    where: str | None,
    keep_source: bool = False,
    tombstones: Tombstones = "ignore",
    key: Mapping[str, str] | None = None,
    key_format: str = "json",
    partial: AbstractSet[str] = frozenset(),
    exact: AbstractSet[str] = frozenset(),
) -> DataFrame:
    """Decode messages.

    Args:
        df: Messages with the columns of a Kafka source: ``value`` (binary or string), and any columns of `METADATA`;
            optionally `UNREADABLE`.
        schema: Fields of the message and their Spark SQL types, nested types too.
        message_format: Name of the format of the value, see `weft.streams.formats`.
        format_options: Options of the format.
        registry: Settings of the schema registry's client, for formats that need one.
        select: Column name to SQL expression over the message's fields and `KAFKA`, for example
            ``{"order_id": "id", "status": "lower(status)", "seen": "_kafka.timestamp"}``. All fields by default.
        where: SQL condition over the same names; rows for which it is not true are dropped.
        keep_source: Add the column `SOURCE`, which `weft.streams.write.sink` needs to write undecodable messages as
            dead letters. Without it the first undecodable message fails the query.
        tombstones: How messages without a value are handled, see `weft.streams.write.tombstones`. With ``delete`` the
            column ``_op`` is added if ``select`` does not have it.
        key: Fields of the Kafka key and their types. They are the struct ``_key`` in `select` and `where`. In a
            tombstone, fields of the message get the values of the fields of the same name. ``delete`` needs them,
            unless every key column of the table is an expression over ``_kafka``.
        key_format: Name of the format of the key. With ``json`` the key may also be a single value, see
            `weft.streams.write.tombstones`; a key that cannot be decoded is NULL. With any other format such a message
            is undecodable.
        partial: Columns that an event may lack (`weft.streams.write.left_out`). It matters only for formats whose
            messages can lack values of the row.
        exact: Fields of the message that identify a row, so that their values must not be rounded.

    Returns:
        The columns of ``select`` in its order, ``_op`` if the format knows the operation and ``select`` does not have
        it, ``_supplied`` likewise, then `SOURCE` if ``keep_source``. Lazy, without a shuffle.

    Raises:
        InvalidInput: ``df`` has no value, there is no such format, or a type or an expression is wrong; the message
            names the field or column.
    """
    if tombstones not in get_args(Tombstones):
        raise InvalidInput(
            f"tombstones: unknown value {tombstones!r}", hint=f"use one of {', '.join(get_args(Tombstones))}"
        )
    reserved = {KAFKA} if key is None else {KAFKA, KEY}
    if not schema:
        raise InvalidInput("the message schema is empty", hint="declare at least one field: {order_id: bigint}")
    expressions = (where or "", *(str(column) for column in (select or {}).values()))
    decoder = load_format(message_format, format_options, registry, expressions, exact)
    made_key = None if key_format == "json" else load_format(key_format, registry=registry)
    message = _struct("message field", schema, reserved | set(decoder.reserved))
    messages = _parse_rows(
        df,
        decoder,
        message,
        _struct("key field", key, set()) if key else None,
        made_key,
        tombstones,
        every_key=any(KEY in expression for expression in expressions),
    )
    if not keep_source:
        messages = _require_decoded(messages)
    if where is not None:
        messages = _filter_rows(messages, where, guarded=keep_source)
    columns: dict[str, Column | str] = {name: quoted(name) for name in schema} if select is None else dict(select)
    if columns and OPERATION in messages.columns:
        columns.setdefault(OP_COLUMN, F.col(OPERATION))
    if columns and tombstones == "delete":
        operation_source = columns.get(OP_COLUMN, F.lit(None))
        operation = F.expr(operation_source) if isinstance(operation_source, str) else operation_source
        columns[OP_COLUMN] = F.when(_is_tombstone(), "delete").otherwise(operation.cast("string"))
    if columns and UNAVAILABLE in messages.columns:
        messages, columns = leave_out(messages, columns, set(schema), partial)
        if not keep_source:
            messages = _require_decoded(messages)
    return _select_columns(messages, columns, guarded=keep_source)


def _struct(what: str, schema: Mapping[str, str], reserved: AbstractSet[str]) -> StructType:
    fields = []
    for name, kind in schema.items():
        if name.lower() in reserved or name.lower().startswith(_HIDDEN):
            names = ", ".join(f"not {other}" for other in sorted(reserved))
            raise InvalidInput(
                f"{what} {name!r}: the name is reserved", hint=f"{names or 'choose another name'}, not {_HIDDEN}*"
            )
        try:
            fields.append(StructField(name, DataType.fromDDL(kind)))
        except PySparkException as error:
            raise InvalidInput(
                f"{what} {name!r}: {kind!r} is not a Spark SQL type: {spark_message(error)}",
                hint="use a type such as bigint, decimal(12,2), timestamp, array<string> or struct<a:int,b:string>",
            ) from None
    _refuse_alike(what, schema)
    return StructType(fields)


def _refuse_alike(what: str, names: Mapping[str, object]) -> None:
    counts = Counter(name.lower() for name in names)
    for name in names:
        if counts[name.lower()] > 1:
            raise InvalidInput(
                f"{what} {name!r}: two names differ only in case", hint="leave one out: Spark SQL ignores case"
            )


def _parse_rows(
    df: DataFrame,
    message_format: MessageFormat,
    message: StructType,
    key: StructType | None,
    key_format: MessageFormat | None,
    tombstones: Tombstones,
    *,
    every_key: bool,
) -> DataFrame:
    """Return one row per message: its fields, `KAFKA` if there is metadata, `KEY` if it is declared, hidden columns.

    The hidden columns are `_REASON` and those that `_source` needs.

    Args:
        df: The messages.
        message_format: Format of the value.
        message: Fields of the value.
        key: Fields of the key.
        key_format: Format of the key; None for JSON or a single value, see `weft.streams.write.tombstones`.
        tombstones: How messages without a value are handled.
        every_key: Decode the key of every message, not only of tombstones.
    """
    types = {field.name: field.dataType for field in df.schema}
    if not isinstance(types.get("value"), BinaryType | StringType):
        raise InvalidInput(
            f"the messages have no column 'value' of type binary or string; columns: {', '.join(df.columns)}",
            hint="decode the DataFrame of a Kafka source, or rename the payload to value",
        )
    if key is not None and not isinstance(types.get("key"), BinaryType | StringType):
        raise InvalidInput(
            f"the messages have no column 'key' of type binary or string; columns: {', '.join(df.columns)}",
            hint="leave out key, or keep the column key of the Kafka source",
        )
    metadata_names = [name for name in METADATA if name in types]
    value = _frame("value", VALUE_HEADER, types) if message_format.names_schema else F.col(_VALUE)
    columns_used = [*metadata_names, "value", *([UNREADABLE] if UNREADABLE in types else [])]
    rows = df.select(*(F.col(name).alias(f"{_HIDDEN}{name}") for name in columns_used))
    without_value: Column | str | None = {"ignore": IGNORED, "dead_letter": TOMBSTONE, "delete": None}[tombstones]
    bad_key = F.lit(None).cast("string")
    if key is not None:
        names_schema = key_format is not None and key_format.names_schema
        raw = _frame("key", KEY_HEADER, types) if names_schema else F.col(f"{_HIDDEN}key")
        rows = add_key(rows, raw if every_key else F.when(value.isNull(), raw), key, key_format)
        bad_key = F.concat(F.lit("the key: "), F.col(KEY_REASON))
        if tombstones == "delete":
            absent = [F.col(DECODED_KEY)[name].isNull() for name in key.names]
            without_value = F.coalesce(bad_key, F.when(functools.reduce(Column.__and__, absent), NO_KEY))

    more: list[str] = []

    def add_reason(parsed: Column) -> Column:
        reason = F.when(value.isNull(), without_value).otherwise(message_format.reason(parsed, value, message))
        extras = _extra_columns(message_format.extras(parsed))
        more[:] = extras
        reason = F.coalesce(reason.cast("string"), bad_key)
        if UNREADABLE in types:
            reason = F.coalesce(F.col(f"{_HIDDEN}{UNREADABLE}"), reason)
        result = {_MESSAGE: message_format.message(parsed), _REASON: reason, **extras}
        return F.struct(*(column.alias(name) for name, column in result.items()))

    # `add_reason` is within the generator so that it is evaluated once. Spark would copy the expression of a column
    # into every place that uses it: each column, and several times the filter.
    rows = rows.select("*", F.inline(F.transform(F.array(message_format.parse(value, message)), add_reason)))
    origin = {name: F.col(f"{_HIDDEN}{name}") for name in (*metadata_names, "value")}
    about = [origin[name].alias(name) for name in metadata_names]
    if SCHEMA_ID in more:
        about.append(F.col(SCHEMA_ID).alias("schema_id"))
    metadata = [F.struct(*about).alias(KAFKA)] if about else []
    fields = [F.col(_MESSAGE)[field.name].alias(field.name) for field in message]
    if key is not None:
        if tombstones == "delete":
            fields = [_from_key(field, key) for field in message]
        metadata.append(F.col(DECODED_KEY).alias(KEY))
    visible = [F.col(name) for name in more if not name.startswith(_HIDDEN)]
    hidden = [F.col(name) for name in more if name.startswith(_HIDDEN)]
    return rows.select(*fields, *metadata, *visible, *_origin(types, origin), _REASON, *hidden)


def _frame(part: str, header: str, types: Mapping[str, DataType]) -> Column:
    """Return the value or the key with its schema id before the data, also if a header has the id.

    See `weft.streams.formats.registry`.

    Args:
        part: ``value`` or ``key``.
        header: Name of the header.
        types: Types of the columns of the messages.
    """
    data = F.col(f"{_HIDDEN}{part}")
    if types.get("headers") != SOURCE_TYPE["headers"].dataType:
        return data
    schema = F.get(F.filter(F.col(f"{_HIDDEN}headers"), lambda pair: pair["key"] == header), 0)["value"]
    return F.coalesce(F.concat(schema, data.cast("binary")), data.cast("binary"))


def _extra_columns(extras: Extras) -> dict[str, Column]:
    """Return the columns with the details of a message that only the format knows, by name."""
    hidden = {
        OPERATION: extras.operation,
        UNAVAILABLE: extras.unavailable,
        ABSENT: extras.absent,
        SCHEMA_ID: extras.schema_id,
    }
    return {**extras.metadata, **{name: column for name, column in hidden.items() if column is not None}}


def _origin(types: Mapping[str, DataType], columns: Mapping[str, Column]) -> list[Column]:
    """Return hidden columns for the fields of `SOURCE` except the reason; NULL if the messages lack the field.

    Missing headers are an empty list: a column of null lists slows Spark down
    (`weft.streams.write.sink.LIST_BATCH_ROWS`).

    Args:
        types: Types of the columns of the messages.
        columns: The columns of the messages that are used.
    """
    origin_columns = []
    for field in _ORIGIN:
        column = columns.get(field.name, F.lit(None))
        if field.name == "timestamp":
            column = F.unix_millis(column) if isinstance(types.get(field.name), TimestampType) else F.lit(None)
        elif field.name == "headers" and types.get(field.name) != field.dataType:
            column = F.lit(None)
        column = column.cast(field.dataType)
        if field.name == "headers":
            column = F.coalesce(column, F.array().cast(field.dataType))
        origin_columns.append(column.alias(f"{_HIDDEN}{field.name}"))
    return origin_columns


def _source(reason: Column, *, schema_id: bool) -> Column:
    """Return the column `SOURCE` for rows of `_parse_rows`."""
    fields = [F.col(f"{_HIDDEN}{field.name}").alias(field.name) for field in _ORIGIN]
    more = [F.col(SCHEMA_ID).alias("schema_id")] if schema_id else []
    return F.struct(*fields, reason.cast("string").alias("reason"), *more).alias(SOURCE)


def _from_key(field: StructField, key: StructType) -> Column:
    """Return a field of the message, or in a tombstone the field of the key with the same name.

    Raises:
        InvalidInput: The two have different types.
    """
    value = F.col(_MESSAGE)[field.name]
    if field.name in key.names:
        other = key[field.name].dataType
        if other != field.dataType:
            raise InvalidInput(
                f"field {field.name!r} is {field.dataType.simpleString()} in the message and {other.simpleString()} in "
                "the key",
                hint=f"declare one type, or give the field of the key another name and use {KEY}.<name> in select",
            )
        value = F.coalesce(value, F.when(F.col(_VALUE).isNull(), F.col(DECODED_KEY)[field.name]))
    return value.alias(field.name)


def _is_tombstone() -> Column:
    return F.col(_VALUE).isNull()


def _filter_rows(messages: DataFrame, where: str, *, guarded: bool) -> DataFrame:
    condition = F.expr(where)
    try:
        _ = messages.where(condition).schema  # check that it is a boolean: inside a CASE, Spark would cast it
        if not guarded:
            return messages.where(_if_decoded(_keep_condition(condition)).otherwise(F.lit(True)))
        # NULL if the condition fails, and for undecodable messages.
        passes = _if_decoded(_attempt(F.coalesce(_keep_condition(condition), F.lit(False))))
        evaluated = messages.select("*", passes.alias(_CONDITION))
        fails = F.col(_REASON).isNull() & F.col(_CONDITION).isNull()
        reason = F.when(fails, F.lit(f"where fails: {where}")).otherwise(F.col(_REASON))
        rows = evaluated.where(F.coalesce(F.col(_CONDITION), F.lit(True)))
        return rows.withColumn(_REASON, reason).drop(_CONDITION)
    except PySparkException as error:
        raise _refusal("where", where, messages, error) from None


def _keep_condition(condition: Column) -> Column:
    """Keep rows for which the condition is true. Tombstones, which lack most fields, are also kept if it is NULL."""
    return F.when(_is_tombstone(), F.coalesce(condition, F.lit(True))).otherwise(condition)


def _attempt(value: Column) -> Column:
    """Return the value of an expression; NULL if it fails.

    Use it only inside `_if_decoded`. There the expression is conditional, so Spark does not evaluate it beforehand,
    outside of the `TryEval`, where an error would fail the query.
    """
    jvm: Any = SparkContext._jvm  # noqa: SLF001 - Spark uses the expression for try_add and others, but has no function for it
    classic = jvm.org.apache.spark.sql.classic.ExpressionUtils
    inner = classic.expression(value._jc)  # noqa: SLF001 - as above
    return Column(classic.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(inner)))


def _require_decoded(messages: DataFrame) -> DataFrame:
    """Return the same rows, but make the query fail at the first undecodable message."""
    reason = F.col(_REASON)
    position = [
        F.concat(F.lit(f", {name} "), F.coalesce(F.col(f"{_HIDDEN}{name}").cast("string"), F.lit("unknown")))
        for name in ("topic", "partition", "offset")
    ]
    messages = messages.where(reason.isNull() | (reason != IGNORED))
    message = F.concat(F.lit("a message cannot be decoded: "), reason, *position)
    return messages.where(_if_decoded(F.lit(True)).otherwise(F.raise_error(message).cast("boolean")))


def _select_columns(messages: DataFrame, columns: Mapping[str, Column | str], *, guarded: bool) -> DataFrame:
    """Return the columns of ``select``, all NULL if the message is undecodable.

    Args:
        messages: Rows of `_parse_rows`.
        columns: Name to expression.
        guarded: If true, a message for which an expression fails is undecodable, and `SOURCE` is the last column. If
            false, the query fails.
    """
    if not columns:
        raise InvalidInput("select is empty", hint="leave it out to get all fields of the message")
    _refuse_alike("select", columns)
    if SOURCE in columns:
        raise InvalidInput(f"select: the name {SOURCE!r} is reserved", hint="choose another name")
    schema = messages.schema
    attempts: list[Column] = []
    selected: list[Column] = []
    reason = F.when(F.col(_REASON).isNotNull(), F.col(_REASON))
    for number, (name, expression) in enumerate(columns.items()):
        value = F.expr(expression) if isinstance(expression, str) else expression
        try:
            # One at a time, so that the error names the column. Inside the condition Spark also refuses generators and
            # aggregates, which do not return one value per message.
            _ = messages.select(_if_decoded(value).alias(name), _REASON).schema
        except PySparkException as error:
            raise _refusal(f"select: column {name!r}", str(expression), messages, error) from None
        place = f"{_HIDDEN}{number}"
        if not guarded or _is_field(expression, schema):
            attempts.append(_if_decoded(value).alias(place))
            selected.append(F.col(place).alias(name))
            continue
        # In a struct, to distinguish a value that is NULL from an expression that fails.
        attempts.append(_if_decoded(_attempt(F.struct(value.alias("value")))).alias(place))
        selected.append(F.col(place)["value"].alias(name))
        expression_text = f": {expression}" if isinstance(expression, str) else ""
        reason = reason.when(F.col(place).isNull(), F.lit(f"select: column {name!r} fails{expression_text}"))
    if not guarded:
        return messages.select(*attempts).select(*selected)
    hidden = [f"{_HIDDEN}{field.name}" for field in _ORIGIN]
    if SCHEMA_ID in messages.columns:
        hidden.append(SCHEMA_ID)
    source = _source(reason, schema_id=SCHEMA_ID in messages.columns)
    return messages.select(*attempts, *hidden, _REASON).select(*selected, source)


def _is_field(expression: Column | str, schema: StructType) -> bool:
    """Whether an expression is only a column or a field of one, which cannot fail.

    Args:
        expression: SQL of the user, or an expression that weft added.
        schema: Schema of the messages.
    """
    if not isinstance(expression, str):
        return False
    text = expression.strip()
    quoted = _QUOTED.fullmatch(text)
    kind: DataType = schema
    for name in [quoted[1].replace("``", "`")] if quoted else text.split("."):
        fields = (
            [] if not isinstance(kind, StructType) else [field for field in kind if field.name.lower() == name.lower()]
        )
        if len(fields) != 1:
            return False
        kind = fields[0].dataType
    return True


def _if_decoded(value: Column) -> Column:
    return F.when(F.col(_REASON).isNull(), value)


def _refusal(what: str, expression: str, messages: DataFrame, error: PySparkException) -> InvalidInput:
    names = [name for name in messages.columns if not name.startswith(_HIDDEN)]
    return InvalidInput(
        f"{what}: Spark refuses the expression {expression!r}: {spark_message(error)}",
        hint=f"write an SQL expression that gives one value for each message, over: {', '.join(names)}",
    )
