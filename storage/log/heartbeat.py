"""Heartbeats: objects by which operators see that a writer is alive. The protocol does not use them.

The name of a heartbeat has the lane, the claim and the time, so heartbeats are listed and not read. Nothing is
overwritten. A writer that ends normally removes its heartbeat, one that dies does not. A heartbeat that
cannot be written never fails a commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage.core.names import HEARTBEATS, Kind, LaneName, Path, heartbeat_path, parse_path
from weft.storage.environment import Environment
from weft.storage.errors import StoreUnavailable
from weft.storage.store.object_store import ObjectStore

EVERY_MS: Final = 30_000  # each costs a put and a delete, which is little compared to the commits
SILENT_AFTER_MS: Final = 4 * EVERY_MS  # heartbeats may be lost, and a batch may take long
_SUPPRESSED: Final = (OSError, StoreUnavailable)  # a missing heartbeat loses no data


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat of a writer.

    Attributes:
        lane: Lane of the writer.
        epoch: Number of its claim.
        at_ms: Time of the writer's clock.
    """

    lane: LaneName
    epoch: int
    at_ms: int


class Pulse:
    """Writes the heartbeats of one claim of a writer."""

    def __init__(self, env: Environment, lane: LaneName, epoch: int, owner: str) -> None:
        self._env, self._store, self._clock = env, env.store, env.clock
        self._lane, self._epoch = lane, epoch
        content = {"version": 1, "owner": owner, "host": env.ids.host, "pid": env.ids.pid}
        self._data = json.dumps(content).encode()
        self._last: Path | None = None
        self._tried_ms: int | None = None
        self._ended = False

    def beat(self) -> None:
        """Write a heartbeat if the last one is at least `EVERY_MS` old."""
        if self._ended:
            return
        now = self._clock.now_ms()
        # Also if the clock was set back.
        if self._tried_ms is not None and 0 <= now - self._tried_ms < EVERY_MS:
            return
        self._tried_ms = now  # set even if the put fails, so that it is not retried at once
        path = heartbeat_path(self._lane, self._epoch, now, self._env.ids.new())
        with contextlib.suppress(*_SUPPRESSED):
            self._store.put(path, self._data)
            self._remove_last()
            self._last = path

    def end(self) -> None:
        """Remove the last heartbeat, and write no more."""
        self._ended = True
        self._remove_last()

    def _remove_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            with contextlib.suppress(*_SUPPRESSED):
                self._store.delete(last)


def newest_heartbeats(store: ObjectStore) -> Mapping[LaneName, Heartbeat]:
    """The newest heartbeat of the highest claim of each lane, by lane; lanes without one are left out.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    newest: dict[LaneName, Heartbeat] = {}
    for name, _ in store.list(HEARTBEATS):
        parts = parse_path(Path(f"{HEARTBEATS}/{name}"))
        if parts is None or parts.kind is not Kind.HEARTBEAT:
            continue
        previous = newest.get(parts.lane)
        if previous is None or (previous.epoch, previous.at_ms) < (parts.epoch, parts.at_ms):
            newest[parts.lane] = Heartbeat(parts.lane, parts.epoch, parts.at_ms)
    return newest
