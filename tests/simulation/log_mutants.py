"""Mutants of the log: slots and claims, reads of slices and folds, archives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast
from unittest import mock

import numpy as np

from tests.simulation.mutant import Mutant, always
from tests.simulation.store import SimStore
from weft.storage.core import keys, names
from weft.storage.core.log import cut_members
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Claim, Data, TableEntry
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.slice_parts import SlicePart
from weft.storage.core.merge.stitch import Stitch
from weft.storage.core.modes import latest
from weft.storage.core.names import TIMELINE, slot_path
from weft.storage.errors import Conflict
from weft.storage.log import checkpoint_store, fencing_barrier, lane_ends, live_files, snapshot_cut
from weft.storage.log.archived_entries import Archives
from weft.storage.log.checkpoint_store import Checkpoints, StoredParts
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.lane_reader import Tail
from weft.storage.log.one_moment import OneMoment
from weft.storage.log.publish_entry import Publisher
from weft.storage.log.snapshot_cut import HeadCut
from weft.storage.log.table_log import TableLog
from weft.storage.services.clean import archive_log
from weft.storage.services.compaction import compaction, compaction_task, merged_rows
from weft.storage.services.fold import fold
from weft.storage.write.lane_claim import LaneClaim
from weft.storage.write.writer import Writer

# Slots and claims -----------------------------------------------------------------------------------------------------


def overwrites(put_if_absent: Any) -> Any:
    def broken(self: SimStore, path: Any, data: bytes) -> bool:
        if not path.startswith(TIMELINE):  # the probe for stores that overwrite would notice
            return bool(put_if_absent(self, path, data))
        self._call("put_if_absent", path, lambda: self._disk.put(path, data))
        return True

    return broken


def publishes(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A log that publishes something else than it is given."""

    def make(publish: Any) -> Any:
        return lambda self, entry: publish(self, change(entry))

    return make


def skips_a_slot(kind: type) -> Callable[[Any], Any]:
    def change(entry: Any) -> Any:
        return entry.model_copy(update={"seq": entry.seq + 1}) if isinstance(entry, kind) and entry.seq > 1 else entry

    return publishes(change)


def keeps_the_epoch(entry: Any) -> Any:
    return entry.model_copy(update={"epoch": max(entry.epoch - 1, 1)}) if isinstance(entry, Claim) else entry


def says(**fields: Any) -> Callable[[Any], Any]:
    """A log whose commits say something else."""
    return publishes(lambda entry: entry.model_copy(update=fields) if isinstance(entry, Data) else entry)


def goes_on_after_a_lost_race(publish: Any) -> Any:
    def broken(self: CommitLog, entry: Any) -> Any:
        winner = publish(self, entry)
        while isinstance(entry, Data) and winner.commit_id != entry.commit_id:
            entry = entry.model_copy(update={"seq": winner.seq + 1, "prev_id": winner.commit_id})
            winner = publish(self, entry)
        return winner

    return broken


def acknowledges_what_it_lost(publish: Any) -> Any:
    def broken(self: CommitLog, entry: Any) -> Any:
        winner = publish(self, entry)
        return entry if isinstance(entry, Data) else winner

    return broken


def does_not_look_again_after_its_claim(_: Any) -> Any:
    def broken(self: LaneClaim) -> Any:
        table = fencing_barrier.complete_fencing_barrier(self._table_log)
        self._declare_lane()
        if self._table_log.refresh().lanes[self.lane].closed is not None:
            raise Conflict("closed", hint="")
        self._claim(table)
        return self._table_log.refresh()

    return broken


def counts_what_was_rolled_back(add: Any) -> Any:
    def broken(self: LaneState, *args: Any) -> None:
        spans, self.rolled_back = self.rolled_back, ()
        try:
            add(self, *args)
        finally:
            self.rolled_back = spans

    return broken


def takes_any_checkpoint(_: Any) -> Any:
    return lambda first, second, head: head


def believes_what_it_reads(verified: Any) -> Any:
    """Parts of checkpoints are used whatever their digest."""

    def broken(self: StoredParts, part: SlicePart, data: Any) -> SlicePart:
        if data is None:
            return cast("SlicePart", verified(self, part, data))
        return SlicePart(part.first, part.last, part.levels, part.slices, data.to_pybytes(), part.size)

    return broken


def takes_the_newest_checkpoint(replay: Any) -> Any:
    """Slices of a checkpoint that was deleted are taken from one of a longer prefix."""
    return lambda self, log, head: self.newest_table(log) or replay(self, log, head)


def loses_log_files(put: Any) -> Any:
    return lambda self, path, data: None if path.startswith("log/") else put(self, path, data)


SLOTS_AND_CLAIMS: Final = {
    "S1 a slot is overwritten": Mutant(SimStore, "put_if_absent", overwrites),
    "S2 a slot is left out": Mutant(CommitLog, "publish", skips_a_slot(Data)),
    "S2 parts of a checkpoint are not verified": Mutant(
        StoredParts, "_verify", believes_what_it_reads, "checkpoints", rare=True
    ),
    "S2 parts of a deleted checkpoint are those of the newest": Mutant(
        Checkpoints, "_replay", takes_the_newest_checkpoint, "checkpoints"
    ),
    "S2 a slot of the table lane is left out": Mutant(CommitLog, "publish", skips_a_slot(TableEntry)),
    "S3 a claim keeps the epoch": Mutant(CommitLog, "publish", publishes(keeps_the_epoch)),
    "S3 a fenced writer goes on after the claim": Mutant(CommitLog, "publish", goes_on_after_a_lost_race),
    "S4 a lost commit is acknowledged": Mutant(CommitLog, "publish", acknowledges_what_it_lost),
    "S4 silence is taken for consent": Mutant(Publisher, "_is_published", always(True)),
    "S5 a commit does not say which batch it is": Mutant(CommitLog, "publish", says(query_id="", batch=0)),
    "S6 a batch is forgotten": Mutant(Writer, "_find_replayed", always(None)),
    "S6 an old batch is not looked up": Mutant(Writer, "_look_up", always(None)),
    "S6 rolled back batches count": Mutant(LaneState, "add", counts_what_was_rolled_back),
    "S6 a checkpoint from before a restore is used": Mutant(checkpoint_store, "agree_up_to", takes_any_checkpoint),
    "S7 an entry is published without its files": Mutant(SimStore, "put", loses_log_files),
    "W1 a writer does not look again after its claim": Mutant(
        LaneClaim, "enter", does_not_look_again_after_its_claim, "barriers"
    ),
}


# Reads, and what slices and folds hold --------------------------------------------------------------------------------


def reads_files(change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> Callable[[Any], Any]:
    """Gives the files of other commits than those that are asked for: (state, after, until)."""

    def make(committed_files: Any) -> Any:
        return lambda log, state, after, until: committed_files(log, *change(state, after, until))

    return make


def with_the_newest_state(exact_cut: Any) -> Any:
    def broken(log: TableLog, wanted: Cut) -> Any:
        _, at = exact_cut(log, wanted)
        return log.refresh(), at

    return broken


def with_what_was_known(newest_cut: Any) -> Any:
    def broken(log: TableLog, **named: Any) -> Any:
        refresh = log.refresh_with_doubts
        with mock.patch.object(log, "refresh_with_doubts", lambda doubts: log._state or refresh(doubts)):
            return newest_cut(log, **named)

    return broken


def with_the_table_lane_read_last(newest_cut: Any) -> Any:
    def broken(log: TableLog, **named: Any) -> Any:
        _, at, is_moment = newest_cut(log, **named)
        state = log.refresh()
        return HeadCut(state, Cut(state.head, {lane: at.lanes.get(lane, 0) for lane in state.lanes}), is_moment)

    return broken


def says_so_of_every_cut(newest_cut: Any) -> Any:
    def broken(log: TableLog, *, moment: bool = False) -> Any:
        return newest_cut(log)._replace(is_moment=True)

    return broken


def after_the_last_look(is_one: property) -> property:
    return property(lambda self: self._looks == 0 or is_one.__get__(self))


def at_the_same_time(early: Any) -> Any:
    """Rounds count as if their requests were answered in order."""

    def broken(self: OneMoment) -> Any:
        with mock.patch.object(self, "_free_in", {lane: free + 1 for lane, free in self._free_in.items()}):
            return early(self)

    return broken


def up_to_what_the_mark_names(_: Any) -> Any:
    def broken(_: TableLog, state: Any, ends: Any) -> Any:
        return {name: ends.get(name, 0) if lane.closed is None else lane.closed for name, lane in state.lanes.items()}

    return broken


def up_to_what_the_table_lane_names(_: Any) -> Any:
    return lambda _, state, __: {name: lane.closed or state.seen.get(name, 0) for name, lane in state.lanes.items()}


def without_reading_it(_: Any) -> Any:
    """Believes that the process knows what its commit follows."""
    return lambda log, _: log._state


def whatever_its_writer_had_read(_: Any) -> Any:
    return lambda entry, rev, head: entry.table_rev <= rev


def with_the_table_lane_as_it_was_known(begin: Any) -> Any:
    def broken(self: Writer, batch: Any = None) -> Any:
        known = self._table
        if known is None or known.intent is not None:
            return begin(self, batch)
        with mock.patch.object(self._table_log, "refresh", lambda: known):
            return begin(self, batch)

    return broken


def says_what_was_there_when_it_entered(publish: Any) -> Any:
    """Each commit of a process says the same as its first one."""
    first: dict[int, str] = {}

    def broken(self: CommitLog, entry: Any) -> Any:
        if isinstance(entry, Data):
            said = first.setdefault(id(self), entry.commit_id.partition("-")[2])
            entry = entry.model_copy(update={"commit_id": f"{entry.commit_id.partition('-')[0]}-{said}"})
        return publish(self, entry)

    return broken


def holds_one_more(slice_file: Any) -> Any:
    def broken(*args: Any) -> Any:
        made = slice_file(*args)
        return made.model_copy(update={"cut": {lane: seq + 1 for lane, seq in made.cut.items()}})

    return broken


def states_all(_: Any) -> Any:
    return lambda _state, _kept, _with_logs, target: dict(target)


def without_hidden_rows(stitch: type[Stitch]) -> Any:
    class Broken(stitch):  # type: ignore[misc, valid-type]
        def run(self, *args: Any) -> Any:
            return (replace(found, hidden={}) for found in super().run(*args))

    return Broken


def as_it_comes(_: Any) -> Any:
    """The register that is folded in last wins, whatever the versions say."""
    return lambda old, new: np.asarray(new[1].is_valid())


def without_floors(version: Any) -> Any:
    def broken(group: Any, columns: Any) -> Any:
        ordering, _ = version(group, columns)
        return ordering, columns[names.arrival(group.id)]

    return broken


def by_the_row(_: Any) -> Any:
    return lambda columns, bits: (np.arange(len(columns[0])) & (1 << bits) - 1).astype(np.int32)


def all_offered(_: Any) -> Any:
    return lambda slices, folded, offered: list(offered)


READS: Final = {
    "S8 a snapshot sees what comes after it": Mutant(
        live_files, "committed_files", reads_files(lambda state, after, until: (state, after, dict.fromkeys(until)))
    ),
    "S9 a cut is read with the newest slices": Mutant(snapshot_cut, "exact_cut", with_the_newest_state),
    "S10 a slice is published on another's parent": Mutant(compaction, "may_follow", all_offered),
    "S11 the first commit after a slice is taken for folded": Mutant(
        live_files,
        "committed_files",
        reads_files(lambda state, after, until: (state, {lane: seq + 1 for lane, seq in after.items()}, until)),
    ),
    "S11 a slice says that it holds more than it does": Mutant(compaction_task, "_slice_file", holds_one_more),
    "S11 a fold is published on another's slice": Mutant(fold, "may_publish", always(True)),
    "S12 a part of the file groups is stated as all of them": Mutant(
        compaction, "covered_up_to", states_all, rare=True
    ),
    "S12 compaction forgets hidden rows": Mutant(merged_rows, "Stitch", without_hidden_rows),
    "S13 the version that is folded in last wins": Mutant(latest, "newer", as_it_comes),
    "S14 a floor orders nothing": Mutant(latest, "_version", without_floors),
    "S15 the bucket of a key depends on its row": Mutant(keys, "buckets", by_the_row),
    "R1 a reader does not look for new lanes": Mutant(snapshot_cut, "newest_cut", with_what_was_known),
    "R2 the table lane is read after the others": Mutant(
        snapshot_cut, "newest_cut", with_the_table_lane_read_last, "clean in peace"
    ),
    "L1 a reader waits at a free slot": Mutant(Tail, "_stop", always(None)),
}


MOMENTS: Final = {
    "S31 lanes are read once": Mutant(OneMoment, "_early", always(set()), "moments"),
    "S31 the last look counts, whatever it finds": Mutant(OneMoment, "is_one", after_the_last_look, "moments"),
    "S31 the end and the commit of one round are of one moment": Mutant(
        OneMoment, "_early", at_the_same_time, "moments"
    ),
    "S31 every cut is said to be a moment": Mutant(snapshot_cut, "newest_cut", says_so_of_every_cut, "moments"),
    "S31 a commit counts that knew more of the table lane": Mutant(
        cut_members, "belongs_to", whatever_its_writer_had_read, "moments"
    ),
    "S31 the moment of a time has all that the next mark names": Mutant(
        snapshot_cut, "ends_at_moment", up_to_what_the_mark_names, "moments"
    ),
    "S31 the moment of a time has what the table lane names alone": Mutant(
        snapshot_cut, "ends_at_moment", up_to_what_the_table_lane_names, "moments"
    ),
    "W11 a cut that a commit follows is not read": Mutant(lane_ends, "follow", without_reading_it, "moments"),
    "W9 the table lane is not read again before a commit": Mutant(
        Writer, "begin", with_the_table_lane_as_it_was_known, "moments"
    ),
    "W9 a commit says what was there when its writer entered": Mutant(
        CommitLog, "publish", says_what_was_there_when_it_entered, "moments"
    ),
    "S31 the table lane is read after the others": Mutant(
        snapshot_cut, "newest_cut", with_the_table_lane_read_last, "moments", rare=True
    ),
}


# Archives -------------------------------------------------------------------------------------------------------------


def without_asking(method: Any) -> Any:
    """Believes what slots say, whatever archives may say."""

    def broken(self: CommitLog, *args: Any, **named: Any) -> Any:
        with mock.patch.object(self.archives, "request", lambda _: False):
            return method(self, *args, **named)

    return broken


def reads_slots_alone(_: Any) -> Any:
    def broken(self: Archives, slots: Sequence[Any]) -> list[bytes | None]:
        data = self.in_slots(slots)
        return [self.content(slot) if self.knows(slot) else data[slot] for slot in slots]

    return broken


def from_what_was_known(_: Any) -> Any:
    def broken(self: TableLog) -> Any:
        state = self._state or self.refresh()
        return state.archived, state.head + 1

    return broken


def deletes_first(pack: Any) -> Any:
    def broken(log: TableLog, chunk: Any, needed: Any) -> Any:
        log.store.delete_many([slot_path(chunk.lane, seq) for seq in chunk.slots])
        return pack(log, chunk, needed)

    return broken


def leaves_late_entries(chunks: Any) -> Any:
    def broken(log: TableLog, *args: Any, **named: Any) -> Any:
        whole = log.env.tuning.archive_chunk
        return (chunk for chunk in chunks(log, *args, **named) if chunk.may_pack and len(chunk.slots) == whole)

    return broken


ARCHIVES: Final = {
    "S20 a win is believed although the slot may have been archived": Mutant(
        CommitLog, "publish", without_asking, "archive", rare=True
    ),
    "S20 a reader does not ask for archives": Mutant(CommitLog, "_read_tails", without_asking, "archive"),
    "S20 a search does not ask for archives": Mutant(CommitLog, "_probe", without_asking, "archive"),
    "S20 what is read back is believed": Mutant(Archives, "read", reads_slots_alone, "archive"),
    "S20 what may be archived is taken from what was known": Mutant(
        TableLog, "archivable", from_what_was_known, "archive", rare=True
    ),
    "S20 slots are deleted before their archive is there": Mutant(archive_log, "_pack", deletes_first, "archive"),
    "S20 archives are made without saying so first": Mutant(archive_log, "_announce", always(None), "archive"),
    "L3 what came too late stays in its slot": Mutant(archive_log, "_find_chunks", leaves_late_entries, "archive"),
}
