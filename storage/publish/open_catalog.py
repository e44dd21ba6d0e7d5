"""Opens the Iceberg catalog to publish to."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from storage.errors import InvalidInput

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FOLDER: Final = "folder"
"""The type of a catalog that is none: tables in folders."""


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The Iceberg catalog of a name.

    Args:
        name: Its name in the configuration of pyiceberg.
        properties: Properties besides those of the configuration, as pyiceberg takes them. With the type ``folder``: no
            catalog, but folders below ``warehouse`` (`storage.publish.iceberg_folder`).

    Raises:
        InvalidInput: pyiceberg is not installed, or does not find or open the catalog.
    """
    if find_spec("pyiceberg") is None:
        raise InvalidInput("publishing as Iceberg needs pyiceberg", hint="pip install 'weft[iceberg]'")
    if properties.get("type") == FOLDER:
        from storage.publish.iceberg_folder import FolderCatalog

        return FolderCatalog(name, **properties)
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    try:
        return load_catalog(name, **properties)
    except (ValueError, NotInstalledError) as error:
        raise InvalidInput(
            f"Iceberg catalog {name!r} cannot be opened: {error}",
            hint="give its properties, such as uri and warehouse, or write them to .pyiceberg.yaml",
        ) from error
