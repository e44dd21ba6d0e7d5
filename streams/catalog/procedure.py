"""Procedures of the catalog. `weft.streams.catalog.procedure_table` lists all of them.

A procedure is a function with declared parameters and result columns. It returns one row (a mapping) or several rows.

A procedure whose effect cannot be undone refuses to run without ``confirm => true``; its command asks instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from weft.storage import Table
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.model import TableLocation

Row = Mapping[str, Any]
SQL_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    Mapping: "map<string,string>",
    dict: "map<string,string>",
    list: "string",
}
"""SQL types of parameters, by the Python types of their values. A list is a text of names separated by commas."""


class Session(Protocol):
    """The part of a catalog that procedures use."""

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""

    def locate(self, table: str) -> TableLocation:
        """Return the location of a table by its name in the catalog, ``shop.orders_wide``.

        Raises:
            InvalidInput: The text is not a name, or names a part of a table.
            NotFound: The table does not exist.
        """


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure.

    Attributes:
        name: Its name.
        type: Name of its type in Spark SQL.
        required: Whether a call must pass it.
        default: The value if a call does not pass it.
    """

    name: str
    type: str
    required: bool
    default: Any


@dataclass(frozen=True)
class Procedure:
    """A procedure.

    Attributes:
        name: Its name in ``system``.
        comment: Description for users.
        parameters: Its parameters, in the order of positional arguments.
        columns: Columns of the result: types in Spark SQL by name.
        function: Takes a session, and the arguments by name.
        reads: Whether it only reads; read-only sessions may call it.
    """

    name: str
    comment: str
    parameters: tuple[Parameter, ...]
    columns: Mapping[str, str]
    function: Callable[..., Row | Iterable[Row]]
    reads: bool = False

    @property
    def result(self) -> pa.Schema:
        """Schema of the result."""
        return pa.schema([pa.field(name, parse_type(kind)) for name, kind in self.columns.items()])

    def call(self, session: Session, arguments: Mapping[str, Any]) -> pa.Table:
        """Run the procedure.

        Args:
            session: The catalog that calls it.
            arguments: Values by name. A missing argument has its default.

        Returns:
            A table with the schema `result`.

        Raises:
            InvalidInput: An argument is unknown, or has a wrong value; or a required one is missing or NULL.
            TableError: The procedure failed; see the method of `weft.Table`.
        """
        names = {parameter.name for parameter in self.parameters}
        for name in arguments:
            if name not in names:
                raise InvalidInput(f"{self.name}: there is no parameter {name!r}", hint=f"parameters: {self.form}")
        for parameter in self.parameters:
            needs_value = parameter.required or parameter.default is not None
            if arguments.get(parameter.name, parameter.default) is None and needs_value:
                problem = "is missing" if parameter.name not in arguments else "is NULL"
                raise InvalidInput(f"{self.name}: {parameter.name} {problem}", hint=f"parameters: {self.form}")
        rows = self.function(session, **arguments)
        return pa.Table.from_pylist([rows] if isinstance(rows, Mapping) else list(rows), self.result)

    @property
    def form(self) -> str:
        """The parameters as text, for messages: ``table string, retain string = '24 hours'``."""
        return ", ".join(
            f"{parameter.name} {parameter.type}" + ("" if parameter.required else f" = {json.dumps(parameter.default)}")
            for parameter in self.parameters
        )


def open_table(session: Session, table: str) -> Table:
    """Open a table by its name in the catalog.

    Raises:
        TableError: See `weft.Table.open`.
    """
    location = session.locate(table)
    return Table.open(location.uri, storage_options=location.storage_options)


def check_confirmed(question: str, *, confirm: bool) -> None:
    """Check that an operation that cannot be undone is confirmed.

    Raises:
        InvalidInput: ``confirm`` is false. The message contains the question.
    """
    if not confirm:
        raise InvalidInput(f"{question} It is not confirmed", hint="add confirm => true")
