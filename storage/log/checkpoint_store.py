"""Checkpoints in the store: found by listing, checked before use, and never required.

A process that publishes entries writes a checkpoint now and then. A failure to write one changes nothing, and readers
never write any. A checkpoint is used if its digest matches and its last entry is in the log, by ``commit_id``; a
checkpoint of a writer's lane only if the same entries were rolled back. Cleaning removes checkpoints that newer ones
replace.

Of a large checkpoint of the table lane only the state is read, which is at its end. A part of its slices is read when
one of them is needed. By then the checkpoint may have been deleted, or the part may be damaged: then the state is
replayed from an older checkpoint, or from the log, and the slices are those of the same prefix.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_lane, decode_table, encode_lane, encode_table, state_bytes
from weft.storage.core.log.cut import Span, in_spans
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.sealed import digest
from weft.storage.core.log.slice_parts import SlicePart
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import (
    TABLE_LANE,
    LaneName,
    Path,
    checkpoint_folder,
    checkpoint_path,
    parse_checkpoint,
    slot_path,
)
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData, StoreUnavailable
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.store.object_store import ObjectStore, ReadRequest, normalise_errors

MAX_TRIES: Final = 3  # number of damaged checkpoints that are skipped before the log is replayed from its beginning

S = TypeVar("S", TableState, LaneState)
Encode = Callable[[], Iterable[bytes]]
"""Makes the consecutive pieces of an object."""


class StoredParts:
    """The slices of one checkpoint in the store."""

    def __init__(self, store: ObjectStore, path: Path, size: int, replay: Callable[[], TableState]) -> None:
        """``replay`` gives the state of the same prefix without this checkpoint, or raises CorruptData."""
        self._store, self._path, self._size, self._replay = store, path, size, replay
        self._replayed: Slices | None = None

    def read(self, parts: Sequence[SlicePart]) -> list[SlicePart]:
        """See `weft.storage.core.log.slice_parts.PartSource.read`."""
        places = [part.place for part in parts if part.place is not None]
        request = ReadRequest(self._path, self._size, [(place.offset, place.length) for place in places])
        contents: Sequence[pa.Buffer | None]
        try:
            (contents,) = self._store.read_ranges([request])
        except CorruptData:
            contents = [None] * len(places)  # it was deleted, or cut off
        return [self._verify(part, data) for part, data in zip(parts, contents, strict=True)]

    def _verify(self, part: SlicePart, data: pa.Buffer | None) -> SlicePart:
        assert part.place is not None, "it is in this checkpoint"
        if data is None or digest(data) != part.place.sha256:
            return self._replayed_part(part)
        return SlicePart(part.first, part.last, part.levels, part.slices, data.to_pybytes(), part.size)

    def _replayed_part(self, part: SlicePart) -> SlicePart:
        if self._replayed is None:
            self._replayed = self._replay().slices
        items = sorted(
            (item for group, item in self._replayed.stored.items() if part.first <= group <= part.last),
            key=lambda item: item.group,
        )
        if len(items) != part.slices:
            raise CorruptData(
                f"checkpoint {self._path} has {part.slices} slices from {part.first} on, and the log {len(items)}",
                hint="report this as a bug, and delete the checkpoints of the table lane: they only save reading",
            )
        return SlicePart.of(items)


class Checkpoints:
    """The checkpoints of one table, as far as this process has read them."""

    def __init__(self, env: Environment) -> None:
        self._env, self._store = env, env.store
        self._saved: dict[LaneName, int] = {}

    def newest_table(self, log: CommitLog, until: int | None = None) -> TableState | None:
        """The newest usable state of a prefix of the table lane, not longer than ``until``."""

        def read(head: int, path: Path, size: int) -> tuple[TableState | None, bytes | None]:
            return self._read_table(log, head, path, size)

        return self._newest(log, TABLE_LANE, read, until, lambda state: state.head)

    def newest_lane(self, log: CommitLog, lane: LaneName, rolled_back: tuple[Span, ...]) -> LaneState | None:
        """The newest usable state of a lane: one in which the same of its entries are rolled back."""

        def read(head: int, path: Path, _: int) -> tuple[LaneState | None, bytes | None]:
            data, entry = self._with_entry(lane, head, path)
            return (decode_lane(data) if data is not None else None), entry

        state = self._newest(
            log, lane, read, None, lambda state: agree_up_to(rolled_back, state.rolled_back, state.head)
        )
        if state is not None:
            state.rolled_back = rolled_back
        return state

    def is_due(self, lane: LaneName, head: int) -> bool:
        """Whether enough entries follow the newest checkpoint that this process knows to write another one."""
        tuning = self._env.tuning
        return head - self._saved.get(lane, 0) >= (
            tuning.lane_checkpoint_every if lane else tuning.table_checkpoint_every
        )

    def save_table(self, state: TableState, *, always: bool = False) -> None:
        """Write a checkpoint if one is due, or in any case if ``always``. Nothing is raised if that fails."""
        save = self._put if always else self._save
        save(TABLE_LANE, state.head, lambda: encode_table(state), in_pieces=state.slices.has_unread)

    def save_lane(self, lane: LaneName, state: LaneState) -> None:
        """Write a checkpoint if one is due. Nothing is raised if that fails."""
        self._save(lane, state.head, lambda: [encode_lane(state)])

    def _newest(
        self,
        log: CommitLog,
        lane: LaneName,
        read: Callable[[int, Path, int], tuple[S | None, bytes | None]],
        until: int | None,
        usable_to: Callable[[S], int],
    ) -> S | None:
        """The newest usable state of a lane.

        Args:
            log: The log of the table.
            lane: The lane.
            read: Reads a checkpoint: its state if it can be decoded, and the object in the slot that it ends with.
            until: Longer prefixes are not used.
            usable_to: The entry up to which a state is valid; a state is used if that is its head.
        """
        tries = 0
        for head, path, size in list_checkpoints(self._store, lane):
            if until is not None and head > until:
                continue
            state, last = read(head, path, size)
            if state is not None and state.head == head and log.holds(lane, head, state.head_id, last):
                until = usable_to(state)
                if until == state.head:
                    self._saved[lane] = max(self._saved.get(lane, 0), head)
                    return state
                continue  # not counted: older checkpoints were written before the restore that made this one useless
            tries += 1
            if tries == MAX_TRIES:
                break
        return None

    def _read_table(self, log: CommitLog, head: int, path: Path, size: int) -> tuple[TableState | None, bytes | None]:
        at_once = self._env.tuning.checkpoint_end_bytes
        if size <= at_once:
            data, entry = self._with_entry(TABLE_LANE, head, path)
        else:
            data = self._end(path, size, at_once)
            if data is not None and len(data) < (state_size := state_bytes(data, size)):
                data = self._end(path, size, state_size)
            with normalise_errors(path):
                entry = self._store.get(slot_path(TABLE_LANE, head))
        if data is None:
            return None, entry
        source = StoredParts(self._store, path, size, lambda: self._replay(log, head))
        return decode_table(data, size, source), entry

    def _with_entry(self, lane: LaneName, head: int, path: Path) -> tuple[bytes | None, bytes | None]:
        """A whole checkpoint, and the object in the slot that it ends with, requested together."""
        with normalise_errors(path):
            data, entry = self._store.get_many([path, slot_path(lane, head)])
        return data, entry

    def _end(self, path: Path, size: int, length: int) -> bytes | None:
        """The last bytes of a checkpoint; None if it was deleted since it was listed, or is shorter."""
        try:
            ((data,),) = self._store.read_ranges([ReadRequest(path, size, [(size - length, length)])])
        except CorruptData:
            return None
        return data.to_pybytes()

    def _replay(self, log: CommitLog, head: int) -> TableState:
        """The state of a prefix of the table lane, from an older checkpoint or from the first entry.

        Raises:
            CorruptData: An entry is missing or damaged.
        """
        log = log.uncached()
        older = self.newest_table(log, head - 1)
        state = apply_entries(older, read_table_lane(log, older.head if older is not None else 0, head))
        last = state.head if state is not None else 0
        if state is None or last != head:
            raise CorruptData(
                f"entry {last + 1} of the table lane is missing, and the checkpoint at entry {head} is lost",
                hint=f"restore {slot_path(TABLE_LANE, last + 1)} from a copy of the store",
            )
        return state

    def _save(self, lane: LaneName, head: int, encode: Encode, *, in_pieces: bool = False) -> None:
        if not self.is_due(lane, head):
            return
        with contextlib.suppress(OSError, StoreUnavailable):  # the next checkpoint replaces it
            # Other processes write checkpoints, too, and one checkpoint is enough.
            saved = (saved_head for saved_head, _, _ in list_checkpoints(self._store, lane) if saved_head <= head)
            self._saved[lane] = next(saved, 0)
            if self.is_due(lane, head):
                self._put(lane, head, encode, in_pieces=in_pieces)

    def _put(self, lane: LaneName, head: int, encode: Encode, *, in_pieces: bool = False) -> None:
        """``in_pieces``: the object is copied from another one for the most part, and is not in memory as a whole."""
        self._saved[lane] = head
        path = checkpoint_path(lane, head, self._env.ids.new())
        with contextlib.suppress(OSError, StoreUnavailable):
            if not in_pieces:
                self._store.put(path, b"".join(encode()))
                return
            with self._store.open_output(path) as file:
                for piece in encode():
                    file.write(piece)


def list_checkpoints(store: ObjectStore, lane: LaneName) -> Iterator[tuple[int, Path, int]]:
    """(slot of the last entry, path, size in bytes) of a lane's checkpoints, newest first."""
    folder = checkpoint_folder(lane)
    with normalise_errors(folder):
        names_and_sizes = store.list(folder)
    for name, size in sorted(names_and_sizes, reverse=True):
        head = parse_checkpoint(name)
        if head is not None:
            yield head, Path(f"{folder}/{name}"), size


def agree_up_to(first: Sequence[Span], second: Sequence[Span], head: int) -> int:
    """The entry, ``head`` at most, up to which two lists of spans contain the same entries."""
    edges = sorted({0, head, *(edge for span in (*first, *second) for edge in span if edge < head)})
    for after, _ in itertools.pairwise(edges):
        if in_spans(first, after + 1) != in_spans(second, after + 1):
            return after
    return head
