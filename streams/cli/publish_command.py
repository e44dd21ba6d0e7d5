"""``weft publish``: shows the base files of a table to other engines as a table of an open format."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from storage.errors import InvalidInput
from streams.cli.arguments import Json, StorageOption, Target, open_table, usage_errors
from streams.cli.output import counted, print_result

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

publish_command = typer.Typer()


@publish_command.command()
def publish(
    target: Target,
    iceberg: Annotated[str, typer.Option(metavar="NAMESPACE.TABLE", help="Name of the Iceberg table.")],
    catalog: Annotated[
        str, typer.Option(help="Name of the Iceberg catalog in the configuration of pyiceberg.")
    ] = "default",
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-option",
            metavar="KEY=VALUE",
            help="Property of the catalog, as pyiceberg takes it: uri, warehouse, ... May be repeated.",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to publish, separated by commas; by default all columns.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Publish the base files of a table as an Iceberg table: metadata over the files as they are, no copy.

    Run it after weft compact. What is published already is not published again. Needs the extra iceberg.
    """
    with usage_errors():
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        if find_spec("pyiceberg") is None:
            raise InvalidInput("publishing as Iceberg needs pyiceberg", hint="pip install 'weft[iceberg]'")
        opened = _open_catalog(catalog, catalog_option or ())
    from storage.publish.iceberg import publish_iceberg

    table = open_table(target, storage_option)
    with usage_errors():
        result = publish_iceberg(table, opened, iceberg, names)
    files = counted(result.files, "file")
    text = (
        f"published {iceberg} with {counted(result.rows, 'row')} in {files}: "
        f"{result.added} added, {result.removed} removed"
        if result.changed
        else f"{iceberg} is up to date: {counted(result.rows, 'row')} in {files}"
    )
    print_result(result, text, as_json=as_json)


def _open_catalog(name: str, options: Sequence[str]) -> Catalog:
    """The Iceberg catalog of a name.

    Raises:
        InvalidInput: An option is not KEY=VALUE, or pyiceberg does not find or open the catalog.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    properties = dict(option.partition("=")[::2] for option in options)
    if not all(properties.values()) or "" in properties:
        raise InvalidInput(
            "--catalog-option is not KEY=VALUE", hint="for example --catalog-option uri=sqlite:////data/catalog.db"
        )
    try:
        return load_catalog(name, **properties)
    except (ValueError, NotInstalledError) as error:
        raise InvalidInput(
            f"Iceberg catalog {name!r} cannot be opened: {error}",
            hint="give its properties with --catalog-option, or in .pyiceberg.yaml",
        ) from error
