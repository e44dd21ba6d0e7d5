"""What a procedure of the catalog is. `weft.streams.catalog.procedure_table` lists all.

A procedure is one function, which calls what `weft.Table` and the command line use. It returns one row (a mapping) or
several, with the columns that it is declared with.

A procedure whose effect cannot be undone does nothing without ``confirm => true``, as its command asks first.
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
"""SQL types of parameters by the types that a procedure takes; a list is names, separated by commas."""


class Session(Protocol):
    """What procedures need of a catalog."""

    @property
    def spark(self) -> SparkSession:
        """The session."""

    def locate(self, table: str) -> TableLocation:
        """The location of a table by its name in the catalog, ``shop.orders_wide``.

        Raises:
            InvalidInput: The text is not a name.
        """


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure.

    Attributes:
        name: Its name.
        type: Spark SQL type name.
        required: Whether it has no default.
        default: The value if it is not given.
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
        comment: What it does.
        parameters: Its parameters, in the order of positional arguments.
        columns: Columns of the result: name to Spark SQL type name.
        function: Takes a session and the arguments by name.
        reads: Whether it only reads, so that those may call it who may change nothing.
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
            arguments: Values by name. A missing parameter has its default.

        Returns:
            A table with the columns `result`.

        Raises:
            InvalidInput: An argument is missing, unknown or NULL without reason, or has a wrong value.
            TableError: The procedure failed; see the method of `weft.Table`.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in arguments:
            if name not in known:
                raise InvalidInput(f"{self.name}: there is no parameter {name!r}", hint=f"parameters: {self.form}")
        for parameter in self.parameters:
            needed = parameter.required or parameter.default is not None
            if arguments.get(parameter.name, parameter.default) is None and needed:
                missing = "is missing" if parameter.name not in arguments else "is NULL"
                raise InvalidInput(f"{self.name}: {parameter.name} {missing}", hint=f"parameters: {self.form}")
        rows = self.function(session, **arguments)
        return pa.Table.from_pylist([rows] if isinstance(rows, Mapping) else list(rows), self.result)

    @property
    def form(self) -> str:
        """The parameters as text, for messages: ``table string, retain string = '24 hours'``."""
        return ", ".join(
            f"{each.name} {each.type}" + ("" if each.required else f" = {json.dumps(each.default)}")
            for each in self.parameters
        )


def open_table(session: Session, table: str) -> Table:
    """Open a table by its name in the catalog.

    Raises:
        TableError: See `weft.Table.open`.
    """
    location = session.locate(table)
    return Table.open(location.uri, storage_options=location.storage_options)


def check_confirmed(question: str, *, confirm: bool) -> None:
    """Refuse what cannot be undone and is not confirmed.

    Raises:
        InvalidInput: It is not confirmed. The message has the question.
    """
    if not confirm:
        raise InvalidInput(f"{question} It is not confirmed", hint="add confirm => true")
