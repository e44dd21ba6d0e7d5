"""The commit log: slots of immutable entries, read contiguously and published exactly once.

This module implements these rules of PROTOCOL.md: a slot is written once (S1), a lane is read as its contiguous prefix
(S2), `publish` ends in won, lost or unknown, whatever the store answers (L2), the content of a slot is used only after
the archive of its chunk was requested (A2), and what was published is in the same table as the entry before it (W8).
Entries are cached, because they never change.

On an object store the number of round trips determines the speed. So several lanes are read together, in windows that
grow with the number of entries found, and searched together, with several probes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from weft.storage.core.log import entries, sidecar_codec
from weft.storage.core.log.entries import Data, Entry, Header, LaneEntry, TableEntry, Unresolved
from weft.storage.core.log.file_refs import LogFile, LogIndex, Sidecar
from weft.storage.core.names import TABLE_LANE, LaneName, Path, describe_lane, slot_path, table_index_path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, CorruptData, StoreUnavailable
from weft.storage.log.archived_entries import Archives, Slot
from weft.storage.log.decoded_sidecars import DECODED_INDEXES, DECODED_SLICES
from weft.storage.log.lane_reader import Search, Tail
from weft.storage.log.one_moment import OneMoment
from weft.storage.store.object_store import missing, no_answer, normalise_errors

PUBLISH_DEADLINE_MS: Final = 60_000  # longer than short outages of a store
RETRY_FIRST_MS: Final = 50
RETRY_LAST_MS: Final = 2_000

E = TypeVar("E", bound=Entry)


class CommitLog:
    """The lanes of one table."""

    def __init__(self, env: Environment) -> None:
        self._env, self._store, self._clock = env, env.store, env.clock
        self.archives = Archives(env.store, env.tuning)
        self._entries: dict[LaneName, dict[int, Entry]] = {}
        self._indexes: dict[Path, LogIndex] = {}
        self._forgotten: dict[LaneName, int] = {}

    def uncached(self) -> CommitLog:
        """A log with an empty cache, for entries that are not needed again. It knows the same archives."""
        log = CommitLog(self._env)
        log.archives = self.archives
        return log

    def entry(self, lane: LaneName, seq: int) -> Entry | None:
        """The entry in a slot; None if the slot is free.

        Raises:
            CorruptData: The entry is damaged.
            UnsupportedFormat: This version does not know its kind or a member of it.
            StoreUnavailable: The store does not answer.
        """
        with normalise_errors(slot_path(lane, seq)):
            return self._load(lane, seq)

    def _load(self, lane: LaneName, seq: int) -> Entry | None:
        """`entry`, but errors of the store are raised unchanged: `publish` distinguishes a refusal from no answer."""
        entry = self._cache_of(lane).get(seq)
        if entry is None:
            (data,) = self.archives.read([(lane, seq)])
            if data is None:
                return None
            (entry,) = self._resolve([entries.decode_entry(data, lane, seq)])
            self._cache_of(lane)[seq] = entry
        return entry

    def _cache_of(self, lane: LaneName) -> dict[int, Entry]:
        return self._entries.setdefault(lane, {})

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
        if data is not None and entries.decode_entry(data, lane, seq).commit_id == commit_id:
            return True
        entry = self.entry(lane, seq)
        return entry is not None and entry.commit_id == commit_id

    def read_on(
        self, lane: LaneName, seq: int, *, window: int = 1, known: int = 0, doubts: list[Slot] | None = None
    ) -> Iterator[list[Entry]]:
        """`read_after` to the end, in parts: needs memory for one part if the caller does not keep the entries.

        Args:
            lane: The lane.
            seq: The entry before the first one to read.
            window: Slots of the first round.
            known: An entry that exists, 0 if none is known. A later one saves rounds of requests.
            doubts: If no entry is found, the free slot is appended to this list, and the caller has to request the
                archive of its chunk (A2). None: this method requests it.
        """
        tuning = self._env.tuning
        most = tuning.read_part_entries
        while entries_read := self._read_tails(
            {lane: Tail(lane, seq, None, tuning, most=most, window=window, known=known)}, later=doubts
        )[lane]:
            yield entries_read
            if len(entries_read) < most:
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
        wanted: Mapping[LaneName, tuple[int, int | None]],
        known: Mapping[LaneName, int] | None = None,
        doubts: Sequence[Slot] = (),
        moment: OneMoment | None = None,
    ) -> dict[LaneName, list[Entry]]:
        """`read_after` of several lanes at once.

        Args:
            wanted: (after, until) for each lane: the entry before the first one to read, and the last one (None: up to
                the end of the lane).
            known: Entries that exist, by lane, as far as they are known. Later ones save rounds of requests.
            doubts: Free slots that were read before. The archives of their chunks are requested in the same round as
                those of the lanes; then `Archives.knows` has the result.
            moment: Lets lanes be read again, so that they are read at one moment if they rest for a round; then
                `OneMoment.is_one` says the result. None: the ends of lanes are those of different moments.
        """
        tuning = self._env.tuning
        existing = known or {}
        return self._read_tails(
            {
                lane: Tail(
                    lane,
                    after,
                    until,
                    tuning,
                    window=1 if until is None else tuning.lane_window,
                    known=existing.get(lane, 0),
                )
                for lane, (after, until) in wanted.items()
            },
            doubts,
            moment=moment,
        )

    def _read_tails(
        self,
        tails: Mapping[LaneName, Tail],
        doubts: Sequence[Slot] = (),
        later: list[Slot] | None = None,
        moment: OneMoment | None = None,
    ) -> dict[LaneName, list[Entry]]:
        # Without lanes to read again these notes decide nothing.
        moment = moment or OneMoment({}, lambda _: False)
        while True:
            self._read_slots(list(tails.values()), moment)
            doubtful = [(tail.lane, seq) for tail in tails.values() for seq in tail.doubtful()]
            if later is not None and all(tail.is_at_end for tail in tails.values()):
                later.extend(doubtful)
                break
            doubtful.extend(doubts)
            if not doubtful:
                break
            with normalise_errors(slot_path(*doubtful[0])):
                self.archives.ask(doubtful)
            doubts = ()
            for tail in tails.values():
                tail.settle(self.archives.knows)
            moment.note_settled(list(tails.values()))
        return {lane: self._resolve_and_cache(lane, tail.found) for lane, tail in tails.items()}

    def _resolve_and_cache(self, lane: LaneName, entries: list[Entry | Unresolved]) -> list[Entry]:
        """Load the lists of entries from sidecars, and add the entries to the cache."""
        cached = self._cache_of(lane)
        # A window may contain an entry that is in the cache: its sidecar need not be read again.
        hits = {raw.seq: entry for raw in entries if (entry := cached.get(raw.seq)) is not None}
        fresh = {entry.seq: entry for entry in self._resolve([raw for raw in entries if raw.seq not in hits])}
        cached.update(fresh)
        return [hits.get(raw.seq) or fresh[raw.seq] for raw in entries]

    def _read_slots(self, tails: Sequence[Tail], moment: OneMoment) -> None:
        """Read tails to the end of slots and known archives; `Tail.doubtful` returns slots that are not certain."""
        while True:
            for tail in tails:
                tail.take(self._cache_of(tail.lane))
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
                self.archives.ask(ahead)
                archived = {slot for slot in slots if self.archives.knows(slot)}
                data = {slot: self.archives.content(slot) for slot in archived}
            unread = [slot for slot in slots if slot not in archived]
            contents = dict(zip(unread, self._get_many([slot_path(*slot) for slot in unread]), strict=True)) | data
            for tail, window in windows:
                tail.read([(seq, contents[tail.lane, seq], (tail.lane, seq) in archived) for seq in window])
            moment.note_round([tail for tail, _ in windows])

    def head(self, lane: LaneName, known: int = 0) -> int:
        """The last entry of a lane, 0 if it is empty. The search starts at ``known``, an entry that exists."""
        return self.last_where({lane: (known, None)})[lane]

    def last_entries(self, known: Mapping[LaneName, int]) -> dict[LaneName, Header | None]:
        """The header of the last entry of each lane; None if the lane is empty, or if the known entry is missing.

        It takes two requests for a lane that ends with its known entry.

        Args:
            known: An entry that exists, by lane; 0 for none. The search starts there.
        """
        newest: dict[LaneName, Header | None] = dict.fromkeys(known)

        def keep(entry: Header) -> bool:
            last = newest[entry.lane]
            if last is None or entry.seq >= last.seq:  # equal: from an archive that was found after the slot was read
                newest[entry.lane] = entry
            return True

        self.last_where({lane: (seq, None) for lane, seq in known.items()}, keep, read_low=True)
        return newest

    def last_where(
        self,
        bounds: Mapping[LaneName, tuple[int, int | None]],
        holds: Callable[[Header], bool] | None = None,
        *,
        read_low: bool = False,
    ) -> dict[LaneName, int]:
        """The last entry of each lane for which a condition holds; it must hold for all entries before and none after
        that.

        Args:
            bounds: For each lane, an entry for which it holds (0 if unknown), and the last entry (None if unknown).
            holds: The condition, on the header of an entry; by default that the entry exists.
            read_low: Also read the lower bound and call ``holds`` with it; for conditions that only observe entries.
        """
        exists = holds is None or read_low
        while True:
            probes = self._env.tuning.search_probes
            searches = {
                lane: Search(low, None if head is None else head + 1, probes, read_low=read_low)
                for lane, (low, head) in bounds.items()
            }
            while slots := [(lane, seq) for lane, search in searches.items() for seq in search.probes()]:
                doubted = {slot for slot in slots if not exists or searches[slot[0]].is_open}
                for (lane, seq), (answer, sure) in zip(slots, self._probe(slots, holds, doubted), strict=True):
                    searches[lane].learn(seq, holds=answer, sure=sure)
            # The object at the end may have been put there too late, and a slot may be free because it is archived.
            ends = [(lane, seq) for lane, search in searches.items() for seq in search.doubtful(low=holds is not None)]
            with normalise_errors(slot_path(*(ends[0] if ends else (TABLE_LANE, 1)))):
                if not self.archives.ask(ends):
                    return {lane: search.low for lane, search in searches.items()}

    def _probe(
        self, slots: Sequence[Slot], holds: Callable[[Header], bool] | None, doubted: set[Slot]
    ) -> list[tuple[bool, bool]]:
        """For each slot, whether the condition holds, and whether that is certain.

        For free slots in ``doubted`` the archives are requested. Entries that are read here are not cached, because
        they are seldom needed again.
        """
        cached = {slot: entry for slot in slots if (entry := self._cache_of(slot[0]).get(slot[1])) is not None}
        uncached = [slot for slot in slots if slot not in cached]
        answers = []
        with normalise_errors(slot_path(*slots[0])):
            data = self.archives.in_slots(uncached)
            free = {slot for slot, content in data.items() if content is None} & doubted
            self.archives.ask(free)
            for slot in slots:
                archived = slot not in cached and self.archives.knows(slot)
                sure = slot in cached or archived or slot in free
                is_taken = slot in cached or archived or data[slot] is not None
                if is_taken and holds is not None:
                    content = self.archives.content(slot) if archived else data.get(slot)
                    is_taken = holds(cached.get(slot) or entries.decode_entry(content or b"", *slot))
                answers.append((is_taken, sure))
        return answers

    def _get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        if not paths:
            return []
        with normalise_errors(paths[0]):
            return [self._store.get(paths[0])] if len(paths) == 1 else self._store.get_many(paths)

    def publish(self, entry: E) -> Entry:
        """Publish an entry in its slot; returns the entry that the slot then has: this one, or another process's.

        Raises:
            CommitUnknown: The outcome was not known by the deadline. Nothing was removed.
            CorruptData: The entry before it is gone: the table was moved, deleted or replaced since it was read.
            StoreRefused: The store refuses access.
            StoreUnavailable: The sidecar of the entry could not be written; the entry was not published.
        """
        path = slot_path(entry.lane, entry.seq)
        data = entries.encode_entry(entry, self._write_sidecar(entry))
        started_ms = self._clock.now_ms()
        delay = RETRY_FIRST_MS
        failure = ""
        # The clock may jump, so the number of tries is bounded too.
        for _ in range(PUBLISH_DEADLINE_MS // RETRY_FIRST_MS):
            try:
                if self._store.put_if_absent(path, data):
                    failure = "it was written, and the store does not answer whether the slot was archived before"
                    # If the slot was archived and deleted since the lane was read, the archive has the entry that won.
                    archived, before = self.archives.ask_after_put((entry.lane, entry.seq), _slot_before(entry))
                    if not archived:
                        self._check_before(entry, before)
                        return self._remember(entry)
                winner = self._load(entry.lane, entry.seq)
                if winner is not None:
                    if winner.commit_id != entry.commit_id:
                        return winner
                    # An earlier put has succeeded although its answer was lost.
                    self._check_before(entry, None)
                    return self._remember(entry)
                failure = "the store answered that the slot is taken, and returned no object for it"
            except PermissionError as error:
                if failure:  # an earlier put may have succeeded before the credentials expired
                    failure = f"{failure}; then no access: {error}"
                    break
                raise no_answer(path, error) from error
            # What an entry or an archive refers to is read by other methods, which raise errors of weft.
            except (OSError, StoreUnavailable) as error:
                failure = str(error)
                if self._mine(entry):
                    return self._remember(entry)
            if self._clock.now_ms() - started_ms > PUBLISH_DEADLINE_MS:
                break
            self._clock.sleep(delay / 1000)
            delay = min(delay * 2, RETRY_LAST_MS)
        batch = (entry.query_id, entry.batch) if isinstance(entry, Data) and entry.query_id else None
        raise CommitUnknown(
            f"it is not known whether {entry.kind} {entry.seq} of lane {entry.lane!r} was written: {failure}",
            hint="open the table again and replay the same batch: a batch is never applied twice",
            batch=batch,
        )

    def indexes(self, files: Sequence[LogFile]) -> list[LogIndex]:
        """The indexes of log files, in the order of ``files``; sidecars that are not cached are read."""
        unread = [
            file.index for file in files if isinstance(file.index, Sidecar) and file.index.path not in self._indexes
        ]
        fetched_indexes = {sidecar.path: _decode_index(sidecar, data) for sidecar, data in self._sidecars(unread)}
        self._indexes.update(fetched_indexes)
        # Another thread may remove an index from the cache meanwhile (`forget_before`).
        return [
            file.index
            if isinstance(file.index, LogIndex)
            else fetched_indexes.get(file.index.path) or self._indexes.get(file.index.path) or self._index(file.index)
            for file in files
        ]

    def _index(self, sidecar: Sidecar) -> LogIndex:
        ((_, data),) = self._sidecars([sidecar])
        return _decode_index(sidecar, data)

    def forget_before(self, lane: LaneName, seq: int) -> None:
        """Remove entries up to ``seq`` from the cache: their rows are in slices."""
        if seq <= self._forgotten.get(lane, 0):
            return
        self._forgotten[lane] = seq
        cached = self._cache_of(lane)
        # Other threads add and remove entries meanwhile: `list` copies the keys in one step, and a key may be gone.
        for key in [key for key in list(cached) if key <= seq]:
            entry = cached.pop(key, None)
            if isinstance(entry, Data):
                self.forget_indexes(entry.files)

    def forget_indexes(self, files: Iterable[LogFile]) -> None:
        """Remove the indexes of log files that are not read any more from the cache."""
        for file in files:
            if isinstance(file.index, Sidecar):
                self._indexes.pop(file.index.path, None)

    def _mine(self, entry: Entry) -> bool:
        """Whether the slot has this entry; False if the store does not answer."""
        try:
            winner = self._load(entry.lane, entry.seq)
            if winner is None or winner.commit_id != entry.commit_id:
                return False
            self._check_before(entry, None)
        except (OSError, StoreUnavailable):
            return False
        return True

    def _check_before(self, entry: Entry, previous: bytes | None) -> None:
        """Check that the entry was published in the table that was read, which may be moved or deleted at any time.

        A store that makes folders as needed accepts the entry at the place where the table was, and nobody would ever
        read it. This is checked afterwards: whatever happens later happens to the entry, too.

        Args:
            entry: An entry that was published.
            previous: The object that was read from the slot before it; None if there was none, or if it was not read.

        Raises:
            CorruptData: The entry before it is not there.
        """
        before = _slot_before(entry)
        if before is None or (previous is not None and entry.prev_id.encode() in previous):
            return
        (previous,) = self.archives.read([before])
        if previous is None or entry.prev_id.encode() not in previous:
            raise CorruptData(
                f"the table at {self._store.uri} was moved, deleted or replaced: {slot_path(*before)} is gone, so "
                f"{entry.kind} {entry.seq} of {describe_lane(entry.lane)} was written where nobody reads it",
                hint="stop its writers and services, delete what they left there, move it back, and start them again",
            )

    def _remember(self, entry: E) -> E:
        self._cache_of(entry.lane)[entry.seq] = entry
        return entry

    def _resolve(self, raw_entries: Sequence[Entry | Unresolved]) -> list[Entry]:
        """The entries with their lists, in the same order. All sidecars are read in one round."""
        sidecars = [entry.sidecar for entry in raw_entries if isinstance(entry, Unresolved)]
        lists = {sidecar.path: data for sidecar, data in self._sidecars(sidecars)}
        return [
            sidecar_codec.resolve(entry, lists[entry.sidecar.path], DECODED_SLICES.decode)
            if isinstance(entry, Unresolved)
            else entry
            for entry in raw_entries
        ]

    def _write_sidecar(self, entry: Entry) -> Sidecar | None:
        """Write the list of an entry to a sidecar if it is too large for the entry; None if it is not."""
        items = entries.list_of(entry)
        if not items:
            return None
        data = sidecar_codec.encode_list(items)
        if len(data) <= self._env.tuning.inline_list_bytes:
            return None
        path = table_index_path(entry.seq, self._env.ids.new())
        self._store.put(path, data)
        return Sidecar.of(path, data)

    def _sidecars(self, sidecars: Sequence[Sidecar]) -> Iterator[tuple[Sidecar, bytes]]:
        """Sidecars and their content.

        Raises:
            CorruptData: A sidecar is missing or damaged.
        """
        window = self._env.tuning.lane_window
        for start in range(0, len(sidecars), window):
            part = sidecars[start : start + window]
            for sidecar, data in zip(part, self._get_many([sidecar.path for sidecar in part]), strict=True):
                if data is None:
                    raise missing(sidecar.path)
                if Sidecar.of(sidecar.path, data) != sidecar:
                    raise CorruptData(
                        f"sidecar {sidecar.path} is damaged, and an entry refers to it",
                        hint="restore it from a copy of the store",
                    )
                yield sidecar, data


def _decode_index(sidecar: Sidecar, data: bytes) -> LogIndex:
    return sidecar_codec.decode_index(sidecar, data, DECODED_INDEXES.decode)


def _slot_before(entry: Entry) -> Slot | None:
    """The slot that had an entry when this one was made: of its lane, or the first of the table; None for CREATE."""
    if entry.seq > 1:
        return entry.lane, entry.seq - 1
    return None if entry.lane == TABLE_LANE else (TABLE_LANE, 1)


def table_entries(entries_read: Sequence[Entry]) -> list[TableEntry]:
    """Narrow the type of entries of the table lane; `decode_entry` has checked the lane."""
    return [entry for entry in entries_read if isinstance(entry, TableEntry)]


def lane_entries(entries_read: Sequence[Entry]) -> list[LaneEntry]:
    """Narrow the type of entries of a writer's lane."""
    return [entry for entry in entries_read if isinstance(entry, LaneEntry)]


def read_table_lane(log: CommitLog, after: int, until: int | None = None) -> list[TableEntry]:
    """Entries of the table lane after a known prefix."""
    return table_entries(log.read_after(TABLE_LANE, after, until))
