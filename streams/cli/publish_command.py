"""``weft publish``: shows the base files of a table to other engines as a table of an open format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from storage.errors import InvalidInput, NotFound
from storage.plural import counted
from storage.publish.targets import DeltaTarget, IcebergTarget
from streams.cli.arguments import Json, StorageOption, Target, column_names, open_table, usage_errors
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.cli.progress import Quiet, progress

publish_command = typer.Typer()


@publish_command.command(
    epilog=examples(
        "weft publish lake/orders_wide --delta",
        "weft publish lake/orders_wide --iceberg shop.orders_wide --catalog-option type=folder "
        "--catalog-option warehouse=./warehouse",
    )
)
def publish(
    target: Target,
    iceberg: Annotated[
        str | None, typer.Option(metavar="NAMESPACE.TABLE", help="Publish as the Iceberg table of this name.")
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Publish as a Delta table: folder base in the table's location.")
    ] = False,
    deletion_vectors: Annotated[
        bool,
        typer.Option(
            "--deletion-vectors/--no-deletion-vectors",
            help="Whether readers of the Delta table have to know deletion vectors, which hide unused rows of shared "
            "files. Without them a state with such rows is not published.",
        ),
    ] = True,
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
    quiet: Quiet = False,
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
        if iceberg is not None and not deletion_vectors:
            raise InvalidInput("an Iceberg table has no deletion vectors", hint="remove --no-deletion-vectors")
        properties = _properties(catalog_option or ())
    to = DeltaTarget(names, deletion_vectors) if iceberg is None else IcebergTarget(iceberg, catalog, properties, names)
    table = open_table(target, storage_option)
    name = iceberg or f"{table.uri}/base"
    try:
        with progress("publishing", quiet=quiet) as show:
            result = to.publish(table, show)
    except (InvalidInput, NotFound):
        with usage_errors():
            raise
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
    if not result.is_moment:
        text += (
            "\nit may not be the table at one moment, because not all file groups were compacted up to the same "
            "commits: run weft compact, then publish again"
        )
    print_result(result, text, as_json=as_json)


def _properties(options: Sequence[str]) -> dict[str, str]:
    """Properties of a catalog.

    Raises:
        InvalidInput: An option is not KEY=VALUE.
    """
    properties = dict(option.partition("=")[::2] for option in options)
    if not all(properties.values()) or "" in properties:
        raise InvalidInput(
            "--catalog-option is not KEY=VALUE", hint="for example --catalog-option uri=sqlite:////data/catalog.db"
        )
    return properties
