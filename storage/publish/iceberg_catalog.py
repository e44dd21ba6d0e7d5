"""Loads or creates the Iceberg table in its catalog, and turns errors of catalogs into errors of weft."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable

from weft.storage.errors import Conflict, InvalidInput, NotFound, StoreRefused, StoreUnavailable

TABLE_ID: Final = "weft.table-id"
"""Property of a published table: the id of the weft table."""

FORMAT_VERSION: Final = 2
PROPERTIES: Final = {
    "format-version": str(FORMAT_VERSION),
    # The files belong to the weft table: other engines must not delete them with snapshots or with the Iceberg table.
    "gc.enabled": "false",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}

_REFUSED: Final = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError, PermissionError)
_CLIENTS: Final = frozenset({"sqlalchemy", "botocore", "requests", "urllib3", "thrift", "thriftpy2", "google"})
"""Packages of the clients of catalogs, which are imported only where they are used."""


def find_table(catalog: Catalog, name: str, table_id: str) -> IcebergTable | None:
    """Load the Iceberg table that shows a weft table; None if the catalog has no table of that name.

    Raises:
        Conflict: The Iceberg table does not show this table, or another engine has changed its format.
    """
    try:
        target = catalog.load_table(name)
    except NoSuchTableError:
        return None
    if target.properties.get(TABLE_ID) != table_id:
        raise Conflict(
            f"Iceberg table {name} is not published from the weft table of id {table_id}",
            hint="publish under another name, or drop the Iceberg table",
        )
    if target.metadata.format_version != FORMAT_VERSION:
        raise Conflict(
            f"Iceberg table {name} has format version {target.metadata.format_version}, and weft publishes version "
            f"{FORMAT_VERSION}",
            hint="drop the Iceberg table and publish again; its files stay",
        )
    return target


def create_table(catalog: Catalog, name: str, schema: Schema, table_id: str) -> IcebergTable:
    """Create the Iceberg table and its namespace, unless another process does so at the same time.

    Raises:
        Conflict: Another process has created a table of that name that does not show this table.
    """
    namespace = catalog.namespace_from(name)
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception as error:
        # An SQL catalog checks first and inserts then; another process may insert in between.
        if type(error).__name__ != "IntegrityError" or not catalog.namespace_exists(namespace):
            raise
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(name, schema, properties={**PROPERTIES, TABLE_ID: table_id})
    target = find_table(catalog, name, table_id)
    if target is None:
        raise Conflict(f"Iceberg table {name} was dropped during the publication", hint="publish again")
    return target


@contextlib.contextmanager
def catalog_errors(name: str, service: str | None = None) -> Iterator[None]:
    """Turn errors of a catalog, and of the file system of an Iceberg table, into errors of weft.

    Args:
        name: Name of the Iceberg table.
        service: What the block calls, for messages; by default the catalog or the file system of the table.

    Raises:
        StoreRefused: Access is refused.
        StoreUnavailable: The catalog or the file system does not answer, or answers with an error.
        NotFound: An object of the Iceberg table is missing.
        InvalidInput: The catalog refuses the request as wrong.
    """
    subject = service or f"the catalog or the file system of Iceberg table {name}"
    try:
        yield
    except Exception as error:
        if isinstance(error, _REFUSED):
            raise StoreRefused(
                f"{subject} refuses access: {_text(error)}",
                hint="check the properties of the catalog: credentials, warehouse",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise NotFound(
                f"Iceberg table {name} lacks an object: {_text(error)}",
                hint="if its metadata is lost, drop it and publish again; its data files belong to weft and stay",
            ) from error
        if isinstance(error, BadRequestError | NoSuchNamespaceError):
            raise InvalidInput(
                f"the catalog refuses Iceberg table {name}: {_text(error)}", hint="check the name and the warehouse"
            ) from error
        if has_no_answer(error):
            raise StoreUnavailable(
                f"{subject} does not answer: {_text(error)}",
                hint="publish again when it does; check the properties of the catalog",
            ) from error
        raise


def has_no_answer(error: Exception) -> bool:
    """Whether an error leaves open what the catalog has done."""
    if isinstance(error, (*_REFUSED, BadRequestError)):
        return False
    client = type(error).__module__.partition(".")[0]
    return isinstance(error, RESTError | OSError) or client in _CLIENTS


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
