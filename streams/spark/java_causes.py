"""The JVM exceptions behind an error of PySpark, with their classes and conditions.

Decisions use classes and error conditions, which come from the code that raised the exception. The text of an error may
contain values of messages, so it must not decide anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

_MOST: Final = 32
"""Limit of the length of a chain, which may be a ring; no program nests so many exceptions."""


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
    """Yield the JVM exceptions that led to an error, from the outermost to the first cause.

    There are none if the error did not come from the JVM, or if the JVM has ended.
    """
    # Py4J's error of a failed call has `java_exception`, an error that PySpark has translated has `_origin`.
    exception: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        for _ in range(_MOST):
            if exception is None:
                return
            yield JavaCause(frozenset(_classes(exception)), _condition(exception), exception.getMessage() or "")
            exception = exception.getCause()
    except (Py4JError, OSError):  # Py4JJavaError is a Py4JError
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
