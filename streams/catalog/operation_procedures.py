"""Procedures that run one operation of a table, generated from the declarations in `weft.storage.operations`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pyspark.errors import PySparkException

from weft.storage import Table
from weft.storage.config.config_file import parse_fields
from weft.storage.errors import InvalidInput
from weft.storage.operations.operation import Context, Face, Finished, Operation, type_of
from weft.storage.services.steps.tasks import one_by_one
from weft.storage.table_facts import open_table_unchecked
from weft.streams.catalog.procedure import SQL_TYPES, Parameter, Procedure, Row, Session, check_confirmed, open_table
from weft.streams.read.sql_function import SqlFunction
from weft.streams.read.sql_query import short_message
from weft.streams.spark.run_tasks import spark_executor


def build_procedure(operation: Operation[Any, Any]) -> Procedure:
    """Build the procedure of an operation."""
    fields = {name: (info, face) for name, (info, face) in operation.fields().items() if face.procedure}
    first = [_parameter(name, info, face) for name, (info, face) in fields.items() if not face.last]
    last = [_parameter(name, info, face) for name, (info, face) in fields.items() if face.last]
    has_flag = {"confirm": operation.question is not None, "on_cluster": operation.on_cluster}
    flags = [Parameter(name, "boolean", required=False, default=False) for name, exists in has_flag.items() if exists]

    def call(session: Session, table: str, **arguments: Any) -> Iterable[Row]:
        return _run(operation, session, table, arguments)

    descriptions = [f"``{name}``: {info.description}" for name, (info, _) in fields.items()]
    return Procedure(
        name=operation.name,
        comment="\n\n".join([operation.summary, *descriptions]),
        parameters=(Parameter("table", "string", required=True, default=None), *first, *flags, *last),
        columns=operation.column_types,
        function=call,
        reads=operation.reads_only,
    )


def _parameter(name: str, info: FieldInfo, face: Face) -> Parameter:
    default = None if face.optional or info.is_required() else info.default
    if face.type is str and isinstance(default, int | float):
        default = f"{default / 3600:g} hours"  # a duration
    return Parameter(name, SQL_TYPES[type_of(info)], info.is_required(), default)


def _run(operation: Operation[Any, Any], session: Session, name: str, arguments: Mapping[str, Any]) -> Iterable[Row]:
    values = {key: value for key, value in arguments.items() if key in operation.fields() and value is not None}
    request = parse_fields(operation.request, values, {})

    def keys(query: Any, table: Table) -> Any:
        return _select_keys(session, query, table)

    @functools.cache  # so that it is analysed once, before the confirmation is checked
    def function(column: str, expression: str, kind: Any) -> SqlFunction:
        return SqlFunction(session.spark, column, expression, kind)

    on_cluster = arguments.get("on_cluster", False)
    context = Context(
        execute=spark_executor(session.spark, f"weft {operation.name}") if on_cluster else one_by_one,
        spell=_spell,
        keys=keys,
        function=function,
    )
    operation.check(request, context)
    if operation.opens:
        table = open_table(session, name)
    else:
        location = session.locate(name)
        table = open_table_unchecked(location.uri, location.storage_options)
    request = operation.prepare(table, request, context)
    if operation.question is not None:
        check_confirmed(operation.question(request, name), confirm=arguments.get("confirm", False))
    result = operation(table, request, context)
    return operation.table_rows(Finished(table, name, request, result))


def _select_keys(session: Session, query: str, table: Table) -> Any:
    key = table.schema.key
    try:
        return session.spark.sql(query).select(*key).toArrow()
    except PySparkException as error:
        hint = f"give a query that returns {', '.join(key)}"
        raise InvalidInput(f"keys: {short_message(error)}", hint=hint) from None


def _spell(name: str) -> str:
    values = {"iceberg": "'namespace.table'", "delta": "true"}
    return f"{name} => {values[name]}" if name in values else name
