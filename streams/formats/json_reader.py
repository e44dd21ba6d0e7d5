r"""Reads JSON in Spark's JVM: the bytes must be exactly one value, otherwise there is a reason.

The reader is `JsonReader.java`. Its parser is Jackson, which follows RFC 8259 with these exceptions. It accepts
``NaN``, ``+INF`` and ``Infinity`` with and without a sign as numbers. It refuses more than 1,000 nested arrays and
objects, numbers of more than 1,000 characters, and names with more than 50,000 characters or with half of a surrogate
pair.

Values are read by these rules:

- A string of JSON is its text. Any other value for a declared string keeps its characters: ``1.10``, ``1E400``,
  ``{"a": 1.10}``.
- Integers and decimals are never converted to a double. A decimal is rounded half up to the declared scale, and a time
  down to microseconds, but not in a field that identifies a row. A decimal may also be a string. A number out of the
  range of a double or float, such as ``1E400``, does not fit the type.
- A member that is not declared is skipped, and a declared member that is missing is NULL. Names are case-sensitive.
- A repeated declared member, a map with a repeated key, and half of a surrogate pair (``"\ud800"``) are refused,
  because it is unknown which value or character is meant.
- A number for a timestamp is in seconds. The text of a date must be a date without a time.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from weft.storage.errors import InvalidInput
from weft.streams.spark.java_classes import CannotCompile, new_object

__all__ = ["NOT_AN_OBJECT", "NOT_UTF8", "read_json"]

NOT_UTF8: Final = "the value is not UTF-8"
NOT_AN_OBJECT: Final = "the value is not one JSON object"


def read_json(
    value: Column, fields: StructType, *, is_key: bool = False, exact: AbstractSet[str] = frozenset()
) -> Column:
    """Read texts that are exactly one JSON object.

    Args:
        value: The bytes of the messages.
        fields: Fields of the object. All of them are nullable in the result, nested ones, too.
        is_key: Read the key of a message. With exactly one field, the key may also be the value of that field. Both
            forms may be in the envelope ``{"schema": ..., "payload": ...}`` of Kafka Connect. If the field is a string,
            a key that begins with neither ``{`` nor ``"`` is taken as its text. Nothing is rounded.
        exact: Fields of a message whose values must not be rounded.

    Returns:
        Struct of ``value``, a struct of the fields, NULL if it cannot be read; and ``reason``, a string that says why.
        The struct is NULL where ``value`` is NULL.

    Raises:
        InvalidInput: A map has keys that are not strings, the version of Spark does not fit, or the session has
            artifacts of its own, so that its executors do not load the class.
    """
    _check_maps(fields)
    context, jvm = SparkContext._active_spark_context, SparkContext._jvm  # noqa: SLF001 - no public way to the JVM
    assert context is not None, "a column needs a session"
    java: Any = jvm
    spark = SparkSession.active()
    if spark._jsparkSession.artifactManager().state() is not None:  # noqa: SLF001 - as above
        hint = "add jars and files to the context (spark.jars, spark.files) instead of the session"
        raise InvalidInput("JSON cannot be decoded in a Spark session that has its own artifacts", hint=hint)
    kind = java.org.apache.spark.sql.types.DataType.fromJson(fields.json()).asNullable()
    zone = spark.conf.get("spark.sql.session.timeZone")
    names = java.java.util.ArrayList()
    for name in exact:
        names.add(name)
    try:
        reader = new_object(context, __package__, "JsonReader", kind, is_key, names, zone, NOT_UTF8, NOT_AN_OBJECT)
    except CannotCompile as error:
        raise InvalidInput(f"JSON cannot be decoded: {error}", hint="use pyspark 4.3") from None
    types, catalyst = java.org.apache.spark.sql.types, java.org.apache.spark.sql.catalyst.expressions
    classic = java.org.apache.spark.sql.classic.ExpressionUtils
    result = types.StructType().add("value", kind).add("reason", "string")
    function = catalyst.Literal(reader, types.ObjectType(java.java.lang.Class.forName("scala.Function1")))
    empty = java.PythonUtils.toSeq([])
    arguments = java.PythonUtils.toSeq([classic.expression(value.cast("binary")._jc)])  # noqa: SLF001 - as above
    call = catalyst.objects.Invoke(function, "apply", result, arguments, empty, True, True, True)
    return Column(classic.column(call))


def _check_maps(kind: DataType) -> None:
    match kind:
        case StructType():
            for field in kind:
                _check_maps(field.dataType)
        case ArrayType():
            _check_maps(kind.elementType)
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise InvalidInput(
                    f"{kind.simpleString()}: the keys of a map in JSON are strings",
                    hint="declare map<string,...>, and cast its keys in select",
                )
            _check_maps(kind.valueType)
