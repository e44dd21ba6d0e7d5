"""``weft alter``: schema changes while writers run. A change that would break stored data or writers is refused.

There is one command for each kind of change in `storage.alter`, with its fields as arguments and options. A field is an
argument if it is required and has a single value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from pydantic.fields import FieldInfo

from storage.alter import CHANGES
from storage.errors import InvalidInput
from streams.cli import completion
from streams.cli.arguments import Json, StorageOption, Target, column_names, console, open_table, usage_errors
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.read.change_arguments import Form, change_arguments, change_of

alter = typer.Typer(
    no_args_is_help=True, help="Change a table's schema while it is written. Writers that know the old schema continue."
)

_COMPLETIONS: Final = {"column": completion.column_names, "group": completion.group_names}
_FUNCTIONS: Final = ("=", "COLUMN=FUNCTION")
_TYPES: Final = (" ", "NAME TYPE")
_POSITIONAL: Final = {("set_default", "value"), ("set_index", "columns")}
"""Arguments that would be options: one may be left out, the other one is a list."""
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
    required = field.is_required() and form != "value"
    default = inspect.Parameter.empty if required else field.default if isinstance(field.default, str) else None
    annotation = annotation | None if default is None else annotation
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, declared]
    )


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


def _command(kind: str, done: Callable[[Any], str], *lines: str) -> None:
    """Add a command to `alter`.

    Args:
        kind: The kind of change that it makes.
        done: What was done, in words, for a change.
        lines: Examples for its help.
    """
    model, fields = CHANGES[kind], change_arguments(CHANGES[kind])
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

    parameters = [_parameter(kind, field, *facts) for field, facts in fields.items()]
    others: Mapping[str, tuple[Any, Any]] = {
        **({"never": (_NEVER, False)} if expires else {}),
        "storage_option": (StorageOption, None),
        "as_json": (Json, False),
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters.insert(0, inspect.Parameter("target", keyword, annotation=Target))
    parameters += [inspect.Parameter(key, keyword, default=d, annotation=a) for key, (a, d) in others.items()]
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010 - functions have no such attribute for mypy
    alter.command(
        kind.removesuffix("_column" if kind == "widen_column" else "").replace("_", "-"),
        help=model.__doc__,
        epilog=examples(*lines),
    )(run)


_command(
    "add_column",
    lambda change: f"column {change.name} is added to group {change.group}",
    "weft alter add-column lake/orders_wide payment tip double",
    "weft alter add-column lake/orders_wide order channel string --default web",
)
_command(
    "add_group",
    lambda change: f"group {change.name} is added",
    "weft alter add-group lake/orders_wide shipment --column 'carrier string' --column 'ship_ts timestamp' "
    "--ordering ship_ts --stream shipments",
)
_command(
    "add_stream",
    lambda change: f"stream {change.name} is added",
    "weft alter add-stream lake/orders_wide corrections --group order --on-delete ignore",
)
_command(
    "widen_column",
    lambda change: f"column {change.name} is {change.type}",
    "weft alter widen lake/orders_wide amount 'decimal(18,2)'",
)
_command(
    "set_default",
    lambda change: (
        f"column {change.name} shows {'NULL' if change.value is None else change.value} where its group is absent"
    ),
    "weft alter set-default lake/orders_wide status unknown",
)
_command(
    "set_comment",
    lambda change: (
        f"the comment of {f'column {change.column}' if change.column else 'the table'} is "
        f"{'set' if change.comment else 'removed'}"
    ),
    "weft alter set-comment lake/orders_wide 'Orders and payments'",
    "weft alter set-comment lake/orders_wide 'in EUR' --column paid",
)
_command(
    "set_ttl",
    lambda change: "the time to live is set" if change.rows or change.deletes else "rows and deletes are kept for ever",
    "weft alter set-ttl lake/orders_wide --rows '90 days' --by order_ts",
    "weft alter set-ttl lake/orders_wide --never",
)
_command(
    "set_overlays",
    lambda change: (
        "compactions write overlays" if change.on else "compactions write whole base files, and end the overlays"
    ),
    "weft alter set-overlays lake/orders_wide true",
)
_command(
    "set_index",
    lambda change: (
        f"base files get an index of {','.join(change.columns)}" if change.columns else "base files get no index"
    ),
    "weft alter set-index lake/orders_wide email,phone",
)
_command(
    "add_reference",
    lambda change: f"reference {change.name} to {change.table} is added",
    "weft alter add-reference lake/orders_wide customer ../customers --on customer_id --column name --column tier",
)
_command(
    "drop_reference",
    lambda change: f"reference {change.name} is dropped",
    "weft alter drop-reference lake/orders_wide customer",
)


def _pair(text: str, separator: str, option: str, form: str) -> tuple[str, str]:
    name, found, value = text.strip().partition(separator)
    if not found or not value.strip():
        raise InvalidInput(f"{option} {text!r} is not {form}", hint="give the option once for every column")
    return name, value.strip()
