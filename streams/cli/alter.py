"""``weft alter``: schema changes while writers run. A change that would break stored data or writers is refused."""

from __future__ import annotations

from typing import Annotated

import typer

from storage.engine import SchemaChange
from storage.errors import InvalidInput
from streams.cli import completion
from streams.cli.arguments import Json, StorageOption, Target, column_names, console, open_table, usage_errors
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.read.text_values import parse_default

alter = typer.Typer(
    no_args_is_help=True, help="Change a table's schema while it is written. Writers that know the old schema continue."
)

Default = Annotated[
    str | None, typer.Option(help="Value shown where the column's group is absent: JSON, or plain text.")
]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="A Spark SQL type name.")]


def _tell(change: SchemaChange, what: str, *, as_json: bool) -> None:
    text = f"{what}: schema revision {change.rev}" if change.changed else "nothing to do: the schema is so already"
    print_result(change, text, as_json=as_json)


@alter.command(
    epilog=examples(
        "weft alter add-column lake/orders_wide payment tip double",
        "weft alter add-column lake/orders_wide order channel string --default web",
    )
)
def add_column(
    target: Target,
    group: Annotated[str, typer.Argument(help="Group of the new column.", autocompletion=completion.group_names)],
    name: Annotated[str, typer.Argument(help="Name of the column.")],
    type_name: TypeName,
    default: Default = None,
    function: Annotated[
        str | None, typer.Option(help="Aggregate function of the column, in an aggregate group.")
    ] = None,
    comment: Annotated[str, typer.Option(help="What the column means.")] = "",
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Add a column, the last of the table, to a group."""
    change = open_table(target, storage_option).add_column(
        group, name, type_name, default=parse_default(default), function=function, comment=comment
    )
    _tell(change, f"column {name} is added to group {group}", as_json=as_json)


@alter.command(
    epilog=examples(
        "weft alter add-group lake/orders_wide shipment --column 'carrier string' --column 'ship_ts timestamp' "
        "--ordering ship_ts --stream shipments"
    )
)
def add_group(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the group.")],
    column: Annotated[list[str], typer.Option(help='A column, "NAME TYPE". May be repeated.')],
    ordering: Annotated[
        list[str] | None, typer.Option(help="A column that orders events. May be repeated: the first one counts most.")
    ] = None,
    merge: Annotated[str, typer.Option(help="Merge mode.")] = "latest",
    function: Annotated[
        list[str] | None, typer.Option(help="COLUMN=FUNCTION, in an aggregate group. May be repeated.")
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="A stream that writes the group; a new stream is added. May be repeated.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Add a group of new columns, and say which streams write it."""
    with usage_errors():
        columns = dict(_pair(text, " ", "--column", "NAME TYPE") for text in column)
        functions = dict(_pair(text, "=", "--function", "COLUMN=FUNCTION") for text in function or [])
    table = open_table(target, storage_option)
    known = {known_stream.name for known_stream in table.schema.streams}
    change = table.add_group(
        name,
        columns,
        ordering=ordering or [],
        merge=merge,
        functions=functions,
        streams=[given for given in stream or [] if given in known],
        new_streams={given: "group" for given in stream or [] if given not in known},
    )
    _tell(change, f"group {name} is added", as_json=as_json)


@alter.command(epilog=examples("weft alter add-stream lake/orders_wide corrections --group order --on-delete ignore"))
def add_stream(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the stream.")],
    group: Annotated[
        list[str], typer.Option(help="A group that it writes. May be repeated.", autocompletion=completion.group_names)
    ],
    on_delete: Annotated[
        str, typer.Option(help="What its deletes remove: group, row, or ignore for nothing.")
    ] = "group",
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Add a stream that writes existing groups."""
    change = open_table(target, storage_option).add_stream(name, group, on_delete=on_delete)
    _tell(change, f"stream {name} is added", as_json=as_json)


@alter.command(epilog=examples("weft alter widen lake/orders_wide amount 'decimal(18,2)'"))
def widen(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the column.", autocompletion=completion.column_names)],
    type_name: TypeName,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Change a column to a wider type."""
    change = open_table(target, storage_option).widen_column(name, type_name)
    _tell(change, f"column {name} is {type_name}", as_json=as_json)


@alter.command(epilog=examples("weft alter set-default lake/orders_wide status unknown"))
def set_default(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the column.", autocompletion=completion.column_names)],
    value: Annotated[str | None, typer.Argument(help="JSON, or plain text; NULL if left out.")] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Set the value that a column shows where its group is absent."""
    change = open_table(target, storage_option).set_default(name, parse_default(value))
    _tell(change, f"column {name} shows {value or 'NULL'} where its group is absent", as_json=as_json)


@alter.command(
    epilog=examples(
        "weft alter set-comment lake/orders_wide 'Orders and payments'",
        "weft alter set-comment lake/orders_wide 'in EUR' --column paid",
    )
)
def set_comment(
    target: Target,
    comment: Annotated[str, typer.Argument(help='The comment; "" removes it.')],
    column: Annotated[
        str | None,
        typer.Option(help="Name of a column; the table if left out.", autocompletion=completion.column_names),
    ] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Say what the table, or a column, is for."""
    change = open_table(target, storage_option).set_comment(comment, column)
    what = "the table" if column is None else f"column {column}"
    _tell(change, f"the comment of {what} is {'set' if comment else 'removed'}", as_json=as_json)


@alter.command(
    epilog=examples(
        "weft alter set-ttl lake/orders_wide --rows '90 days' --by order_ts",
        "weft alter set-ttl lake/orders_wide --never",
    )
)
def set_ttl(
    target: Target,
    rows: Annotated[str | None, typer.Option(help="Age at which rows expire, for example 90 days.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Column that says how old a row is; by default its last event counts.")
    ] = None,
    unit: Annotated[str | None, typer.Option(help="Of an integer column: seconds, milliseconds, microseconds.")] = None,
    deletes: Annotated[
        str | None, typer.Option(help="How long deletes stay known after their commit; by default as long as rows.")
    ] = None,
    within: Annotated[
        str | None, typer.Option(help="What is older is removed within this time; by default a tenth of the shorter.")
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="Keep rows and deletes for ever again.")] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Set how long rows and deletes are kept, instead of the setting before. Services of the table apply it."""
    with usage_errors():
        if never == any((rows, by, unit, deletes, within)):
            raise InvalidInput("give either --never, or --rows or --deletes", hint='--rows "90 days" --by order_ts')
    table = open_table(target, storage_option)
    change = table.set_ttl(rows=rows, by=by, unit=unit, deletes=deletes, within=within)
    done = "rows and deletes are kept for ever" if never else "the time to live is set"
    _tell(change, done, as_json=as_json)
    if not (never or as_json):
        console().print("weft services, weft run with a section ttl, and weft apply-ttl apply it", style="dim")


@alter.command(epilog=examples("weft alter set-overlays lake/orders_wide true"))
def set_overlays(
    target: Target,
    on: Annotated[bool, typer.Argument(metavar="true|false", help="Whether compactions may write overlays.")],
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Let compactions write only the column groups that have changed, beside the base files (storage/FORMAT.md)."""
    change = open_table(target, storage_option).set_overlays(on)
    done = "compactions write overlays" if on else "compactions write whole base files, and end the overlays"
    _tell(change, done, as_json=as_json)


@alter.command(epilog=examples("weft alter set-index lake/orders_wide email,phone"))
def set_index(
    target: Target,
    columns: Annotated[str, typer.Argument(help="Names of columns, separated by commas; '' for none.")],
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Let compactions write Bloom filters of these columns, by which reads with COLUMN = VALUE skip row groups."""
    names = column_names([columns] if columns.strip() else None) or ()
    change = open_table(target, storage_option).set_index(names)
    _tell(change, f"base files get an index of {columns}" if names else "base files get no index", as_json=as_json)


@alter.command(
    epilog=examples(
        "weft alter add-reference lake/orders_wide customer ../customers --on customer_id --column name --column tier"
    )
)
def add_reference(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the reference.")],
    table: Annotated[
        str, typer.Argument(help="Location of the other table; a relative path starts at the location of this table.")
    ],
    on: Annotated[
        list[str], typer.Option(help="A column that holds the key of the other table. Repeat it for several, in order.")
    ],
    column: Annotated[
        list[str] | None, typer.Option(help="A column of the other table to show. May be repeated; default: all.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Put before these names; default: NAME_.")] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Show the columns of another table beside those of this one, joined by a foreign key."""
    change = open_table(target, storage_option).add_reference(
        name, table, column_names(on) or (), columns=column_names(column), prefix=prefix
    )
    _tell(change, f"reference {name} to {table} is added", as_json=as_json)


@alter.command(epilog=examples("weft alter drop-reference lake/orders_wide customer"))
def drop_reference(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the reference.")],
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Drop a reference. Older snapshots keep its columns."""
    change = open_table(target, storage_option).drop_reference(name)
    _tell(change, f"reference {name} is dropped", as_json=as_json)


def _pair(text: str, separator: str, option: str, form: str) -> tuple[str, str]:
    name, found, value = text.strip().partition(separator)
    if not found or not value.strip():
        raise InvalidInput(f"{option} {text!r} is not {form}", hint="give the option once for every column")
    return name, value.strip()
