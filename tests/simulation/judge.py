"""Records acknowledged commits, and checks that readers see them.

The expected rows of a cut are the oracle's, over the commits in the history up to there: S4 AckedDurable, S5 NoPhantom,
S8 SnapshotAtomic, S9 SnapshotStable, S11 ExactlyOnceFold, S12 ConsistentRead, S14 NoResurrection, S18
RolledBackNeverVisible and S22 ClockFree are all checked by this one comparison, made at different cuts.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.oracle import Oracle
from tests.simulation.file_groups import Group
from tests.simulation.history import TABLE, Batch, History
from tests.simulation.scheduler import Violation
from tests.simulation.table_lane import Erasure
from tests.simulation.times import meaning
from tests.simulation.two_tables import cuts_of, joined, references_of
from tests.storage.support.erased import has_keys
from tests.storage.support.evolving import Row
from tests.storage.support.world import canonical
from tests.strategies import Config
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core.log.cut import PREFIX, Cut, parse_cut
from weft.storage.core.merge.locate_keys import locate_keys
from weft.storage.core.plan.watermarks import Watermark, Watermarks
from weft.storage.errors import CorruptData
from weft.storage.services.erase.erase import EraseResult
from weft.storage.services.verify.findings import VerifyReport
from weft.storage.write.writer import Commit

_FOR_A_SLOT = re.compile(r"(?:log|_weft/index)/(?P<lane>[^_/][^/]*)/(?P<epoch>\d{10})-(?P<slot>\d{20})-.*")
_TTL = re.compile(r"(?:rows by (?P<by>.+) before (?P<rows>\S+), )?deletes before (?P<deletes>\S+)")
_FOR_A_TABLE_SLOT = re.compile(r"_weft/index/_table/(?P<slot>\d{20})-.*")
Answer = dict[Any, dict[str, Any]]
LANE_BITS = 20
MOST_RIVALS = 8
"""With more rivals a commit is not ordered after all of those with equal ordering values (S25)."""


@dataclass(frozen=True)
class Visible:
    """The newest stamps of rivals of a commit that were visible before it: those that it must exceed in any case, and
    those of lanes that share a group with ordering columns, which it must exceed if there are few such lanes.
    """

    contested: int
    ordered: int

    def after(self, contested: int) -> Visible:
        """The same, with a later look at those that it must exceed in any case."""
        return Visible(max(contested, self.contested), self.ordered)


@dataclass
class Judge:
    """Records the results that callers got, and compares them.

    Attributes:
        distinct: No two events tie, so the order of commits must not matter.
        acked: Last entry of each lane that was acknowledged.
        damaged: Objects that the environment has damaged: path, and texts by which errors may name them.
        reads: Number of compared results.
        settled: The cut of each time that was reported as settled.
        referenced: The judge of the table that this one refers to; None if it refers to none.
    """

    config: Config
    batches: Mapping[int, Batch]
    history: History
    distinct: bool
    acked: dict[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    reads: int = 0
    settled: dict[int, str] = field(default_factory=dict)
    settled_moments: dict[int, str] = field(default_factory=dict)
    referenced: Judge | None = None

    def heads(self) -> dict[str, int]:
        """The last entry of the table lane and of every writer's lane; of a closed lane its end."""
        lanes = self.history.lanes
        return {TABLE: len(lanes[TABLE])} | {
            lane: self.history.table.closed.get(lane, len(lanes.get(lane, ()))) for lane in self.history.table.lane_ids
        }

    def whole(self, cut: Cut) -> dict[str, int]:
        """The last entry that a cut has of each lane, also of those that were retired."""
        return self.history.table.whole(cut.table, cut.lanes)

    def newest_stamp(self, lane: str, stream: str) -> int:
        """The newest stamp that a writer that enters a lane now must be ordered after (W2).

        It is that of the table lane, of the lane itself, and of the commits of lanes that share a group with it.
        """
        streams, lanes = self.config["streams"], self.history.lanes
        commits = (
            entry
            for other, other_stream in self.history.table.streams.items()
            if set(streams[stream]["groups"]).intersection(streams[other_stream]["groups"])
            for entry in lanes.get(other, ())
            if entry["kind"] == "DATA"
        )
        return max(entry["stamp"] for entry in (*lanes[TABLE], *lanes.get(lane, ()), *commits))

    def newest_rivals(self, lane: str, stream: str) -> Visible:
        """The newest stamps that the next commit of a lane must exceed whatever its clock says, as it begins (S25)."""
        ordered = {name for name, group in self.config["groups"].items() if group.get("ordering")}
        return Visible(self.newest_contested(lane, stream), self._newest(self._sharing(lane, stream, ordered)))

    def newest_contested(self, lane: str, stream: str) -> int:
        """The newest stamp of visible commits of lanes that share a group in commit order with a lane (W7)."""
        groups = self.config["groups"]
        contested = {name for name in groups if _is_in_commit_order(groups[name])}
        return self._newest(self._sharing(lane, stream, contested))

    def _sharing(self, lane: str, stream: str, groups: set[str]) -> list[str]:
        """The other lanes of streams that feed one of these groups of a stream."""
        streams, stream_of = self.config["streams"], self.history.table.streams
        shared = groups.intersection(streams[stream]["groups"])
        return [
            other for other in stream_of if other != lane and shared.intersection(streams[stream_of[other]]["groups"])
        ]

    def _newest(self, lanes: Iterable[str]) -> int:
        """The newest stamp of the commits of some lanes."""
        commits = (entry for lane in lanes for entry in self.history.lanes.get(lane, ()) if entry["kind"] == "DATA")
        return max((entry["stamp"] for entry in commits), default=0)

    def newest_of(self, cut: Cut) -> int:
        """The newest stamp of the commits in a cut."""
        ends = {TABLE: cut.table, **cut.lanes}
        return max(entry["stamp"] for lane, seq in ends.items() for entry in self.history.lanes.get(lane, [])[:seq])

    def draw_moment(self, chance: random.Random) -> int:
        """The time of a commit, or a time close to it."""
        moments = [entry["committed_at_ms"] for entries in self.history.lanes.values() for entry in entries]
        return chance.choice(moments) + chance.choice([-1, 0, 0, 1])

    def check_time(self, time_ms: int, cut: Cut, *, settled: bool) -> None:
        """S24: a settled time always gives the same cut, and a MARK settles it."""
        if not settled:
            return
        for at in cuts_of(cut).values():
            assert self.referenced is not None, "only a table with references has their cuts"
            self.referenced.check_time(time_ms, at, settled=True)
        wanted = meaning(self.history.lanes, self.history.lanes[TABLE], time_ms)
        got = {lane: cut.lanes.get(lane, 0) for lane in wanted.lanes}
        if not wanted.settled or (cut.table, got) != (wanted.table, wanted.lanes):
            raise Violation(f"S24 TimeStable: {time_ms} is {wanted}, not {cut}")
        alone = str(Cut(cut.table, cut.lanes))
        if self.settled.setdefault(time_ms, alone) != alone:
            raise Violation(f"S24 TimeStable: {time_ms} was {self.settled[time_ms]}, and is {cut}")

    def check_time_moment(self, time_ms: int, cut: Cut, *, settled: bool) -> None:
        """S31, S24: the moment of a time has what was visible before the last entry of the table lane up to it, and the
        first MARK after that entry settles it.
        """
        for lane, seq in self.visible_before(cut.table).items():
            if lane != TABLE and cut.lanes.get(lane, 0) < seq:
                raise Violation(f"S31 OneMoment: the moment of {time_ms}, {cut}, lacks entry {seq} of {lane}")
        if not settled:
            return
        table_lane = self.history.lanes[TABLE]
        table = sum(entry["committed_at_ms"] <= time_ms for entry in table_lane)
        if cut.table != table or not any(entry["kind"] == "MARK" for entry in table_lane[table:]):
            raise Violation(f"S24 TimeStable: the moment of {time_ms} is at {table}, and not settled as {cut}")
        if self.settled_moments.setdefault(time_ms, str(cut)) != str(cut):
            raise Violation(f"S24 TimeStable: {time_ms} was {self.settled_moments[time_ms]}, and is {cut}")

    def acknowledge(self, batch: Batch, commit: Commit, older_than: int, visible: Visible) -> None:
        """Record a commit that was acknowledged to a writer.

        Args:
            batch: The batch.
            commit: The acknowledgement.
            older_than: The newest stamp when the writer entered.
            visible: The newest stamps of rivals when the commit began.
        """
        entries = self.history.lanes.get(commit.lane, [])
        entry = entries[commit.seq - 1] if 0 < commit.seq <= len(entries) else None
        if entry is None or entry["kind"] != "DATA" or entry["source"] != {"id": batch.id}:
            raise Violation(f"S4 AckedDurable: {commit.lane}/{batch.number} was acknowledged as entry {commit.seq}")
        if not commit.replayed and entry["stamp"] <= older_than:
            raise Violation(f"W2: {commit.lane}/{batch.number} is ordered before commits that its writer had read")
        ordered = {name for name, group in self.config["groups"].items() if group.get("ordering")}
        is_crowded = len(self._sharing(commit.lane, batch.stream, ordered)) > MOST_RIVALS
        if not commit.replayed and entry["stamp"] <= max(visible.contested, 0 if is_crowded else visible.ordered):
            raise Violation(
                f"S25 LaterWins: {commit.lane}/{batch.number} is ordered before commits that were visible before it"
            )
        self.acked[commit.lane] = max(self.acked.get(commit.lane, 0), commit.seq)

    def check_left_lane(self, lane: str, epoch: int) -> None:
        """W10: a batch that has ended without an error of the store has finished its lane, or others claimed it."""
        last = self.history.lanes[lane][-1]
        if last["epoch"] == epoch and not last.get("finishes"):
            raise Violation(f"W10: a batch has left lane {lane!r} with entry {last['seq']}, which does not finish it")

    def check_watermarks(self, cut: Cut, found: Watermarks) -> None:
        """R6: which lanes hold back the watermarks of a snapshot, and the promise of each lane.

        Of a lane that was closed since the snapshot it is not known here whether it was open then.
        """
        table, at_rest = self.history.table, cut.table == len(self.history.lanes[TABLE])
        schema = build_schema(load_config(self.config))
        known = (group for groups in found.values() for group in groups.values() if group.group in schema.group_by_name)
        for group in known:  # those that the table was created with
            for lane, promise in group.lanes.items():
                if lane in table.closed and not at_rest:
                    continue
                expected = self._promise(cut, lane, schema.group(group.group).id)
                if (promise.value, promise.ended) != expected:
                    raise Violation(f"R6: {lane!r} of {cut} has {promise} for group {group.group}, not {expected}")
            if at_rest:
                self._check_largest(Cut(cut.table, self.whole(cut)), group, schema.group(group.group).id)

    def _check_largest(self, cut: Cut, watermark: Watermark, group: int) -> None:
        """R6: if no lane of a stream is in use, its watermark is the largest promise, also of retired lanes."""
        streams = self.history.table.streams
        promises = [self._promise(cut, lane, group) for lane, stream in streams.items() if stream == watermark.stream]
        largest = max((value for value, _ in promises if value is not None), default=None)
        if all(ended for _, ended in promises) and watermark.value != largest:
            raise Violation(f"R6: the watermark of {watermark.stream!r} at {cut} is {watermark.value}, not {largest}")

    def _promise(self, cut: Cut, lane: str, group: int) -> tuple[int | None, bool]:
        """The watermark of a lane in a snapshot, and whether the lane is closed or finished there."""
        table = self.history.table
        entries = self.history.lanes.get(lane, [])[: cut.lanes.get(lane, 0)]
        counts = entries and ("-batches-" in lane or table.is_live(lane, entries[-1]["seq"], cut.table))
        ended = lane in table.closed or bool(counts and entries[-1].get("finishes"))
        for entry in reversed(entries):
            if not table.is_live(lane, entry["seq"], cut.table):
                continue
            if entry["kind"] == "DATA":
                promise = entry.get("watermarks", {}).get(str(group))
                return (None if promise is None else int(promise["value"])), ended
            if entry.get("for_batch") and not ended:
                break
        return None, ended

    def check_resumed(self, lane: str, epoch: int, last: int | None) -> None:
        """A writer that has claimed a lane knows its last live batch (S6)."""
        entries = self.history.lanes[lane]
        claim = next(entry["seq"] for entry in entries if entry["epoch"] == epoch)
        if self.history.table.restorations and any(entry["kind"] == "CLAIM" for entry in entries[claim:]):
            return  # it is already fenced, and cannot know of later restores
        live = list(self.history.live_data(lane, claim, len(self.history.lanes[TABLE])))
        expected = live[-1]["batch"] if live else None
        if last != expected:
            raise Violation(
                f"S6 BatchExactlyOnce: claim {epoch} of {lane} continues after batch {last}, not {expected}"
            )

    def check_complete(self, before: Mapping[str, int], cut: Cut) -> None:
        """S4: a head snapshot has all that was there before it was taken, and only existing entries.

        Args:
            before: Last commit of each lane that was acknowledged, and the last entry of the table lane (R1).
            cut: The cut of the snapshot.
        """
        reached = {TABLE: cut.table, **self.whole(cut)}
        for lane, seq in before.items():
            if reached.get(lane, 0) < seq:
                raise Violation(f"S4 AckedDurable: {cut} lacks entry {seq} of {lane or 'the table lane'}")
        for lane, seq in reached.items():
            if seq > len(self.history.lanes.get(lane, ())):
                raise Violation(f"S2 LaneContiguous: {cut} reaches beyond lane {lane!r}")
        for name, at in cuts_of(cut).items():
            self._check_follows(cut, name, at)
        if len(set(cuts_of(cut).values())) > 1:
            raise Violation(f"M11: the references of {cut} are to one table, of which they have different cuts")

    def visible_before(self, slot: int) -> dict[str, int]:
        """The last entry of each lane that was visible before an entry of the table lane; of a closed lane its end."""
        closed = self.history.table.closed
        before = self.history.before.get((TABLE, slot), {})  # the first entry was there before the schedule
        return {lane: min(seq, closed.get(lane, seq)) for lane, seq in before.items()}

    def check_moment(self, cut: Cut) -> None:
        """S31: a cut that is one moment has all that was visible before one of its commits began."""
        self._check_has(cut, self.history.before, self, {TABLE: cut.table, **self.whole(cut)}, f"which {cut} lacks")

    def check_together(self, cut: Cut) -> None:
        """S31 of several tables: a snapshot that is one moment of all of them has all that was visible in one of them
        before a commit of another one began.
        """
        assert self.referenced is not None, "only a table with references has their cuts"
        for at in cuts_of(cut).values():
            self.referenced.check_moment(at)
            self._check_beside(cut, self.referenced, at)
            self.referenced._check_beside(at, self, cut)

    def _check_beside(self, cut: Cut, other: Judge, at: Cut) -> None:
        """The cut ``at`` of the other table has what was visible there before a commit in ``cut`` of this one began."""
        what = f"which the other table's cut {at} lacks"
        self._check_has(cut, self.history.before_beside, other, {TABLE: at.table, **at.lanes}, what)

    def _check_has(
        self,
        cut: Cut,
        before: Mapping[tuple[str, int], Mapping[str, int]],
        other: Judge,
        reached: Mapping[str, int],
        what: str,
    ) -> None:
        """S31: ``reached``, in a table, has the commits that were visible before an entry in a cut of this one began.

        Args:
            cut: The cut.
            before: By lane and entry of this table, the entries of the lanes of ``other`` that were visible before.
            other: The table, which may be this one.
            reached: The last entry of each of its lanes.
            what: What is wrong if a commit is missing.
        """
        for lane, until in cut.lanes.items():
            for entry in self.history.lanes.get(lane, [])[:until]:
                for there, seq in before.get((lane, entry["seq"]), {}).items():
                    lacking = other.history.lanes.get(there, [])[reached.get(there, 0) : seq]
                    if any(there == TABLE or each["kind"] == "DATA" for each in lacking):
                        raise Violation(
                            f"S31 OneMoment: {cut} has entry {entry['seq']} of {lane}, which began after entry {seq} "
                            f"of {there or 'the table lane'} was visible, {what}"
                        )

    def _check_follows(self, cut: Cut, name: str, referenced: Cut) -> None:
        """M11: the cut of a referenced table has all that was there when the table's entries were written."""
        assert self.referenced is not None, "only a table with references has their cuts"
        reached = {TABLE: referenced.table, **self.referenced.whole(referenced)}
        for lane, seq in {TABLE: cut.table, **cut.lanes}.items():
            for other, there in self.history.beside.get((lane, seq), {}).items():
                if reached.get(other, 0) < there:
                    raise Violation(
                        f"M11: the cut of {name} in {cut} lacks entry {there} of {other or 'the table lane'}, which is "
                        f"older than entry {seq} of {lane or 'the table lane'}"
                    )

    def check_answer(self, cut: Cut, table: pa.Table, require: Iterable[str] = ()) -> None:
        """Check that a snapshot has the oracle's rows, in all columns."""
        self.reads += 1
        references = references_of(self.history.table.config(cut.table))
        required = [name for name in require if name in references]
        rows = self.expected(cut, require=[name for name in require if name not in references])
        expected, _ = joined(rows, references, self.expected_beside(cut), required)
        self.compare(f"S12 ConsistentRead: wrong answer at {cut}", self.answer(table), expected)

    def expected_beside(self, cut: Cut) -> Mapping[str, Answer]:
        """The oracle's rows of the referenced table, for each reference of a cut."""
        if self.referenced is None:
            return {}
        return {name: self.referenced.expected(at) for name, at in cuts_of(cut).items()}

    def is_promised(self, cut: Cut) -> bool:
        """Whether a snapshot must remain readable, with the columns of its references."""
        if not self.history.table.promises(cut.table, cut.lanes) or not self.names_all(cut):
            return False
        return all(self.referenced.is_promised(at) for at in cuts_of(cut).values()) if self.referenced else True

    def names_all(self, cut: Cut) -> bool:
        """Whether a cut names that of every referenced table; one whose snapshot could not be taken is left out."""
        return set(cuts_of(cut)) == set(references_of(self.history.table.config(cut.table)))

    def may_expire(self) -> bool:
        """Whether a snapshot of the table, or of the table that it refers to, may have expired."""
        return self.history.table.oldest_retained > 1 or (self.referenced is not None and self.referenced.may_expire())

    def is_erased(self) -> bool:
        """Whether keys of the table, or of the table that it refers to, were erased."""
        return bool(self.history.erasing) or (self.referenced is not None and self.referenced.is_erased())

    def check_restored(self, done: int, to: str | None) -> None:
        """S18: right after a restore the table equals its target; None if the target was a time."""
        restored = next(r for r in self.history.table.restorations if r.done == done)
        closed = {lane: seq for lane, seq in self.history.table.closed.items() if lane in restored.rolled_back}
        after = Cut(done, {**closed, **restored.heads})
        now = self.history.table.config(done)
        if to is None:
            target = Cut(restored.table, restored.last_kept)
            if closed:
                return  # the INTENT does not record the position of a closed lane at the target
        elif to.startswith(PREFIX):
            target = parse_cut(to)
        else:
            entry = next(e for e in self.history.lanes[TABLE] if e["kind"] == "SAVEPOINT" and e["name"] == to)
            target = Cut(entry["table"], entry["lanes"])
        self.compare(
            f"S18 RolledBackNeverVisible: restored to {target}", self.expected(after), self.expected(target, now)
        )

    def check_undone(self, done: int, stream: str, since: dt.datetime, before: Mapping[str, int]) -> None:
        """S18: right after an undo exactly the stream's commits since then are rolled back.

        The table did not have them just before that time. Commits that came while the undo began, after
        ``before``, and closed lanes are not checked.
        """
        undone = next(r for r in self.history.table.restorations if r.done == done)
        limit = round(since.timestamp() * 1000)
        kept = meaning(self.history.lanes, self.history.lanes[TABLE][: undone.intent - 1], limit - 1).lanes
        for lane, lane_stream in self.history.table.streams.items():
            if lane in self.history.table.closed:
                continue
            for entry in self.history.lanes.get(lane, [])[: before.get(lane, 0)]:
                was = self.history.table.is_live(lane, entry["seq"], undone.intent - 1)
                gone = lane in undone.rolled_back and lane_stream == stream and entry["seq"] > kept.get(lane, 0)
                if self.history.table.is_live(lane, entry["seq"], done) != (was and not gone):
                    raise Violation(
                        f"S18 RolledBackNeverVisible: undo of {stream} since {limit}: entry {entry['seq']} of {lane}"
                    )

    def expected(self, cut: Cut, config: Config | None = None, require: Iterable[str] = ()) -> Answer:
        """The oracle's rows over exactly the live commits up to a cut, with the schema of the cut or a given one."""
        return {
            canonical(key): {name: canonical(value) for name, value in row.items()}
            for key, row in self._oracle(cut, config).read(require).items()
        }

    def _oracle(self, cut: Cut, config: Config | None = None) -> Oracle:
        oracle = Oracle(config or self.history.table.config(cut.table))
        for arrival, _, stream, rows in sorted(self._commits(cut), key=lambda commit: commit[0]):
            oracle.append(stream, rows, arrival)
        return oracle

    def _commits(self, cut: Cut) -> list[tuple[int, int, str, list[Row]]]:
        """Arrival, stamp, stream and rows of the live commits up to a cut, without what was erased."""
        ids = self.history.table.lane_ids
        gone = self._erased(cut.table)
        commits = []
        for lane, until in self.whole(cut).items():
            for entry in self.history.live_data(lane, until, cut.table):
                batch = self.batches[entry["source"]["id"]]
                # S26: what a key was before it was erased does not count, whatever its version is.
                rows = [
                    self._rewritten(Row(row), lane, entry["seq"], cut.table)
                    for row in batch.rows
                    if entry["seq"] > gone.get(self._key(row), {}).get(lane, 0)
                ]
                commits.append((entry["stamp"] << LANE_BITS | ids[lane], entry["stamp"], batch.stream, rows))
        if self.distinct:
            # S22: the order of arrival must not matter; the order that differs most from the stamps is the best test.
            return [(-arrival, *rest) for arrival, *rest in commits]
        return commits

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.config["key"])

    def _erased(self, table: int) -> Mapping[tuple[Any, ...], Mapping[str, int]]:
        """The last erased entry of each lane, by key, in a snapshot of that prefix of the table lane."""
        erased: dict[tuple[Any, ...], dict[str, int]] = {}
        for erasure in self.history.table.erasures_at(table):
            for key in self._gone(erasure):
                for lane, seq in self._cut_of(key, erasure.cuts).items():
                    before = erased.setdefault(key, {})
                    before[lane] = max(before.get(lane, 0), seq)
        return erased

    def _gone(self, erasure: Erasure) -> Iterable[tuple[Any, ...]]:
        """The keys that a BASE leaves out: those of an erase, of rows that were old, or only known by an old delete."""
        if erasure.note in self.history.erasing or not erasure.cuts:
            return self.history.erasing.get(erasure.note, ())
        before = Cut(erasure.slot - 1, next(iter(erasure.cuts.values())))
        if erasure.note in self.history.forgetting:
            return self._oracle(before).old_deletes(*self.history.forgetting[erasure.note])
        if erasure.note in self.history.expiring:
            return self._oracle(before).old_rows(*self.history.expiring[erasure.note])
        limits = _TTL.fullmatch(erasure.note)
        return self._expired(before, limits) if limits is not None else ()

    def _expired(self, before: Cut, limits: re.Match[str]) -> Iterable[tuple[Any, ...]]:
        """The keys of the rows that are older than a time to live, given the limits in the note of a BASE."""
        rows = None if limits["rows"] is None else _milliseconds(limits["rows"])
        by = None
        if rows is not None and limits["by"] != "last event":
            groups = self.config["groups"]
            by = (next(name for name in groups if limits["by"] in groups[name]["columns"]), limits["by"], rows)
        stamps = {arrival: stamp for arrival, stamp, _, _ in self._commits(before)}
        return self._oracle(before).expired(rows, _milliseconds(limits["deletes"]), stamps, by)

    def _rewritten(self, row: Row, lane: str, seq: int, table: int) -> Row:
        """S27: a row of a commit with the values of the rewrites that have it in their slices."""
        for rewrite in self.history.table.erasures_at(table):
            column, value = self.history.rewriting.get(rewrite.note, ("", None))
            within = seq <= self._cut_of(self._key(row), rewrite.cuts).get(lane, 0) if column else False
            if within and row.get(column) is not None:
                row = Row({**row, column: value})
        return row

    def check_rewritten(self, entry: int, cut: Cut) -> None:
        """S27: a rewrite has every file group with visible rows up to its cut."""
        done = next(rewrite for rewrite in self.history.table.erasures if rewrite.slot == entry)
        for key in self.expected(Cut(entry, cut.lanes)):
            if self.group_of(key, done.cuts) not in done.cuts:
                raise Violation(f"S27 RewrittenWhole: BASE {entry} lacks {key}")

    def _cut_of(self, key: tuple[Any, ...], cuts: Mapping[Group, Mapping[str, int]]) -> Mapping[str, int]:
        return cuts.get(self.group_of(key, cuts), {})

    def group_of(self, key: tuple[Any, ...], groups: Iterable[Group]) -> Group:
        """The one of some file groups that a key belongs to; one that is not among them if it belongs to none."""
        schema = build_schema(load_config(self.config))
        columns = zip(self.config["key"], key, strict=True)
        rows = {name: pa.array([value], schema.column_by_name[name].type) for name, value in columns}
        located = [tuple(group) for group in locate_keys(schema, rows, {0, *(bits for _, bits, _ in groups)})]
        return next((group for group in located if group in groups), located[0])

    def check_erased(self, keys: frozenset[tuple[Any, ...]], result: EraseResult, objects: Mapping[str, bytes]) -> None:
        """S26: no object has an erased key, except those that the result names as new."""
        if result.remains:
            raise Violation(f"S26 ErasedGone: an erase with no other process left: {result.remains}")
        for path, data in objects.items():
            if path not in result.newer and has_keys(path, data, self.config, keys):
                raise Violation(f"S26 ErasedGone: {path} has an erased key, and the erase says it is complete")

    def check_left(self, path: str, table: int) -> None:
        """L3: every file that remains after a clean is needed, or may be needed by a writer that has not been fenced.

        ``table``: length of the table lane when the clean began.
        """
        if self.history.is_left(path):
            raise Violation(f"L3: {path} is archived, and a clean has not deleted its slot")
        if self.history.needs.may_stay(path) or "/timeline/" in path:
            return
        match = _FOR_A_SLOT.fullmatch(path)
        if match is not None:
            entries = self.history.lanes.get(match["lane"], [])
            if int(match["slot"]) > len(entries) and int(match["epoch"]) >= (entries[-1]["epoch"] if entries else 0):
                return
        match = _FOR_A_TABLE_SLOT.fullmatch(path)
        if match is not None and (path in self.history.named or int(match["slot"]) > table):
            return
        raise Violation(f"L3: {path} is garbage, and a clean has not deleted it")

    def check_report(self, report: VerifyReport, damaged: tuple[str, ...]) -> None:
        """The report has no errors, or only those that earlier damage explains."""
        if not self.damaged:
            if not report.ok:
                raise Violation(f"verify reports a problem in an intact table: {report}")
        elif damaged and report.deep and self.history.is_verified(damaged[0]) and not _tells(report, damaged):
            raise Violation(f"verify does not find {damaged}: {report}")

    def excuse(self, error: CorruptData) -> None:
        """Accept an error about corrupt data only if it names the damaged object."""
        if not any(name in error.message for name in self.damaged):
            raise Violation(
                f"{error.code} without damage, or the error does not name the damaged object: {error.message}"
            ) from error

    def answer(self, table: pa.Table) -> Answer:
        """Rows by key."""
        result: Answer = {}
        for row in table.to_pylist():
            key = canonical(tuple(row[name] for name in self.config["key"]))
            if key in result:
                raise Violation(f"S15 KeySingleHome: key {key} comes twice")
            result[key] = {name: canonical(value) for name, value in row.items()}
        return result

    def compare(self, what: str, got: Answer, expected: Answer) -> None:
        """Raise a Violation that shows what differs, if anything does."""
        if got == expected:
            return
        keys = sorted((key for key in {*got, *expected} if got.get(key) != expected.get(key)), key=repr)
        lines = [f"  {key}: got {got.get(key)}\n  {' ' * len(repr(key))}  not {expected.get(key)}" for key in keys]
        raise Violation("\n".join([what, *lines]))


def _milliseconds(time: str) -> int:
    return round(dt.datetime.fromisoformat(time).timestamp() * 1000)


def _is_in_commit_order(group: Mapping[str, Any]) -> bool:
    """Whether only the order of commits decides what a group shows; for sums and counts it does not matter."""
    return not group.get("ordering") and not {"sum", "count"}.issuperset(group.get("functions", {"": ""}).values())


def _tells(report: VerifyReport, names: tuple[str, ...]) -> bool:
    return any(name in str(finding) for finding in report.errors for name in names)
