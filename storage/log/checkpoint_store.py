"""Checkpoints in the store: found by listing, checked before use, and never required.

A process that publishes entries writes a checkpoint now and then. A failure to write one changes nothing, and readers
never write any. A checkpoint is used if its digest matches and its last entry is in the log, by ``commit_id``; a
checkpoint of a writer's lane only if the same entries were rolled back. Cleaning removes checkpoints that newer ones
replace.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from storage.core.log.checkpoint_codec import decode_lane, decode_table, encode_lane, encode_table
from storage.core.log.cut import Span, in_spans
from storage.core.log.lane_state import LaneState
from storage.core.log.table_state import TableState
from storage.core.names import (
    TABLE_LANE,
    LaneName,
    Path,
    checkpoint_folder,
    checkpoint_path,
    parse_checkpoint,
    slot_path,
)
from storage.environment import Environment
from storage.errors import StoreUnavailable
from storage.log.commit_log import CommitLog
from storage.store.object_store import ObjectStore, normalise_errors

MAX_TRIES: Final = 3  # number of damaged checkpoints that are skipped before the log is replayed from its beginning

S = TypeVar("S", TableState, LaneState)


class Checkpoints:
    """The checkpoints of one table, as far as this process has read them."""

    def __init__(self, env: Environment) -> None:
        self._env, self._store = env, env.store
        self._saved: dict[LaneName, int] = {}

    def newest_table(self, log: CommitLog, until: int | None = None) -> TableState | None:
        """The newest usable state of a prefix of the table lane, not longer than ``until``."""
        return self._newest(log, TABLE_LANE, decode_table, until, lambda state: state.head)

    def newest_lane(self, log: CommitLog, lane: LaneName, rolled_back: tuple[Span, ...]) -> LaneState | None:
        """The newest usable state of a lane: one in which the same of its entries are rolled back."""
        state = self._newest(
            log, lane, decode_lane, None, lambda state: agreed(rolled_back, state.rolled_back, state.head)
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
        save(TABLE_LANE, state.head, lambda: encode_table(state))

    def save_lane(self, lane: LaneName, state: LaneState) -> None:
        """Write a checkpoint if one is due. Nothing is raised if that fails."""
        self._save(lane, state.head, lambda: encode_lane(state))

    def _newest(
        self,
        log: CommitLog,
        lane: LaneName,
        decode: Callable[[bytes], S | None],
        until: int | None,
        usable_to: Callable[[S], int],
    ) -> S | None:
        """``usable_to``: the entry up to which a state is valid; a state is used if that is its head."""
        tries = 0
        for head, path in list_checkpoints(self._store, lane):
            if until is not None and head > until:
                continue
            with normalise_errors(path):
                data, last = self._store.get_many([path, slot_path(lane, head)])
            state = decode(data) if data is not None else None
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

    def _save(self, lane: LaneName, head: int, encode: Callable[[], bytes]) -> None:
        if not self.is_due(lane, head):
            return
        with contextlib.suppress(OSError, StoreUnavailable):  # the next checkpoint replaces it
            # Other processes write checkpoints, too, and one checkpoint is enough.
            saved = (known for known, _ in list_checkpoints(self._store, lane) if known <= head)
            self._saved[lane] = next(saved, 0)
            if self.is_due(lane, head):
                self._put(lane, head, encode)

    def _put(self, lane: LaneName, head: int, encode: Callable[[], bytes]) -> None:
        self._saved[lane] = head
        with contextlib.suppress(OSError, StoreUnavailable):
            self._store.put(checkpoint_path(lane, head, self._env.ids.new()), encode())


def list_checkpoints(store: ObjectStore, lane: LaneName) -> Iterator[tuple[int, Path]]:
    """(slot of the last entry, path) of a lane's checkpoints, newest first."""
    folder = checkpoint_folder(lane)
    with normalise_errors(folder):
        names = [name for name, _ in store.list(folder)]
    for name in sorted(names, reverse=True):
        head = parse_checkpoint(name)
        if head is not None:
            yield head, Path(f"{folder}/{name}")


def agreed(first: Sequence[Span], second: Sequence[Span], head: int) -> int:
    """The entry, ``head`` at most, up to which two lists of spans contain the same entries."""
    edges = sorted({0, head, *(edge for span in (*first, *second) for edge in span if edge < head)})
    for after, _ in itertools.pairwise(edges):
        if in_spans(first, after + 1) != in_spans(second, after + 1):
            return after
    return head
