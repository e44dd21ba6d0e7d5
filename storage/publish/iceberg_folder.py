"""Iceberg tables in folders, without a catalog: Hadoop tables, whose newest metadata file is found by its number.

A table has the folder ``<warehouse>/<namespace>/<table>``. Its metadata files are ``metadata/v1.metadata.json``,
``v2`` and so on. Each is put only if it is absent, so that of two concurrent commits one fails. The file
``metadata/version-hint.text`` has the newest number, for readers that do not list the folder. Source: Iceberg table
specification, "File System Tables".
"""

from __future__ import annotations

import re
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from weft.storage.core.names import Path
from weft.storage.errors import InvalidInput
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

_METADATA: Final = Path("metadata")
_HINT: Final = Path("metadata/version-hint.text")
_VERSION: Final = re.compile(r"v(\d+)\.metadata\.json")


class FolderCatalog(NoopCatalog):
    """A catalog in a folder. It can only create a table, load it, and commit to it."""

    def __init__(self, name: str, **properties: str) -> None:
        """Check the properties; opens nothing.

        Args:
            name: Name of the catalog, for messages.
            properties: ``warehouse``, a folder or URL; and properties of pyiceberg's file systems, such as
                ``s3.endpoint``.

        Raises:
            InvalidInput: The warehouse is missing.
        """
        if not properties.get("warehouse"):
            raise InvalidInput(
                "the folder of Iceberg tables is missing", hint="give the property warehouse: a folder or a URL"
            )
        super().__init__(name, **properties)

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Do nothing: a namespace is a folder."""

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> IcebergTable:
        """Create an empty table.

        Raises:
            TableAlreadyExistsError: The folder has a table.
        """
        assert isinstance(schema, Schema), "a publication gives an Iceberg schema"
        store, location_url = self._open(identifier)
        if _newest(store):
            raise TableAlreadyExistsError(location_url)
        metadata = new_table_metadata(schema, partition_spec, sort_order, location_url, properties)
        if not _put(store, 1, metadata):
            raise TableAlreadyExistsError(location_url)
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> IcebergTable:
        """Load the table from its newest metadata file.

        Raises:
            NoSuchTableError: The folder has no table.
        """
        store, place = self._open(identifier)
        version = _newest(store)
        data = store.get(_metadata_path(version)) if version else None
        if data is None:
            raise NoSuchTableError(place)
        metadata = TableMetadataUtil.parse_raw(data.decode())
        io = self._load_file_io(metadata.properties, place)
        return IcebergTable(
            Catalog.identifier_to_tuple(identifier), metadata, f"{place}/{_metadata_path(version)}", io, self
        )

    def commit_table(
        self, table: IcebergTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Put the next metadata file.

        Raises:
            CommitFailedException: The table has changed.
            CommitStateUnknownException: The store did not answer.
        """
        store, place = self._open(table.name())
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        new_metadata = update_table_metadata(current.metadata, updates, metadata_location=current.metadata_location)
        version = _number(current.metadata_location) + 1
        if not _put(store, version, new_metadata):
            raise CommitFailedException(f"{place} has changed")
        versions = {_number(entry.metadata_file) for entry in new_metadata.metadata_log}
        first = min(versions, default=version)
        store.delete_many([_metadata_path(number) for number in _versions(store) if number < first])
        return CommitTableResponse.model_validate(
            {"metadata": new_metadata, "metadata-location": f"{place}/{_metadata_path(version)}"}
        )

    def _open(self, identifier: str | Identifier) -> tuple[ObjectStore, str]:
        """Open the store of a table's folder; returns it, and the URL of the folder for readers."""
        names = Catalog.identifier_to_tuple(identifier)
        place = "/".join((self.properties["warehouse"].rstrip("/"), *names))
        store = open_store(place, _store_options(self.properties))
        return store, store.url(Path("")).rstrip("/")


def _store_options(properties: Properties) -> dict[str, Any]:
    """Translate pyiceberg's properties of S3 into fsspec's options. Other stores are configured by the environment."""
    names = {"key": "s3.access-key-id", "secret": "s3.secret-access-key", "token": "s3.session-token"}
    client = {"endpoint_url": "s3.endpoint", "region_name": "s3.region"}
    options: dict[str, Any] = {name: properties[key] for name, key in names.items() if key in properties}
    if settings := {name: properties[key] for name, key in client.items() if key in properties}:
        options["client_kwargs"] = settings
    return options


def _put(store: ObjectStore, version: int, metadata: TableMetadata) -> bool:
    """Put a metadata file, then the hint. Returns False if this version already exists."""
    data = metadata.model_dump_json(exclude_none=True).encode()
    path = _metadata_path(version)
    try:
        if not store.put_if_absent(path, data) and store.get(path) != data:
            return False
    except OSError as error:
        raise CommitStateUnknownException(f"{path}: {error}") from error
    versions = _versions(store)
    if version < max(versions) and version + 1 not in versions:
        store.delete(path)  # so many other commits were faster that their files are deleted already
        return False
    newest = 0
    while newest < (version_found := _newest(store)):  # another commit may have written an older hint meanwhile
        newest = version_found
        store.put(_HINT, str(newest).encode())
    return True


def _metadata_path(version: int) -> Path:
    return Path(f"{_METADATA}/v{version}.metadata.json")


def _newest(store: ObjectStore) -> int:
    return max(_versions(store), default=0)


def _versions(store: ObjectStore) -> list[int]:
    matches = (_VERSION.fullmatch(name) for name, _ in store.list(_METADATA))
    return [int(match.group(1)) for match in matches if match is not None]


def _number(location: str) -> int:
    match = _VERSION.fullmatch(location.rsplit("/", 1)[-1])
    assert match is not None, "every metadata file here has a number"
    return int(match.group(1))
