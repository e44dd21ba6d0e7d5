"""The proof of an erase: reads every object of the table back, and reports those that have an erased key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.needed_files import Needed, contains
from weft.storage.core.names import ARCHIVE, Kind, LaneName, ParsedPath, Path, parse_path
from weft.storage.errors import CorruptData, MissingFile
from weft.storage.services.clean.clean import Tally
from weft.storage.services.erase.key_search import KeySearch
from weft.storage.services.steps.progress import OnStage, counted, unobserved
from weft.storage.store.object_store import ObjectStore

_ROOTS: Final = (Path("overlay"), Path("shadow"), Path("base"), Path("log"), Path("_weft"))
# These have only names and a few numbers. The erase has removed reports of services, so those here are newer.
_WITHOUT_KEYS = frozenset({Kind.PROBE, Kind.HEARTBEAT, Kind.PIN, Kind.SERVICE})


@dataclass(frozen=True, slots=True)
class Remains:
    """An object that still has an erased key, or could not be read. ``why``: why it exists."""

    path: Path
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where an erase ends. What was committed or begun later is new data.

    Attributes:
        lanes: Last entry of each lane up to which events were erased.
        table: Slot of the BASE of the erase, or the last entry of the table lane that it read.
        was_retired: Whether a lane that is not in ``lanes`` was retired; otherwise it was added later.
    """

    lanes: Seqs
    table: int
    was_retired: Callable[[LaneName], bool]

    def is_before(self, parsed: ParsedPath) -> bool:
        """Whether an object belongs to an entry, compaction or fold that is newer than the boundary."""
        if _is_of_commit(parsed):
            if parsed.lane not in self.lanes:
                return not self.was_retired(parsed.lane)
            return parsed.slot > self.lanes[parsed.lane]
        return parsed.kind is not Kind.ARCHIVE and parsed.slot > self.table


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found in the objects of a table.

    Attributes:
        read: Number and bytes of the objects that were read, by kind.
        remains: Objects that have an erased key and are not new, or that could not be read.
        newer: Objects with one of the keys that were committed after the erase, or are not committed yet.
        unread: Temporary files, and objects whose names weft does not use.
    """

    read: Mapping[str, Tally]
    remains: tuple[Remains, ...]
    newer: tuple[Path, ...]
    unread: tuple[Path, ...]


def prove(
    store: ObjectStore,
    search: KeySearch,
    boundary: Boundary,
    why: Callable[[Path, ParsedPath], str],
    progress: OnStage = unobserved,
) -> Proof:
    """Read every object of the table back, and search it for the keys.

    Args:
        store: The table's folder.
        search: The keys.
        boundary: Where the erase ends.
        why: Explains why an object that remains exists.
        progress: Called during the work.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    read: dict[str, Tally] = {}
    remains: list[Remains] = []
    newer: list[Path] = []
    unread: list[Path] = [temporary for temporary, _ in store.leftovers()]
    objects = _Objects(store)
    for path, size in counted(objects.list(), progress, "reading back", lambda: objects.listed):
        parsed = parse_path(path)
        if parsed is None:
            unread.append(path)
            continue
        try:
            has_key = parsed.kind not in _WITHOUT_KEYS and search.in_object(parsed, path, size)
        except MissingFile:
            continue  # deleted since it was listed
        except CorruptData as error:
            remains.append(Remains(path, parsed.kind, f"it cannot be read: {error.message}"))
            continue
        read[parsed.kind] = read.get(parsed.kind, Tally()).plus(size)
        if has_key and boundary.is_before(parsed):
            newer.append(path)
        elif has_key:
            remains.append(Remains(path, parsed.kind, why(path, parsed)))
    return Proof(read, tuple(remains), tuple(newer), tuple(unread))


class _Objects:
    """The objects of a table. ``listed``: number of objects listed so far."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.listed = store, 0

    def list(self) -> Iterator[tuple[Path, int]]:
        """Yield path and size of each object, archives last.

        Archives are listed after everything else was read, so a slot that a clean deletes meanwhile is found in its
        archive.
        """
        for root in (*_ROOTS, Path(ARCHIVE)):
            objects = [(Path(f"{root}/{name}"), size) for name, size in self._store.list(root)]
            if root != ARCHIVE:
                objects = [(path, size) for path, size in objects if not path.startswith(f"{ARCHIVE}/")]
            self.listed += len(objects)
            yield from objects


def is_needed(needed: Needed, path: Path, parsed: ParsedPath) -> bool:
    """Whether a retained or held snapshot reads an object."""
    if _is_of_commit(parsed):
        return contains(needed.entries.get(parsed.lane, ()), parsed.slot)
    return path in needed.files


def _is_of_commit(parsed: ParsedPath) -> bool:
    """Whether an object is an entry of a writer's lane, or a file of one."""
    return parsed.kind in {Kind.LOG, Kind.LOG_INDEX} or (parsed.kind is Kind.ENTRY and bool(parsed.lane))
