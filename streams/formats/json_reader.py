r"""Reads JSON in Spark's JVM: bytes that must be exactly one value, with the reason where they are not.

The reader is `JsonReader.java`. What is JSON is up to Jackson, which follows RFC 8259 with these exceptions. It takes
``NaN``, ``+INF`` and ``Infinity`` with and without a sign for numbers. It refuses more than 1,000 arrays and objects
within each other, numbers of more than 1,000 characters, and names of more than 50,000 or with half of a surrogate
pair.

How values are read:

- A text is the text. Any other value that is read as a text keeps its characters: ``1.10``, ``1E400``, ``{"a": 1.10}``.
- Whole numbers and decimals never pass through a double. A decimal is rounded to the declared scale, half up, and a
  time to microseconds, down; not so in a field that names a row. A decimal may also be a text. A number that a double
  or float does not have, such as ``1E400``, is not of the type.
- A member that is not declared is skipped, a declared one that is missing is NULL. Names are case-sensitive.
- A declared member that is there twice, a map with a key twice, and half of a surrogate pair (``"\ud800"``) have a
  reason: which of the two is meant, or which character, nobody knows.
- A number for a timestamp is in seconds. The text of a date is only a date.
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
        raise InvalidInput("JSON cannot be decoded in a Spark session with artifacts of its own", hint=hint)
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
