"""The tables of a page that shows several: tables in folders, which may appear and vanish, and tables that were named.

At most `MAX_OPEN` tables are open at the same time: the least recently used one is closed first.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from weft.storage.errors import NotFound
from weft.storage.store.open_store import check_reachable
from weft.streams.catalog.lake import Lake
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.ui.letter_book import LetterBook
from weft.streams.ui.site import Frame, Site
from weft.streams.ui.source_lag import SourceLag
from weft.streams.ui.spark_turn import SparkTurn
from weft.streams.ui.watched_table import WatchedTable

PREFIX: Final = "/tables"
MAX_OPEN: Final = 32
MAX_TABLES: Final = 1_000
"""Largest number of tables that are listed of one folder."""
_DEPTH: Final = 3  # levels of folders between a folder that is shown and its tables
_AGAIN_SECONDS: Final = 2.0  # an unknown name makes the folders be listed again, but not sooner than this
_ALL: Final = (("tables", "/", "All tables"),)


@dataclass(frozen=True, slots=True)
class Target:
    """A table, or a folder of tables, that the command line names.

    Attributes:
        settings: Its location and settings.
        pipeline: The pipeline file; None for a location.
    """

    settings: CommandSettings
    pipeline: str | None = None


def open_site(target: Target, *, write: bool, root: str = "", turn: SparkTurn | None = None) -> Site:
    """Open a table for its pages.

    Raises:
        NotFound: There is no table.
        InvalidInput: The pipeline file is wrong.
        StoreUnavailable: The store does not answer.
    """
    settings, pipeline = target.settings, target.pipeline
    policy = None if settings.compaction is None else settings.compaction.policy
    watched = WatchedTable(settings.table, policy)
    return Site(
        settings,
        watched,
        write=write,
        pipeline=pipeline,
        letters=None if pipeline is None else LetterBook(pipeline, watched.table, settings.table),
        lag=None if pipeline is None else SourceLag(pipeline),
        root=root,
        turn=turn or SparkTurn(),
    )


class TableList:
    """The tables by name; the addresses of their pages contain the names. Usable from any thread."""

    def __init__(self, targets: Sequence[Target], *, write: bool) -> None:
        """List the tables.

        Raises:
            NotFound: There is neither a table nor a folder of tables at a target.
            StoreUnavailable: The store does not answer.
        """
        self._write, self._turn = write, SparkTurn()
        self._named: list[Target] = []
        self._folders: list[Target] = []
        self._lock = threading.RLock()
        self._sites: OrderedDict[str, Site] = OrderedDict()
        self._names: dict[str, str] = {}
        self._listed = float("-inf")
        self._by_name: dict[str, Target] = {}
        self.cut_off = False
        """Whether a folder has more tables than are listed."""
        self.ending = threading.Event()
        for target in targets:
            (self._folders if is_folder(target) else self._named).append(target)
        self._several_folders = len(self._folders) > 1 or bool(self._named)
        self.list_again()
        if not self._by_name:
            places = " and ".join(target.settings.table.uri for target in targets)
            raise NotFound(
                f"there is no table in {places}, nor in the folders there",
                hint="give tables, folders of tables or pipeline files; weft create PIPELINE makes a table",
            )
        for name, target in self._by_name.items():
            if target in self._named:
                self.site(name)

    @property
    def frame(self) -> Frame:
        """The frame of the page with the list."""
        targets = [target.pipeline or target.settings.table.uri for target in (*self._folders, *self._named)]
        return Frame("All tables", ", ".join(targets), views=_ALL, write=self._write, several=True)

    @property
    def by_name(self) -> Mapping[str, Target]:
        """The tables of the last listing, by name."""
        return self._by_name

    def list_again(self) -> None:
        """List the tables again, and close the pages of tables that are gone.

        Raises:
            TableError: A store does not list its folders; the previous list is kept.
        """
        began = time.monotonic()
        by_name: dict[str, Target] = {}
        cut_off = False
        for target in self._named:
            by_name[self._name(target, target.settings.table.name)] = target
        for folder in self._folders:
            tables = list(_tables(folder))
            cut_off |= len(tables) >= MAX_TABLES
            for name, target in tables:
                prefix = f"{folder.settings.table.name}/" if self._several_folders else ""
                by_name.setdefault(self._name(target, prefix + name), target)
        with self._lock:
            self._by_name, self._listed, self.cut_off = dict(sorted(by_name.items())), began, cut_off
            vanished = [name for name in self._sites if name not in by_name]
        for name in vanished:
            self.close_site(name)

    def _name(self, target: Target, preferred: str) -> str:
        """Return the name of a table, which never changes; the first time it is chosen."""
        with self._lock:
            uri = target.settings.table.uri
            if uri not in self._names:
                name, number = preferred, 1
                while any(_overlap(name, other) for other in self._names.values()):
                    number += 1
                    name = f"{preferred}-{number}"
                self._names[uri] = name
            return self._names[uri]

    def has_vanished(self, target: Target) -> bool:
        """Whether a table of the last listing is gone; only tables that the command line names are looked up.

        Raises:
            TableError: A store does not list its folders.
        """
        if target not in self._named:
            return False
        location = target.settings.table
        root, _, name = location.uri.rstrip("/").rpartition("/")
        return bool(root) and not Lake(root, location.storage_options).has_table_folder((name,))

    def find(self, path: str) -> tuple[str, str]:
        """Split an address into the name of a table and the rest.

        Args:
            path: The part of the address after `PREFIX`, such as "/shop/wide/data".

        Raises:
            NotFound: There is no such table.
            TableError: A store does not answer.
        """
        for _ in range(2):
            for name in self._by_name:
                if path == f"/{name}" or path.startswith(f"/{name}/"):
                    return name, path[len(name) + 1 :]
            if time.monotonic() - self._listed < _AGAIN_SECONDS:
                break
            self.list_again()
        raise NotFound(f"there is no table {path.strip('/')} here", hint="choose a table from the list")

    def site(self, name: str) -> Site:
        """Return the site of a table, which is opened if it is not open.

        Raises:
            NotFound: There is no such table any more.
            TableError: A store does not answer, or the table is damaged.
        """
        with self._lock:
            site, target = self._sites.get(name), self._by_name.get(name)
            if site is not None:
                self._sites.move_to_end(name)
                return site
        if target is None:
            raise NotFound(f"there is no table {name} any more", hint="choose a table from the list")
        opened = open_site(target, write=self._write, root=f"{PREFIX}/{quote(name)}", turn=self._turn)
        with self._lock:
            site = self._sites.setdefault(name, opened)
            idle = [other for other in self._sites if other != name and not self._sites[other].busy]
            too_many = idle[: max(0, len(self._sites) - MAX_OPEN)]
        for other in too_many:
            self.close_site(other)
        return site

    def open_sites(self) -> dict[str, Site]:
        """Return the open sites by the names of their tables."""
        with self._lock:
            return dict(self._sites)

    def close_site(self, name: str) -> None:
        """Close a table and end its pages; the next request for them opens it again."""
        with self._lock:
            site = self._sites.pop(name, None)
        if site is not None:
            site.ending.set()
            threading.Thread(target=site.close, name="weft-ui-close", daemon=True).start()

    def end(self) -> None:
        """End the event streams of all pages."""
        self.ending.set()
        for site in self.open_sites().values():
            site.ending.set()

    def close(self) -> None:
        """Close all tables."""
        self.end()
        for site in self.open_sites().values():
            site.close()


def is_folder(target: Target) -> bool:
    """Whether a target is a folder of tables, and not a table.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    if target.pipeline is not None:
        return False
    location = target.settings.table
    check_reachable(location.uri, location.storage_options)
    return Lake(location.uri, location.storage_options).exists()


def _tables(folder: Target) -> Iterator[tuple[str, Target]]:
    location = folder.settings.table
    lake = Lake(location.uri, location.storage_options)
    for names in lake.all_tables(_DEPTH, MAX_TABLES):
        yield "/".join(names), Target(CommandSettings(TableLocation(lake.location(names), location.storage_options)))


def _overlap(name: str, other: str) -> bool:
    """Whether the addresses of two tables could be confused."""
    return f"{name}/".startswith(f"{other}/") or f"{other}/".startswith(f"{name}/")
