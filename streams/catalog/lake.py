"""A folder of tables: maps names in SQL to folders.

    weft.shop.eu.orders_wide      <root>/shop/eu/orders_wide       if that folder has a table
    weft.shop.eu                  <root>/shop/eu                   a namespace: any other folder
    weft.shop.orders_wide.files   <root>/shop/orders_wide          a part of a table: a system table, or a stream

Every part of a name is the name of one folder, and is case-sensitive. A name that is not an identifier is quoted:
weft.shop.`2024-orders`. Folders that begin with an underscore or a dot are not namespaces, and are not listed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from weft.storage import Table
from weft.storage.core.names import Path
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.store.open_store import is_empty_prefix, list_folders, open_store

Names = tuple[str, ...]

_TABLE_FOLDER: Final = "_weft"
_MAX_REQUESTS: Final = 16  # requests to an object store that list folders at the same time


@dataclass
class Lake:
    """A root folder and the tables in it. A table is opened once; later reads follow its log.

    Attributes:
        root: A path or URL.
        storage_options: Options of the fsspec file system.
    """

    root: str
    storage_options: Mapping[str, Any]
    _open: dict[Names, Table] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def default_options(self) -> Mapping[str, str]:
        """Options for reads that do not name a point in time."""
        return {}

    def offers_procedure(self, name: str) -> bool:
        """Whether a procedure of this name, in lower case, may be called."""
        return True

    def exists(self) -> bool:
        """Whether the root can be a catalog: a folder that is not a table, or an empty prefix. Raises as `tables`."""
        folders = list_folders(self.root, self.storage_options)
        if folders is None:
            return is_empty_prefix(self.root, self.storage_options)
        return _TABLE_FOLDER not in folders

    def is_empty(self) -> bool:
        """Whether the root has no folders yet. Raises as `tables`."""
        return not list_folders(self.root, self.storage_options)

    def location(self, names: Sequence[str]) -> str:
        """Location of a table or namespace, whether or not it exists.

        Raises:
            InvalidInput: A part of the name is not allowed, see `check_name`.
        """
        for name in names:
            check_name(name)
        encode: Callable[[str], str] = quote if urlsplit(self.root).scheme == "file" else str
        return "/".join((self.root.rstrip("/"), *map(encode, names)))

    def table(self, names: Sequence[str]) -> Table:
        """Open the table of a name, or return it if it is open.

        Raises:
            NotFound: There is no table of this name.
            TableError: See `weft.Table.open`.
        """
        key = tuple(names)
        with self._lock:
            table = self._open.get(key)
        if table is not None:
            return table
        table = Table.open(self.location(key), storage_options=self.storage_options)
        with self._lock:
            return self._open.setdefault(key, table)

    def has_table(self, names: Sequence[str]) -> bool:
        """Whether a table of this name exists now.

        Raises:
            TableError: The store does not answer, or the table is damaged.
        """
        if not self.has_table_folder(names):
            self.forget(names)
            return False
        try:
            self.table(names)
        except NotFound:
            return False
        return True

    def has_table_folder(self, names: Sequence[str]) -> bool:
        """Whether a table of this name exists now, even a damaged one. Raises as `tables`."""
        if not names or not all(map(is_name, names)):
            return False
        folders = list_folders(self.location(names), self.storage_options)
        return folders is not None and _TABLE_FOLDER in folders

    def has_damaged_table(self, names: Sequence[str]) -> bool:
        """Whether the folder of a table has objects. Raises as `tables`.

        Called for a table that cannot be opened: with objects it is damaged, because its log is missing. Some object
        stores still list the folders of a table whose objects were all deleted; then it does not exist.
        """
        if not self.has_table_folder(names):
            return False
        return bool(open_store(self.location(names), self.storage_options).list(Path("")))

    def forget(self, names: Sequence[str]) -> None:
        """Close a table, so that the next use opens it again, for example because it was dropped."""
        with self._lock:
            self._open.pop(tuple(names), None)

    def resolve(self, names: Sequence[str]) -> tuple[Names, str]:
        """Split a name into the name of a table and a part of the table, which is a system table or a stream.

        The store is not asked about a table that is open.

        Returns:
            The name of the table, and the part; an empty part for the table itself.

        Raises:
            NotFound: No table has this name, or this name without its last part.
            TableError: See `has_table`.
        """
        key = tuple(names)
        candidates = ((key, ""), (key[:-1], key[-1]))
        with self._lock:
            for table, part in candidates:
                if table in self._open:
                    return table, part
        for table, part in candidates:
            if self.has_table(table):
                return table, part
        raise NotFound(f"{self.root} has no table {'.'.join(key)}", hint="SHOW TABLES lists the tables of a namespace")

    def tables(self, namespace: Sequence[str]) -> list[str] | None:
        """List the names of the tables of a namespace, sorted; None if the namespace does not exist.

        Raises:
            TableError: The store does not list its folders.
        """
        children = self._list_children(namespace)
        return None if children is None else [name for name, inner in children.items() if _TABLE_FOLDER in inner]

    def namespaces(self, parent: Sequence[str]) -> list[str] | None:
        """List the names of the namespaces of a namespace, sorted; otherwise as `tables`."""
        children = self._list_children(parent)
        return None if children is None else [name for name, inner in children.items() if _TABLE_FOLDER not in inner]

    def all_tables(self, depth: int = sys.maxsize, most: int = sys.maxsize) -> Iterator[Names]:
        """Yield the names of all tables, those in the root first.

        Args:
            depth: Number of levels of namespaces below the root to search.
            most: Maximum number of tables. The search also ends after about ten times as many folders.

        Raises:
            TableError: The store does not list its folders.
        """
        namespaces: list[Names] = [()]
        table_count = folder_count = level = 0
        while namespaces and level <= depth:
            parents, namespaces, level = namespaces, [], level + 1
            for names in parents:
                children = self._list_children(names) or {}
                for name, inner in children.items():
                    if _TABLE_FOLDER not in inner:
                        namespaces.append((*names, name))
                    elif (table_count := table_count + 1) <= most:
                        yield (*names, name)
                folder_count += len(children)
                if table_count >= most or folder_count >= 10 * most:
                    return

    def has_namespace(self, names: Sequence[str]) -> bool:
        """Whether a namespace of this name exists: a folder that is not a table. The root always exists.

        Raises as `tables`.
        """
        if not names:
            return True
        if not all(map(is_name, names)):
            return False
        folders = list_folders(self.location(names), self.storage_options)
        return folders is not None and _TABLE_FOLDER not in folders

    def _list_children(self, names: Sequence[str]) -> dict[str, list[str]] | None:
        """List the folders of a namespace, with the folders in each; None if the namespace does not exist."""
        if not all(map(is_name, names)):
            return None
        folders = list_folders(self.location(names), self.storage_options)
        if folders is None or _TABLE_FOLDER in folders:
            return {} if not names else None
        children = [name for name in folders if not name.startswith(("_", "."))]
        with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
            inner = pool.map(lambda name: list_folders(self.location((*names, name)), self.storage_options), children)
            return {name: inner_folders or [] for name, inner_folders in zip(children, inner, strict=True)}


def is_name(name: str) -> bool:
    """Whether a text is allowed as a part of the name of a table or namespace."""
    return bool(name) and "/" not in name and "\\" not in name and not name.startswith(("_", "."))


def check_name(name: str) -> None:
    """Check that a text is allowed as a part of the name of a table or namespace.

    Raises:
        InvalidInput: The text is empty, has a slash, or begins with an underscore or a dot.
    """
    if not is_name(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a table or namespace",
            hint="choose a name for its folder that is not empty, has no slashes, and does not begin with _ or a dot",
        )
