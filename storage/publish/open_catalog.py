"""Opens the Iceberg catalog to publish to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from weft.storage.errors import InvalidInput, StoreUnavailable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FOLDER: Final = "folder"
"""Type of a catalog that consists of folders only."""

_SQL: Final = "sqlalchemy"
"""The package by which pyiceberg uses databases. It is imported only for an SQL catalog."""
_PROPERTIES: Final = "give its properties, such as uri and warehouse, or write them to .pyiceberg.yaml"


def check_installed() -> None:
    """Refuse to publish as Iceberg without pyiceberg.

    Raises:
        InvalidInput: It is not installed.
    """
    if find_spec("pyiceberg") is None:
        raise InvalidInput("publishing as Iceberg needs pyiceberg", hint="install it: pip install 'weft[iceberg]'")


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open an Iceberg catalog.

    Args:
        name: Name of the catalog in the configuration of pyiceberg.
        properties: Further properties of the catalog, as in pyiceberg. The type ``folder`` stands for tables in folders
            below ``warehouse`` (`weft.storage.publish.iceberg_folder`).

    Raises:
        InvalidInput: pyiceberg is not installed, or does not find or open the catalog.
        StoreUnavailable: The catalog does not answer; `StoreRefused` if it refuses access.
    """
    check_installed()
    if properties.get("type") == FOLDER:
        from weft.storage.publish.iceberg_folder import FolderCatalog

        return FolderCatalog(name, **properties)
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    from weft.storage.publish.iceberg_catalog import catalog_errors

    try:
        try:
            return load_catalog(name, **properties)
        except Exception as error:
            if not _created_meanwhile(error):
                raise
            return load_catalog(name, **properties)
    except NotInstalledError as error:
        package = getattr(error.__cause__, "name", None)
        reason = str(error) if package is None else f"it needs the package {package}"
        raise InvalidInput(
            f"Iceberg catalog {name!r} cannot be opened: {reason}",
            hint="install it; for PostgreSQL: pip install 'psycopg[binary]', and uri=postgresql+psycopg://...",
        ) from error
    except (ValidationError, json.JSONDecodeError) as error:  # before ValueError, their base class
        raise StoreUnavailable(
            f"Iceberg catalog {name!r} does not answer as a catalog does: {' '.join(str(error).split())}",
            hint="check the property uri; a proxy also answers like this while its server is down",
        ) from error
    except ValueError as error:
        raise InvalidInput(f"Iceberg catalog {name!r} cannot be opened: {error}", hint=_PROPERTIES) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != _SQL:
            with catalog_errors(name, f"Iceberg catalog {name!r}"):
                raise
        text = " ".join(str(error).split())
        if hasattr(error, "orig"):  # an error of the database, not of the request
            raise StoreUnavailable(f"the database of Iceberg catalog {name!r} does not answer: {text}") from error
        raise InvalidInput(f"Iceberg catalog {name!r} cannot be opened: {text}", hint=_PROPERTIES) from error


def _created_meanwhile(error: Exception) -> bool:
    """Whether another process has created the tables of an SQL catalog at the same time."""
    if type(error).__module__.partition(".")[0] != _SQL:
        return False
    # SQLite calls it an operational error, as it does an outage.
    return type(error).__name__ in {"IntegrityError", "ProgrammingError"} or "already exists" in str(error)
