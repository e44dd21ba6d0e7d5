"""State of each dead letter of a lane: waiting, being replayed, replayed, or not final.

Nothing is moved or rewritten when letters are replayed: *the commit of a replay is what marks its letters*. The state
of a letter follows from the folder and the table alone:

    not final   the batch of the letter is not committed, or its commit was rolled back: its messages are read again
    replaying   in a replay that has not committed
    replayed    in a replay whose commit is in the table
    waiting     otherwise

1. **Final.** The file of a batch may be replaced until the batch is committed, and never after. So files are listed
   first, then the end of the lane is read, then the files.
2. **A restore or an undo** that rolls back the commit of a replay makes its letters wait again. One that rolls back the
   batch of a letter makes the letter not final: its message is read from its source again.
3. **A replay that has not committed is void after a restore of the lane**, because letters of it may not be final any
   more. It commits nothing then (`weft.streams.write.replay`), and its letters wait again. The same holds if somebody
   closed its lane.
4. **Letters of a replay** (messages that failed again) are in a folder for each run of the replay, and the commit names
   the run. Folders of other runs, which were killed or fenced, are not letters.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from weft.storage import Table
from weft.storage.core.names import Path
from weft.storage.errors import Conflict, StoreUnavailable
from weft.storage.store.object_store import ObjectStore
from weft.storage.table_facts import is_closed
from weft.storage.write.lane_progress import LaneProgress, lane_progress
from weft.streams.letters.letter_files import Letter, LetterFile, list_files, read_letters, read_object
from weft.streams.letters.plans import Kind, Plan, Span, publish_plan, read_plans, spans_of

REPLAY: Final = "replay"
"""Field of the ``source`` of a replay's commit: the folder of the letters of its run."""
_TRIES: Final = 10


class State(StrEnum):
    """State of a letter."""

    WAITING = "waiting"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    NOT_FINAL = "not final"


class PlanState(StrEnum):
    """State of a plan."""

    DONE = "done"
    OPEN = "open"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class LetterFolder:
    """The letters of one lane.

    Attributes:
        store: The folder, from `weft.streams.write.dead_letter.open_dead_letters` or
            `weft.storage.store.open_store.open_store`.
        lane: The lane.
        progress: Returns the end of a lane of the table.
        is_closed: Returns whether a lane of the table is closed.
    """

    store: ObjectStore
    lane: str
    progress: Callable[[str], LaneProgress]
    is_closed: Callable[[str], bool]

    @classmethod
    def of(cls, store: ObjectStore, lane: str, table: Table, storage_options: Mapping[str, Any] | None) -> LetterFolder:
        """The folder of a lane of a table."""
        return cls(
            store,
            lane,
            lambda name: lane_progress(table.uri, name, storage_options),
            lambda name: is_closed(table, name),
        )

    def survey(self) -> Survey:
        """Read the plans and the end of the lane, from which the states of letters follow, but no letters.

        Raises:
            CorruptData: A plan is damaged.
            StoreUnavailable: A store does not answer.
        """
        files = list_files(self.store)
        plans = read_plans(self.store, self.lane)
        end = self.progress(self.lane)
        states, runs = {}, {}
        for plan in plans:
            states[plan.number], run = self._state_of(plan, end)
            if run is not None:
                runs[run] = plan
        return Survey(self.store, self.lane, files, plans, states, runs, end)

    def _state_of(self, plan: Plan, end: LaneProgress) -> tuple[PlanState, str | None]:
        """The state of a plan, and the folder of the letters of the run that committed it."""
        if plan.kind == "drop":
            return PlanState.DONE, None
        progress = self.progress(plan.replay_lane)
        if plan.query_id in progress.batches:
            return PlanState.DONE, progress.source.get(REPLAY)
        if plan.fenced != end.fenced or plan.query_id in progress.rolled_back_from:
            return PlanState.VOID, None
        # The order matters: a lane that was open when its end was read may have got the commit before it was closed.
        if self.is_closed(plan.replay_lane) and plan.query_id not in self.progress(plan.replay_lane).batches:
            return PlanState.VOID, None
        return PlanState.OPEN, None

    def publish(self, kind: Kind, where: str, choose: Callable[[Survey], Iterable[Letter]]) -> Plan | None:
        """Publish the next plan.

        Args:
            kind: What is done to the letters.
            where: The condition, for the record.
            choose: Chooses letters of a survey, in the order of their files and lines. Called again if another process
                publishes a plan meanwhile.

        Returns:
            The plan; None if no letter was chosen.

        Raises:
            Conflict: Another replay has not committed, or other processes published plans all the time.
        """
        for _ in range(_TRIES):
            survey = self.survey()
            if kind == "replay" and survey.open is not None:
                raise Conflict(
                    f"another process replays dead letters of lane {self.lane!r}",
                    hint="repeat the command when it has ended; if it was killed, that finishes its replay first",
                )
            lines: dict[str, list[int]] = {}
            for letter in choose(survey):
                lines.setdefault(letter.file, []).append(letter.line)
            if not lines:
                return None
            plan = Plan(
                lane=self.lane,
                number=survey.plans[-1].number + 1 if survey.plans else 1,
                id=secrets.token_hex(8),
                kind=kind,
                made_at_ms=time.time_ns() // 1_000_000,
                where=where,
                fenced=survey.end.fenced,
                letters={file: spans_of(sorted(line_numbers)) for file, line_numbers in lines.items()},
            )
            if publish_plan(self.store, plan):
                return plan
        raise Conflict(
            f"other processes replay or drop dead letters of lane {self.lane!r} all the time", hint="try again later"
        )

    def erase_dropped(self) -> None:
        """Remove the letters of all drops from their files; a file without letters is deleted. May be repeated."""
        drops = [plan for plan in read_plans(self.store, self.lane) if plan.kind == "drop"]
        spans: dict[str, list[Span]] = {}
        for plan in drops:
            for file, line_spans in plan.letters.items():
                spans.setdefault(file, []).extend(line_spans)
        for file, line_spans in spans.items():
            data = read_object(self.store, file)
            if data is None:
                continue
            lines = data.split(b"\n")
            for first, last in line_spans:
                lines[first - 1 : last] = [b""] * (last - first + 1)
            if not any(line.strip() for line in lines):
                delete(self.store, file)
            elif (rest := b"\n".join(lines)) != data:
                with self.store.open_output(Path(file)) as target:
                    target.write(rest)


def delete(store: ObjectStore, path: str) -> None:
    """Delete an object; a missing object is not an error.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    try:
        store.delete(Path(path))
    except OSError as error:
        raise StoreUnavailable(f"cannot delete {store.uri}/{path}: {error}", hint="repeat the command") from error


@dataclass(frozen=True, slots=True)
class Survey:
    """The letters of a lane, at one moment.

    Attributes:
        store: The folder.
        lane: The lane.
        files: Files of the folder, also of other lanes.
        plans: Plans of the lane, by number.
        states: State of each plan, by number.
        runs: Plans by the folder of the letters of the run that committed them.
        end: The end of the lane.
    """

    store: ObjectStore
    lane: str
    files: list[LetterFile]
    plans: list[Plan]
    states: Mapping[int, PlanState]
    runs: Mapping[str, Plan]
    end: LaneProgress

    @property
    def open(self) -> Plan | None:
        """The replay that was begun and has not committed."""
        return next((plan for plan in self.plans if self.states[plan.number] is PlanState.OPEN), None)

    def letters(self) -> Iterator[tuple[State, Letter]]:
        """The letters of the lane with their states, in the order of files and lines. Dropped ones are left out.

        Raises:
            CorruptData: A file has a line that is not a letter.
            StoreUnavailable: The store does not answer.
        """
        for file in self.files:
            if file.part.startswith("replay-") and file.part not in self.runs:
                continue
            plans = [plan for plan in self.plans if file.path in plan.letters]
            for letter in read_letters(self.store, file.path):
                if letter.content["lane"] != self.lane:
                    break  # all letters of a file are of one lane
                is_dropped, state = self._state_of(file, letter, plans)
                if not is_dropped:
                    yield state, letter

    def chosen(self, *states: State) -> Iterator[Letter]:
        """The letters in any of these states."""
        return (letter for state, letter in self.letters() if state in states)

    def _state_of(self, file: LetterFile, letter: Letter, plans: Iterable[Plan]) -> tuple[bool, State]:
        """Whether the letter is dropped, and its state."""
        state = State.WAITING if file.part in self.runs or self.is_committed(file) else State.NOT_FINAL
        containing = [plan for plan in plans if plan.has(letter.file, letter.line)]
        if any(plan.kind == "drop" for plan in containing):  # perhaps after it was replayed
            return True, state
        for plan in containing:
            if self.states[plan.number] is PlanState.DONE:
                return False, State.REPLAYED
            if self.states[plan.number] is PlanState.OPEN:
                return False, State.REPLAYING
        return False, state

    def is_committed(self, file: LetterFile) -> bool:
        """Whether the batch of a file is committed; false for a file of a replay."""
        last = self.end.batches.get(file.part)
        return last is not None and file.batch <= last
