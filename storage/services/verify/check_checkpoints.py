"""Checks checkpoints: each must equal the state that replaying the log gives (PROTOCOL.md, "Checkpoints")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from weft.storage.core.log.checkpoint_codec import decode_lane, state_json
from weft.storage.core.log.cut import Span
from weft.storage.core.log.entries import LaneEntry
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.redaction import redacted_file
from weft.storage.core.log.sealed import unseal
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, Path
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.log.checkpoint_store import list_checkpoints
from weft.storage.services.verify.check_slots import list_slots, read_object
from weft.storage.services.verify.findings import Findings

S = TypeVar("S", TableState, LaneState)


class Checkpoints(Generic[S]):
    """The checkpoints of a lane. Only one is in memory at a time, because a checkpoint may have megabytes."""

    def __init__(
        self,
        env: Environment,
        lane: LaneName,
        decode: Callable[[bytes], S | None],
        is_intact: Callable[[bytes], bool],
        findings: Findings,
    ) -> None:
        """Check the checkpoints of a lane.

        Args:
            env: The environment of the table.
            lane: The lane.
            decode: Decodes a checkpoint; None if it is damaged, or this version does not use it.
            is_intact: Whether the digest of a checkpoint is right, whatever version has written it.
            findings: Receives the problems.
        """
        self._env, self._lane, self._findings = env, lane, findings
        self._decode: Callable[[bytes], S | None] = decode
        self._is_intact = is_intact
        self._paths_by_slot: dict[int, list[Path]] | None = None

    @property
    def _paths(self) -> dict[int, list[Path]]:
        """Checkpoints that `take` has not returned yet, by the slot of their last entry; listed on first use."""
        # Not `cached_property`: in Python 3.11 its lock is shared by all instances, so verifications would wait for
        # each other.
        if self._paths_by_slot is None:
            self._paths_by_slot = {}
            for seq, path, _ in list_checkpoints(self._env.store, self._lane):
                self._paths_by_slot.setdefault(seq, []).append(path)
        return self._paths_by_slot

    def take(self, seq: int, head_id: str | None = None) -> Iterator[tuple[Path, S]]:
        """Yield the usable checkpoints at an entry, once; report the others. ``head_id``: id of the entry, if known."""
        for path in self._paths.pop(seq, ()):
            data = read_object(self._env.store, path)
            if data is None:
                continue  # deleted by a clean after it was listed
            self._findings.count("checkpoints")
            state = self._decode(data)
            if state is not None and state.head == seq and head_id in (None, state.head_id):
                yield path, state
            elif state is None and self._is_intact(data):
                self._findings.at(path).info("another version has written it: it is ignored")
            else:
                self._findings.at(path).warning("it is damaged, or of another log: it is ignored", "delete it")

    def take_all(self) -> dict[int, list[tuple[Path, S]]]:
        """All usable checkpoints, by the slot of their last entry."""
        return {seq: list(self.take(seq)) for seq in list(self._paths)}

    def compare(self, state: S, *, exact: bool) -> None:
        """Check the checkpoints at the head of a state. ``exact``: the state was replayed from the first entry on."""
        for path, checkpoint in self.take(state.head, state.head_id):
            if not exact:
                continue
            try:
                if checkpoint == state:
                    continue
                is_redacted = _was_redacted(checkpoint, state)
            except CorruptData:  # comparing unpacks its slices
                is_redacted = False
            if is_redacted:
                text = "it has key ranges that an erase has removed from the log: a stalled process wrote it afterwards"
                self._findings.at(path).warning(text, "clean")
            else:
                _report_wrong(path, self._findings)

    def finish(self, head: int, *, is_complete: bool) -> None:
        """Report checkpoints at entries that do not exist.

        Args:
            head: Last entry that was compared.
            is_complete: Whether every entry up to ``head`` could be read.
        """
        for path in (path for paths in self._paths.values() for path in paths):
            self._findings.count("checkpoints")
            # An entry may have been published, with its checkpoint, during the verification.
            if is_complete and list_slots(self._env, self._lane, Findings())[-1] == head:
                self._findings.at(path).warning("it is of an entry that does not exist: it is ignored", "delete it")


def _was_redacted(checkpoint: TableState | LaneState, state: TableState | LaneState) -> bool:
    """Whether two states differ only because indexes of folds were removed from the log (rule X4)."""
    if not isinstance(checkpoint, TableState) or not isinstance(state, TableState):
        return False
    if len(checkpoint.folds) != len(state.folds):
        return False
    folds = list(zip(checkpoint.folds, state.folds, strict=True))
    return replace(checkpoint, folds=state.folds) == state and all(
        replace(stored_fold, files=fold.files) == fold
        and len(stored_fold.files) == len(fold.files)
        and all(
            file in (stored_file, redacted_file(stored_file))
            for stored_file, file in zip(stored_fold.files, fold.files, strict=True)
        )
        for stored_fold, fold in folds
    )


def _report_wrong(path: Path, findings: Findings) -> None:
    text = "it differs from what replaying the log gives: processes that start from it have a wrong state"
    findings.at(path).damage("S2", text, "delete it, and restart the processes that use the table")


def is_intact_table_checkpoint(data: bytes) -> bool:
    """Whether the digest of a checkpoint of the table lane is right; in early versions it was in the first line."""
    return state_json(data) is not None or is_sealed(data)


def is_sealed(data: bytes) -> bool:
    """Whether the digest in the first line is right, as in the checkpoints of a writer's lane."""
    return unseal(data) is not None


class LaneCheckpoints:
    """Compares the checkpoints of a writer's lane with replays, one for each set of rolled-back spans."""

    def __init__(self, env: Environment, lane: LaneName, findings: Findings) -> None:
        self._findings, self._recent = findings, env.tuning.recent_commits
        self._checkpoints = Checkpoints(env, lane, decode_lane, is_sealed, findings).take_all()
        spans: set[tuple[Span, ...]] = {
            state.rolled_back for checkpoints in self._checkpoints.values() for _, state in checkpoints
        }
        self._replays = {rolled_back: LaneState(rolled_back=rolled_back) for rolled_back in spans}

    def stop(self) -> None:
        """Skip later checkpoints, because an entry cannot be read."""
        self._checkpoints, self._replays = {}, {}

    def add(self, entry: LaneEntry) -> None:
        """Replay the next entry, and check the checkpoints at it."""
        try:
            for replay in self._replays.values():
                replay.add(entry, self._recent)
        except CorruptData:  # reported by the caller
            self.stop()
        for path, state in self._checkpoints.get(entry.seq, ()):
            if state != self._replays[state.rolled_back]:
                _report_wrong(path, self._findings)
