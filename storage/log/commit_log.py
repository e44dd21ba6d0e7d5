"""The commit log: slots of immutable entries, read contiguously and published exactly once.

The rules of PROTOCOL.md that live here: a slot is written once (S1), a lane is read as its contiguous prefix (S2),
`publish` ends in won, lost or unknown, whatever the store answers (L2), and what slots say is believed after archives
were asked (A2). Entries are cached, for they never change.

Where an answer takes a round trip, what matters is how many there are: lanes are read together, in windows that grow
with what was found, and searched together, with several probes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from storage.core.log import entries, sidecar_codec
from storage.core.log.entries import Data, Entry, Header, LaneEntry, TableEntry, Unresolved
from storage.core.log.file_refs import LogFile, LogIndex, Sidecar
from storage.core.names import TABLE_LANE, LaneName, Path, slot_path, table_index_path
from storage.environment import Environment
from storage.errors import CommitUnknown, CorruptData, StoreRefused
from storage.log.archived_entries import Archives, Slot
from storage.log.lane_reader import Search, Tail
from storage.store.object_store import missing, normalise_errors

PUBLISH_DEADLINE_MS: Final = 60_000  # long enough for a store's bad minute; then the truth is left to a replay
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

    def entry(self, lane: LaneName, seq: int) -> Entry | None:
        """The entry in a slot, None if the slot is free.

        Raises:
            CorruptData: It is damaged.
            UnsupportedFormat: This version does not know it.
            StoreUnavailable: The store does not answer.
        """
        with normalise_errors(slot_path(lane, seq)):
            return self._load(lane, seq)

    def _load(self, lane: LaneName, seq: int) -> Entry | None:
        """`entry`, but what the store raises is passed on: `publish` must tell silence from refusal."""
        known = self._cached(lane).get(seq)
        if known is None:
            (data,) = self.archives.read([(lane, seq)])
            if data is None:
                return None
            (known,) = self._resolved([entries.decode_entry(data, lane, seq)])
            self._cached(lane)[seq] = known
        return known

    def _cached(self, lane: LaneName) -> dict[int, Entry]:
        return self._entries.setdefault(lane, {})

    def holds(self, lane: LaneName, seq: int, commit_id: str) -> bool:
        """Whether the entry in a slot is a certain one.

        Raises:
            CorruptData, UnsupportedFormat, StoreUnavailable: See `entry`.
        """
        if seq not in self._cached(lane) and not self.archives.knows((lane, seq)):
            (data,) = self._get_many([slot_path(lane, seq)])
            # What comes too late to an archived slot has another id, so there is nothing to ask here.
            if data is not None and entries.decode_entry(data, lane, seq).commit_id == commit_id:
                return True
        entry = self.entry(lane, seq)
        return entry is not None and entry.commit_id == commit_id

    def read_on(self, lane: LaneName, seq: int) -> Iterator[list[Entry]]:
        """`read_after` to the end, a part at a time: memory is that of one part if the caller forgets the entries."""
        tuning, window = self._env.tuning, 1
        while found := self._read_tails({lane: Tail(lane, seq, None, tuning.read_part_entries, window, tuning)})[lane]:
            yield found
            if len(found) < tuning.read_part_entries:
                return
            seq, window = found[-1].seq, tuning.lane_window

    def read_after(self, lane: LaneName, seq: int, until: int | None = None) -> list[Entry]:
        """Contiguous entries seq + 1, seq + 2, ... up to ``until`` or the first free slot.

        Raises:
            CorruptData: A slot before ``until`` is free, or an entry does not follow the one before.
        """
        return self.read_tails({lane: (seq, until)})[lane]

    def read_tails(self, wanted: Mapping[LaneName, tuple[int, int | None]]) -> dict[LaneName, list[Entry]]:
        """`read_after` of several lanes at once.

        Args:
            wanted: Per lane the last entry that is not wanted, and the last that is (None: all there are).
        """
        tuning = self._env.tuning
        return self._read_tails(
            {
                lane: Tail(lane, after, until, None, 1 if until is None else tuning.lane_window, tuning)
                for lane, (after, until) in wanted.items()
            }
        )

    def _read_tails(self, tails: Mapping[LaneName, Tail]) -> dict[LaneName, list[Entry]]:
        while True:
            self._read_slots(list(tails.values()))
            doubtful = [(tail.lane, seq) for tail in tails.values() for seq in tail.doubtful()]
            if not doubtful:
                break
            with normalise_errors(slot_path(*doubtful[0])):
                self.archives.ask(doubtful)
            for tail in tails.values():
                tail.settle(self.archives.knows)
        return {lane: self._kept(lane, tail.found) for lane, tail in tails.items()}

    def _kept(self, lane: LaneName, found: list[Entry | Unresolved]) -> list[Entry]:
        """Whole entries, of which those are remembered now that were not yet."""
        cached = self._cached(lane)
        # A window may have read an entry that was remembered before, whose sidecar need not be read again.
        known = {read.seq: entry for read in found if (entry := cached.get(read.seq)) is not None}
        fresh = {entry.seq: entry for entry in self._resolved([read for read in found if read.seq not in known])}
        cached.update(fresh)
        return [known.get(read.seq) or fresh[read.seq] for read in found]

    def _read_slots(self, tails: Sequence[Tail]) -> None:
        """Let tails go on to where slots and known archives end; what that is worth `Tail.doubtful` says."""
        while True:
            for tail in tails:
                tail.take(self._cached(tail.lane))
            windows = [(tail, window) for tail in tails if (window := tail.window())]
            if not windows:
                return
            # What follows an archived chunk is probably archived, too: one request instead of a round of them.
            ahead = [(tail.lane, window[0]) for tail, window in windows]
            ahead = [(lane, seq) for lane, seq in ahead if self.archives.knows((lane, seq - 1))]
            slots = [(tail.lane, seq) for tail, window in windows for seq in window]
            with normalise_errors(slot_path(*slots[0])):
                self.archives.ask(ahead)
                known = {slot for slot in slots if self.archives.knows(slot)}
                data = {slot: self.archives.content(slot) for slot in known}
            unread = [slot for slot in slots if slot not in known]
            there = dict(zip(unread, self._get_many([slot_path(*slot) for slot in unread]), strict=True)) | data
            for tail, window in windows:
                tail.read([(seq, there[tail.lane, seq], (tail.lane, seq) in known) for seq in window])

    def head(self, lane: LaneName, known: int = 0) -> int:
        """Last entry of the lane's contiguous prefix, given that ``known`` entries exist."""
        return self.last_where({lane: (known, None)})[lane]

    def last_where(
        self, bounds: Mapping[LaneName, tuple[int, int | None]], holds: Callable[[Header], bool] | None = None
    ) -> dict[LaneName, int]:
        """Per lane the last entry for which something holds that holds for all before it and for none after it.

        Args:
            bounds: Per lane an entry for which it holds (0: perhaps none), and the lane's head, if that is known.
            holds: What, by the header of an entry. That there is an entry, if not given.
        """
        while True:
            probes = self._env.tuning.search_probes
            searches = {
                lane: Search(low, None if head is None else head + 1, probes) for lane, (low, head) in bounds.items()
            }
            while asked := [(lane, seq) for lane, search in searches.items() for seq in search.probes()]:
                doubted = {slot for slot in asked if holds is not None or searches[slot[0]].is_open}
                for (lane, seq), (answer, sure) in zip(asked, self._probe(asked, holds, doubted), strict=True):
                    searches[lane].learn(seq, holds=answer, sure=sure)
            # What a search ends with may have come too late to its slot, or be free because it is archived.
            ends = [(lane, seq) for lane, search in searches.items() for seq in search.doubtful(low=holds is not None)]
            with normalise_errors(slot_path(*(ends[0] if ends else (TABLE_LANE, 1)))):
                if not self.archives.ask(ends):
                    return {lane: search.low for lane, search in searches.items()}

    def _probe(
        self, slots: Sequence[Slot], holds: Callable[[Header], bool] | None, doubted: set[Slot]
    ) -> list[tuple[bool, bool]]:
        """Per slot whether it holds, and whether that is sure; of those in ``doubted``, if free, archives are asked.

        What is read here is not kept: it is seldom needed again.
        """
        cached = {slot: entry for slot in slots if (entry := self._cached(slot[0]).get(slot[1])) is not None}
        asked = [slot for slot in slots if slot not in cached]
        answers = []
        with normalise_errors(slot_path(*slots[0])):
            data = self.archives.in_slots(asked)
            free = {slot for slot, content in data.items() if content is None} & doubted
            self.archives.ask(free)
            for slot in slots:
                archived = slot not in cached and self.archives.knows(slot)
                sure = slot in cached or archived or slot in free
                there = slot in cached or archived or data[slot] is not None
                if there and holds is not None:
                    content = self.archives.content(slot) if archived else data.get(slot)
                    there = holds(cached.get(slot) or entries.decode_entry(content or b"", *slot))
                answers.append((there, sure))
        return answers

    def _get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        if not paths:
            return []
        with normalise_errors(paths[0]):
            return [self._store.get(paths[0])] if len(paths) == 1 else self._store.get_many(paths)

    def publish(self, entry: E) -> Entry:
        """Put an entry in its slot; whoever's entry is there in the end is returned: the caller's own, or the winner's.

        Raises:
            CommitUnknown: It could not be learnt within the deadline. Nothing was removed.
            StoreRefused: The store refuses access.
            StoreUnavailable: The sidecar of the entry could not be written; the entry was not tried.
        """
        path = slot_path(entry.lane, entry.seq)
        data = entries.encode_entry(entry, self._write_sidecar(entry))
        started = self._clock.now_ms()
        delay = RETRY_FIRST_MS
        failure = ""
        # The clock may jump, so the number of tries is bounded too.
        for _ in range(PUBLISH_DEADLINE_MS // RETRY_FIRST_MS):
            try:
                if self._store.put_if_absent(path, data):
                    failure = "it was written, and the store does not say whether in time"
                    # Not, if the slot was archived and deleted since we read the lane: then its archive says who won.
                    if not self.archives.ask([(entry.lane, entry.seq)]):
                        return self._remember(entry)
                winner = self._load(entry.lane, entry.seq)
                if winner is not None:
                    # An earlier try of ours may have arrived although its answer was lost.
                    return self._remember(entry) if winner.commit_id == entry.commit_id else winner
                failure = "the store says that the slot is taken, and shows nothing in it"
            except PermissionError as error:
                if failure:  # an earlier try may have arrived: credentials that expire meanwhile settle nothing
                    failure = f"{failure}; then no access: {error}"
                    break
                raise StoreRefused(f"no access to {path}: {error}", hint="check the credentials") from error
            except OSError as error:
                failure = str(error)
                if self._mine(entry):
                    return self._remember(entry)
            if self._clock.now_ms() - started > PUBLISH_DEADLINE_MS:
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
        """The indexes of log files, fetched from their sidecars if need be."""
        unread = [
            file.index for file in files if isinstance(file.index, Sidecar) and file.index.path not in self._indexes
        ]
        fetched = {there.path: sidecar_codec.decode_index(data) for there, data in self._sidecars(unread)}
        self._indexes.update(fetched)
        # Another thread may drop one of them meanwhile (`forget_before`), so ours are looked at first.
        return [
            file.index
            if isinstance(file.index, LogIndex)
            else fetched.get(file.index.path) or self._indexes.get(file.index.path) or self._index(file.index)
            for file in files
        ]

    def _index(self, there: Sidecar) -> LogIndex:
        ((_, data),) = self._sidecars([there])
        return sidecar_codec.decode_index(data)

    def forget_before(self, lane: LaneName, seq: int) -> None:
        """Drop cached entries up to ``seq``: slices hold their rows."""
        if seq <= self._forgotten.get(lane, 0):
            return
        self._forgotten[lane] = seq
        cached = self._cached(lane)
        # Other threads read and drop entries meanwhile: `list` copies the keys at one go, and a key may be gone.
        for key in [key for key in list(cached) if key <= seq]:
            entry = cached.pop(key, None)
            if isinstance(entry, Data):
                self.forget_indexes(entry.files)

    def forget_indexes(self, files: Iterable[LogFile]) -> None:
        """Drop cached indexes of log files that are not read any more."""
        for file in files:
            if isinstance(file.index, Sidecar):
                self._indexes.pop(file.index.path, None)

    def _mine(self, entry: Entry) -> bool:
        """Whether the slot holds this very entry, as far as the store answers at all."""
        try:
            there = self._load(entry.lane, entry.seq)
        except OSError:
            return False
        return there is not None and there.commit_id == entry.commit_id

    def _remember(self, entry: E) -> E:
        self._cached(entry.lane)[entry.seq] = entry
        return entry

    def _resolved(self, found: Sequence[Entry | Unresolved]) -> list[Entry]:
        """Whole entries; sidecars that are needed for it are read at once."""
        sidecars = [entry.sidecar for entry in found if isinstance(entry, Unresolved)]
        lists = {sidecar.path: data for sidecar, data in self._sidecars(sidecars)}
        return [
            sidecar_codec.resolve(entry, lists[entry.sidecar.path]) if isinstance(entry, Unresolved) else entry
            for entry in found
        ]

    def _write_sidecar(self, entry: Entry) -> Sidecar | None:
        """Write the list of an entry to a sidecar if it is too large for the entry; None if it is not."""
        items = entries.list_of(entry)
        if not items:
            return None
        encoded = sidecar_codec.encode_list(items)
        if len(encoded) <= self._env.tuning.inline_list_bytes:
            return None
        path = table_index_path(entry.seq, self._env.ids.new())
        self._store.put(path, encoded)
        return Sidecar.of(path, encoded)

    def _sidecars(self, wanted: Sequence[Sidecar]) -> Iterator[tuple[Sidecar, bytes]]:
        """Sidecars and what stands in them.

        Raises:
            CorruptData: One is missing or damaged.
        """
        window = self._env.tuning.lane_window
        for start in range(0, len(wanted), window):
            part = wanted[start : start + window]
            for sidecar, data in zip(part, self._get_many([sidecar.path for sidecar in part]), strict=True):
                if data is None:
                    raise missing(sidecar.path)
                if Sidecar.of(sidecar.path, data) != sidecar:
                    raise CorruptData(
                        f"{sidecar.path} is damaged, but the log refers to it",
                        hint="restore it from a copy of the store",
                    )
                yield sidecar, data


def table_entries(found: Sequence[Entry]) -> list[TableEntry]:
    """Entries read from the table lane (`decode_entry` has checked that they belong there)."""
    return [entry for entry in found if isinstance(entry, TableEntry)]


def lane_entries(found: Sequence[Entry]) -> list[LaneEntry]:
    """Entries read from a writer's lane."""
    return [entry for entry in found if isinstance(entry, LaneEntry)]


def read_table_lane(log: CommitLog, after: int, until: int | None = None) -> list[TableEntry]:
    """Entries of the table lane after a known prefix."""
    return table_entries(log.read_after(TABLE_LANE, after, until))
