"""The snapshot of a time, computed from the entries by independent code (S24 TimeStable).

A snapshot contains at least what the table lane had recorded by that time, and at most what the first MARK that began
after it has recorded; between the two, the time of each commit decides. Once that MARK exists, later entries change
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.table_lane import REVISIONS, Entry


@dataclass(frozen=True)
class Meaning:
    """The snapshot of a time.

    Attributes:
        table: Prefix of the table lane.
        lanes: Last entry of each open lane that exists.
        settled: Whether it can no longer change.
    """

    table: int
    lanes: Mapping[str, int]
    settled: bool


def meaning(lanes: Mapping[str, Sequence[Entry]], table_lane: Sequence[Entry], time_ms: int) -> Meaning:
    """The snapshot of a time according to these entries."""
    table = sum(entry["committed_at_ms"] <= time_ms for entry in table_lane)
    past = table_lane[:table]
    seen: dict[str, int] = {}
    for entry in past:
        for lane, seq in _named(entry).items():
            seen[lane] = max(seq, seen.get(lane, 0))
    mark = next((e for e in table_lane[table:] if e["kind"] == "MARK" and e["began_at_ms"] > time_ms), None)
    closings = {e["seq"] for e in past if e["kind"] == "INTENT" and e["restore"] is None}
    closed = {lane for e in past if e["kind"] == "DONE" and e["intent"] in closings for lane in e["heads"]}
    intents = {e["seq"] for e in past if e["kind"] == "INTENT" and e["restore"] is None}
    rev = max((e["seq"] for e in past if e["kind"] in REVISIONS and e.get("intent") not in intents), default=0)
    ends = {}
    for lane in (e["name"] for e in past if e["kind"] == "LANE_ADD" and e["name"] not in closed):
        entries = lanes.get(lane, ())
        until = len(entries) if mark is None else max(mark["lanes"].get(lane, 0), seen.get(lane, 0))
        ends[lane] = sum(
            (e["seq"] <= seen.get(lane, 0) or e["committed_at_ms"] <= time_ms) and e["table_rev"] <= rev
            for e in entries[:until]
        )
    return Meaning(table, ends, mark is not None)


def _named(entry: Entry) -> Mapping[str, int]:
    """Entries of lanes whose existence an entry of the table lane shows."""
    match entry["kind"]:
        case "MARK" | "SAVEPOINT":
            return entry["lanes"]
        case "PLAN":
            return entry["cut"]
        case "DONE":
            return entry["heads"]
    return {}
