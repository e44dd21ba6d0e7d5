"""Reads the watermarks of a snapshot from the last live commit of every lane, in few round trips.

Every commit repeats the watermarks of its lane, so one commit of each lane is enough. Only claims and rolled back spans
can follow it. The last entry of a lane says whether the lane is finished. `weft.storage.core.plan.watermarks` computes
the watermarks of streams and groups from those of the lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from weft.storage.core.log.cut import Cut, Seqs, Span, SpansByLane, in_spans
from weft.storage.core.log.entries import Claim, Data, Entry
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, is_batch_lane
from weft.storage.core.plan.watermarks import Watermarks, of_streams
from weft.storage.log.commit_log import CommitLog

FIRST_WINDOW: Final = 4  # entries of a lane that are read first: a commit, then perhaps a claim and one or two fences
WINDOW_GROWTH: Final = 4
MAX_WINDOW: Final = 64  # a writer that fails at every start leaves many claims


def read_watermarks(log: CommitLog, state: TableState, at: Cut) -> Watermarks:
    """Watermarks of every stream and group at a snapshot."""
    ended = {lane.name for lane in state.lanes.values() if lane.closed is not None}
    open_lanes = {lane: seq for lane, seq in at.lanes.items() if lane not in ended}
    ended |= finished_lanes(log, state.rolled_back, open_lanes)
    lanes = {lane.name: (lane.stream, lane.name in ended) for lane in state.lanes.values()}
    commits = last_commits(log, state.rolled_back, at.lanes, ended)
    return of_streams(state.schema, lanes, {lane: commit.watermarks for lane, commit in commits.items()})


def finished_lanes(log: CommitLog, rolled_back: SpansByLane, lanes: Seqs) -> set[LaneName]:
    """The lanes that are finished at entry ``lanes[lane]`` (PROTOCOL.md, W10)."""
    ends = {lane: (max(0, seq - FIRST_WINDOW), seq) for lane, seq in lanes.items() if seq}
    return {lane for lane, tail in log.read_tails(ends).items() if is_finished(tail[-1], rolled_back)}


def is_finished(last: Entry, rolled_back: SpansByLane) -> bool:
    """Whether the last entry of a lane in a snapshot finishes the work of its writer.

    A finish that was rolled back does not count, because the source sends the events again; but it counts in a lane
    of batches, which nobody continues.
    """
    if not (isinstance(last, Claim | Data) and last.finishes):
        return False
    return is_batch_lane(last.lane) or not in_spans(rolled_back.get(last.lane, ()), last.seq)


def last_commits(
    log: CommitLog, rolled_back: SpansByLane, lanes: Seqs, ended: Collection[LaneName]
) -> dict[LaneName, Data]:
    """The last live commit of each lane up to entry ``lanes[lane]``, by lane; lanes without a commit are left out.

    Commits before the claim of a batch belong to other batches, and the batch is not bound by their watermarks. So they
    count only if the lane is in ``ended``, that is, closed or finished.
    """
    commits: dict[LaneName, Data] = {}
    ends = {lane: _before_rolled_back(rolled_back.get(lane, ()), seq) for lane, seq in lanes.items()}
    window = FIRST_WINDOW
    while ends := {lane: seq for lane, seq in ends.items() if seq and lane not in commits}:
        tails = log.read_tails({lane: (max(0, seq - window), seq) for lane, seq in ends.items()})
        for lane, tail in tails.items():
            spans = rolled_back.get(lane, ())
            ends[lane] = _before_rolled_back(spans, tail[0].seq - 1)
            for entry in reversed(tail):
                if in_spans(spans, entry.seq):
                    continue
                if isinstance(entry, Data):
                    commits[lane] = entry
                    break
                if isinstance(entry, Claim) and entry.for_batch and lane not in ended:
                    ends[lane] = 0
                    break
        window = min(window * WINDOW_GROWTH, MAX_WINDOW)
    return commits


def _before_rolled_back(spans: Sequence[Span], seq: int) -> int:
    """The last entry up to ``seq`` that is in no span; spans must be ascending."""
    for after, until in reversed(spans):
        if after < seq <= until:
            seq = after
    return seq
