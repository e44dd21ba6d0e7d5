"""``weft explain``: why a row has its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from storage.engine import TableSchema, format_type
from storage.errors import InvalidInput
from streams.cli.arguments import Json, StorageOption, Target, open_table, usage_errors
from streams.cli.output import print_result
from streams.read.as_of import parse_point, warn_if_unsettled

explaining = typer.Typer()


@explaining.command()
def explain(
    target: Target,
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="[COLUMN=]VALUE",
            help="Key of the row. Give one for each key column; binaries in hexadecimal.",
        ),
    ],
    as_of: Annotated[
        str | None, typer.Option(help="Snapshot: a cut, a savepoint or a time (ISO 8601 with zone); now by default.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="All events of the key that the retained log has, also merged ones.")
    ] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Why a row has its values: per column group the stored events, which one wins, and why the others lose.

    Each event is shown with stream, lane, commit, time, ordering value and file. Reads only the blocks of the key.
    """
    with usage_errors():
        point = parse_point(as_of)
    table = open_table(target, storage_option)
    snapshot = table.snapshot(point)
    warn_if_unsettled(point, snapshot)
    with usage_errors():
        wanted = parse_key(snapshot.table_schema, key)
    explanation = snapshot.explain(wanted, history=history)
    print_result(explanation, explanation.to_text(), as_json=as_json)


def parse_key(schema: TableSchema, texts: Sequence[str]) -> dict[str, Any]:
    """The key that a command line gives, by column.

    Args:
        schema: The schema of the table.
        texts: ``COLUMN=VALUE`` for each key column; of a key of one column also the value alone.

    Raises:
        InvalidInput: A column is missing, unknown or given twice, or a value is not of its type.
    """
    shape = ", ".join(f"{name} {format_type(schema.column(name).type)}" for name in schema.key)
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or name not in schema.key:
            if len(schema.key) > 1:
                raise InvalidInput(
                    f"--key {text!r} names no key column", hint=f"--key COLUMN=VALUE; the key is ({shape})"
                )
            name, value = schema.key[0], text
        if name in found:
            raise InvalidInput(f"--key has column {name!r} twice", hint=f"the key is ({shape})")
        kind = schema.column(name).type
        try:
            found[name] = bytes.fromhex(value) if pa.types.is_binary(kind) else pa.scalar(value).cast(kind).as_py()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise InvalidInput(
                f"--key {text!r}: {value!r} is no {format_type(kind)}", hint=f"the key is ({shape})"
            ) from error
    missing = [name for name in schema.key if name not in found]
    if missing:
        raise InvalidInput(f"--key lacks column {', '.join(missing)}", hint=f"the key is ({shape})")
    return found
