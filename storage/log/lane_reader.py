"""Reading a lane to its end, and searching for its end: which slots to read next, and which results are certain.

There is no I/O here: `weft.storage.log.commit_log` reads from the store. The end of a lane is certain only after
archives were requested (PROTOCOL.md, "Archives"), so `Tail` and `Search` return the slots that are in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from weft.storage.core.log.entries import Entry
from weft.storage.core.log.entry_codec import Unresolved, decode_entry
from weft.storage.core.names import LaneName, describe_lane
from weft.storage.environment import Tuning
from weft.storage.errors import CorruptData, TableError
from weft.storage.log.archived_entries import Slot

WINDOWS: Final = (1, 2, 10, 40)
"""Numbers of slots in the first rounds: a read that finds no new entry requests one slot, a read that finds one entry
requests three, and 100 entries take five rounds."""


class Tail:
    """The entries of a lane after one of its entries, read up to the end.

    An entry that others follow is certain, because the writer of the next one has read it. The last one may have been
    put into its slot too late, and a free slot may be archived: archives have to be requested.
    """

    def __init__(
        self,
        lane: LaneName,
        after: int,
        until: int | None,
        tuning: Tuning,
        *,
        max_entries: int | None = None,
        window: int = 1,
        lower_bound: int = 0,
    ) -> None:
        """Begin to read.

        Args:
            lane: The lane.
            after: The entry before the first one to read.
            until: The last entry to read; None for the end of the lane.
            tuning: Sizes of windows.
            max_entries: Maximum number of entries to read.
            window: Number of slots that are read in the first round.
            lower_bound: An entry that exists, or 0: the first round reads up to it and further.
        """
        self.lane, self._after, self._until = lane, after, until
        self._max_entries, self._lower_bound = max_entries, lower_bound
        self.entries: list[Entry | Unresolved] = []
        self._window, self._tuning = window, tuning
        self._ended = until is not None and after >= until
        self._certain = 0
        self._free_slot = 0
        self._stopped_at = 0
        self._error: TableError | None = None

    @property
    def _seq(self) -> int:
        return self._after + len(self.entries)

    def take(self, cached: Mapping[int, Entry]) -> None:
        """Take entries from the cache, as far as it has the next ones.

        Raises:
            CorruptData: An entry of the cache does not follow an entry that is certain.
        """
        try:
            while not self._ended and (entry := cached.get(self._seq + 1)) is not None:
                self.add(entry)
                self._certain = len(self.entries)
        except CorruptData as error:
            self._stop_at_certain(error)

    def add(self, entry: Entry | Unresolved) -> None:
        """Take the next entry.

        Raises:
            CorruptData: It does not follow the entry before.
        """
        if self.entries and entry.prev_id != self.entries[-1].commit_id:
            raise CorruptData(
                f"entry {entry.seq} of lane {self.lane!r} does not follow entry {entry.seq - 1}",
                hint="an object was replaced: restore it from a copy of the store",
            )
        self.entries.append(entry)
        self._ended |= self._seq == self._until or len(self.entries) == self._max_entries

    def window(self) -> range:
        """The slots to read next; empty at the end."""
        if self._ended:
            return range(0)
        last = self._seq + max(self._window, min(self._lower_bound + 1 - self._seq, self._tuning.lane_window))
        if self._max_entries is not None:
            last = min(last, self._after + self._max_entries)
        return range(self._seq + 1, (last if self._until is None else min(last, self._until)) + 1)

    def read(self, slots: Sequence[tuple[int, bytes | None, bool]]) -> None:
        """Add a window: (number, content or None, whether the content is from an archive) for each slot.

        Raises:
            TableError: An archived entry cannot be read, or does not follow an entry that is certain.
        """
        sizes = []
        for seq, data, is_archived in slots:
            if self._ended:
                break
            if data is None:
                self._free_slot = seq
                self._stop(self._missing(seq) if self._until is not None else None)
                break
            sizes.append(len(data))
            try:
                self.add(decode_entry(data, self.lane, seq))
            except TableError as error:
                if is_archived:
                    self._stop_at_certain(error)
                else:
                    self._stop(error)
                break
            if is_archived:
                self._certain = len(self.entries)
        mean = sum(sizes) // max(len(sizes), 1)
        fitting = self._tuning.round_bytes // max(mean, 1) + 1
        wider = next((size for size in WINDOWS if size > self._window), self._tuning.lane_window)
        self._window = min(wider, self._tuning.lane_window, fitting)

    def _missing(self, seq: int) -> CorruptData:
        return CorruptData(
            f"entry {seq} of {describe_lane(self.lane)} is missing, but the snapshot reaches to {self._until}",
            hint="restore the object from a copy of the store",
        )

    def _stop(self, error: TableError | None) -> None:
        self._ended = True
        self._stopped_at, self._error = self._seq + 1, error

    def _stop_at_certain(self, error: TableError) -> None:
        """Stop at an entry from the cache or an archive. To request its archive again would change nothing."""
        if len(self.entries) == self._certain:
            raise error
        self._ended, self._error = True, error

    @property
    def is_at_end(self) -> bool:
        """Whether there is no entry to read: the first slot is free, or archived."""
        return not self.entries and self._stopped_at > 0 and self._error is None

    @property
    def is_at_free_slot(self) -> bool:
        """Whether it ended at a slot that was read as free. Only a request tells whether that slot is archived."""
        return self._ended and self._free_slot == self._seq + 1

    def look_again(self) -> None:
        """Read the slot once more that was read as free."""
        assert self.is_at_free_slot, "only the end of a lane is read again"
        self._ended, self._window = False, 1

    def doubtful(self) -> list[int]:
        """Slots whose archives must be requested after the slots were read (A2)."""
        last = [self._seq] if len(self.entries) > self._certain else []
        return [*last, self._stopped_at] if self._stopped_at else last

    def settle(self, is_archived: Callable[[Slot], bool]) -> None:
        """Take the result of requesting archives: slots of archived chunks are read again.

        Raises:
            TableError: The error at which reading stopped, if no archive explains it.
        """
        doubtful = self.doubtful()
        if any(is_archived((self.lane, seq)) for seq in doubtful):
            while len(self.entries) > self._certain and is_archived((self.lane, self._seq)):
                self.entries.pop()
            self._ended = False
        elif self._error is not None:
            raise self._error
        self._certain, self._stopped_at, self._error = len(self.entries), 0, None


class Search:
    """Search for the last slot with a property that ``low`` has and ``high`` does not have (None: unknown)."""

    def __init__(self, low: int, high: int | None, probes: int, *, read_low: bool = False) -> None:
        """Begin to search; ``read_low``: the first round requests ``low`` and the next slot, which is usually free."""
        self.low, self._high, self._probes = low, high, probes
        self._certain = {low, high}
        self._step = 1
        self._read_low = read_low and low > 0

    @property
    def is_open(self) -> bool:
        """Whether the upper bound of the search is still unknown."""
        return self._high is None

    def probes(self) -> list[int]:
        """Slots to request next, ascending: first at distances of powers of two up to the end, then equal parts."""
        if self._read_low:
            self._read_low = False
            return [self.low, self.low + 1]
        if self._high is None:
            probes = [self.low + self._step * ((2 << power) - 1) for power in range(self._probes // 2)]
            self._step <<= self._probes // 2
            return probes
        width = self._high - self.low
        parts = self._probes + 1
        return sorted({self.low + width * part // parts for part in range(1, parts)} - {self.low})

    def learn(self, seq: int, *, holds: bool, is_sure: bool) -> None:
        """Take the answer for a slot: whether it has the property, and whether that is certain."""
        if is_sure:
            self._certain.add(seq)
        if holds and (self._high is None or seq < self._high):
            self.low = max(self.low, seq)
        elif not holds:
            self._high = seq if self._high is None else min(self._high, seq)

    def doubtful(self, *, low: bool) -> list[int]:
        """Slots that determine the result and are not certain; the last one with the property only if ``low``."""
        ends = [self.low, self._high] if low else [self._high]
        return [seq for seq in ends if seq is not None and seq not in self._certain]
