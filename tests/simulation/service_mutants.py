"""Mutants of services and of order: cleaning, restores, schema changes, stamps, marks, changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import pyarrow.compute as pc

from tests.simulation.log_mutants import reads_files, says
from tests.simulation.mutant import Mutant, always
from weft.storage.clock import Stamps
from weft.storage.core import names
from weft.storage.core.log import apply_entries, cut, cut_members, redaction
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import LaneAdd, Plan
from weft.storage.core.log.file_refs import Blocks, LogIndex, LogRanges
from weft.storage.core.log.needed_files import Needed
from weft.storage.errors import CommitUnknown
from weft.storage.log import fencing_barrier, lane_ends, live_files, time_marks
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.table_log import TableLog
from weft.storage.read import snapshot, time_travel
from weft.storage.read.changes import change_scan as changes
from weft.storage.services import rewrite
from weft.storage.services.clean import clean, garbage
from weft.storage.services.compaction import compaction
from weft.storage.services.erase import erase as erasing
from weft.storage.services.erase import redact_log
from weft.storage.services.erase.key_search import KeySearch
from weft.storage.services.erase.redact_log import Redaction
from weft.storage.services.history import restore, savepoints
from weft.storage.services.schema import schema_changes
from weft.storage.services.steps import service_plan
from weft.storage.services.steps.row_change import NewValues, WithoutExpired, WithoutOldRows
from weft.storage.write.observed_lanes import OtherLanes

# Cleaning -------------------------------------------------------------------------------------------------------------


def without_holders(what: str) -> Callable[[Any], Any]:
    def make(held: Any) -> Any:
        return lambda *args: [holder for holder in held(*args) if holder[0].what != what]

    return make


def overlooks_new_lanes(add_entry: Any) -> Any:
    return lambda self, entry, state: None if isinstance(entry, LaneAdd) else add_entry(self, entry, state)


def plans_unchecked(_: Any) -> Any:
    def broken(log: TableLog, at: Cut, file_groups: int, reserve_ms: int) -> service_plan.ServicePlan:
        plan_id = log.env.ids.new()
        made = log.publish(
            lambda state: Plan(
                **log.header(state), plan_id=plan_id, table=at.table, cut=dict(at.lanes), file_groups=file_groups
            )
        )
        assert made is not None
        return service_plan.ServicePlan(plan_id, made.seq)

    return broken


def tells_nobody(_: Any) -> Any:
    return lambda _, state, oldest: (0, replace(state, oldest_retained=oldest))


CLEANING: Final = {
    "C1 a clean tells nobody what it gives up": Mutant(clean, "_publish_intent", tells_nobody, "clean"),
    "S16 a savepoint keeps nothing": Mutant(clean, "_find_expired_holders", without_holders("savepoint"), "clean"),
    "S16 an open compaction keeps nothing": Mutant(
        clean, "_find_expired_holders", without_holders("compaction"), "clean", rare=True
    ),
    "S16 a pin keeps nothing": Mutant(clean, "_find_expired_holders", without_holders("pin"), "clean", rare=True),
    "S16 a pin is not checked against cleaning": Mutant(snapshot, "check_promised", always(None), "clean", rare=True),
    "S16 the target of an open restore is not needed": Mutant(Needed, "add_target", always(None), "restore", rare=True),
    "S16 a lane that came later is not needed": Mutant(Needed, "add_entry", overlooks_new_lanes, "clean"),
    "S16 a savepoint is made of what was given up": Mutant(
        savepoints, "check_promised", always(None), "clean", rare=True
    ),
    "S16 a compaction begins from what was given up": Mutant(service_plan, "_publish_plan", plans_unchecked, "clean"),
    "S16 a restore goes back to what was given up": Mutant(
        restore, "check_promised", always(None), "restore", rare=True
    ),
    "S17 files of commits to come are garbage": Mutant(garbage, "entry_may_come", always(False), "clean", rare=True),
    "S17 files of open compactions are garbage": Mutant(garbage, "plan_may_publish", always(False), "clean"),
    "L3 files of no commit are no garbage": Mutant(garbage, "entry_may_come", always(True)),
}


# Restores, barriers, schema changes -----------------------------------------------------------------------------------


def claims_nothing(_: Any) -> Any:
    return lambda log, lane, owner, *, after=0, intent=0: log.commit_log.head(lane, after)


def claims_at_the_end(fence_lane: Any) -> Any:
    def broken(log: TableLog, lane: Any, owner: str, *, after: int = 0, intent: int = 0) -> int:
        return int(fence_lane(log, lane, owner, after=log.commit_log.head(lane, after), intent=intent))

    return broken


def publishes_for_a_plan_that_ended(publish: Any) -> Any:
    def broken(self: Any, plan: service_plan.ServicePlan, work: Any) -> None:
        right = self.table_log.publish

        def doctored(build: Callable[[Any], Any]) -> Any:
            return right(lambda state: build(replace(state, plans={**state.plans, plan.plan_id: None})))

        with mock.patch.object(self.table_log, "publish", doctored):
            publish(self, plan, work)

    return broken


def keeps_newer_slices(done: Any) -> Any:
    return lambda state, entry: replace(done(state, entry), slices=state.slices)


def from_the_first_schema(apply: Any) -> Any:
    return lambda log, _, changes, slot: apply(log, log.at(1).schema, changes, slot)


BARRIERS: Final = {
    "S18 rolled back commits are read": Mutant(
        live_files,
        "committed_files",
        reads_files(lambda state, after, until: (replace(state, rolled_back={}), after, until)),
    ),
    "S18 a restore does not wait for its claims": Mutant(fencing_barrier, "fence_lane", claims_nothing),
    "S18 a compaction of rolled back commits is published": Mutant(
        compaction._Publisher, "_publish", publishes_for_a_plan_that_ended, rare=True
    ),
    "S18 a slice from before a restore stays the newest": Mutant(apply_entries, "_done", keeps_newer_slices),
    "S19 a reader does not look at the revision": Mutant(
        cut_members, "count_members", lambda _: lambda tail, rev, head: len(tail), rare=True
    ),
    "S19 a commit says that it knows the first schema alone": Mutant(CommitLog, "publish", says(table_rev=1)),
    "S19 a schema change undoes another": Mutant(schema_changes, "apply_changes", from_the_first_schema),
    "L4 a barrier claims a lane twice": Mutant(fencing_barrier, "fence_lane", claims_at_the_end, "barriers"),
}


# Erase ----------------------------------------------------------------------------------------------------------------


def keeps_open_plans(with_slices: Any) -> Any:
    def broken(state: Any, entry: Any) -> Any:
        made = with_slices(state, entry)
        rest = {plan_id: plan for plan_id, plan in state.plans.items() if plan_id != entry.plan_id}
        return replace(made, plans=rest) if entry.rewrites else made

    return broken


def leaves_an_empty_index(_: Any) -> Any:
    nothing = LogRanges(partition=[], bucket=[], block=[], start=[], rows=[], deletes=[])
    blocks = Blocks(offset=[], length=[], crc32=[], rows=[], key_min=[], key_max=[], ordering_min={}, ordering_max={})
    empty = LogIndex(partitions=[], ranges=nothing, blocks=blocks)
    return lambda file: file.model_copy(update={"index": empty})


ERASING: Final = {
    "S26 a compaction that began before an erase goes on": Mutant(
        apply_entries, "_with_slices", keeps_open_plans, "erase"
    ),
    "S26 a compaction begins from before an erase": Mutant(service_plan, "_publish_plan", plans_unchecked, "erase"),
    "S26 log files are not searched": Mutant(KeySearch, "in_logs", always([]), "erase"),
    "S26 base and shadow files are not searched": Mutant(KeySearch, "in_slices", always([]), "erase"),
    "S26 entries keep the key ranges of their files": Mutant(erasing, "redact_log", always(Redaction(0, 0)), "erase"),
    "S26 an entry loses the key ranges that a reader needs": Mutant(redact_log, "_is_unneeded", always(True), "erase"),
    "S26 an entry without key ranges says that it has no rows": Mutant(
        redaction, "redacted_file", leaves_an_empty_index, "erase"
    ),
}


def rewrites_a_part(right: Any) -> Any:
    def broken(description: str, change: Any, *, all_or_nothing: bool) -> Any:
        return right(description, change, all_or_nothing=False)

    return broken


def gives_a_new_version(apply: Any) -> Any:
    def broken(self: NewValues, schema: Any, rows: Any) -> Any:
        made = dict(apply(self, schema, rows))
        name = names.arrival(schema.group_of_column[self.column].id)
        return made | {name: pc.add(made[name], 1 << 40)} if made else made

    return broken


def without_a_limit(apply: Any) -> Any:
    return lambda self, schema, rows: apply(replace(self, before=1 << 30), schema, rows)


def with_younger_limits(apply: Any) -> Any:
    """Removes what the limits in the log do not name."""

    def broken(self: WithoutExpired, schema: Any, rows: Any) -> Any:
        limits = replace(self.limits, rows_ms=1 << 42, deletes_ms=1 << 42)
        return apply(replace(self, limits=limits), schema, rows)

    return broken


def keeps_the_values(_: Any) -> Any:
    return lambda self, schema, rows: rows


REWRITING: Final = {
    "S27 a rewrite changes the file groups that it gets": Mutant(
        rewrite, "Rewriting", rewrites_a_part, "erase", rare=True
    ),
    "S27 a rewritten value has a new version": Mutant(NewValues, "apply", gives_a_new_version, "erase"),
    "S27 an expiry removes more than its limits say": Mutant(WithoutExpired, "apply", with_younger_limits, "ttl"),
    "S27 rows expire however new they are": Mutant(WithoutOldRows, "apply", without_a_limit, "erase"),
    "S27 a rewrite keeps the values": Mutant(NewValues, "apply", keeps_the_values, "erase"),
}


# Order, times, promises, changes --------------------------------------------------------------------------------------


def learns_nothing(read: Any) -> Any:
    def broken(self: OtherLanes, table: Any) -> None:
        with mock.patch.object(self._table_log.stamps, "observe", lambda _: None):
            read(self, table)

    return broken


def learns_no_stamps(fence_lane: Any) -> Any:
    def broken(log: TableLog, *args: Any, **named: Any) -> Any:
        with mock.patch.object(log.stamps, "observe", lambda _: None):
            return fence_lane(log, *args, **named)

    return broken


def stamps_of_nothing(mark: Any) -> Any:
    def broken(log: TableLog, *args: Any) -> Any:
        with mock.patch.object(log.stamps, "observe", lambda _: None):
            return mark(log, *args)

    return broken


def with_rivals_of_its_own_stream(rivals: Any) -> Any:
    def broken(self: OtherLanes, table: Any) -> Any:
        return {lane for lane in rivals(self, table) if table.lanes[lane].stream == self._stream}

    return broken


def of_the_table_lane_alone(_: Any) -> Any:
    return lambda self, table: self._table_log.refresh()


def of_its_own_stream(unseen: Any) -> Any:
    def broken(self: OtherLanes, table: Any, groups: Any) -> Any:
        found = unseen(self, table, groups)
        return {lane: span for lane, span in found.items() if table.lanes[lane].stream == self._stream}

    return broken


def finds(change: Callable[[Any, TableLog, int], Any]) -> Callable[[Any], Any]:
    """Takes a time for another moment: (moment, log, milliseconds)."""

    def make(find_moment: Any) -> Any:
        def broken(log: TableLog, limit: int) -> Any:
            found = find_moment(log, limit)
            return None if found is None else change(found, log, limit)

        return broken

    return make


def by_the_clocks_alone(found: Any, log: TableLog, limit: int) -> Any:
    lanes = lane_ends.last_while(log, lane_ends.heads(log, log.refresh()), lambda entry: entry.committed_at_ms <= limit)
    return replace(found, at=Cut(found.at.table, lanes))


def with_nothing_seen(find_moment: Any) -> Any:
    def broken(log: TableLog, limit: int) -> Any:
        at = log.at
        with mock.patch.object(log, "at", lambda table: replace(at(table), seen={})):
            return find_moment(log, limit)

    return broken


def that_bounds_nothing(first_mark_after: Any) -> Any:
    def broken(log: TableLog, newest: Any, table: int, limit_ms: int) -> Any:
        mark = first_mark_after(log, newest, table, limit_ms)
        return None if mark is None else mark.model_copy(update={"lanes": lane_ends.heads(log, newest, newest.seen)})

    return broken


def whenever_it_began(first_mark_after: Any) -> Any:
    return lambda log, newest, table, _: first_mark_after(log, newest, table, 0)


def of_what_was_known(mark: Any) -> Any:
    def broken(log: TableLog, state: Any, known: Mapping[Any, int]) -> Any:
        return mark(log, state, known).model_copy(update={"lanes": cut.highest(state.seen, known)})

    return broken


def deletes_what_it_offered(publish: Any) -> Any:
    def broken(self: Any, plan: service_plan.ServicePlan, work: Any) -> None:
        offered = compaction._written_files(self._pending, plan)
        try:
            publish(self, plan, work)
        except CommitUnknown:
            service_plan.delete_files(self.table_log.store, offered)
            raise

    return broken


def waits_for_open_plans(publish_plan: Any) -> Any:
    def broken(log: TableLog, *args: Any) -> Any:
        while log.refresh().plans:
            log.clock.sleep(1)
        return publish_plan(log, *args)

    return broken


def overlooks_new_slices(whole: Any) -> Any:
    def broken(since: Any, until: Any) -> Any:
        found = whole(since, until)
        return [item for item in found if not item.before or slices(item.before) == slices(item.after)]

    def slices(parts: Any) -> list[Any]:
        return [part.slice for part in parts]

    return broken


ORDER_AND_TIMES: Final = {
    "S21 a restore in between does not matter": Mutant(changes, "check_order", always(None), "changes"),
    "S21 file groups with new slices are taken for unchanged": Mutant(
        changes, "_whole_groups", overlooks_new_slices, "changes"
    ),
    "S22 stamps follow the clock": Mutant(Stamps, "next", lambda _: lambda self, clock: clock.now_ms()),
    "S22 no stamp is learnt from entries": Mutant(Stamps, "observe", always(None)),
    "S23 a commit forgets what its lane has promised": Mutant(CommitLog, "publish", says(watermarks={})),
    "S24 a time is called settled that is not": Mutant(
        time_travel, "find_moment", finds(lambda found, log, limit: replace(found, settled=True)), "times"
    ),
    "S24 what comes after a mark counts by its own clock": Mutant(
        time_travel, "_first_mark_after", that_bounds_nothing, "times"
    ),
    "S24 what a mark has seen counts by its own clock": Mutant(time_travel, "find_moment", with_nothing_seen, "times"),
    "S24 any mark after a time settles it": Mutant(time_travel, "_first_mark_after", whenever_it_began, "times"),
    "S24 a mark is not made anew after a lost race": Mutant(time_marks, "_mark", of_what_was_known, "times"),
    "S24 an undo asks the clocks alone": Mutant(restore, "find_moment", finds(by_the_clocks_alone), "times"),
    "W2 a writer does not learn what was committed before": Mutant(OtherLanes, "read", learns_nothing),
    "W2 a writer learns from the lanes of its own stream alone": Mutant(
        OtherLanes, "_rivals", with_rivals_of_its_own_stream
    ),
    "W2 a mark is stamped without reading what it names": Mutant(time_marks, "_mark", stamps_of_nothing, "times"),
    "W2 a barrier does not learn the stamps of what it fences": Mutant(
        fencing_barrier, "fence_lane", learns_no_stamps, "barriers"
    ),
    "S25 a writer does not look at other lanes": Mutant(OtherLanes, "read_contested", always(None), rare=True),
    "S25 a writer does not read its rivals when a commit begins": Mutant(
        OtherLanes, "refresh", of_the_table_lane_alone
    ),
    "S25 a writer looks at the lanes of its own stream alone": Mutant(OtherLanes, "_unread", of_its_own_stream),
    "K4 what was offered to the log is deleted": Mutant(
        compaction._Publisher, "_publish", deletes_what_it_offered, "outages", rare=True
    ),
    "L1 a compaction waits for open plans": Mutant(service_plan, "_publish_plan", waits_for_open_plans, "outages"),
}
