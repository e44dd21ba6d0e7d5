"""The entries of slots, each with its list from a sidecar. Entries never change, so they are cached.

What an entry is read from, its slot or an archive, is decided by `weft.storage.log.archived_entries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weft.storage.core.log.entries import Data, Entry
from weft.storage.core.log.entry_codec import Unresolved, decode_entry
from weft.storage.core.names import LaneName
from weft.storage.log.archived_entries import Archives
from weft.storage.log.sidecar_store import Sidecars

E = TypeVar("E", bound=Entry)


class EntryCache:
    """The entries of one table, as far as this process has read them. Thread-safe."""

    def __init__(self, archives: Archives, sidecars: Sidecars) -> None:
        self._archives, self._sidecars = archives, sidecars
        self._entries: dict[LaneName, dict[int, Entry]] = {}
        self._forgotten: dict[LaneName, int] = {}

    def of_lane(self, lane: LaneName) -> dict[int, Entry]:
        """The cached entries of a lane, by number."""
        return self._entries.setdefault(lane, {})

    def load(self, lane: LaneName, seq: int) -> Entry | None:
        """The entry in a slot, read if it is not cached; None if the slot is free.

        Errors of the store are raised unchanged: `weft.storage.log.publish_entry` distinguishes a refusal from no
        answer.
        """
        entry = self.of_lane(lane).get(seq)
        if entry is None:
            (data,) = self._archives.read([(lane, seq)])
            if data is None:
                return None
            (entry,) = self._sidecars.resolve([decode_entry(data, lane, seq)])
            self.of_lane(lane)[seq] = entry
        return entry

    def resolve(self, lane: LaneName, raw_entries: Sequence[Entry | Unresolved]) -> list[Entry]:
        """Load the lists of entries that were read from a lane, and add the entries to the cache."""
        cached = self.of_lane(lane)
        # The cache may have an entry that was read: its sidecar need not be read again.
        hits = {raw.seq: entry for raw in raw_entries if (entry := cached.get(raw.seq)) is not None}
        resolved = self._sidecars.resolve([raw for raw in raw_entries if raw.seq not in hits])
        new_entries = {entry.seq: entry for entry in resolved}
        cached.update(new_entries)
        return [hits.get(raw.seq) or new_entries[raw.seq] for raw in raw_entries]

    def add(self, entry: E) -> E:
        """Add an entry that was published, and return it."""
        self.of_lane(entry.lane)[entry.seq] = entry
        return entry

    def forget_before(self, lane: LaneName, seq: int) -> None:
        """Remove entries up to ``seq``, and the indexes of their log files: their rows are in slices."""
        if seq <= self._forgotten.get(lane, 0):
            return
        self._forgotten[lane] = seq
        cached = self.of_lane(lane)
        # Other threads add and remove entries meanwhile: `list` copies the keys in one step, and a key may be gone.
        for key in [key for key in list(cached) if key <= seq]:
            entry = cached.pop(key, None)
            if isinstance(entry, Data):
                self._sidecars.forget_indexes(entry.files)
