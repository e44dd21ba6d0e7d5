"""Replays dead letters through the present pipeline, each exactly once.

    1. plan     write the waiting letters to a plan, by put if absent              `weft.streams.letters.plans`
    2. claim    a lane of its own, ``<lane>-replay-<id of the plan>``
    3. write    letters -> messages -> decode -> log files; letters that fail again become letters of this run
    4. commit   batch 0 of query ``replay-<id>``, which names the run                <- decides all or nothing
    5. close    the lane, so that it does not hold back the watermark of the stream

**Why each message is stored once.** A letter is replayed if and only if the table has the commit of a plan that
contains it. No other place records that, and nothing is moved or deleted afterwards, which a crash could prevent. So it
remains to show that a letter is never in two plans that commit:

- *Killed before 1:* nothing has happened. *Between 1 and 4:* the plan is open. The next replay runs it again before it
  makes a new plan. Its letters are in no other plan: the letters of a plan are chosen from the waiting ones after all
  earlier plans were read, and put if absent refuses a second plan of the same number. *After 4:* the plan is done; the
  next replay closes its lane. Log files of a killed run are in no commit, and cleaning deletes them.
- *Two replays at once:* one of them publishes the plan. The other one, if it finds the plan open, runs it again: its
  claim fences the first. A lane never has batch 0 of a query twice (PROTOCOL.md, S6 BatchExactlyOnce), so one commit
  remains, whoever makes it; a run that finds the commit writes nothing.
- *Beside the live writer:* the replay has another lane, so neither fences the other. Only letters of committed batches
  wait, and the files of these batches never change. Events are merged by their ordering values, as if they arrived now.
- *A drop at the same time* does not choose letters of an open plan, and its plan has a number of the same sequence.
- *A restore or an undo* between 1 and 4 may roll back the batch of a letter, whose message is then read again. It
  changes `weft.storage.write.lane_progress.LaneProgress.fenced` of the lane, which the plan has recorded, and a run
  compares the two after its claim. If the restore comes later, it fences the run. Afterwards the plan is void. A
  restore that rolls back the commit makes the letters wait again.

**Letters that fail again** become letters in a folder with the number of the claim, ``replay-<id>-<epoch>``. The commit
names this folder, so letters of killed runs, and of fenced runs that still write, do not count. These letters have the
position of the original message, and can be replayed again.

**Ordering.** Messages have their original topic, partition, offset, timestamp, key and headers, so expressions over
``_kafka`` give the original ordering values, and an old message does not win over newer ones. In a group *without*
ordering columns the last commit wins, so there a replayed message is the newest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from weft.storage import Commit, Table
from weft.storage.errors import Conflict
from weft.storage.write.write_task import WriteTicket
from weft.streams.letters.letter_files import Letter, list_files
from weft.streams.letters.letter_folder import REPLAY, LetterFolder, PlanState, State, Survey
from weft.streams.letters.plans import Plan, count_lines
from weft.streams.write.dead_letter import DeadLetters
from weft.streams.write.sink_task import TaskReport
from weft.streams.write.write_batch import send_heartbeats

BATCH: Final = 0  # a replay is the only batch of its query

Run = Callable[[Plan, WriteTicket, DeadLetters], Sequence[TaskReport]]
"""Writes the letters of a plan; returns the reports of the tasks, in the order of their rows."""
Choose = Callable[[Survey], Iterable[Letter]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of one replay.

    Attributes:
        plan: Number of its plan.
        resumed: Whether an earlier process began the replay.
        letters: Number of its letters.
        rows: Events that were stored.
        rows_ignored: Rows without effect, see `weft.Commit`.
        failed: Letters that became dead letters again; None if another process committed the replay.
        missing: Letters whose file was deleted meanwhile.
        lane: Its lane.
        seq: Number of its commit.
    """

    plan: int
    resumed: bool
    letters: int
    rows: int
    rows_ignored: int
    failed: int | None
    missing: int
    lane: str
    seq: int


def replayable(survey: Survey) -> Iterable[Letter]:
    """Return the letters that wait and contain a message."""
    return (letter for letter in survey.chosen(State.WAITING) if letter.has_message)


def replay(
    folder: LetterFolder, table: Table, stream: str, run: Run, *, where: str = "", choose: Choose = replayable
) -> list[ReplayResult]:
    """Replay letters. A replay that an earlier process did not finish is finished first.

    Args:
        folder: The letters of the lane.
        table: The table.
        stream: Stream of the lane.
        run: Writes the letters of a plan.
        where: The condition by which letters were chosen; the plan records it.
        choose: Chooses letters that wait.

    Returns:
        One result for each plan that was committed; empty if no letter waits.

    Raises:
        Conflict: Another process replays letters of the lane, or the table was restored meanwhile. Repeat the call.
        Fenced: Another process has taken over the replay. Repeat the call.
        StoreUnavailable, CommitUnknown: Repeat the call, which finishes the replay.
    """
    results = []
    survey = folder.survey()
    _close_lanes(survey, table)
    if survey.open is not None:
        results.append(_run(folder, table, stream, survey.open, run, resumed=True))
    plan = folder.publish("replay", where, choose)
    if plan is not None:
        results.append(_run(folder, table, stream, plan, run, resumed=False))
    return results


def _run(folder: LetterFolder, table: Table, stream: str, plan: Plan, run: Run, *, resumed: bool) -> ReplayResult:
    failed: int | None = None
    existing_paths = {file.path for file in list_files(folder.store)}
    missing_spans = [span for file, spans in plan.letters.items() if file not in existing_paths for span in spans]
    with table.writer(stream, plan.replay_lane, query_id=plan.query_id) as writer:
        ticket = writer.begin((plan.query_id, BATCH))
        if isinstance(ticket, Commit):
            commit = ticket
        else:
            if folder.progress(folder.lane).fenced != plan.fenced:
                raise Conflict(
                    f"the table was restored since replay {plan.number} of lane {folder.lane!r} was planned",
                    hint="repeat the command: nothing was stored, and the letters wait again",
                )
            letters = DeadLetters(folder.store, f"{plan.query_id}-{writer.epoch}", BATCH, stream, folder.lane)
            with send_heartbeats(writer):
                reports = run(plan, ticket, letters)
            failed = sum(report.letters for report in reports)
            task_results = [report.written for report in reports]
            commit = writer.commit(ticket, task_results, source={REPLAY: letters.query_id})
    _close(table, plan.replay_lane)
    return ReplayResult(
        plan=plan.number,
        resumed=resumed,
        letters=plan.count,
        rows=commit.rows,
        rows_ignored=commit.rows_ignored,
        failed=failed,
        missing=count_lines(missing_spans),
        lane=plan.replay_lane,
        seq=commit.seq,
    )


def _close_lanes(survey: Survey, table: Table) -> None:
    """Close the lanes of replays that were killed after their commit, before they closed their lane."""
    replays = [plan for plan in survey.plans if plan.kind == "replay"]
    lanes = table.state().lanes if replays else {}
    for plan in replays:
        lane = None if survey.states[plan.number] is PlanState.OPEN else lanes.get(plan.replay_lane)
        if lane is not None and lane.closed is None:
            _close(table, plan.replay_lane)


def _close(table: Table, lane: str) -> None:
    with contextlib.suppress(Conflict):  # another process has closed it
        table.close_lane(lane)
