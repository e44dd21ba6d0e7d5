"""Procedures that change a schema: one for each kind of change in `weft.storage.alter`, with its fields as parameters.

Names are separated by commas, ``columns`` of add_group is ``map('tip', 'double')``, and a value is JSON or plain text.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from weft.storage.alter import CHANGES
from weft.storage.config.table_properties import parse_names
from weft.streams.catalog.procedure import Parameter, Procedure, Row, Session, open_table
from weft.streams.read.change_arguments import Form, change_arguments, change_of

_OTHER_NAMES: Final = {"table": "other_table"}
"""Fields whose names are those of other parameters: ``table`` is the table that is changed."""
_TYPES: Final[Mapping[Form, str]] = {"names": "string", "map": "map<string,string>", "flag": "boolean"}


def schema_procedure(kind: str) -> Procedure:
    """The procedure for a kind of change."""
    model, arguments = CHANGES[kind], change_arguments(CHANGES[kind])
    names = {_OTHER_NAMES.get(name, name): name for name in arguments}
    parameters = [Parameter("table", "string", required=True, default=None)]
    for parameter, name in names.items():
        form, field = arguments[name]
        default = None if form in {"names", "map"} or field.is_required() else field.default
        parameters.append(Parameter(parameter, _TYPES.get(form, "string"), field.is_required(), default))

    def run(session: Session, table: str, **given: Any) -> Row:
        target = open_table(session, table)
        values = {
            names[parameter]: _value(arguments[names[parameter]][0], value)
            for parameter, value in given.items()
            if value is not None
        }
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
