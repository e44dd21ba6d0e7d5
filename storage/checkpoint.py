"""Checkpoints in the store: found by listing, never needed, never trusted without proof.

One is written now and then by whoever adds to a lane, at no promise: a failure to write one changes nothing. It is used
if its bytes have their digest and the log still holds the entry it stands on, by ``commit_id``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from storage.commit_log import CommitLog, new_id
from storage.core.checkpoint import decode_lane, decode_table, encode_lane, encode_table
from storage.core.cut import Span
from storage.core.lane_state import LaneState
from storage.core.names import TABLE_LANE, LaneName, Path, checkpoint_folder, checkpoint_path, parse_checkpoint
from storage.core.timeline import TableState
from storage.errors import StoreUnavailable
from storage.object_store import ObjectStore, answering

TABLE_EVERY: Final = 64  # entries of the table lane: they are large, and hold the slices
LANE_EVERY: Final = 1_000  # entries of a writer's lane: a claim reads at most so many
MAX_TRIES: Final = 3  # damaged ones passed over before replaying from the beginning

S = TypeVar("S", TableState, LaneState)


class Checkpoints:
    """The checkpoints of one table, as one process has met them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._saved: dict[LaneName, int] = {}

    def newest_table(self, log: CommitLog, until: int | None = None) -> TableState | None:
        """The newest usable state of a prefix of the table lane, not longer than ``until``."""
        return self._newest(log, TABLE_LANE, decode_table, until, lambda _: True)

    def newest_lane(self, log: CommitLog, lane: LaneName, void: tuple[Span, ...]) -> LaneState | None:
        """The newest usable state of a lane: one that took the same spans for void, as far as it reaches."""

        def same(state: LaneState) -> bool:
            return _up_to(void, state.head) == _up_to(state.void, state.head)

        state = self._newest(log, lane, decode_lane, None, same)
        if state is not None:
            state.void = void
        return state

    def save_table(self, state: TableState) -> None:
        """Write one if it is due."""
        self._save(TABLE_LANE, state.head, TABLE_EVERY, lambda: encode_table(state))

    def save_lane(self, lane: LaneName, state: LaneState) -> None:
        """Write one if it is due."""
        self._save(lane, state.head, LANE_EVERY, lambda: encode_lane(state))

    def _newest(
        self,
        log: CommitLog,
        lane: LaneName,
        decode: Callable[[bytes], S | None],
        until: int | None,
        usable: Callable[[S], bool],
    ) -> S | None:
        for head, path in itertools.islice(self._listed(lane, until), MAX_TRIES):
            with answering(path):
                data = self._store.get(path)
            state = decode(data) if data is not None else None
            entry = log.entry(lane, head) if state is not None else None
            if state is not None and entry is not None and entry.commit_id == state.head_id and usable(state):
                self._saved[lane] = max(self._saved.get(lane, 0), head)
                return state
        return None

    def _listed(self, lane: LaneName, until: int | None) -> Iterator[tuple[int, Path]]:
        """(head, path) of a lane's checkpoints, newest first."""
        folder = checkpoint_folder(lane)
        with answering(folder):
            names = [name for name, _ in self._store.list(folder)]
        for name in sorted(names, reverse=True):
            head = parse_checkpoint(name)
            if head is not None and (until is None or head <= until):
                yield head, Path(f"{folder}/{name}")

    def _save(self, lane: LaneName, head: int, every: int, encode: Callable[[], bytes]) -> None:
        if head - self._saved.get(lane, 0) < every:
            return
        self._saved[lane] = head
        with contextlib.suppress(OSError, StoreUnavailable):  # the next one makes up for it
            self._store.put(checkpoint_path(lane, head, new_id()), encode())


def _up_to(spans: tuple[Span, ...], head: int) -> list[Span]:
    return [(after, min(until, head)) for after, until in spans if after < head]
