"""Sends functions and objects of weft to Spark's Python workers.

They are pickled by name. A worker without weft would fail while it unpickles them, within Spark's code, with ``No
module named 'weft'`` and no explanation. So they are sent as bytes, together with a small function that is pickled
by value and needs only Python: it unpickles them, and converts a failed import to an error with a hint. Errors of weft
get a note for the driver, which is signed with a key that is sent, too (`weft.streams.spark.task_errors`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from weft.streams.spark.task_errors import INSTALL_HINT, note_errors, signing_key

Function = TypeVar("Function", bound=Callable[..., Any])


def for_workers(function: Function) -> Function:
    """Wrap a function so that it can be passed to Spark.

    Its arguments must be objects of Spark or Python, because Spark unpickles them before the wrapper runs.
    """
    payload, load = pickle_value(note_errors(function)), _loader()

    def call(*arguments: Any) -> Any:
        return load(payload)(*arguments)

    return cast("Function", call)


class ForWorkers:
    """Base class of objects that Spark pickles as a whole, such as readers of a data source.

    Errors raised by the constructor or a public method get the note.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in vars(cls).copy().items():
            if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, note_errors(method))

    def __reduce__(self) -> tuple[Any, ...]:
        return _loader(), (pickle_value(_Rebuilt(type(self), self.__getstate__())),)


class Source(ForWorkers, DataSource):
    """Base class of data sources."""


def source_for_workers(source: type[Source]) -> type[DataSource]:
    """Wrap a data source for `weft.streams.spark.data_sources.register_source`.

    A worker whose Python lacks weft then fails with a hint instead of an error of pickle.
    """
    payload, load, source_name = pickle_value(source), _loader(), source.name()

    class Registered(DataSource):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            self.source: DataSource = load(payload)(options)

        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> StructType | str:
            return self.source.schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            return self.source.reader(schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return self.source.streamReader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
            return self.source.writer(schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
            return self.source.streamWriter(schema, overwrite)

    return Registered


def pickle_value(value: Any) -> bytes:
    """Pickle a value for `pickle.loads`; functions and classes of notebooks and scripts are pickled by value."""
    return cloudpickle.dumps(value)  # type: ignore[no-untyped-call]


class _Rebuilt:
    """Is pickled in place of an object; unpickling it gives an object with the same class and state."""

    def __init__(self, kind: type, state: Any) -> None:
        self._kind, self._state = kind, state

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (self._kind,), self._state


def _loader() -> Callable[[bytes], Any]:
    # A nested function is pickled by value. It must not use names of this module except those in its closure.
    hint, key = INSTALL_HINT, signing_key()

    def load(payload: bytes) -> Any:
        import pickle
        import sys

        try:
            from weft.streams.spark.task_errors import sign_with
            from weft.streams.spark.worker_garbage import function_started

            sign_with(key)
            function = pickle.loads(payload)  # noqa: S301 - written by our own driver, as all that Spark runs is
        except ImportError as error:
            raise ImportError(
                f"a Python worker of Spark cannot import weft: {error} (Python: {sys.executable})\n  hint: {hint}",
                name=error.name,
            ) from None
        function_started()
        return function

    return load
