"""``weft publish``: shows the base files of a table to other engines as a table of an open format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from storage.errors import InvalidInput
from streams.cli.arguments import Json, StorageOption, Target, column_names, open_table, usage_errors
from streams.cli.output import counted, print_result

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

publish_command = typer.Typer()


@publish_command.command()
def publish(
    target: Target,
    iceberg: Annotated[
        str | None, typer.Option(metavar="NAMESPACE.TABLE", help="Publish as the Iceberg table of this name.")
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Publish as a Delta table: folder base in the table's location.")
    ] = False,
    catalog: Annotated[
        str, typer.Option(help="Name of the Iceberg catalog in the configuration of pyiceberg.")
    ] = "default",
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-option",
            metavar="KEY=VALUE",
            help="Property of the catalog, as pyiceberg takes it: uri, warehouse, ... May be repeated. "
            "type=folder: no catalog, the metadata is in folders below warehouse.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Columns to publish, separated by commas; by default all columns.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Publish the base files of a table as an Iceberg or a Delta table: metadata over the files as they are, no copy.

    Run it after weft compact. What is published already is not published again. Iceberg needs the extra iceberg.
    """
    with usage_errors():
        names = column_names(columns)
        if (iceberg is None) == (not delta):
            raise InvalidInput("the format is missing", hint="give either --iceberg NAMESPACE.TABLE or --delta")
        if delta and (catalog_option or catalog != "default"):
            raise InvalidInput("a Delta table has no catalog", hint="remove --catalog and --catalog-option")
        opened = None if iceberg is None else _open_catalog(catalog, catalog_option or ())
    table = open_table(target, storage_option)
    with usage_errors():
        if iceberg is not None and opened is not None:
            from storage.publish.iceberg import publish_iceberg

            result, name = publish_iceberg(table, opened, iceberg, names), iceberg
        else:
            from storage.publish.delta import publish_delta

            result, name = publish_delta(table, names), f"{table.uri}/base"
    files = counted(result.files, "file")
    text = (
        f"published {name} with {counted(result.rows, 'row')} in {files}: "
        f"{result.added} added, {result.removed} removed"
        if result.changed
        else f"{name} is up to date: {counted(result.rows, 'row')} in {files}"
    )
    waiting = table.snapshot(result.cut).read_optimized().staleness.rows
    if waiting:
        text += f"\n{counted(waiting, 'row')} in logs not published: run weft compact, then publish again"
    print_result(result, text, as_json=as_json)


def _open_catalog(name: str, options: Sequence[str]) -> Catalog:
    """The Iceberg catalog of a name.

    Raises:
        InvalidInput: An option is not KEY=VALUE, or pyiceberg is not installed, or does not find or open the catalog.
    """
    from storage.publish.open_catalog import open_catalog

    properties = dict(option.partition("=")[::2] for option in options)
    if not all(properties.values()) or "" in properties:
        raise InvalidInput(
            "--catalog-option is not KEY=VALUE", hint="for example --catalog-option uri=sqlite:////data/catalog.db"
        )
    return open_catalog(name, properties)
