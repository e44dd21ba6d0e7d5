"""CALL weft.system.<name>(...): the objects by which Spark calls `weft.streams.catalog.procedure_table`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.procedure import Parameter, Procedure
from weft.streams.catalog.procedure_table import PROCEDURES, find_procedure
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.relation.callbacks import Callback, WithoutMetrics

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_context import CatalogContext

NAMESPACE: Final = ("system",)


def offered_procedures(lake: Lake) -> dict[str, Procedure]:
    """The procedures that may be called in a catalog, by name."""
    return {name: procedure for name, procedure in PROCEDURES.items() if lake.offers_procedure(name)}


def load_procedure(catalog: CatalogContext, name: str) -> SparkProcedure | MissingProcedure:
    """Load a procedure as Spark's `UnboundProcedure`; a `MissingProcedure` if it does not exist."""
    try:
        return SparkProcedure(catalog, find_procedure(name, offered_procedures(catalog.lake)))
    except NotFound as error:
        return MissingProcedure(catalog.jvm, name, error)


class _Session:
    """The part of a catalog that procedures use, see `weft.streams.catalog.procedure.Session`."""

    def __init__(self, catalog: CatalogContext) -> None:
        self._catalog = catalog

    @property
    def spark(self) -> SparkSession:
        return self._catalog.jvm.spark

    def locate(self, table: str) -> TableLocation:
        names = self._catalog.jvm.parse_name(table)
        if names[0] == self._catalog.name:
            names = names[1:]
        lake, full_name = self._catalog.lake, ".".join((self._catalog.name, *names))
        if not lake.has_table_folder(names):  # not opened here, because verify also reads damaged tables
            if names and lake.has_table_folder(names[:-1]):
                table_name = ".".join((self._catalog.name, *names[:-1]))
                raise InvalidInput(f"{full_name} is a part of a table", hint=f"name the table: {table_name}")
            raise NotFound(
                f"there is no table {full_name}",
                hint=f"list the tables with SHOW NAMESPACES IN {self._catalog.name} and SHOW TABLES IN a namespace",
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
    """A procedure as Spark calls it."""

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
            [
                (parameter.name, parameter.type, None if parameter.required else _default_sql(parameter))
                for parameter in self._procedure.parameters
            ]
        )

    def call(self, row: Any) -> Any:
        arguments = {
            parameter.name: _value(row, index, parameter.type)
            for index, parameter in enumerate(self._procedure.parameters)
        }
        result = self._procedure.call(_Session(self._catalog), arguments)
        return self.jvm.iterator([ResultScan(self.jvm, result)])


class MissingProcedure(Callback, java=("org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure",)):
    """A procedure that does not exist. It raises the error in `bind`, because Spark hides errors of the lookup."""

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


def _default_sql(parameter: Parameter) -> str:
    """Format the default of a parameter as SQL."""
    value = parameter.default
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return "NULL" if value is None else json.dumps(value)


def _value(row: Any, index: int, kind: str) -> Any:
    """Convert an argument from an `InternalRow`."""
    if row.isNullAt(index):
        return None
    match kind:
        case "string":
            return row.getUTF8String(index).toString()
        case "bigint":
            return row.getLong(index)
        case "double":
            return row.getDouble(index)
        case "boolean":
            return row.getBoolean(index)
    map_data = row.getMap(index)
    keys, values = map_data.keyArray(), map_data.valueArray()
    return {
        keys.getUTF8String(number).toString(): values.getUTF8String(number).toString()
        for number in range(map_data.numElements())
    }
