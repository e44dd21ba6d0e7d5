"""Schema changes: one operation for each kind in `weft.storage.alter`, with the fields of its model as texts.

Commands take a field as an argument if it is required and has a single value. Names are separated by commas, or an
option is repeated; a default is JSON or plain text. A stream that the table does not have is created, so
``new_streams`` is not a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo

from weft.storage.alter import CHANGES, Change
from weft.storage.config.table_properties import parse_names
from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.storage.operations.operation import Completion, Context, Face, Finished, Operation, Request
from weft.storage.services.schema.schema_changes import SchemaChange
from weft.storage.table import Table

AppliedChange = tuple[Change, SchemaChange]
Form = Literal["text", "names", "map", "flag", "value"]

_FORMS: Final[Mapping[Any, Form]] = {Sequence: "names", Mapping: "map", bool: "flag", Any: "value"}
_TYPES: Final[Mapping[Form, Any]] = {"names": list[str], "map": dict[str, str], "flag": bool}
_COMPLETIONS: Final[Mapping[str, Completion]] = {"column": "column_names", "group": "group_names"}
_POSITIONAL: Final = {("set_default", "value"), ("set_index", "columns")}
"""Fields that commands take as arguments although they are optional or lists."""
_PARAMETER_NAMES: Final = {"table": "other_table"}
"""Names of parameters that differ from the field: ``table`` is already the table that is changed."""
_NEVER: Final[Mapping[str, Any]] = {
    "never": (Annotated[bool, Face(procedure=False)], Field(False, description="Keep rows and deletes for ever again."))
}
_WHOLE_FILES: Final = "whole base files, and end the overlays"
_APPLIED: Final = "\nweft services, weft run with a section ttl, and weft apply-ttl apply it"


def _form(annotation: Any) -> Form:
    while get_origin(annotation) in {Annotated, Union, UnionType}:
        annotation = get_args(annotation)[0]
    return _FORMS.get(get_origin(annotation) or annotation, "text")


def _field(kind: str, name: str, info: FieldInfo) -> tuple[Any, Any]:
    """The type and field information of a request's field that stands for a field of a change."""
    form, description = _form(info.annotation), info.description or ""
    is_collection, is_required = form in {"names", "map"}, info.is_required()
    argument = (kind, name) in _POSITIONAL or (is_required and not is_collection)
    if form == "value":
        description += " JSON, or plain text; NULL if left out." if argument else " JSON, or plain text."
    if is_collection and argument:
        description = f"{description.removesuffix('.')}, separated by commas; '' for none."
    option = f"--{name.removesuffix('s')}"
    pairs = ("=", "COLUMN=FUNCTION") if name == "functions" else (" ", "NAME TYPE")
    metavars = {"flag": "true|false", "map": pairs[1]}
    face = Face(
        type=str if is_collection and argument else get_origin(_TYPES.get(form)) or _TYPES.get(form, str),
        argument=argument,
        flag=option if is_collection and not argument else None,
        metavar="TABLE" if name in _PARAMETER_NAMES else metavars.get(form),
        completes=next((_COMPLETIONS[mark] for mark in info.metadata if isinstance(mark, str)), ""),
        repeated=is_collection and not argument,
    )

    def read(value: Any) -> Any:
        if form == "names" and isinstance(value, str):
            return parse_names(value) if value.strip() else []
        if form == "names" and name in {"on", "columns"}:
            return [part.strip() for text in value for part in text.split(",") if part.strip()]
        if form == "map" and isinstance(value, list):  # texts of a command, or pairs of a map of SQL
            return dict(_pair(item, option, *pairs) if isinstance(item, str) else item for item in value)
        return value

    default = ... if is_required else info.default if isinstance(info.default, str) else None
    kind_of_values: Any = _TYPES.get(form, str) | None
    return Annotated[kind_of_values, BeforeValidator(read), face], Field(default, description=description)


def _pair(text: str, option: str, separator: str, expected_form: str) -> tuple[str, str]:
    name, separator_match, value = text.strip().partition(separator)
    if not separator_match or not value.strip():
        raise InvalidInput(f"{option} {text!r} is not {expected_form}", hint="repeat the option for every column")
    return name, value.strip()


def _default(text: str) -> Any:
    """Parse a default value: JSON, or otherwise the text itself."""
    with suppress(ValueError):
        return parse_json(text)
    return text


def _prepare(_: Table, request: Any, context: Context) -> Any:
    has_values = any(value for name, value in request if name != "never")
    if context.is_command and getattr(request, "never", None) == has_values:
        with context.naming():
            raise InvalidInput("pass either --never, or --rows or --deletes", hint='--rows "90 days" --by order_ts')
    return request


def _operation(kind: str, model: type[Change]) -> Operation[Any, AppliedChange]:
    fields = {name: info for name, info in model.model_fields.items() if name != "new_streams"}
    expires = kind == "set_ttl"
    parameters: dict[str, Any] = {
        **{_PARAMETER_NAMES.get(name, name): _field(kind, name, info) for name, info in fields.items()},
        **(_NEVER if expires else {}),
    }
    request = create_model(model.__name__, __base__=Request, __doc__=model.__doc__, **parameters)

    def run(table: Table, request: Any, _: Context) -> AppliedChange:
        texts = {name: getattr(request, _PARAMETER_NAMES.get(name, name)) for name in fields}
        values = {
            name: _default(value) if _form(fields[name].annotation) == "value" else value
            for name, value in texts.items()
            if value is not None
        }
        if "streams" in values:
            existing = {stream.name for stream in table.schema.streams}
            values["new_streams"] = {name: "group" for name in values["streams"] if name not in existing}
            values["streams"] = [name for name in values["streams"] if name in existing]
        change = model.model_validate(values)
        return change, table.alter(change)

    def describe(finished: Finished[Any, AppliedChange]) -> str:
        change, result = finished.result
        description = f"{_DESCRIPTIONS[kind](change)}: schema revision {result.rev}"
        text = description if result.changed else "nothing to do: the schema already includes this change"
        return text + (_APPLIED if expires and not finished.request.never else "")

    name = "widen" if kind == "widen_column" else kind.replace("_", "-")
    return Operation(
        name=kind,
        group="alter",
        command_name=name,
        request=request,
        prepare=_prepare,
        run=run,
        describe=describe,
        json=lambda finished: finished.result[1],
        columns="revision bigint, changed boolean",
        rows=lambda finished: [{"revision": finished.result[1].rev, "changed": finished.result[1].changed}],
        examples=tuple(line for line in _EXAMPLES.splitlines() if line.startswith(f"weft alter {name} ")),
    )


def _index(columns: Sequence[str]) -> str:
    return f"an index of {','.join(columns)}" if columns else "no index"


_EXAMPLES: Final = """
weft alter add-column lake/orders_wide payment tip double
weft alter add-column lake/orders_wide order channel string --default web
weft alter add-group lake/orders_wide shipment --column 'carrier string' --column 'ship_ts timestamp' \
--ordering ship_ts --stream shipments
weft alter add-stream lake/orders_wide corrections --group order --on-delete ignore
weft alter widen lake/orders_wide amount 'decimal(18,2)'
weft alter set-default lake/orders_wide status unknown
weft alter set-comment lake/orders_wide 'Orders and payments'
weft alter set-comment lake/orders_wide 'in EUR' --column paid
weft alter set-ttl lake/orders_wide --rows '90 days' --by order_ts
weft alter set-ttl lake/orders_wide --never
weft alter set-overlays lake/orders_wide true
weft alter set-index lake/orders_wide email,phone
weft alter add-reference lake/orders_wide customer ../customers --on customer_id --column name --column tier
weft alter drop-reference lake/orders_wide customer
"""
_DESCRIPTIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "add_column": lambda change: f"column {change.name} is added to group {change.group}",
    "add_group": lambda change: f"group {change.name} is added",
    "add_stream": lambda change: f"stream {change.name} is added",
    "widen_column": lambda change: f"column {change.name} is {change.type}",
    "set_default": lambda change: (
        f"column {change.name} shows {'NULL' if change.value is None else change.value} where its group is absent"
    ),
    "set_comment": lambda change: (
        f"the comment of {f'column {change.column}' if change.column else 'the table'} is "
        f"{'set' if change.comment else 'removed'}"
    ),
    "set_ttl": lambda change: "the time to live is set" if change.ttl() else "rows and deletes are kept for ever",
    "set_overlays": lambda change: f"compactions write {'overlays' if change.on else _WHOLE_FILES}",
    "set_index": lambda change: f"base files get {_index(change.columns)}",
    "add_reference": lambda change: f"reference {change.name} to {change.table} is added",
    "drop_reference": lambda change: f"reference {change.name} is dropped",
}

# `all_operations` finds these names. One line, because pydantic parses the source from the line of the call.
globals().update({kind: _operation(kind, CHANGES[kind]) for kind in _DESCRIPTIONS})
