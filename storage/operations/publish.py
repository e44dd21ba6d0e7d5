"""Publish: show the base files to other engines as an Iceberg or a Delta table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from weft.storage.config.table_properties import parse_names
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.operations.operation import Context, Face, Finished, Operation, Request, Row
from weft.storage.plural import counted
from weft.storage.publish.publication import Published
from weft.storage.publish.targets import DeltaTarget, IcebergTarget, Target
from weft.storage.table import Table


def _names(value: Any) -> Any:
    """Split a text, or several, with names separated by commas."""
    if isinstance(value, str):
        return parse_names(value)
    return value and [name.strip() for text in value for name in text.split(",") if name.strip()]


def _properties(value: Any) -> Any:
    """Parse properties: a mapping, or texts KEY=VALUE."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    properties = dict(option.partition("=")[::2] for option in value)
    if not all(properties.values()) or "" in properties:
        raise InvalidInput(
            "--catalog-option is not KEY=VALUE", hint="for example --catalog-option uri=sqlite:////data/catalog.db"
        )
    return properties


class PublishRequest(Request):
    """Publish the base files of a table as an Iceberg or a Delta table. Writes metadata, and copies no file.

    Run it after weft compact. A state that is already published is not published again. Iceberg needs the extra
    iceberg.
    """

    iceberg: Annotated[str | None, Face(metavar="NAMESPACE.TABLE")] = None
    """Publish as the Iceberg table of this name."""
    catalog: str = "default"
    """Name of the Iceberg catalog in the configuration of pyiceberg."""
    catalog_options: Annotated[
        Mapping[str, str],
        BeforeValidator(_properties),
        Face(type=dict, flag="--catalog-option", metavar="KEY=VALUE", optional=True),
        Field(repr=False),
    ] = {}
    """Property of the catalog for pyiceberg: uri, warehouse, ... May be repeated. With type=folder there is no catalog,
    and the metadata is in folders below warehouse.
    """
    columns: Annotated[list[str] | None, BeforeValidator(_names), Face(type=list)] = None
    """Columns to publish, separated by commas; by default all columns."""
    delta: bool = False
    """Publish as a Delta table: folder base in the table's location."""
    deletion_vectors: Annotated[bool, Face(flag="--deletion-vectors/--no-deletion-vectors")] = True
    """Whether readers of the Delta table have to know deletion vectors, which hide unused rows of shared files.
    Without them a state with such rows is not published.
    """

    @property
    def target(self) -> Target:
        """The published table."""
        if self.iceberg is None:
            return DeltaTarget(columns=self.columns, deletion_vectors=self.deletion_vectors)
        return IcebergTarget(
            table=self.iceberg, catalog=self.catalog, properties=self.catalog_options, columns=self.columns
        )


def _check(request: PublishRequest, context: Context) -> None:
    spell = context.spell
    if (request.iceberg is None) == (not request.delta):
        raise InvalidInput("publish: the format is missing", hint=f"pass either {spell('iceberg')} or {spell('delta')}")
    if request.delta and (request.catalog_options or request.catalog != "default"):
        hint = f"remove {spell('catalog')} and {spell('catalog_options')}"
        raise InvalidInput("a Delta table has no catalog", hint=hint)
    if request.iceberg is not None and not request.deletion_vectors:
        hint = f"leave {spell('deletion_vectors')} out"
        raise InvalidInput("publish: an Iceberg table has no deletion vectors", hint=hint)


def _run(table: Table, request: PublishRequest, context: Context) -> Published:
    try:
        return request.target.publish(table, context.progress)
    except (InvalidInput, NotFound):
        with context.naming():
            raise


def _name(finished: Finished[PublishRequest, Published]) -> str:
    return finished.request.iceberg or f"{finished.table.uri}/base"


def _describe(finished: Finished[PublishRequest, Published]) -> str:
    result, name = finished.result, _name(finished)
    files = counted(result.files, "file")
    text = (
        f"published {name} with {counted(result.rows, 'row')} in {files}: "
        f"{result.added} added, {result.removed} removed"
        if result.changed
        else f"{name} is up to date: {counted(result.rows, 'row')} in {files}"
    )
    waiting = finished.table.snapshot(result.cut).read_optimized().staleness.rows
    if waiting:
        text += f"\n{counted(waiting, 'row')} in logs not published: run weft compact, then publish again"
    if not result.is_moment:
        text += (
            "\nit may not be the table at one moment, because not all file groups were compacted up to the same "
            "commits: run weft compact, then publish again"
        )
    return text


def _rows(finished: Finished[PublishRequest, Published]) -> Iterable[Row]:
    names = ("cut", "changed", "files", "added", "removed", "rows")
    return [{"published": _name(finished), **{name: getattr(finished.result, name) for name in names}}]


PUBLISH: Final = Operation(
    name="publish",
    request=PublishRequest,
    check=_check,
    run=_run,
    describe=_describe,
    columns="published string, cut string, changed boolean, files bigint, added bigint, removed bigint, rows bigint",
    rows=_rows,
    examples=(
        "weft publish lake/orders_wide --delta",
        (
            "weft publish lake/orders_wide --iceberg shop.orders_wide --catalog-option type=folder "
            "--catalog-option warehouse=./warehouse"
        ),
    ),
    stage="publishing",
)
