"""The commit log: lanes of immutable entries in numbered slots, read contiguously and published exactly once.

This module decides how lanes are read. It implements these rules of PROTOCOL.md: a lane is read as its contiguous
prefix (S2), and the content of a slot is used only after the archive of its chunk was requested (A2).
`weft.storage.log.publish_entry` decides who wins a slot, and `weft.storage.log.entry_cache` has the entries.

On an object store the number of round trips determines the speed. So several lanes are read together, in windows that
grow with the number of entries read, and searched together, with several probes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from weft.storage.core.log.entries import Entry, Header, TableEntry, table_entries
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.names import TABLE_LANE, LaneName, slot_path
from weft.storage.environment import Environment
from weft.storage.log.archived_entries import Archives, Slot
from weft.storage.log.entry_cache import EntryCache
from weft.storage.log.lane_reader import Search, Tail
from weft.storage.log.one_moment import OneMoment
from weft.storage.log.publish_entry import Publisher
from weft.storage.log.sidecar_store import Sidecars
from weft.storage.store.object_store import get_all, normalise_errors


class CommitLog:
    """The lanes of one table."""

    def __init__(self, env: Environment, archives: Archives | None = None) -> None:
        """Begin with an empty cache; ``archives``: the archives that this process knows already."""
        self._env = env
        self.archives = archives or Archives(env.store, env.tuning)
        self.sidecars = Sidecars(env)
        self._cache = EntryCache(self.archives, self.sidecars)
        self._publisher = Publisher(env, self.archives, self.sidecars, self._cache)

    def uncached(self) -> CommitLog:
        """A log with an empty cache, for entries that are not needed again. It knows the same archives."""
        return CommitLog(self._env, self.archives)

    def publish(self, entry: Entry) -> Entry:
        """Publish an entry in its slot; returns the entry that the slot then has: this one, or another process's.

        Raises:
            CommitUnknown: The outcome was not known by the deadline. Nothing was removed.
            CorruptData: The entry before it is gone: the table was moved, deleted or replaced since it was read.
            StoreRefused: The store refuses access.
            StoreUnavailable: The sidecar of the entry could not be written; the entry was not published.
        """
        return self._publisher.publish(entry)

    def forget_before(self, lane: LaneName, seq: int) -> None:
        """Remove entries up to ``seq`` from the cache: their rows are in slices."""
        self._cache.forget_before(lane, seq)

    def entry(self, lane: LaneName, seq: int) -> Entry | None:
        """The entry in a slot; None if the slot is free.

        Raises:
            CorruptData: The entry is damaged.
            UnsupportedFormat: This version does not know its kind or a member of it.
            StoreUnavailable: The store does not answer.
        """
        with normalise_errors(slot_path(lane, seq)):
            return self._cache.load(lane, seq)

    def holds(self, lane: LaneName, seq: int, commit_id: str, data: bytes | None) -> bool:
        """Whether the entry in a slot has this ``commit_id``.

        Args:
            lane: The lane.
            seq: Number of the slot.
            commit_id: The id.
            data: The object that was read from the slot; None if there was none.

        Raises:
            CorruptData, UnsupportedFormat, StoreUnavailable: See `entry`.
        """
        # An object that was put into an archived slot too late has another id, so no archive has to be requested.
        if data is not None and decode_entry(data, lane, seq).commit_id == commit_id:
            return True
        entry = self.entry(lane, seq)
        return entry is not None and entry.commit_id == commit_id

    def read_on(
        self, lane: LaneName, seq: int, *, window: int = 1, lower_bound: int = 0, doubts: list[Slot] | None = None
    ) -> Iterator[list[Entry]]:
        """`read_after` to the end, in parts: needs memory for one part if the caller does not keep the entries.

        Args:
            lane: The lane.
            seq: The entry before the first one to read.
            window: Slots of the first round.
            lower_bound: An entry that exists, or 0. A later one saves rounds of requests.
            doubts: If there is no entry to read, the free slot is appended to this list, and the caller has to request
                the archive of its chunk (A2). None: this method requests it.
        """
        tuning = self._env.tuning
        max_entries = tuning.read_part_entries
        while entries_read := self._read_tails(
            {lane: Tail(lane, seq, None, tuning, max_entries=max_entries, window=window, lower_bound=lower_bound)},
            deferred=doubts,
        )[lane]:
            yield entries_read
            if len(entries_read) < max_entries:
                return
            seq, window, doubts = entries_read[-1].seq, tuning.lane_window, None

    def read_after(self, lane: LaneName, seq: int, until: int | None = None) -> list[Entry]:
        """Contiguous entries seq + 1, seq + 2, ... up to ``until`` or the first free slot.

        Raises:
            CorruptData: A slot up to ``until`` is free, or an entry does not follow the one before it.
        """
        return self.read_tails({lane: (seq, until)})[lane]

    def read_tails(
        self,
        ranges: Mapping[LaneName, tuple[int, int | None]],
        lower_bounds: Mapping[LaneName, int] | None = None,
        doubts: Sequence[Slot] = (),
        moment: OneMoment | None = None,
    ) -> dict[LaneName, list[Entry]]:
        """`read_after` of several lanes at once.

        Args:
            ranges: (after, until) for each lane: the entry before the first one to read, and the last one (None: up to
                the end of the lane).
            lower_bounds: An entry that exists, by lane; lanes may be left out. Later ones save rounds of requests.
            doubts: Free slots that were read before. The archives of their chunks are requested in the same round as
                those of the lanes; then `Archives.knows` has the result.
            moment: Lets lanes be read again, so that they are read at one moment if they rest for a round; then
                `OneMoment.is_one` says the result. None: the ends of lanes are those of different moments.
        """
        tuning = self._env.tuning
        existing = lower_bounds or {}
        return self._read_tails(
            {
                lane: Tail(
                    lane,
                    after,
                    until,
                    tuning,
                    window=1 if until is None else tuning.lane_window,
                    lower_bound=existing.get(lane, 0),
                )
                for lane, (after, until) in ranges.items()
            },
            doubts,
            moment=moment,
        )

    def _read_tails(
        self,
        tails: Mapping[LaneName, Tail],
        doubts: Sequence[Slot] = (),
        deferred: list[Slot] | None = None,
        moment: OneMoment | None = None,
    ) -> dict[LaneName, list[Entry]]:
        """`read_tails`; ``deferred``: see ``doubts`` of `read_on`."""
        # Without lanes to read again these notes decide nothing.
        moment = moment or OneMoment({}, lambda _: False)
        while True:
            self._read_slots(list(tails.values()), moment)
            doubtful = [(tail.lane, seq) for tail in tails.values() for seq in tail.doubtful()]
            if deferred is not None and all(tail.is_at_end for tail in tails.values()):
                deferred.extend(doubtful)
                break
            doubtful.extend(doubts)
            if not doubtful:
                break
            with normalise_errors(slot_path(*doubtful[0])):
                self.archives.request(doubtful)
            doubts = ()
            for tail in tails.values():
                tail.settle(self.archives.knows)
            moment.note_settled(list(tails.values()))
        return {lane: self._cache.resolve(lane, tail.entries) for lane, tail in tails.items()}

    def _read_slots(self, tails: Sequence[Tail], moment: OneMoment) -> None:
        """Read tails to the end of slots and known archives; `Tail.doubtful` returns slots that are not certain."""
        while True:
            for tail in tails:
                tail.take(self._cache.of_lane(tail.lane))
            moment.note_cached(tails)
            moment.look_again(tails)
            windows = [(tail, window) for tail in tails if (window := tail.window())]
            if not windows:
                return
            # The chunk after an archived one is probably archived, too: one request instead of a round of requests.
            ahead = [(tail.lane, window[0]) for tail, window in windows]
            ahead = [(lane, seq) for lane, seq in ahead if self.archives.knows((lane, seq - 1))]
            slots = [(tail.lane, seq) for tail, window in windows for seq in window]
            with normalise_errors(slot_path(*slots[0])):
                self.archives.request(ahead)
                archived = {slot: self.archives.content(slot) for slot in slots if self.archives.knows(slot)}
                unread = [slot for slot in slots if slot not in archived]
                objects = get_all(self._env.store, [slot_path(*slot) for slot in unread])
            contents = dict(zip(unread, objects, strict=True)) | archived
            for tail, window in windows:
                tail.read([(seq, contents[tail.lane, seq], (tail.lane, seq) in archived) for seq in window])
            moment.note_round([tail for tail, _ in windows])

    def head(self, lane: LaneName, lower_bound: int = 0) -> int:
        """The last entry of a lane, 0 if it is empty. The search starts at ``lower_bound``, an entry that exists."""
        return self.last_where({lane: (lower_bound, None)})[lane]

    def last_entries(self, lower_bounds: Mapping[LaneName, int]) -> dict[LaneName, Header | None]:
        """The header of the last entry of each lane; None if the lane is empty, or if its lower bound is missing.

        It takes two requests for a lane whose last entry is its lower bound.

        Args:
            lower_bounds: An entry that exists, by lane, or 0. The search starts there.
        """
        newest: dict[LaneName, Header | None] = dict.fromkeys(lower_bounds)

        def keep(entry: Header) -> bool:
            last = newest[entry.lane]
            if last is None or entry.seq >= last.seq:  # equal: from an archive that was read after the slot
                newest[entry.lane] = entry
            return True

        self.last_where({lane: (seq, None) for lane, seq in lower_bounds.items()}, keep, read_low=True)
        return newest

    def last_where(
        self,
        bounds: Mapping[LaneName, tuple[int, int | None]],
        condition: Callable[[Header], bool] | None = None,
        *,
        read_low: bool = False,
    ) -> dict[LaneName, int]:
        """Search for the last entry of each lane for which a condition holds.

        The condition must hold for all entries before this one, and for none after it.

        Args:
            bounds: For each lane, an entry for which it holds (0 if unknown), and the last entry (None if unknown).
            condition: On the header of an entry; by default that the entry exists.
            read_low: Also call ``condition`` with the lower bound; for conditions that only observe entries.
        """
        tests_existence = condition is None or read_low
        while True:
            probes = self._env.tuning.search_probes
            searches = {
                lane: Search(low, None if head is None else head + 1, probes, read_low=read_low)
                for lane, (low, head) in bounds.items()
            }
            while slots := [(lane, seq) for lane, search in searches.items() for seq in search.probes()]:
                unsure = {slot for slot in slots if not tests_existence or searches[slot[0]].is_open}
                for (lane, seq), (answer, is_sure) in zip(slots, self._probe(slots, condition, unsure), strict=True):
                    searches[lane].learn(seq, holds=answer, is_sure=is_sure)
            # The object at the end may have been put there too late, and a slot may be free because it is archived.
            ends = [
                (lane, seq) for lane, search in searches.items() for seq in search.doubtful(low=condition is not None)
            ]
            with normalise_errors(slot_path(*(ends[0] if ends else (TABLE_LANE, 1)))):
                if not self.archives.request(ends):
                    return {lane: search.low for lane, search in searches.items()}

    def _probe(
        self, slots: Sequence[Slot], condition: Callable[[Header], bool] | None, unsure: set[Slot]
    ) -> list[tuple[bool, bool]]:
        """For each slot, whether the condition holds, and whether that is certain.

        For free slots in ``unsure`` the archives are requested. Entries that are read here are not cached, because
        they are seldom needed again.
        """
        cached = {slot: entry for slot in slots if (entry := self._cache.of_lane(slot[0]).get(slot[1])) is not None}
        uncached = [slot for slot in slots if slot not in cached]
        answers = []
        with normalise_errors(slot_path(*slots[0])):
            data = self.archives.in_slots(uncached)
            free = {slot for slot, content in data.items() if content is None} & unsure
            self.archives.request(free)
            for slot in slots:
                is_archived = slot not in cached and self.archives.knows(slot)
                is_sure = slot in cached or is_archived or slot in free
                answer = slot in cached or is_archived or data[slot] is not None
                if answer and condition is not None:
                    content = self.archives.content(slot) if is_archived else data.get(slot)
                    answer = condition(cached.get(slot) or decode_entry(content or b"", *slot))
                answers.append((answer, is_sure))
        return answers


def read_table_lane(log: CommitLog, after: int, until: int | None = None) -> list[TableEntry]:
    """Entries of the table lane after a known prefix."""
    return table_entries(log.read_after(TABLE_LANE, after, until))
