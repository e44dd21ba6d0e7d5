"""Whether the ends of several lanes, read at the same time, are their ends at one moment (PROTOCOL.md, R7, S31).

A commit may become visible in a lane after a reader has read that lane. A program that has seen this commit may then
commit to another lane, before the reader reads that one. Then the reader has the second commit without the first:

    reader   | reads lane a: end |            | reads lane b: entry 7 |
    lane a                          entry 3
    lane b                                 entry 7, whose writer had read entry 3

That cannot happen if lane a still ended there when entry 7 existed already. So a lane whose end was read before the
last commit of another lane is read once more, in the next round of requests. What existed before the first round (in
the cache, or named by the table lane) needs no further round: a table at rest costs nothing more.

There is no I/O here: `weft.storage.log.commit_log` reads from the store, and asks for archives after the last round
(A2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.entries import Data
from weft.storage.core.names import LaneName
from weft.storage.log.lane_reader import WINDOWS, Tail

MAX_LOOKS: Final = 2
"""Rounds in which lanes are read again. With 20 lanes that commit every 5 s the first one suffices in four of five
reads, and with hundreds of lanes no number does."""

RESTLESS_LANES: Final = 2
"""If more lanes than this have committed during one look, as many will do so during the next one."""

MANY_LANES: Final = 64
"""If a round finds commits in more lanes than this, which are as many as are read at once, the next one reads these
lanes alone: it shows whether they rest. A look at all the others would take several times as long."""


class OneMoment:
    """Decides whether the ends of lanes were read at one moment.

    It notes the round of requests in which the end of each lane was read, and the round that read its last commit.
    """

    def __init__(self, existing: Seqs, belongs: Callable[[Data], bool], looks: int = MAX_LOOKS) -> None:
        """Begin before the first round.

        Args:
            existing: An entry of each lane that existed before the first round; lanes without one may be left out.
            belongs: Whether a commit belongs to the cut if its lane reaches that far (PROTOCOL.md, R2).
            looks: Rounds in which lanes may be read again.
        """
        self._existing, self._belongs, self._looks, self._max_looks = existing, belongs, looks, looks
        self._round = 0
        self._has_waited = False
        self._noted: dict[LaneName, int] = {}
        self._commit_in: dict[LaneName, int] = {}
        self._free_in: dict[LaneName, int] = {}
        self._unknown = False

    def note_cached(self, tails: Sequence[Tail]) -> None:
        """Note entries from the cache: they existed before the next round, and maybe not before the last one."""
        self._note(tails)

    def note_settled(self, tails: Sequence[Tail]) -> None:
        """Note that entries were dropped that are not in the archives of their slots."""
        self._noted = {tail.lane: min(len(tail.entries), self._noted[tail.lane]) for tail in tails}

    def note_round(self, tails: Sequence[Tail]) -> None:
        """Note the result of a round of requests; ``tails`` are the lanes that it has read."""
        self._round += 1
        self._note(tails)
        self._free_in |= {tail.lane: self._round for tail in tails if tail.is_at_free_slot}

    def _note(self, tails: Sequence[Tail]) -> None:
        for tail in tails:
            new_entries = tail.entries[self._noted.get(tail.lane, 0) :]
            self._noted[tail.lane] = len(tail.entries)
            commits = [
                entry
                for entry in new_entries
                if isinstance(entry, Data) and entry.seq > self._existing.get(tail.lane, 0) and self._belongs(entry)
            ]
            if commits and self._round:
                self._commit_in[tail.lane] = self._round
                # Its writer may have read a lane that this process does not know.
                self._unknown |= any(entry.table_seen is None for entry in commits)

    def look_again(self, tails: Sequence[Tail]) -> None:
        """Let lanes that were read too early be read again in the next round, if there may be another look.

        A round that is needed anyway is used if it is probably the last one: it reads few slots of each lane.
        """
        new_commits = sum(round_number == self._round for round_number in self._commit_in.values())
        if (self._looks < self._max_looks or self._has_waited) and new_commits > RESTLESS_LANES:
            return
        if not self._has_waited and new_commits > MANY_LANES:
            self._has_waited = True
            return
        early = self._early()
        again = [tail for tail in tails if tail.lane in early and tail.is_at_free_slot]
        if not again or self._looks == 0 or any(len(tail.window()) > WINDOWS[1] for tail in tails):
            return
        self._looks -= 1
        for tail in again:
            tail.look_again()

    @property
    def is_one(self) -> bool:
        """Whether the ends that were read contain what was visible before any commit in them began."""
        return not self._unknown and not self._early()

    def _early(self) -> set[LaneName]:
        """The lanes whose end was last read before, or in, the round that read the last commit of another lane."""
        last = sorted(self._commit_in.values())[-2:]
        if not last:
            return set()
        newest, second = last[-1], last[0] if len(last) > 1 else 0
        return {
            lane
            for lane, round_number in self._free_in.items()
            if round_number <= (second if self._commit_in.get(lane) == newest else newest)
        }
