"""A lane while it is read to its end, and while an end is searched: what to ask for next, and what an answer is worth.

No I/O: `storage.log.commit_log` asks the store. What slots say of a lane's end is sure only after archives were asked
(PROTOCOL.md, "Archives"), so both say which slots are doubtful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from storage.core.log import entries
from storage.core.log.entries import Entry, Unresolved
from storage.core.names import LaneName
from storage.environment import Tuning
from storage.errors import CorruptData, TableError
from storage.log.archived_entries import Slot

WINDOW_GROWTH: Final = 4  # 100 entries take 5 round trips, and a read that finds nothing new asks for one slot


class Tail:
    """A lane on its way from one entry to the end.

    Slots tell where it ends, until archives are asked: an entry that others follow is what it seems, for whoever wrote
    the next one knew it; the last one may have come too late to its slot, and a slot that is free may be archived.
    """

    def __init__(
        self, lane: LaneName, after: int, until: int | None, most: int | None, window: int, tuning: Tuning
    ) -> None:
        self.lane, self._after, self._until, self._most = lane, after, until, most
        self.found: list[Entry | Unresolved] = []
        self._window, self._tuning = window, tuning
        self._ended = until is not None and after >= until
        self._sure = 0
        self._stopped = 0
        self._error: TableError | None = None

    @property
    def _seq(self) -> int:
        return self._after + len(self.found)

    def take(self, cached: Mapping[int, Entry]) -> None:
        """Go on as far as entries are known."""
        try:
            while not self._ended and (entry := cached.get(self._seq + 1)) is not None:
                self.add(entry)
                self._sure = len(self.found)
        except CorruptData as error:
            self._stop(error)

    def add(self, entry: Entry | Unresolved) -> None:
        """Go on by one entry.

        Raises:
            CorruptData: It does not follow the one before.
        """
        if self.found and entry.prev_id != self.found[-1].commit_id:
            raise CorruptData(
                f"entry {entry.seq} of lane {self.lane!r} does not follow entry {entry.seq - 1}",
                hint="an object was replaced: restore it from a copy of the store",
            )
        self.found.append(entry)
        self._ended |= self._seq == self._until or len(self.found) == self._most

    def window(self) -> range:
        """The slots to be read next."""
        if self._ended:
            return range(0)
        last = self._seq + self._window
        if self._most is not None:
            last = min(last, self._after + self._most)
        return range(self._seq + 1, (last if self._until is None else min(last, self._until)) + 1)

    def read(self, slots: Sequence[tuple[int, bytes | None, bool]]) -> None:
        """Go on with a window: per slot its number, what stands there, and whether that comes from an archive."""
        sizes = []
        for seq, data, archived in slots:
            if self._ended:
                break
            if data is None:
                self._stop(self._missing(seq) if self._until is not None else None)
                break
            sizes.append(len(data))
            try:
                self.add(entries.decode_entry(data, self.lane, seq))
            except TableError as error:
                self._stop(error)
                break
            if archived:
                self._sure = len(self.found)
        mean = sum(sizes) // max(len(sizes), 1)
        fitting = self._tuning.round_bytes // max(mean, 1) + 1
        self._window = min(self._window * WINDOW_GROWTH, self._tuning.lane_window, fitting)

    def _missing(self, seq: int) -> CorruptData:
        return CorruptData(
            f"entry {seq} of {f'lane {self.lane!r}' if self.lane else 'the table lane'} is missing, "
            f"but the snapshot reaches to {self._until}",
            hint="restore the object from a copy of the store",
        )

    def _stop(self, error: TableError | None) -> None:
        self._ended = True
        self._stopped, self._error = self._seq + 1, error

    def doubtful(self) -> list[int]:
        """Slots whose archives are to be asked for, after what was read of them."""
        last = [self._seq] if len(self.found) > self._sure else []
        return [*last, self._stopped] if self._stopped else last

    def settle(self, archived: Callable[[Slot], bool]) -> None:
        """Take note of what archives were found: what slots said of their chunks is forgotten, and read again.

        Raises:
            TableError: What is wrong with the lane, if its slots say what it holds.
        """
        doubtful = self.doubtful()
        if any(archived((self.lane, seq)) for seq in doubtful):
            while len(self.found) > self._sure and archived((self.lane, self._seq)):
                self.found.pop()
            self._ended = False
        elif self._error is not None:
            raise self._error
        self._sure, self._stopped, self._error = len(self.found), 0, None


class Search:
    """Where something ends that holds up to ``low`` and no longer at ``high`` (None: not known yet)."""

    def __init__(self, low: int, high: int | None, probes: int) -> None:
        self.low, self._high, self._probes = low, high, probes
        self._sure = {low, high}
        self._step = 1

    @property
    def is_open(self) -> bool:
        """Whether the end has not been passed yet."""
        return self._high is None

    def probes(self) -> list[int]:
        """What to look at next, ascending: powers of two until the end is passed, then parts of what is in doubt."""
        if self._high is None:
            found = [self.low + self._step * ((2 << power) - 1) for power in range(self._probes // 2)]
            self._step <<= self._probes // 2
            return found
        width = self._high - self.low
        parts = self._probes + 1
        return sorted({self.low + width * part // parts for part in range(1, parts)} - {self.low})

    def learn(self, seq: int, *, holds: bool, sure: bool) -> None:
        if sure:
            self._sure.add(seq)
        if holds and (self._high is None or seq < self._high):
            self.low = max(self.low, seq)
        elif not holds:
            self._high = seq if self._high is None else min(self._high, seq)

    def doubtful(self, *, low: bool) -> list[int]:
        """The slots on which the outcome rests that are not sure; the last that holds only if ``low``."""
        ends = [self.low, self._high] if low else [self._high]
        return [seq for seq in ends if seq is not None and seq not in self._sure]
