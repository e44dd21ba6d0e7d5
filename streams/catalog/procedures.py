"""CALL weft.system.<name>(...): procedures as Spark calls them; `weft.streams.catalog.procedure_table` has what they
do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.procedure import Parameter, Procedure
from weft.streams.catalog.procedure_table import PROCEDURES, find_procedure
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.relation.callbacks import Callback, WithoutMetrics

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_context import CatalogContext

NAMESPACE: Final = ("system",)


def procedure_names() -> list[str]:
    """Names of all procedures."""
    return sorted(PROCEDURES)


def load_procedure(catalog: CatalogContext, name: str) -> SparkProcedure | MissingProcedure:
    """A procedure, for Spark an `UnboundProcedure`; a `MissingProcedure` if there is no such procedure."""
    try:
        return SparkProcedure(catalog, find_procedure(name))
    except NotFound as error:
        return MissingProcedure(catalog.jvm, name, error)


class _Session:
    """The catalog as procedures see it."""

    def __init__(self, catalog: CatalogContext) -> None:
        self._catalog = catalog

    @property
    def spark(self) -> SparkSession:
        return self._catalog.jvm.spark

    def locate(self, table: str) -> TableLocation:
        names = self._catalog.jvm.parse_name(table)
        if names[0] == self._catalog.name:
            names = names[1:]
        lake, shown = self._catalog.lake, ".".join((self._catalog.name, *names))
        if not lake.has_table_folder(names):  # it is not opened: verify is for tables that cannot be
            if names and lake.has_table_folder(names[:-1]):
                whole = ".".join((self._catalog.name, *names[:-1]))
                raise InvalidInput(f"{shown} is a part of a table", hint=f"name the table: {whole}")
            raise NotFound(
                f"there is no table {shown}",
                hint=f"SHOW NAMESPACES IN {self._catalog.name} and SHOW TABLES IN a namespace list what there is",
            )
        return TableLocation(lake.location(names), lake.storage_options)


class SparkProcedure(
    Callback,
    java=(
        "org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure",
        "org.apache.spark.sql.connector.catalog.procedures.BoundProcedure",
    ),
    answers={"isDeterministic": False},
):
    """A procedure that is called with the parameters that it declares."""

    jvm: CatalogJvm

    def __init__(self, catalog: CatalogContext, procedure: Procedure) -> None:
        super().__init__(catalog.jvm, f"weft procedure {catalog.name}.{procedure.name}")
        self._catalog, self._procedure = catalog, procedure

    def name(self) -> str:
        return self._procedure.name

    def description(self) -> str:
        return self._procedure.comment

    def bind(self, _input: Any) -> Any:
        return self

    def parameters(self) -> Any:
        return self.jvm.procedure_parameters(
            [(each.name, each.type, None if each.required else _sql(each)) for each in self._procedure.parameters]
        )

    def call(self, row: Any) -> Any:
        given = {
            parameter.name: _value(row, place, parameter.type)
            for place, parameter in enumerate(self._procedure.parameters)
        }
        result = self._procedure.call(_Session(self._catalog), given)
        return self.jvm.iterator([ResultScan(self.jvm, result)])


class MissingProcedure(Callback, java=("org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure",)):
    """A name that is no procedure. Spark hides the errors of the lookup, but not those of `bind`."""

    jvm: CatalogJvm

    def __init__(self, jvm: CatalogJvm, name: str, error: NotFound) -> None:
        super().__init__(jvm, f"weft missing procedure {name}")
        self._name, self._error = name, error

    def name(self) -> str:
        return self._name

    def description(self) -> str:
        raise self._error

    def bind(self, _input: Any) -> Any:
        raise self._error


class ResultScan(WithoutMetrics, java=("org.apache.spark.sql.connector.read.LocalScan",)):
    """The rows that a procedure returns."""

    jvm: CatalogJvm

    def __init__(self, jvm: CatalogJvm, result: pa.Table) -> None:
        super().__init__(jvm, f"weft rows {id(result)}")
        self._result = result

    def rows(self) -> Any:
        return self.jvm.internal_rows(self.jvm.spark.createDataFrame(self._result))

    def readSchema(self) -> Any:  # noqa: N802
        return self.jvm.struct(from_arrow_schema(self._result.schema))

    def toBatch(self) -> Any:  # noqa: N802
        raise InvalidInput("the rows of a procedure are read in the driver")

    toMicroBatchStream = toContinuousStream = toBatch  # noqa: N815


def _sql(parameter: Parameter) -> str:
    """The default of a parameter as SQL."""
    value = parameter.default
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return "NULL" if value is None else json.dumps(value)


def _value(row: Any, place: int, kind: str) -> Any:
    """An argument out of an `InternalRow`."""
    if row.isNullAt(place):
        return None
    match kind:
        case "string":
            return row.getUTF8String(place).toString()
        case "bigint":
            return row.getLong(place)
        case "double":
            return row.getDouble(place)
        case "boolean":
            return row.getBoolean(place)
    found = row.getMap(place)
    keys, values = found.keyArray(), found.valueArray()
    return {
        keys.getUTF8String(each).toString(): values.getUTF8String(each).toString()
        for each in range(found.numElements())
    }
