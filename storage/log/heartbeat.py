"""Heartbeats: a writer says that it is alive, for the eyes of operators. Nothing rests on them.

An object's name says whose it is (lane, claim) and of when; nothing is ever overwritten, and whoever lists needs not
read. A writer that leaves in order removes its own, so that one which left can be told from one which died. Not being
able to write one never fails a commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage.core.names import HEARTBEATS, Kind, LaneName, Path, heartbeat_path, parse_path
from storage.environment import Environment
from storage.errors import StoreUnavailable
from storage.store.object_store import ObjectStore

EVERY_MS: Final = 30_000  # a put and a delete each: not noticed beside the commits
SILENT_AFTER_MS: Final = 4 * EVERY_MS  # one may be lost, or a batch take long
_NO_PROMISE: Final = (OSError, StoreUnavailable)  # what fails here costs an operator a glance, and nobody a row


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life: that of claim ``epoch`` of a lane, by its writer's clock."""

    lane: LaneName
    epoch: int
    at_ms: int


class Pulse:
    """The heartbeats of one incarnation of a writer."""

    def __init__(self, env: Environment, lane: LaneName, epoch: int, owner: str) -> None:
        self._env, self._store, self._clock = env, env.store, env.clock
        self._lane, self._epoch = lane, epoch
        said = {"version": 1, "owner": owner, "host": env.ids.host, "pid": env.ids.pid}
        self._data = json.dumps(said).encode()
        self._last: Path | None = None
        self._tried_ms: int | None = None
        self._ended = False

    def beat(self) -> None:
        """Say it again, if the last time is long enough ago."""
        if self._ended:
            return
        now = self._clock.now_ms()
        # A clock that jumped backwards is as good a reason as one that moved on.
        if self._tried_ms is not None and 0 <= now - self._tried_ms < EVERY_MS:
            return
        self._tried_ms = now  # also if it fails: a store that does not answer is not asked again at once
        path = heartbeat_path(self._lane, self._epoch, now, self._env.ids.new())
        with contextlib.suppress(*_NO_PROMISE):
            self._store.put(path, self._data)
            self._take_back()
            self._last = path

    def end(self) -> None:
        """Take back what was said, and say no more."""
        self._ended = True
        self._take_back()

    def _take_back(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            with contextlib.suppress(*_NO_PROMISE):
                self._store.delete(last)


def newest_heartbeats(store: ObjectStore) -> Mapping[LaneName, Heartbeat]:
    """The newest heartbeat of every lane that has any: that of the highest claim.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    newest: dict[LaneName, Heartbeat] = {}
    for name, _ in store.list(HEARTBEATS):
        parsed = parse_path(Path(f"{HEARTBEATS}/{name}"))
        if parsed is None or parsed.kind is not Kind.HEARTBEAT:
            continue
        known = newest.get(parsed.lane)
        if known is None or (known.epoch, known.at_ms) < (parsed.epoch, parsed.at_ms):
            newest[parsed.lane] = Heartbeat(parsed.lane, parsed.epoch, parsed.at_ms)
    return newest
