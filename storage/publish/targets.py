"""Where a weft table is published: as values with format, name and columns of each published table."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from weft.storage.core.plan.current_files import current_files
from weft.storage.core.plan.slices import base_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.publish.publication import Published, columns_to_publish
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.table import Table


class IcebergTarget(BaseModel):
    """An Iceberg table.

    Attributes:
        table: Namespace and name, separated by dots.
        catalog: Name of the catalog in the configuration of pyiceberg.
        properties: Further properties of the catalog; may contain secrets.
        columns: Published columns; None for all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = Field(default={}, repr=False)
    columns: list[str] | None = None

    def __str__(self) -> str:
        return f"Iceberg table {self.table}"

    def check(self, schema: TableSchema) -> None:
        """Check that a table with this schema can be published, without a request to the catalog.

        Raises:
            InvalidInput: pyiceberg or a key column is missing, or a column cannot be published.
            NotFound: The table has no such column.
        """
        from weft.storage.publish.open_catalog import check_installed

        check_installed()
        from weft.storage.publish.iceberg_schema import iceberg_schema

        iceberg_schema(schema, columns_to_publish(schema, self.columns), 0)

    def publish(self, table: Table, progress: OnStage = unobserved) -> Published:
        """Publish; raises as `weft.storage.publish.iceberg.publish_iceberg` and `open_catalog` do."""
        from weft.storage.publish.open_catalog import open_catalog

        catalog = open_catalog(self.catalog, self.properties)
        from weft.storage.publish.iceberg import publish_iceberg

        try:
            return publish_iceberg(table, catalog, self.table, self.columns, progress=progress)
        finally:
            catalog.close()


class DeltaTarget(BaseModel):
    """A Delta table, in the location of the weft table.

    Attributes:
        columns: Published columns; None for all.
        deletion_vectors: Whether deletion vectors may hide unused rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: list[str] | None = None
    deletion_vectors: bool = True

    def __str__(self) -> str:
        return "Delta table"

    def check(self, schema: TableSchema) -> None:
        """Check that a table with this schema can be published. Raises as `IcebergTarget.check` does."""
        from weft.storage.publish.delta_files import delta_schema

        delta_schema(schema, columns_to_publish(schema, self.columns))

    def publish(self, table: Table, progress: OnStage = unobserved) -> Published:
        """Publish; raises as `weft.storage.publish.delta.publish_delta` does."""
        from weft.storage.publish.delta import publish_delta

        return publish_delta(table, self.columns, deletion_vectors=self.deletion_vectors, progress=progress)


Target = IcebergTarget | DeltaTarget


def base_version(table: Table) -> object:
    """A value that changes when base files, columns or comments of a table change. Reads new log entries."""
    state = table.state()
    files = frozenset(
        (current.file.path, current.parts, current.overlaid) for current in current_files(base_slices(state))
    )
    columns = [(field.name, str(field.type), state.schema.column(field.name).comment) for field in state.schema.arrow]
    return files, tuple(columns)
