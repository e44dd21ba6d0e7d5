"""The exceptions of the JVM behind an error of PySpark, by their classes and conditions.

The text of an error may contain values of messages, so it decides nothing. Classes and error conditions come from the
code that raised the exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

_MOST: Final = 32
"""Exceptions of one chain: more than any program nests, and a chain may be a ring."""


@dataclass(frozen=True, slots=True)
class JavaCause:
    """An exception in a chain of causes.

    Attributes:
        classes: Names of its class and all superclasses.
        condition: Error condition of Spark, such as ``PYTHON_EXCEPTION``; "" if it has none.
        message: Its message, without those of its causes; "" if it has none.
    """

    classes: frozenset[str]
    condition: str
    message: str


def java_causes(error: BaseException) -> Iterator[JavaCause]:
    """The exceptions of the JVM that led to an error, from the last one to the first cause.

    There are none if the error did not come from the JVM, or if the JVM has ended.
    """
    # A failed call has the first attribute, an error that PySpark has translated the second one.
    exception: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        for _ in range(_MOST):
            if exception is None:
                return
            yield JavaCause(frozenset(_classes(exception)), _condition(exception), exception.getMessage() or "")
            exception = exception.getCause()
    except (Py4JError, OSError):  # Py4JJavaError is one of them
        return


def _classes(exception: Any) -> Iterator[str]:
    kind = exception.getClass()
    while kind is not None:
        yield kind.getName()
        kind = kind.getSuperclass()


def _condition(exception: Any) -> str:
    gateway = SparkContext._gateway  # noqa: SLF001 - as PySpark's own errors do
    is_of_spark = gateway is not None and is_instance_of(gateway, exception, "org.apache.spark.SparkThrowable")
    return (exception.getCondition() or "") if is_of_spark else ""
