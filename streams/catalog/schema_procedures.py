"""Procedures that change a schema: one for each kind of change in `storage.alter`, with its fields as parameters.

Names are separated by commas, ``columns`` of add_group is ``map('tip', 'double')``, and a value is JSON or plain text.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from storage.alter import CHANGES
from storage.config.table_properties import parse_names
from streams.catalog.procedure import Parameter, Procedure, Row, Session, open_table
from streams.read.change_arguments import Form, change_arguments, change_of

_TYPES: Final[Mapping[Form, str]] = {"names": "string", "map": "map<string,string>", "flag": "boolean"}


def schema_procedure(kind: str) -> Procedure:
    """The procedure for a kind of change."""
    model, fields = CHANGES[kind], change_arguments(CHANGES[kind])
    parameters = [Parameter("table", "string", required=True, default=None)]
    for name, (form, field) in fields.items():
        default = None if form in {"names", "map"} or field.is_required() else field.default
        parameters.append(Parameter(name, _TYPES.get(form, "string"), field.is_required(), default))

    def run(session: Session, table: str, **arguments: Any) -> Row:
        target = open_table(session, table)
        values = {name: _value(fields[name][0], value) for name, value in arguments.items() if value is not None}
        change = target.alter(change_of(model, target.schema, values))
        return {"revision": change.rev, "changed": change.changed}

    columns = {"revision": "bigint", "changed": "boolean"}
    return Procedure(kind, inspect.getdoc(model) or "", tuple(parameters), columns, run)


def _value(form: Form, argument: Any) -> Any:
    if form == "map":
        return dict(argument)
    if form == "names":
        return parse_names(argument) if argument.strip() else []
    return argument


globals().update({kind: schema_procedure(kind) for kind in CHANGES})  # `procedure_table` finds all by their names
