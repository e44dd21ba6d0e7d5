"""A folder of tables: names in SQL, and the folders that they mean.

    weft.shop.eu.orders_wide      <root>/shop/eu/orders_wide       if that folder has a table
    weft.shop.eu                  <root>/shop/eu                   a namespace: any other folder
    weft.shop.orders_wide.files   <root>/shop/orders_wide          a part of a table: a system table, or a stream

Every part of a name is the name of one folder, with its case. A name that is not an identifier is quoted:
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
_PARALLEL: Final = 16  # requests that list folders of an object store


@dataclass
class Lake:
    """A root folder and the tables in it. Tables are opened once, and then follow their logs.

    Attributes:
        root: A path or URL.
        storage_options: Options of the fsspec file system.
    """

    root: str
    storage_options: Mapping[str, Any]
    _open: dict[Names, Table] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def default_options(self) -> Mapping[str, str]:
        """Options of reads that choose no point in time themselves."""
        return {}

    def exists(self) -> bool:
        """Whether the root can be a catalog: a folder that is not a table, or an empty prefix. Raises as `tables`."""
        inside = list_folders(self.root, self.storage_options)
        if inside is None:
            return is_empty_prefix(self.root, self.storage_options)
        return _TABLE_FOLDER not in inside

    def is_empty(self) -> bool:
        """Whether nothing is in the root yet. Raises as `tables`."""
        return not list_folders(self.root, self.storage_options)

    def location(self, names: Sequence[str]) -> str:
        """Location of a table or namespace, whether or not it exists.

        Raises:
            InvalidInput: A name cannot be that of a folder.
        """
        for name in names:
            check_name(name)
        encode: Callable[[str], str] = quote if urlsplit(self.root).scheme == "file" else str
        return "/".join((self.root.rstrip("/"), *map(encode, names)))

    def table(self, names: Sequence[str]) -> Table:
        """The table of a name.

        Raises:
            NotFound: There is none.
            TableError: See `weft.Table.open`.
        """
        key = tuple(names)
        with self._lock:
            known = self._open.get(key)
        if known is not None:
            return known
        opened = Table.open(self.location(key), storage_options=self.storage_options)
        with self._lock:
            return self._open.setdefault(key, opened)

    def has_table(self, names: Sequence[str]) -> bool:
        """Whether there is a table of that name now.

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
        """Whether there is a table of that name now, also if it is damaged. Raises as `tables`."""
        if not names or not all(map(is_name, names)):
            return False
        inside = list_folders(self.location(names), self.storage_options)
        return inside is not None and _TABLE_FOLDER in inside

    def has_damaged_table(self, names: Sequence[str]) -> bool:
        """Whether there are objects of a table that cannot be opened, because its log is not there. Raises as `tables`.

        Some object stores list the empty folders of a table whose objects were deleted.
        """
        if not self.has_table_folder(names):
            return False
        return bool(open_store(self.location(names), self.storage_options).list(Path("")))

    def forget(self, names: Sequence[str]) -> None:
        """Open the table again when it is needed next, for example because it was dropped."""
        with self._lock:
            self._open.pop(tuple(names), None)

    def resolve(self, names: Sequence[str]) -> tuple[Names, str]:
        """Split a name into that of a table and a part of it: a system table, or a stream.

        A table that is open is not looked for again: reading it takes the newest state anyway.

        Returns:
            The name of the table, and the part; an empty part for the table itself.

        Raises:
            NotFound: Neither is there a table of that name, nor of the name without its last part.
            TableError: See `has_table`.
        """
        key = tuple(names)
        places = ((key, ""), (key[:-1], key[-1]))
        with self._lock:
            for table, part in places:
                if table in self._open:
                    return table, part
        for table, part in places:
            if self.has_table(table):
                return table, part
        raise NotFound(f"{self.root} has no table {'.'.join(key)}", hint="SHOW TABLES lists the tables of a namespace")

    def tables(self, namespace: Sequence[str]) -> list[str] | None:
        """Names of the tables of a namespace, sorted; None if there is no such namespace.

        Raises:
            TableError: The store does not list its folders.
        """
        found = self._children(namespace)
        return None if found is None else [name for name, inside in found.items() if _TABLE_FOLDER in inside]

    def namespaces(self, parent: Sequence[str]) -> list[str] | None:
        """Names of the namespaces of a namespace, sorted; None if there is no such namespace. Raises as `tables`."""
        found = self._children(parent)
        return None if found is None else [name for name, inside in found.items() if _TABLE_FOLDER not in inside]

    def all_tables(self, depth: int = sys.maxsize, most: int = sys.maxsize) -> Iterator[Names]:
        """Names of all tables, those in the root first.

        Args:
            depth: How many levels of namespaces are looked into.
            most: Ends the search after so many tables, or about ten times as many folders.

        Raises:
            TableError: The store does not list its folders.
        """
        namespaces: list[Names] = [()]
        found = looked = level = 0
        while namespaces and level <= depth:
            parents, namespaces, level = namespaces, [], level + 1
            for names in parents:
                children = self._children(names) or {}
                for name, inside in children.items():
                    if _TABLE_FOLDER not in inside:
                        namespaces.append((*names, name))
                    elif (found := found + 1) <= most:
                        yield (*names, name)
                looked += len(children)
                if found >= most or looked >= 10 * most:
                    return

    def has_namespace(self, names: Sequence[str]) -> bool:
        """Whether a folder exists and has no table. The root always exists. Raises as `tables`."""
        if not names:
            return True
        if not all(map(is_name, names)):
            return False
        inside = list_folders(self.location(names), self.storage_options)
        return inside is not None and _TABLE_FOLDER not in inside

    def _children(self, names: Sequence[str]) -> dict[str, list[str]] | None:
        """The folders in a namespace, and what is in each; None if there is no such namespace."""
        if not all(map(is_name, names)):
            return None
        found = list_folders(self.location(names), self.storage_options)
        if found is None or _TABLE_FOLDER in found:
            return {} if not names else None
        shown = [name for name in found if not name.startswith(("_", "."))]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            inside = pool.map(lambda name: list_folders(self.location((*names, name)), self.storage_options), shown)
            return {name: folders or [] for name, folders in zip(shown, inside, strict=True)}


def is_name(name: str) -> bool:
    """Whether a name can be that of a folder of a table or namespace."""
    return bool(name) and "/" not in name and "\\" not in name and not name.startswith(("_", "."))


def check_name(name: str) -> None:
    """Check that a name can be that of a folder.

    Raises:
        InvalidInput: It is empty, has a slash, or begins with an underscore or a dot.
    """
    if not is_name(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a table or namespace",
            hint="it is the name of a folder: not empty, without slashes, and does not begin with _ or a dot",
        )
