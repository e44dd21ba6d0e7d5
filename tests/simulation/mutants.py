"""Broken versions of the real code, one line each, that the simulation must find within a bounded number of schedules.

A mutant replaces a text in the source of one function. The function's code object is exchanged, so that everybody who
has imported it runs the mutant; it is put back afterwards. If the text is not there any more, the code has moved on:
choose its new form.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tests.simulation.run import run_seed

# Of a mutant. The rarest are met by one schedule in some hundred, and any change of the code's store calls makes
# schedules other ones: so many, that the rarest are met all the same.
MAX_SCHEDULES = 1_500


@dataclass(frozen=True)
class Mutant:
    """``old`` in the source of ``function`` (module:qualified name) becomes ``new``.

    ``theme``: of the schedules that look for it, where not any will do.
    """

    function: str
    old: str
    new: str
    theme: str | None = None

    def is_found(self, seed: int) -> bool:
        """Whether a schedule notices; Requires that the mutant is in place."""
        return run_seed(seed, self.theme).failure is not None


_COMPACTION = "storage.services.compaction"
_CLEAN = "storage.services.clean.clean"

MUTANTS: Mapping[str, Mutant] = {
    "S1 a slot is overwritten": Mutant(
        "storage.log.commit_log:CommitLog.publish",
        "if self._store.put_if_absent(path, data):",
        "if self._store.put(path, data) is None:",
    ),
    "S2 a slot is left out": Mutant(
        "storage.write.writer:Writer._header", '"seq": self._state.head + 1', '"seq": self._state.head + 2'
    ),
    "S2 a slot of the table lane is left out": Mutant(
        "storage.log.table_log:TableLog.header", '"seq": state.head + 1', '"seq": state.head + 2'
    ),
    "S3 a claim keeps the epoch": Mutant(
        "storage.write.writer:Writer._claim",
        "self._epoch = self._state.epoch + 1",
        "self._epoch = max(self._state.epoch, 1)",
    ),
    "S3 a fenced writer goes on after the claim": Mutant(
        "storage.write.writer:Writer.commit",
        "winner = self._table_log.commit_log.publish(entry)",
        "winner = self._table_log.commit_log.publish(entry)\n"
        "        while winner.commit_id != entry.commit_id:\n"
        "            entry = entry.model_copy(update={'seq': winner.seq + 1, 'prev_id': winner.commit_id})\n"
        "            winner = self._table_log.commit_log.publish(entry)",
    ),
    "S4 a lost commit is acknowledged": Mutant(
        "storage.write.writer:Writer.commit", "if winner.commit_id != entry.commit_id:", "if winner.commit_id is None:"
    ),
    "S4 silence is taken for consent": Mutant(
        "storage.log.commit_log:CommitLog.publish", "if self._mine(entry):", "if True:"
    ),
    "S4 a lost answer is a lost race": Mutant(
        "storage.log.commit_log:CommitLog.publish",
        "return self._remember(entry) if winner.commit_id == entry.commit_id else winner",
        "return winner.model_copy(update={'commit_id': ''})",
    ),
    "S4 a writer claims a lane that was closed just before": Mutant(
        "storage.write.writer:Writer._enter_lane", "table.lanes[self._lane].closed is None\n", "True\n"
    ),
    "S5 a commit does not say which batch it is": Mutant(
        "storage.write.writer:Writer.commit", 'query_id, number = ticket.batch or ("", 0)', 'query_id, number = "", 0'
    ),
    "S6 a batch is forgotten": Mutant(
        "storage.write.writer:Writer._replayed", "known = self._state.recent.get(batch)", "return None"
    ),
    "S6 an old batch is not looked up": Mutant(
        "storage.write.writer:Writer._look_up", "(entry.query_id, entry.batch) == batch", "entry.query_id == batch"
    ),
    "S6 void batches count": Mutant(
        "storage.core.log.lane_state:LaneState.add", "in_spans(self.rolled_back, entry.seq)", "in_spans((), entry.seq)"
    ),
    "S6 a checkpoint of before a restore is used": Mutant(
        "storage.log.checkpoint_store:Checkpoints.newest_lane",
        "lambda state: agreed(rolled_back, state.rolled_back, state.head)",
        "lambda state: state.head",
    ),
    "S7 an entry comes before its files": Mutant(
        "storage.files.log_file:put_log_file", "store.put(path, data)", "pass"
    ),
    "S8 a snapshot sees what comes after it": Mutant(
        "storage.log.table_log:TableLog.committed_files",
        "(after.get(lane, 0), last) for",
        "(after.get(lane, 0), None) for",
    ),
    "S9 a cut is read with the newest slices": Mutant(
        "storage.log.table_log:TableLog.exact_cut", "state = self.at(wanted.table)", "state = self.refresh()"
    ),
    "S10 a slice is published on another's parent": Mutant(
        f"{_COMPACTION}:_Run._is_current",
        "return made.parent == (newest.cut if newest is not None else {})",
        "return True",
    ),
    "S11 the first commit after a slice is taken for folded": Mutant(
        "storage.core.plan.slices:_live", "after = file_seq[position] > held[", "after = file_seq[position] > 1 + held["
    ),
    "S11 a slice says that it holds more than it does": Mutant(
        f"{_COMPACTION}:_slice_file",
        "cut=dict(task.at.lanes)",
        "cut={lane: seq + 1 for lane, seq in task.at.lanes.items()}",
    ),
    "S11 a fold is published on another's slice": Mutant(
        "storage.core.plan.fold_plan:may_publish", "folded.parent == (own.cut if own is not None else {})", "True"
    ),
    "S12 a part of the file groups is stated as all of them": Mutant(
        f"{_COMPACTION}:_Run._publish", "last and self._complete and not", "last and not"
    ),
    "S12 compaction forgets hidden rows": Mutant(
        f"{_COMPACTION}:_fold_one", "(shadow, stitched.hidden))", "(shadow, {}))"
    ),
    "S13 the last version that comes wins": Mutant(
        "storage.core.modes.history:newer", "later = (new_rank > old_rank) |", "later = (new_rank != old_rank) |"
    ),
    "S14 a floor orders nothing": Mutant(
        "storage.core.modes.latest:_version", "], pc.coalesce(arrival, floor)", "], arrival"
    ),
    "S15 a key's bucket depends on its row": Mutant(
        "storage.core.keys:buckets",
        "return np.asarray(transform.bucket(one_array(columns[0]), 1 << bits)).astype(np.int32)",
        "return (np.arange(len(columns[0])) & (1 << bits) - 1).astype(np.int32)",
    ),
    "S16 a savepoint keeps nothing": Mutant(
        f"{_CLEAN}:_held",
        '*(("savepoint", name, kept.at) for name, kept in state.savepoints.items()),',
        "",
        theme="clean",
    ),
    "S16 an open compaction keeps nothing": Mutant(
        f"{_CLEAN}:_held",
        '*(("compaction", plan_id, plan.at) for plan_id, plan in state.plans.items()),',
        "",
        theme="clean",
    ),
    "S16 a pin keeps nothing": Mutant(
        f"{_CLEAN}:_held", "own.pin.expires_at_ms > now", "own.pin.expires_at_ms < 0", theme="clean"
    ),
    "S16 a pin is not checked against cleaning": Mutant(
        "storage.read.snapshot:Snapshot.pinned",
        "check_promised(self._table_log.refresh(), self._cut)",
        "pass",
        theme="clean",
    ),
    "S16 the target of an open restore is not needed": Mutant(
        f"{_CLEAN}:_needed", "needed.add_target(judged)", "pass", theme="restore"
    ),
    "S16 a lane that came later is not needed": Mutant(
        "storage.core.log.retention:Needed.add_entry", "case Done() | LaneAdd():", "case Done():", theme="clean"
    ),
    "S16 a savepoint is made of what was given up": Mutant(
        "storage.services.savepoints:make_savepoint", "check_promised(state, at)", "pass", theme="clean"
    ),
    "S16 a compaction begins from what was given up": Mutant(
        "storage.services.service_plan:publish_plan",
        "if at.table < state.oldest_retained:",
        "if at.table < 0:",
        theme="clean",
    ),
    "S16 a restore goes back to what was given up": Mutant(
        "storage.services.restore:restore", "check_promised(state, at)", "pass", theme="restore"
    ),
    "S16 a reader takes what was given up for lost": Mutant(
        "storage.read.missing_file:reading", "if state.keeps(at) or", "if True or", theme="clean"
    ),
    "S17 files of commits to come are garbage": Mutant(
        "storage.core.log.retention:entry_may_come",
        "return place.slot > end.head and",
        "return False and",
        theme="clean",
    ),
    "S17 files of open compactions are garbage": Mutant(
        "storage.core.log.retention:plan_may_publish", "or place.slot in open_plans", "", theme="clean"
    ),
    "L3 files of no commit are no garbage": Mutant(
        "storage.core.log.retention:entry_may_come", "return place.slot > end.head and", "return True or"
    ),
    "S18 void commits are read": Mutant(
        "storage.log.table_log:TableLog.committed_files", "and not cut.in_spans(spans, entry.seq)", ""
    ),
    "S18 a restore does not wait for its claims": Mutant(
        "storage.log.fencing_barrier:complete_fencing_barrier",
        "fence_lane(table_log, lane, owner, after=seq, intent=intent.seq)",
        "timeline.log.head(lane, seq)",
    ),
    "S18 a writer does not complete a barrier that it meets": Mutant(
        "storage.write.writer:Writer._enter_lane",
        "if table.intent is None and same:",
        "if same:",
        theme="barriers",
    ),
    "S18 a compaction of void commits is published": Mutant(
        f"{_COMPACTION}:_Run._publish", "if self._plan_id not in state.plans:", "if self._plan_id is None:"
    ),
    "S18 a slice of before a restore stays the newest": Mutant(
        "storage.core.log.table_state:_done",
        "slices=Slices.of(target.slices),",
        "",
    ),
    "S19 a reader does not ask for the revision": Mutant(
        "storage.log.table_log:_committed", "if entry.table_rev > rev:", "if entry.table_rev > rev + 1_000:"
    ),
    "S19 a writer keeps the revision of its claim": Mutant(
        "storage.write.writer:Writer.commit", "**self._header(table.rev),", "**self._header(1),"
    ),
    "S19 a schema change undoes another": Mutant(
        "storage.services.schema_changes:_publish",
        "wanted = change(state.schema)",
        "wanted = change(table_log.at(1).schema)",
    ),
    "S20 a win is believed although the slot may have been archived": Mutant(
        "storage.log.commit_log:CommitLog.publish",
        "if not self.archives.ask([(entry.lane, entry.seq)]):",
        "if True:",
        theme="archive",
    ),
    "S20 a reader asks for archives before it reads slots": Mutant(
        "storage.log.commit_log:CommitLog._read_tails",
        "        self._read_slots(list(tails.values()))\n"
        "        doubtful = [(tail.lane, seq) for tail in tails.values() for seq in tail.doubtful()]",
        "        self.archives.ask([(tail.lane, seq) for tail in tails.values() for seq in tail.window()])\n"
        "        self._read_slots(list(tails.values()))\n"
        "        doubtful = []",
        theme="archive",
    ),
    "S20 a search believes that a free slot is free": Mutant(
        "storage.log.commit_log:CommitLog._probe", "self.archives.ask(free)", "pass", theme="archive"
    ),
    "S20 who reads back believes a slot": Mutant(
        "storage.log.archived_entries:Archives.read", "self.ask(data)", "pass", theme="archive"
    ),
    "S20 what may be archived is taken from what was known before": Mutant(
        "storage.log.table_log:TableLog.archivable",
        "self.refresh()",
        "(self._state or self.refresh())",
        theme="archive",
    ),
    "S20 slots are deleted before their archive is there": Mutant(
        "storage.services.archive_log:archive_log",
        "made, there = _pack(table_log, chunk)",
        "timeline.store.delete_many([slot_path(chunk.lane, seq) for seq in chunk.slots])\n"
        "        made, there = _pack(table_log, chunk)",
        theme="archive",
    ),
    "S20 archives are made without saying so first": Mutant(
        "storage.services.archive_log:_announce", "    table_log.publish(build)", "    del build", theme="archive"
    ),
    "L3 what came too late stays in its slot": Mutant(
        "storage.services.archive_log:_chunks",
        "if may_pack or last_slot(number) <= state.archived.get(lane, 0):",
        "if may_pack and len(by_chunk[number]) == archive.CHUNK:",
        theme="archive",
    ),
    "S21 the first commit of each lane is overlooked": Mutant(
        "storage.read.changes:scan_changes",
        "(until.state, start, until.cut.lanes)",
        "(until.state, {lane: seq + 1 for lane, seq in start.items()}, until.cut.lanes)",
        theme="changes",
    ),
    "S21 a restore in between is no matter": Mutant(
        "storage.read.changes:check_order", "if until.state.restored > since.table:", "if False:", theme="changes"
    ),
    "S21 logs after a savepoint are taken to be there": Mutant(
        "storage.read.changes:scan_changes",
        "if until.table_log.refresh().oldest_retained <= since.cut.table:",
        "if True:",
        theme="changes",
    ),
    "S21 whole file groups are taken for unchanged": Mutant(
        "storage.read.changes:_whole",
        "if old is None or old.slice != own.slice or",
        "if old is None or",
        theme="changes",
    ),
    "S22 stamps follow the clock": Mutant(
        "storage.clock:Stamps.next", "stamp = max(clock.now_ms(), self._largest + 1)", "stamp = clock.now_ms()"
    ),
    "S22 a barrier's claim is older than what it follows": Mutant(
        "storage.log.fencing_barrier:fence_lane", "timeline.stamps.observe(last.stamp if last else 0)", "pass"
    ),
    "S23 the next writer forgets the promise": Mutant(
        "storage.core.log.lane_state:LaneState.add", "self.watermarks = entry.watermarks", "pass"
    ),
    "S23 a commit promises what it has seen, and no more": Mutant(
        "storage.core.plan.watermarks:advanced", "from_ticks(max(ticks), first)", "from_ticks(ticks[-1], first)"
    ),
    "R1 a reader does not look for new lanes": Mutant(
        "storage.log.table_log:TableLog.newest_cut", "state = self.refresh()", "state = self._state or self.refresh()"
    ),
    "R2 the table lane is read after the others": Mutant(
        "storage.log.table_log:TableLog.newest_cut",
        "if state.readable_at(lanes):",
        "state = self.refresh()\n        if True:",
        theme="clean in peace",
    ),
    "W2 a writer does not learn what was committed before": Mutant(
        "storage.write.observed_lanes:OtherLanes.read", "self._table_log.stamps.observe(entry.stamp)", "pass"
    ),
    "S24 a time is called settled that is not": Mutant(
        "storage.read.time_travel:find_moment", "mark is not None)", "True)", theme="times"
    ),
    "S24 what comes after a mark counts by its own clock": Mutant(
        "storage.read.time_travel:find_moment",
        "timeline.heads(newest, newest.seen) if mark is None else mark.lanes",
        "timeline.heads(newest, newest.seen)",
        theme="times",
    ),
    "S24 what a mark has seen counts by its own clock": Mutant(
        "storage.read.time_travel:find_moment",
        "state.seen.get(name, 0) if end is None",
        "0 if end is None",
        theme="times",
    ),
    "S24 a mark is not read anew after a lost race": Mutant(
        "storage.log.time_marks:_mark", "timeline.heads(state, cut.highest(state.seen, known))", "known", theme="times"
    ),
    "S24 any mark after a time settles it": Mutant(
        "storage.read.time_travel:_first_mark_after", "and entry.began_at_ms > limit_ms", "", theme="times"
    ),
    "S24 an undo asks the clocks alone": Mutant(
        "storage.services.restore:undo",
        "there = exact if found is None else found.at.lanes",
        "there = table_log.last_while(table_log.heads(state), lambda entry: entry.committed_at_ms <= limit)",
        theme="times",
    ),
    "W7 a writer does not look at other lanes before it commits": Mutant(
        "storage.write.writer:Writer.commit", "self._others.look(table)", "pass"
    ),
    "W7 a writer looks at the lanes of its own stream alone": Mutant(
        "storage.write.observed_lanes:OtherLanes._unseen", "lane.stream in shared", "lane.stream == self._stream"
    ),
    "K4 what was offered to the log is removed": Mutant(
        f"{_COMPACTION}:_Run._publish",
        "    self._table_log.publish(build)",
        "    try:\n"
        "        self._table_log.publish(build)\n"
        "    except CommitUnknown:\n"
        "        self._remove(_files(offered))\n"
        "        raise",
        theme="outages",
    ),
    "L1 a compaction waits for open plans": Mutant(
        "storage.services.service_plan:publish_plan",
        "    plan_id = new_id()",
        "    while table_log.refresh().plans:\n        table_log.clock.sleep(1)\n    plan_id = new_id()",
        theme="outages",
    ),
    "L2 a reader waits at a free slot": Mutant(
        "storage.log.lane_reader:Tail.read",
        "self._stop(self._missing(seq) if self._until is not None else None)",
        "pass",
    ),
    "L4 a second claim of a barrier is its boundary": Mutant(
        "storage.log.fencing_barrier:fence_lane",
        "after += len(fresh)",
        "after = log.head(lane, after)",
        theme="barriers",
    ),
}


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a mutant in place of the real function."""
    function = _find(mutant.function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.function} has not exactly one {mutant.old!r}: choose its new form"
    source = source.replace(mutant.old, mutant.new)
    names: dict[str, Any] = {}
    # This module's `from __future__ import annotations` holds for what it compiles.
    exec(compile(source, f"<mutant of {mutant.function}>", "exec"), dict(function.__globals__), names)
    (made,) = names.values()
    original = function.__code__
    function.__code__ = _plain(made).__code__
    try:
        yield
    finally:
        function.__code__ = original


def _find(name: str) -> FunctionType:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    return _plain(found)


def _plain(found: Any) -> FunctionType:
    """The function beneath what decorators made of it."""
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(function, FunctionType), f"{found} is not a function"
    return function
