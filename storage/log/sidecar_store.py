"""Reads and writes sidecars: long lists of entries, and indexes of log files, that are objects of their own.

A sidecar never changes, so indexes are cached until their log files are not read any more. Sidecars that are needed
together are read in one round of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.entries import Entry
from weft.storage.core.log.entry_codec import Unresolved, list_of
from weft.storage.core.log.file_refs import LogFile, LogIndex, Sidecar
from weft.storage.core.names import Path, table_index_path
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.log.decoded_sidecars import DECODED_INDEXES, DECODED_SLICES
from weft.storage.store.object_store import get_all, missing, normalise_errors


class Sidecars:
    """The sidecars of one table. Thread-safe."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._indexes: dict[Path, LogIndex] = {}
        self._fold_files: dict[Path, LogFile] = {}

    def write_list(self, entry: Entry) -> Sidecar | None:
        """Write the list of an entry to a sidecar if it is too large for the entry; None if it is not."""
        items = list_of(entry)
        if not items:
            return None
        data = sidecar_codec.encode_list(items)
        if len(data) <= self._env.tuning.inline_list_bytes:
            return None
        path = table_index_path(entry.seq, self._env.ids.new())
        self._env.store.put(path, data)
        return Sidecar.of(path, data)

    def resolve(self, raw_entries: Sequence[Entry | Unresolved]) -> list[Entry]:
        """The entries with their lists, in the same order.

        Raises:
            CorruptData: A sidecar is missing or damaged.
        """
        sidecars = [entry.sidecar for entry in raw_entries if isinstance(entry, Unresolved)]
        lists = {sidecar.path: data for sidecar, data in self._read(sidecars)}
        return [
            sidecar_codec.resolve(entry, lists[entry.sidecar.path], DECODED_SLICES.decode)
            if isinstance(entry, Unresolved)
            else entry
            for entry in raw_entries
        ]

    def indexes(self, files: Sequence[LogFile]) -> list[LogIndex]:
        """The indexes of log files, in the order of ``files``; those that are not cached are read.

        Raises:
            CorruptData: A sidecar is missing or damaged.
        """
        unread = [
            file.index for file in files if isinstance(file.index, Sidecar) and file.index.path not in self._indexes
        ]
        new_indexes = self._read_indexes(unread)
        self._indexes.update(new_indexes)
        # Another thread may remove an index from the cache meanwhile (`forget_indexes`).
        return [
            file.index
            if isinstance(file.index, LogIndex)
            else new_indexes.get(file.index.path)
            or self._indexes.get(file.index.path)
            or self._read_indexes([file.index])[file.index.path]
            for file in files
        ]

    def fold_indexes(self, files: Sequence[LogFile]) -> list[LogIndex]:
        """The indexes of the files of all live folds; those of other folds are removed from the cache.

        A read of an older snapshot fetches them again.

        Raises:
            CorruptData: A sidecar is missing or damaged.
        """
        indexes = self.indexes(files)
        previous, self._fold_files = self._fold_files, {file.file.path: file for file in files}
        self.forget_indexes(file for path, file in previous.items() if path not in self._fold_files)
        return indexes

    def forget_indexes(self, files: Iterable[LogFile]) -> None:
        """Remove the indexes of log files that are not read any more from the cache."""
        for file in files:
            if isinstance(file.index, Sidecar):
                self._indexes.pop(file.index.path, None)

    def _read_indexes(self, sidecars: Sequence[Sidecar]) -> dict[Path, LogIndex]:
        return {
            sidecar.path: sidecar_codec.decode_index(sidecar, data, DECODED_INDEXES.decode)
            for sidecar, data in self._read(sidecars)
        }

    def _read(self, sidecars: Sequence[Sidecar]) -> Iterator[tuple[Sidecar, bytes]]:
        """Sidecars and their content, verified."""
        window = self._env.tuning.lane_window
        for start in range(0, len(sidecars), window):
            part = sidecars[start : start + window]
            with normalise_errors(part[0].path):
                contents = get_all(self._env.store, [sidecar.path for sidecar in part])
            for sidecar, data in zip(part, contents, strict=True):
                if data is None:
                    raise missing(sidecar.path)
                if Sidecar.of(sidecar.path, data) != sidecar:
                    raise CorruptData(
                        f"sidecar {sidecar.path} is damaged, and an entry refers to it",
                        hint="restore it from a copy of the store",
                    )
                yield sidecar, data
