"""The commit log: slots of immutable entries, read contiguously and published exactly once.

The rules of PROTOCOL.md that live here: a slot is written once (S1), a lane is read as its contiguous prefix (S2), and
`publish` ends in won, lost or unknown, whatever the store answers (L2). Entries are cached, for they never change.

Where an answer takes a round trip, what matters is how many there are: lanes are read together, in windows that grow
with what was found, and searched together, with several probes at a time.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from storage.clock import Clock
from storage.core import entries, sidecars
from storage.core.entries import Base, Data, Entry, Fold, FoldedGroup, Intent, LaneEntry, Restoration, TableEntry
from storage.core.file_refs import LogFile, LogIndex, Sidecar, SliceFile
from storage.core.names import TABLE_LANE, LaneName, Path, slot_path, table_index_path
from storage.errors import CommitUnknown, CorruptData, StoreRefused
from storage.object_store import ObjectStore, answering, missing

PUBLISH_DEADLINE_MS: Final = 60_000  # long enough for a store's bad minute; then the truth is left to a replay
RETRY_FIRST_MS: Final = 50
RETRY_LAST_MS: Final = 2_000
WINDOW_GROWTH: Final = 4  # 100 entries take 5 round trips, and a read that finds nothing new asks for one slot
MAX_WINDOW: Final = 64  # slots of a lane in one round: beyond, round trips no longer count
MAX_ROUND_BYTES: Final = 16 * 1024 * 1024  # of a lane: entries of many tasks have megabytes
PART: Final = 256  # entries in memory of whoever reads a lane to its end and needs none of them afterwards
PROBES: Final = 7  # per lane and round of a search: a third of the round trips of bisection

INLINE_LIST_BYTES: Final = 64 * 1024  # a longer list would slow every reader of the table lane

E = TypeVar("E", bound=Entry)
L = TypeVar("L", SliceFile, FoldedGroup)


class CommitLog:
    """The lanes of one table."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
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
        with answering(slot_path(lane, seq)):
            return self._load(lane, seq)

    def _load(self, lane: LaneName, seq: int) -> Entry | None:
        """`entry`, but what the store raises is passed on: `publish` must tell silence from refusal."""
        known = self._cached(lane).get(seq)
        if known is None:
            data = self._store.get(slot_path(lane, seq))
            if data is None:
                return None
            (known,) = self._in_place([entries.decode_entry(data, lane, seq)])
            self._cached(lane)[seq] = known
        return known

    def _cached(self, lane: LaneName) -> dict[int, Entry]:
        return self._entries.setdefault(lane, {})

    def read_on(self, lane: LaneName, seq: int) -> Iterator[list[Entry]]:
        """`read_after` to the end, a part at a time: memory is that of `PART` entries if the caller forgets them."""
        window = 1
        while found := self._read_tails({lane: _Tail(lane, seq, None, PART, window)})[lane]:
            yield found
            if len(found) < PART:
                return
            seq, window = found[-1].seq, MAX_WINDOW

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
        return self._read_tails(
            {
                lane: _Tail(lane, after, until, None, 1 if until is None else MAX_WINDOW)
                for lane, (after, until) in wanted.items()
            }
        )

    def _read_tails(self, tails: Mapping[LaneName, _Tail]) -> dict[LaneName, list[Entry]]:
        while True:
            for tail in tails.values():
                tail.take(self._cached(tail.lane))
            asked = [(tail, seq) for tail in tails.values() for seq in tail.window()]
            if not asked:
                return {lane: tail.found for lane, tail in tails.items()}
            data = self._get_many([slot_path(tail.lane, seq) for tail, seq in asked])
            for tail, own in itertools.groupby(zip(asked, data, strict=True), key=lambda item: item[0][0]):
                read = tail.until_free([(seq, part) for (_, seq), part in own])
                for entry in self._in_place([entries.decode_entry(part, tail.lane, seq) for seq, part in read]):
                    tail.add(entry)
                    self._cached(tail.lane)[entry.seq] = entry

    def head(self, lane: LaneName, known: int = 0) -> int:
        """Last entry of the lane's contiguous prefix, given that ``known`` entries exist."""
        return self.last_where({lane: (known, None)})[lane]

    def last_where(
        self, bounds: Mapping[LaneName, tuple[int, int | None]], holds: Callable[[Entry], bool] | None = None
    ) -> dict[LaneName, int]:
        """Per lane the last entry for which something holds that holds for all before it and for none after it.

        Args:
            bounds: Per lane an entry for which it holds (0: perhaps none), and the lane's head, if that is known.
            holds: What; of entries whose lists may stand in sidecars. That there is an entry, if not given.
        """
        searches = {lane: _Search(low, None if head is None else head + 1) for lane, (low, head) in bounds.items()}
        while True:
            asked = [(lane, seq) for lane, search in searches.items() for seq in search.probes()]
            if not asked:
                return {lane: search.low for lane, search in searches.items()}
            for (lane, seq), answer in zip(asked, self._probe(asked, holds), strict=True):
                searches[lane].learn(seq, holds=answer)

    def _probe(self, slots: Sequence[tuple[LaneName, int]], holds: Callable[[Entry], bool] | None) -> list[bool]:
        """Whether it holds, per slot. What is read here is not kept: it is seldom needed again."""
        known = {slot: entry for slot in slots if (entry := self._cached(slot[0]).get(slot[1])) is not None}
        unknown = [slot for slot in slots if slot not in known]
        data = dict(zip(unknown, self._get_many([slot_path(*slot) for slot in unknown]), strict=True))
        answers = []
        for slot in slots:
            content = data.get(slot)
            if holds is None or (slot not in known and content is None):
                answers.append(slot in known or content is not None)
            else:
                answers.append(holds(entries.decode_entry(content, *slot) if content is not None else known[slot]))
        return answers

    def _get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        if not paths:
            return []
        with answering(paths[0]):
            return [self._store.get(paths[0])] if len(paths) == 1 else self._store.get_many(paths)

    def publish(self, entry: E) -> Entry:
        """Put an entry in its slot; whoever's entry is there in the end is returned: the caller's own, or the winner's.

        Raises:
            CommitUnknown: It could not be learnt within the deadline. Nothing was removed.
            StoreRefused: The store refuses access.
        """
        path = slot_path(entry.lane, entry.seq)
        data = entries.encode_entry(entry)
        started = self._clock.now_ms()
        delay = RETRY_FIRST_MS
        failure = ""
        # The clock may jump, so the number of tries is bounded too.
        for _ in range(PUBLISH_DEADLINE_MS // RETRY_FIRST_MS):
            try:
                if self._store.put_if_absent(path, data):
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
        fetched = {there.path: sidecars.decode_index(data) for there, data in self._sidecars(unread)}
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
        return sidecars.decode_index(data)

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
        # It is there: nothing that could fail may follow, and fetching a list back could.
        if list_sidecar(entry) is None:
            self._cached(entry.lane)[entry.seq] = entry
        return entry

    def _in_place(self, found: Sequence[Entry]) -> list[Entry]:
        """Entries with their lists, wherever those stand."""
        sidecars = [there for entry in found if (there := list_sidecar(entry)) is not None]
        if not sidecars:
            return list(found)
        lists = {there.path: data for there, data in self._sidecars(sidecars)}
        return [
            entry if (there := list_sidecar(entry)) is None else _with_list(entry, lists[there.path]) for entry in found
        ]

    def in_place_or_sidecar(self, seq: int, items: Sequence[L]) -> list[L] | Sidecar:
        """A list for the entry of the table lane that is meant for slot ``seq``: itself, or where it now stands."""
        encoded = sidecars.encode_list(items)
        if len(encoded) <= INLINE_LIST_BYTES:
            return list(items)
        path = table_index_path(seq, new_id())
        self._store.put(path, encoded)
        return Sidecar.of(path, encoded)

    def _sidecars(self, wanted: Sequence[Sidecar]) -> Iterator[tuple[Sidecar, bytes]]:
        """Sidecars and what stands in them.

        Raises:
            CorruptData: One is missing or damaged.
        """
        for start in range(0, len(wanted), MAX_WINDOW):
            part = wanted[start : start + MAX_WINDOW]
            for sidecar, data in zip(part, self._get_many([sidecar.path for sidecar in part]), strict=True):
                if data is None:
                    raise missing(sidecar.path)
                if Sidecar.of(sidecar.path, data) != sidecar:
                    raise CorruptData(
                        f"{sidecar.path} is damaged, but the log refers to it",
                        hint="restore it from a copy of the store",
                    )
                yield sidecar, data


class _Tail:
    """A lane on its way from one entry to the end."""

    def __init__(self, lane: LaneName, after: int, until: int | None, most: int | None, window: int) -> None:
        self.lane, self._after, self._until, self._most = lane, after, until, most
        self.found: list[Entry] = []
        self._window = window
        self._ended = until is not None and after >= until

    @property
    def _seq(self) -> int:
        return self._after + len(self.found)

    def take(self, cached: Mapping[int, Entry]) -> None:
        """Go on as far as entries are known."""
        while not self._ended and (entry := cached.get(self._seq + 1)) is not None:
            self.add(entry)

    def add(self, entry: Entry) -> None:
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

    def until_free(self, slots: Sequence[tuple[int, bytes | None]]) -> list[tuple[int, bytes]]:
        """The slots of a window up to the first free one, where the lane ends.

        Raises:
            CorruptData: It must not end there.
        """
        read = []
        for seq, data in slots:
            if data is None:
                if self._until is not None:
                    raise CorruptData(
                        f"entry {seq} of {f'lane {self.lane!r}' if self.lane else 'the table lane'} is missing, "
                        f"but the snapshot reaches to {self._until}",
                        hint="restore the object from a copy of the store",
                    )
                self._ended = True
                break
            read.append((seq, data))
        mean = sum(len(data) for _, data in read) // max(len(read), 1)
        self._window = min(self._window * WINDOW_GROWTH, MAX_WINDOW, MAX_ROUND_BYTES // max(mean, 1) + 1)
        return read


class _Search:
    """Where something ends that holds up to ``low`` and no longer at ``high`` (None: not known yet)."""

    def __init__(self, low: int, high: int | None) -> None:
        self.low, self._high = low, high
        self._step = 1

    def probes(self) -> list[int]:
        """What to look at next, ascending: powers of two until the end is passed, then parts of what is in doubt."""
        if self._high is None:
            found = [self.low + self._step * ((2 << power) - 1) for power in range(PROBES // 2)]
            self._step <<= PROBES // 2
            return found
        width = self._high - self.low
        return sorted({self.low + width * part // (PROBES + 1) for part in range(1, PROBES + 1)} - {self.low})

    def learn(self, seq: int, *, holds: bool) -> None:
        if holds and (self._high is None or seq < self._high):
            self.low = max(self.low, seq)
        elif not holds:
            self._high = seq if self._high is None else min(self._high, seq)


def list_sidecar(entry: Entry) -> Sidecar | None:
    """Where the list of an entry of the table lane stands, if it is too large for the entry."""
    match entry:
        case (
            Base(slices=Sidecar() as there)
            | Fold(file_groups=Sidecar() as there)
            | Intent(restore=Restoration(slices=Sidecar() as there))
        ):
            return there
    return None


def _with_list(entry: Entry, data: bytes) -> Entry:
    match entry:
        case Base():
            return entry.model_copy(update={"slices": sidecars.decode_slices(data)})
        case Fold():
            return entry.model_copy(update={"file_groups": sidecars.decode_folded(data)})
        case Intent(restore=Restoration() as restore):
            slices = sidecars.decode_slices(data)
            return entry.model_copy(update={"restore": restore.model_copy(update={"slices": slices})})
    return entry


def table_entries(found: Sequence[Entry]) -> list[TableEntry]:
    """Entries read from the table lane (`decode_entry` has checked that they belong there)."""
    return [entry for entry in found if isinstance(entry, TableEntry)]


def lane_entries(found: Sequence[Entry]) -> list[LaneEntry]:
    """Entries read from a writer's lane."""
    return [entry for entry in found if isinstance(entry, LaneEntry)]


def new_id() -> str:
    """A random id, unique for ever."""
    return uuid.uuid4().hex


def read_table_lane(log: CommitLog, after: int, until: int | None = None) -> list[TableEntry]:
    """Entries of the table lane after a known prefix."""
    return table_entries(log.read_after(TABLE_LANE, after, until))
