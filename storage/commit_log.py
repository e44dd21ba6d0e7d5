"""The commit log: slots of immutable entries, read contiguously and published exactly once.

The rules of PROTOCOL.md that live here: a slot is written once (S1), a lane is read as its contiguous prefix (S2), and
`publish` ends in won, lost or unknown, whatever the store answers (L2). Entries are cached, for they never change.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from storage.clock import Clock
from storage.core import entries
from storage.core.entries import (
    Base,
    Data,
    Entry,
    Fold,
    FoldedGroup,
    Intent,
    LaneEntry,
    LogFile,
    LogIndex,
    Restoration,
    Sidecar,
    SliceFile,
    TableEntry,
    encode_list,
)
from storage.core.names import TABLE_LANE, LaneName, Path, slot_path, table_index_path
from storage.errors import CommitUnknown, CorruptData, StoreUnavailable
from storage.object_store import ObjectStore, answering

PUBLISH_DEADLINE_MS: Final = 60_000  # long enough for a store's bad minute; then the truth is left to a replay
RETRY_FIRST_MS: Final = 50
RETRY_LAST_MS: Final = 2_000
MAX_PARALLEL_READS: Final = 16  # a remote slot takes a round trip; a local one does not notice

INLINE_LIST_BYTES: Final = 64 * 1024  # a longer list would slow every reader of the table lane

E = TypeVar("E", bound=Entry)
L = TypeVar("L", SliceFile, FoldedGroup)


class CommitLog:
    """The lanes of one table."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[tuple[LaneName, int], Entry] = {}
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
        known = self._entries.get((lane, seq))
        if known is None:
            data = self._store.get(slot_path(lane, seq))
            if data is None:
                return None
            known = self._in_place(entries.decode_entry(data, lane, seq))
            self._entries[lane, seq] = known
        return known

    def read_after(self, lane: LaneName, seq: int, until: int | None = None) -> list[Entry]:
        """Contiguous entries seq + 1, seq + 2, ... up to ``until`` or the first free slot.

        Raises:
            CorruptData: A slot before ``until`` is free, or an entry does not follow the one before.
        """
        found: list[Entry] = []
        window = 1
        while until is None or seq + len(found) < until:
            first = seq + len(found) + 1
            last = first + window if until is None else min(first + window, until + 1)
            for number, entry in zip(range(first, last), self._read_many(lane, range(first, last)), strict=True):
                if entry is None:
                    if until is not None:
                        raise CorruptData(
                            f"entry {number} of {f'lane {lane!r}' if lane else 'the table lane'} is missing, "
                            f"but the snapshot reaches to {until}",
                            hint="restore the object from a copy of the store",
                        )
                    return found
                if found and entry.prev_id != found[-1].commit_id:
                    raise CorruptData(
                        f"entry {number} of lane {lane!r} does not follow entry {number - 1}",
                        hint="an object was replaced: restore it from a copy of the store",
                    )
                found.append(entry)
            window = min(window * 2, MAX_PARALLEL_READS)
        return found

    def head(self, lane: LaneName, known: int = 0) -> int:
        """Last entry of the lane's contiguous prefix, given that ``known`` entries exist; gallops, then bisects."""
        step = 1
        low = known
        while self._exists(lane, low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._exists(lane, middle):
                low = middle
            else:
                high = middle
        return low

    def publish(self, entry: E) -> Entry:
        """Put an entry in its slot; whoever's entry is there in the end is returned: the caller's own, or the winner's.

        Raises:
            CommitUnknown: It could not be learnt within the deadline. Nothing was removed.
            StoreUnavailable: The store refuses access.
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
                raise StoreUnavailable(f"no access to {path}: {error}", hint="check the credentials") from error
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

    def index(self, file: LogFile) -> LogIndex:
        """The index of a log file, fetched from its sidecar if need be."""
        if isinstance(file.index, LogIndex):
            return file.index
        known = self._indexes.get(file.index.path)
        if known is None:
            known = self._indexes[file.index.path] = entries.decode_index(self._sidecar(file.index))
        return known

    def forget_before(self, lane: LaneName, seq: int) -> None:
        """Drop cached entries up to ``seq``: slices hold their rows."""
        if seq <= self._forgotten.get(lane, 0):
            return
        self._forgotten[lane] = seq
        # Other threads read and drop entries meanwhile: `list` copies the keys at one go, and a key may be gone.
        for key in [key for key in list(self._entries) if key[0] == lane and key[1] <= seq]:
            entry = self._entries.pop(key, None)
            if isinstance(entry, Data):
                for file in entry.files:
                    if isinstance(file.index, Sidecar):
                        self._indexes.pop(file.index.path, None)

    def _read_many(self, lane: LaneName, seqs: Sequence[int]) -> Iterable[Entry | None]:
        if len(seqs) == 1:
            return [self.entry(lane, seqs[0])]
        with ThreadPoolExecutor(len(seqs)) as pool:
            return list(pool.map(lambda seq: self.entry(lane, seq), seqs))

    def _exists(self, lane: LaneName, seq: int) -> bool:
        path = slot_path(lane, seq)
        with answering(path):
            return (lane, seq) in self._entries or self._store.get(path) is not None

    def _mine(self, entry: Entry) -> bool:
        """Whether the slot holds this very entry, as far as the store answers at all."""
        try:
            there = self._load(entry.lane, entry.seq)
        except OSError:
            return False
        return there is not None and there.commit_id == entry.commit_id

    def _remember(self, entry: E) -> E:
        self._entries[entry.lane, entry.seq] = self._in_place(entry)
        return entry

    def _in_place(self, entry: Entry) -> Entry:
        match entry:
            case Base(slices=Sidecar() as there):
                return entry.model_copy(update={"slices": entries.decode_slices(self._sidecar(there))})
            case Fold(file_groups=Sidecar() as there):
                return entry.model_copy(update={"file_groups": entries.decode_folded(self._sidecar(there))})
            case Intent(restore=Restoration(slices=Sidecar() as there) as restore):
                slices = entries.decode_slices(self._sidecar(there))
                return entry.model_copy(update={"restore": restore.model_copy(update={"slices": slices})})
        return entry

    def in_place_or_sidecar(self, seq: int, items: Sequence[L]) -> list[L] | Sidecar:
        """A list for the entry of the table lane that is meant for slot ``seq``: itself, or where it now stands."""
        encoded = encode_list(items)
        if len(encoded) <= INLINE_LIST_BYTES:
            return list(items)
        path = table_index_path(seq, new_id())
        self._store.put(path, encoded)
        return Sidecar.of(path, encoded)

    def _sidecar(self, sidecar: Sidecar) -> bytes:
        data = self._store.get(sidecar.path)
        if data is None or Sidecar.of(sidecar.path, data) != sidecar:
            raise CorruptData(
                f"{sidecar.path} is {'missing' if data is None else 'damaged'}, but the log refers to it",
                hint="restore it from a copy of the store",
            )
        return data


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
