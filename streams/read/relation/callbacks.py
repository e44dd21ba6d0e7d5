"""Python objects that Spark calls through Py4J: equality, text and errors of all of them.

The method names of such an object are those of Spark's Java interfaces. Py4J needs every method that Spark may call,
also those with a default in the interface. Callbacks may run on any JVM thread (broadcasts are planned in a pool). Py4J
drops its reference to a callback object when the JVM collects its proxy, so an object exists as long as the plans that
hold it.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from pyspark.sql.types import StructType

from weft.streams.read.relation.jvm import Jvm, UnsupportedSessionError

__all__ = ["Callback", "PlainTable", "ScalaFunction", "WithoutMetrics", "check_methods"]


Method = TypeVar("Method", bound=Callable[..., Any])


_returned: Final = threading.local()


def _callback(method: Method) -> Method:
    """Decorator of all methods that the JVM calls: errors become JVM exceptions with the original message.

    The connection of the calling thread is closed when the thread has ended (`callback_connections`).

    The result is kept until the next call on the same thread. Py4J sends the id of a JVM object that is returned, and
    tells the JVM to forget the object when Python has no reference any more. If that message arrived first, Spark would
    get null. The next call on a thread begins after its JVM thread has received the result of this call.
    """

    @functools.wraps(method)
    def called(self: Callback, *arguments: Any) -> Any:
        try:
            self.jvm.connections.note()
            result = method(self, *arguments)
        except Exception as error:
            self.jvm.raise_in_spark(error)
        _returned.value = result
        return result

    return cast("Method", called)


class Callback:
    """Base class of callbacks: equality by a text, because Spark compares plans, and so these objects.

    The JVM can call every public method. Python code must not call one that may fail: errors become JVM exceptions.

    Attributes:
        Java: The Java interfaces, for Py4J; only classes whose objects are passed to Spark have it.
    """

    Java: type

    def __init_subclass__(cls, *, java: tuple[str, ...] = (), answers: Mapping[str, bool | None] | None = None) -> None:
        """Declare what Spark may call.

        Args:
            java: The Java interfaces of the class; those of its base class by default.
            answers: Methods that always return the same value.
        """
        super().__init_subclass__()
        if java:
            cls.Java = type("Java", (), {"implements": java})  # what Py4J looks for
        constants = {name: _constant(value) for name, value in (answers or {}).items()}
        for name, method in {**vars(cls), **constants}.items():
            if isinstance(method, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _callback(method))

    def __init__(self, jvm: Jvm, identity: str) -> None:
        self.jvm = jvm
        self._identity = identity

    @_callback
    def hashCode(self) -> int:  # noqa: N802
        return zlib.crc32(self._identity.encode()) >> 1

    @_callback
    def equals(self, other: Any) -> bool:
        # Other objects, such as plans and sequences, may have a very long text, so it is not computed for them.
        return self.jvm.is_callback(other) and str(other) == self._identity

    @_callback
    def toString(self) -> str:  # noqa: N802
        return self._identity


def _constant(value: bool | None) -> Callable[..., bool | None]:  # noqa: FBT001
    def answer(*_: Any) -> bool | None:
        return value

    return answer


class ScalaFunction(Callback, java=("scala.Function1",)):
    """A Python function as a function of Scala with one argument."""

    def __init__(self, jvm: Jvm, identity: str, function: Callable[[Any], Any]) -> None:
        super().__init__(jvm, identity)
        self._function = function

    def apply(self, argument: Any) -> Any:
        return self._function(argument)


class PlainTable(Callback, answers={"id": None, "version": None}):
    """A table of Spark without partitions, constraints, properties, an id or a version."""

    def __init__(self, jvm: Jvm, identity: str, name: str, schema: StructType) -> None:
        super().__init__(jvm, identity)
        self._name = name
        self._schema = schema

    def name(self) -> str:
        return self._name

    def schema(self) -> Any:
        return self.jvm.struct(self._schema)

    def columns(self) -> Any:
        return self.jvm.columns(self._schema)

    def partitioning(self) -> Any:
        return self.jvm.array(self.jvm.Transform)

    def constraints(self) -> Any:
        return self.jvm.array(self.jvm.Constraint)

    def properties(self) -> Any:
        return self.jvm.HashMap()


class WithoutMetrics(Callback):
    """A scan or write of Spark without metrics."""

    def description(self) -> str:
        return self._identity

    def columnarSupportMode(self) -> Any:  # noqa: N802
        return self.jvm.ColumnarSupportMode.UNSUPPORTED

    def supportedCustomMetrics(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.CustomMetric)

    def reportDriverMetrics(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.CustomTaskMetric)


def check_methods(jvm: Jvm, kinds: Iterable[type]) -> None:
    """Check that callbacks have all methods that this version of Spark may call, so that no query fails later.

    Raises:
        UnsupportedSessionError: An interface has a method that the callback lacks, as in a newer Spark.
    """
    for kind in kinds:
        for interface in kind.Java.implements:  # type: ignore[attr-defined]
            missing = sorted(name for name in jvm.method_names(interface) if not hasattr(kind, name))
            if missing:
                raise UnsupportedSessionError(
                    f"{interface.rpartition('.')[2]} of this Spark has unknown methods: {', '.join(missing)}"
                )
