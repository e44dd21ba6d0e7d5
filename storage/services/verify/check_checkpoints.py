"""Checks checkpoints: each has to equal the state that replaying the log gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage.core.log.checkpoint_codec import decode_lane, decode_table
from storage.core.log.cut import Span
from storage.core.log.entries import LaneEntry
from storage.core.log.lane_state import LaneState
from storage.core.log.table_state import TableState
from storage.core.names import TABLE_LANE, LaneName, Path, checkpoint_folder, parse_path
from storage.environment import Environment
from storage.errors import CorruptData
from storage.services.verify.check_slots import list_slots, read_object
from storage.services.verify.findings import Findings
from storage.store.object_store import ObjectStore

S = TypeVar("S", TableState, LaneState)


def list_checkpoints(store: ObjectStore, lane: LaneName) -> dict[int, list[Path]]:
    """The checkpoints of a lane, by the slot of their last entry."""
    folder = checkpoint_folder(lane)
    found: dict[int, list[Path]] = {}
    for name, _ in store.list(folder):
        path = Path(f"{folder}/{name}")
        parsed = parse_path(path)
        if parsed is not None:
            found.setdefault(parsed.slot, []).append(path)
    return found


def _read(store: ObjectStore, path: Path, decode: Callable[[bytes], S | None], findings: Findings) -> S | None:
    """A checkpoint; None if it has been cleaned since it was listed, or cannot be used, which is reported."""
    data = read_object(store, path)
    if data is None:
        return None
    findings.count("checkpoints")
    state = decode(data)
    if state is None:
        findings.at(path).warning("it is damaged, or of another version: nobody uses it", "delete it")
    return state


def _report_wrong(path: Path, findings: Findings) -> None:
    what = "it differs from what replaying the log gives: processes that start from it have a wrong state"
    findings.at(path).damage("S2", what, "delete it, and restart the processes that use the table")


class TableCheckpoints:
    """The checkpoints of the table lane, compared with its replay one by one: each may have megabytes."""

    def __init__(self, env: Environment, findings: Findings) -> None:
        self._env, self._findings = env, findings
        self._paths = list_checkpoints(env.store, TABLE_LANE)

    def compare(self, state: TableState, *, exact: bool) -> None:
        """Check the checkpoints at the head of a state; ``exact``: the state was replayed from the first entry on."""

        def decode(data: bytes) -> TableState | None:
            made = decode_table(data)
            return made if made and (made.head, made.head_id) == (state.head, state.head_id) else None

        for path in self._paths.pop(state.head, ()):
            made = _read(self._env.store, path, decode, self._findings)
            if made is not None and exact and made != state:
                _report_wrong(path, self._findings)

    def finish(self, head: int, *, whole: bool) -> None:
        """Report checkpoints at entries that do not exist.

        Args:
            head: Last entry that was compared.
            whole: Every entry up to there could be read.
        """
        for path in (path for paths in self._paths.values() for path in paths):
            self._findings.count("checkpoints")
            # An entry may have been published, with its checkpoint, during the verification.
            if whole and list_slots(self._env, TABLE_LANE, Findings())[-1] == head:
                self._findings.at(path).warning("it is of an entry that does not exist: nobody uses it", "delete it")


class LaneCheckpoints:
    """The checkpoints of a writer's lane, compared with one replay for each set of spans that they were made under."""

    def __init__(self, env: Environment, lane: LaneName, findings: Findings) -> None:
        self._findings, self._recent = findings, env.tuning.recent_commits
        self._made: dict[int, list[tuple[Path, LaneState]]] = {}
        self._replays: dict[tuple[Span, ...], LaneState] = {}
        for head, paths in list_checkpoints(env.store, lane).items():
            for path in paths:
                state = _read(env.store, path, decode_lane, findings)
                if state is not None:
                    self._made.setdefault(head, []).append((path, state))
                    self._replays.setdefault(state.rolled_back, LaneState(rolled_back=state.rolled_back))

    def stop(self) -> None:
        """Compare no later checkpoint: an entry cannot be read."""
        self._made, self._replays = {}, {}

    def add(self, entry: LaneEntry) -> None:
        """Replay the next entry, and check the checkpoints at it."""
        try:
            for replay in self._replays.values():
                replay.add(entry, self._recent)
        except CorruptData:  # reported by the caller
            self.stop()
        for path, state in self._made.get(entry.seq, ()):
            if state != self._replays[state.rolled_back]:
                _report_wrong(path, self._findings)
