"""``weft alter``: schema changes while writers run. A change that would break stored data or writers is refused.

There is one command for each kind of change in `weft.storage.alter`, with its fields as arguments and options. A field
is an argument if it is required and has a single value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from pydantic.fields import FieldInfo

from weft.storage.alter import CHANGES
from weft.storage.errors import InvalidInput
from weft.streams.cli import completion
from weft.streams.cli.arguments import Json, StorageOption, Target, column_names, console, open_table, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_result
from weft.streams.read.change_arguments import Form, change_arguments, change_of

alter = typer.Typer(
    no_args_is_help=True, help="Change a table's schema while it is written. Writers that know the old schema continue."
)

_COMPLETIONS: Final = {"column": completion.column_names, "group": completion.group_names}
_FUNCTIONS: Final = ("=", "COLUMN=FUNCTION")
_TYPES: Final = (" ", "NAME TYPE")
_POSITIONAL: Final = {("set_default", "value"), ("set_index", "columns")}
"""Arguments that would be options: one may be left out, the other one is a list."""
_WHOLE_FILES: Final = "whole base files, and end the overlays"
_NAMES: Final = {"widen_column": "widen"}
_NEVER: Final = Annotated[bool, typer.Option("--never", help="Keep rows and deletes for ever again.")]


def _parameter(kind: str, name: str, form: Form, field: FieldInfo) -> inspect.Parameter:
    """The argument or option for a field of a change."""
    complete = next((_COMPLETIONS[mark] for mark in field.metadata if isinstance(mark, str)), None)
    words, option = field.description or "", f"--{name.removesuffix('s').replace('_', '-')}"
    several = form in {"names", "map"}
    declared: Any
    if (kind, name) in _POSITIONAL or (field.is_required() and not several):
        metavar = "true|false" if form == "flag" else None
        words = f"{words.removesuffix('.')}, separated by commas; '' for none." if several else words
        words = f"{words} JSON, or plain text; NULL if left out." if form == "value" else words
        declared, several = typer.Argument(metavar=metavar, help=words, autocompletion=complete), False
    elif several:
        metavar = _pairs(name)[1] if form == "map" else None
        declared = typer.Option(option, metavar=metavar, help=f"{words} May be repeated.", autocompletion=complete)
    else:
        words = f"{words} JSON, or plain text." if form == "value" else words
        declared = typer.Option(help=words, autocompletion=complete)
    annotation: Any = list[str] if several else bool if form == "flag" else str
    if field.is_required() and form != "value":
        return _keyword(name, Annotated[annotation, declared])
    default = field.default if isinstance(field.default, str) else None
    return _keyword(name, Annotated[annotation if default is not None else annotation | None, declared], default)


def _pairs(name: str) -> tuple[str, str]:
    return _FUNCTIONS if name == "functions" else _TYPES


def _value(name: str, form: Form, given: Any) -> Any:
    """The value of an argument or option, for `change_of`."""
    if form == "names" and isinstance(given, str):
        return column_names([given])
    if form == "names" and name in {"on", "columns"}:
        return column_names(given)
    if form == "map" and given is not None:
        separator, shape = _pairs(name)
        return dict(_pair(text, separator, f"--{name.removesuffix('s')}", shape) for text in given)
    return given


def _add_command(kind: str, done: Callable[[Any], str]) -> None:
    """Add the command for a kind of change to `alter`; ``done`` says in words what a change did."""
    model, fields, name = CHANGES[kind], change_arguments(CHANGES[kind]), _NAMES.get(kind, kind.replace("_", "-"))
    expires = kind == "set_ttl"

    def run(
        target: str, storage_option: Sequence[str] | None, *, as_json: bool, never: bool = False, **texts: Any
    ) -> None:
        with usage_errors():
            arguments = {field: _value(field, fields[field][0], value) for field, value in texts.items()}
            if expires and never == any(texts.values()):
                raise InvalidInput("give either --never, or --rows or --deletes", hint='--rows "90 days" --by order_ts')
        table = open_table(target, storage_option)
        change = change_of(model, table.schema, arguments)
        result = table.alter(change)
        text = f"{done(change)}: schema revision {result.rev}"
        print_result(result, text if result.changed else "nothing to do: the schema is so already", as_json=as_json)
        if expires and not (never or as_json):
            console().print("weft services, weft run with a section ttl, and weft apply-ttl apply it", style="dim")

    parameters = [
        _keyword("target", Target),
        *(_parameter(kind, field, *facts) for field, facts in fields.items()),
        *([_keyword("never", _NEVER, False)] if expires else []),
        _keyword("storage_option", StorageOption, None),
        _keyword("as_json", Json, False),
    ]
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010 - functions have no such attribute for mypy
    lines = [line for line in _EXAMPLES.splitlines() if line.startswith(f"weft alter {name} ")]
    alter.command(name, help=model.__doc__, epilog=examples(*lines))(run)


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _index(columns: Sequence[str]) -> str:
    return f"an index of {','.join(columns)}" if columns else "no index"


def _pair(text: str, separator: str, option: str, form: str) -> tuple[str, str]:
    name, found, value = text.strip().partition(separator)
    if not found or not value.strip():
        raise InvalidInput(f"{option} {text!r} is not {form}", hint="give the option once for every column")
    return name, value.strip()


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
_DONE: Final[Mapping[str, Callable[[Any], str]]] = {
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
for _kind, _done in _DONE.items():
    _add_command(_kind, _done)
