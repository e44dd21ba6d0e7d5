"""The tables of a page that shows several: those of folders, which may appear and vanish, and those that were named.

At most `MOST_OPEN` tables have pages at the same time: the one that was not asked for the longest is closed first.
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
MOST_OPEN: Final = 32
MOST_TABLES: Final = 1_000
"""Tables of one folder that are listed."""
_DEPTH: Final = 3  # levels of folders between the one that is shown and its tables
_AGAIN_SECONDS: Final = 2.0  # a folder is not listed again for a name that is not known before this time
_ALL: Final = (("tables", "/", "All tables"),)


@dataclass(frozen=True, slots=True)
class Shown:
    """What was asked for on the command line.

    Attributes:
        settings: Of a table, or of a folder of tables.
        pipeline: The pipeline file; None for a location.
    """

    settings: CommandSettings
    pipeline: str | None = None


def open_site(shown: Shown, *, write: bool, root: str = "", turn: SparkTurn | None = None) -> Site:
    """Open a table for its pages.

    Raises:
        NotFound: There is no table.
        InvalidInput: The pipeline file is wrong.
        StoreUnavailable: The store does not answer.
    """
    settings, pipeline = shown.settings, shown.pipeline
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
    """The tables by their names, which are parts of the addresses of their pages. Usable from any thread."""

    def __init__(self, targets: Sequence[Shown], *, write: bool) -> None:
        """List the tables.

        Raises:
            NotFound: There is neither a table nor a folder of tables at a target.
            StoreUnavailable: The store does not answer.
        """
        self._write, self._turn = write, SparkTurn()
        self._named: list[Shown] = []
        self._folders: list[Shown] = []
        self._lock = threading.RLock()
        self._sites: OrderedDict[str, Site] = OrderedDict()
        self._names: dict[str, str] = {}
        self._listed = float("-inf")
        self._known: dict[str, Shown] = {}
        self.cut_off = False
        """Whether a folder has more tables than are listed."""
        self.ending = threading.Event()
        for target in targets:
            (self._folders if is_folder(target) else self._named).append(target)
        self._several_folders = len(self._folders) > 1 or bool(self._named)
        self.list_again()
        if not self._known:
            places = " and ".join(target.settings.table.uri for target in targets)
            raise NotFound(
                f"there is no table in {places}, nor in the folders there",
                hint="weft ui takes tables, folders of tables and pipeline files; weft create PIPELINE makes a table",
            )
        for name, shown in self._known.items():
            if shown in self._named:
                self.site(name)

    @property
    def frame(self) -> Frame:
        """What is around the list."""
        targets = [each.pipeline or each.settings.table.uri for each in (*self._folders, *self._named)]
        return Frame("All tables", ", ".join(targets), views=_ALL, write=self._write, several=True)

    @property
    def known(self) -> Mapping[str, Shown]:
        """The tables of the last listing, by name."""
        return self._known

    def list_again(self) -> None:
        """Look which tables there are now; pages of those that vanished end.

        Raises:
            TableError: A store does not list its folders; what was known is kept.
        """
        began = time.monotonic()
        found: dict[str, Shown] = {}
        cut_off = False
        for shown in self._named:
            found[self._name(shown, shown.settings.table.name)] = shown
        for folder in self._folders:
            tables = list(_tables(folder))
            cut_off |= len(tables) >= MOST_TABLES
            for name, shown in tables:
                prefix = f"{folder.settings.table.name}/" if self._several_folders else ""
                found.setdefault(self._name(shown, prefix + name), shown)
        with self._lock:
            self._known, self._listed, self.cut_off = dict(sorted(found.items())), began, cut_off
            gone = [name for name in self._sites if name not in found]
        for name in gone:
            self.close_site(name)

    def _name(self, shown: Shown, wanted: str) -> str:
        """The name of a table; it keeps the one that it had first."""
        with self._lock:
            uri = shown.settings.table.uri
            if uri not in self._names:
                name, number = wanted, 1
                while any(_overlap(name, other) for other in self._names.values()):
                    number += 1
                    name = f"{wanted}-{number}"
                self._names[uri] = name
            return self._names[uri]

    def has_vanished(self, shown: Shown) -> bool:
        """Whether a table of the last listing is not there any more; only those that were named are looked for again.

        Raises:
            TableError: A store does not list its folders.
        """
        if shown not in self._named:
            return False
        location = shown.settings.table
        root, _, name = location.uri.rstrip("/").rpartition("/")
        return bool(root) and not Lake(root, location.storage_options).has_table_folder((name,))

    def find(self, path: str) -> tuple[str, str]:
        """The name of a table, and the rest of an address.

        Args:
            path: What follows `PREFIX`, as "/shop/wide/data".

        Raises:
            NotFound: There is no such table.
            TableError: A store does not answer.
        """
        for _ in range(2):
            for name in self._known:
                if path == f"/{name}" or path.startswith(f"/{name}/"):
                    return name, path[len(name) + 1 :]
            if time.monotonic() - self._listed < _AGAIN_SECONDS:
                break
            self.list_again()
        raise NotFound(f"there is no table {path.strip('/')} here", hint="the list has all tables")

    def site(self, name: str) -> Site:
        """A table for its pages; opened if it is not.

        Raises:
            NotFound: There is no such table any more.
            TableError: A store does not answer, or the table is damaged.
        """
        with self._lock:
            site, shown = self._sites.get(name), self._known.get(name)
            if site is not None:
                self._sites.move_to_end(name)
                return site
        if shown is None:
            raise NotFound(f"there is no table {name} any more", hint="the list has all tables")
        made = open_site(shown, write=self._write, root=f"{PREFIX}/{quote(name)}", turn=self._turn)
        with self._lock:
            site = self._sites.setdefault(name, made)
            idle = [other for other in self._sites if other != name and not self._sites[other].busy]
            too_many = idle[: max(0, len(self._sites) - MOST_OPEN)]
        for other in too_many:
            self.close_site(other)
        return site

    def open_sites(self) -> dict[str, Site]:
        """The sites that are open, by the names of their tables."""
        with self._lock:
            return dict(self._sites)

    def close_site(self, name: str) -> None:
        """End the pages of a table; it is opened again when somebody asks for them."""
        with self._lock:
            site = self._sites.pop(name, None)
        if site is not None:
            site.ending.set()
            threading.Thread(target=site.close, name="weft-ui-close", daemon=True).start()

    def end(self) -> None:
        """End all pages that follow tables."""
        self.ending.set()
        for site in self.open_sites().values():
            site.ending.set()

    def close(self) -> None:
        """Close all tables."""
        self.end()
        for site in self.open_sites().values():
            site.close()


def is_folder(shown: Shown) -> bool:
    """Whether it is a folder that is no table itself.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    if shown.pipeline is not None:
        return False
    location = shown.settings.table
    check_reachable(location.uri, location.storage_options)
    return Lake(location.uri, location.storage_options).exists()


def _tables(folder: Shown) -> Iterator[tuple[str, Shown]]:
    location = folder.settings.table
    lake = Lake(location.uri, location.storage_options)
    for names in lake.all_tables(_DEPTH, MOST_TABLES):
        yield "/".join(names), Shown(CommandSettings(TableLocation(lake.location(names), location.storage_options)))


def _overlap(name: str, other: str) -> bool:
    """Whether the addresses of two tables could be confused."""
    return f"{name}/".startswith(f"{other}/") or f"{other}/".startswith(f"{name}/")
