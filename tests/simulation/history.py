"""The log on the disk, read by independent code: no decoder, fold or state of `storage` is used here.

`History.watch` is called at every change of the disk, and checks each new entry: S1 SlotWriteOnce, S2 LaneContiguous,
S3 EpochMonotone, S5 NoPhantom, S6 BatchExactlyOnce, S7 NoDangling, S10 CutChain (with `table_lane`), S16 CleanSafe
(`needs`), S18 RolledBackNeverVisible, S19 RevMonotone and S23 PromiseKept.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.simulation.changes import Change
from tests.simulation.needs import Needs
from tests.simulation.scheduler import Violation
from tests.simulation.table_lane import Entry, TableLane
from tests.strategies import Config, Row

_SLOT = re.compile(r"_weft/timeline/(?:table|lanes/(?P<lane>[^/]+))/(?P<seq>\d{20})\.json")
_ARCHIVE = re.compile(r"_weft/archive/(?:table|lanes/(?P<lane>[^/]+))/(?P<chunk>\d{20})\.entries")
_CHECKSUM = re.compile(rb',"sha256":"([0-9a-f]{64})"\}')
_CHECKSUM_BYTES = len(b',"sha256":"') + 64 + len(b'"}')
TABLE = ""


@dataclass(frozen=True)
class Batch:
    """A batch that a writer may commit; its rows are fixed before the schedule begins.

    Attributes:
        number: Its number in the lane's query.
        config: The configuration that the sender knows.
        change: The schema change that the sender makes first, because the rows have the new column.
    """

    id: int
    lane: str
    stream: str
    query: str
    number: int
    rows: list[Row]
    config: Config
    change: Change | None


class History:
    """All entries so far, and the rules that each new entry must follow.

    Attributes:
        lanes: Entries of each lane, in order; "" is the table lane.
        table: State of the table lane.
        originals: Original content of objects that the environment has damaged.
        named: Sidecars that entries of the table lane name.
        needs: The files that must exist.
        archives: The chunks that are archived, by lane and number.
        erasing: The keys of every erase that was begun, by its note.
        expiring: The group, the column and the limit of every expiry of rows that was begun, by its note.
        forgetting: The group and the limit of every forgetting of deletes that was begun, by its note.
        rewriting: The column and the new value of every rewrite that was begun, by its note.
        beside: The ends of the lanes of the other table, which refers to this one or is referred to, when an entry was
            written, by its lane and number; empty without references.
        look_beside: Returns these ends now.
        began: What was visible when a writer began to commit a batch the last time: the last entry of each lane, by the
            batch's id and the writer's epoch.
        before: The same of each commit, by its lane and number; and what was visible before each entry of the table
            lane.
        before_beside: What was visible of the other table when the writer of a commit began; empty without references.
    """

    def __init__(self, objects: dict[str, bytes], batches: Mapping[int, Batch], chunk: int) -> None:
        self.chunk = chunk
        self.lanes: dict[str, list[Entry]] = {TABLE: []}
        self.table = TableLane()
        self.needs = Needs(self.table)
        self.originals: dict[str, bytes] = {}
        self.named: set[str] = set()
        self.archives: set[tuple[str, int]] = set()
        self.erasing: dict[str, frozenset[tuple[Any, ...]]] = {}
        self.rewriting: dict[str, tuple[str, Any]] = {}
        self.forgetting: dict[str, tuple[str, int]] = {}
        self.expiring: dict[str, tuple[str, str, int]] = {}
        self.beside: dict[tuple[str, int], Mapping[str, int]] = {}
        self.began: dict[tuple[int, int], Mapping[str, int]] = {}
        self.before: dict[tuple[str, int], Mapping[str, int]] = {}
        self.before_beside: dict[tuple[str, int], Mapping[str, int]] = {}
        self.look_beside: Callable[[], Mapping[str, int]] | None = None
        self._objects = ChainMap(self.originals, objects)
        self._batches = batches
        self._heads: dict[str, int] = {}
        self._began_beside: dict[tuple[int, int], Mapping[str, int]] = {}

    def watch(self, path: str, before: bytes | None, now: bytes | None) -> None:
        """Check a change of the disk.

        Raises:
            Violation: The change violates an invariant.
        """
        if (match := _ARCHIVE.fullmatch(path)) is not None:
            self._check_archive(path, match["lane"] or TABLE, int(match["chunk"]), before, now)
            return
        match = _SLOT.fullmatch(path)
        if match is None:
            if now is None:
                self.needs.check_delete(path)
            return
        lane, seq = match["lane"] or TABLE, int(match["seq"])
        if self.is_archived(lane, seq):
            return  # objects in archived slots are ignored, so deleting or writing one changes nothing
        if now is None:
            raise Violation(f"S1 SlotWriteOnce: {path} was removed")
        entry = _decoded(path, now)
        if before is not None:
            self._take_redacted(f"S1 SlotWriteOnce: {path} was overwritten", lane, seq, entry)
            return
        self._check_place(entry, lane, seq)
        if lane == TABLE:
            self._check_table_entry(entry)
        else:
            self._check_lane_entry(entry)
        self.lanes.setdefault(lane, []).append(entry)
        if self.look_beside is not None:
            self.beside[lane, seq] = self.look_beside()

    def is_verified(self, path: str) -> bool:
        """Whether `verify` reads an object: it does not read objects that no snapshot needs."""
        return _ARCHIVE.fullmatch(path) is not None or (not self.is_left(path) and self.needs.is_verified(path))

    def is_left(self, path: str) -> bool:
        """Whether an object is in a slot that is archived."""
        match = _SLOT.fullmatch(path)
        return match is not None and self.is_archived(match["lane"] or TABLE, int(match["seq"]))

    def is_archived(self, lane: str, seq: int) -> bool:
        """Whether a slot's entry is in an archive."""
        return (lane, (seq - 1) // self.chunk + 1) in self.archives

    def _check_archive(self, path: str, lane: str, chunk: int, before: bytes | None, now: bytes | None) -> None:
        """S20: an archive is created after it was announced, and contains every entry of its chunk, maybe redacted."""
        if now is None:
            raise Violation(f"S20 FloorSafe: {path} was removed")
        said, body = now.partition(b"\n")[2].split(b"\n", 1)
        sizes = json.loads(said)["sizes"]
        rest = pa.decompress(body, sum(sizes), codec="zstd", asbytes=True)
        ends = list(itertools.accumulate(sizes))
        found = [json.loads(rest[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        first, last = (chunk - 1) * self.chunk, chunk * self.chunk
        wrong = f"S20 FloorSafe: {path} does not contain entries {first + 1} to {last} of {lane!r}"
        if len(found) != self.chunk or last > len(self.lanes.get(lane, [])):
            raise Violation(wrong)
        for seq, entry in enumerate(found, start=first + 1):
            self._take_redacted(wrong, lane, seq, entry)
        if before is None and last > self.table.archived.get(lane, 0):
            raise Violation(f"S20 FloorSafe: {path} was written before the table lane permits it")
        self.archives.add((lane, chunk))

    def _take_redacted(self, wrong: str, lane: str, seq: int, entry: Entry) -> None:
        """X4: an entry may be replaced by the same one without the indexes of log files that nothing needs."""
        known = self.lanes[lane][seq - 1]
        if _without_indexes(entry) != _without_indexes(known):
            raise Violation(wrong)
        for before, after in zip(_files(known), _files(entry), strict=True):
            if _is_inline(before) and _is_redacted(after):
                self.needs.check_delete(after["file"]["path"])
                self.lanes[lane][seq - 1] = entry
            elif before["index"] != after["index"] and not _is_redacted(before):
                raise Violation(wrong)

    def live_data(self, lane: str, until: int, table: int) -> Iterator[Entry]:
        """Commits of a lane up to a slot that are visible in a snapshot of that prefix of the table lane."""
        for entry in self.lanes.get(lane, [])[:until]:
            if entry["kind"] == "DATA" and self.table.is_live(lane, entry["seq"], table):
                yield entry

    def _check_place(self, entry: Entry, lane: str, seq: int) -> None:
        known = self.lanes.get(lane, [])
        if (entry["lane"], entry["seq"]) != (lane, seq):
            raise Violation(f"S2 LaneContiguous: slot {seq} of {lane!r} says it is {entry['seq']} of {entry['lane']!r}")
        if seq != len(known) + 1:
            raise Violation(f"S2 LaneContiguous: slot {seq} of {lane!r} is written, and slot {len(known) + 1} is free")
        if entry["prev_id"] != (known[-1]["commit_id"] if known else ""):
            raise Violation(f"S2 LaneContiguous: entry {seq} of {lane!r} does not chain to the one before")
        if known and entry["committed_at_ms"] < known[-1]["committed_at_ms"]:
            raise Violation(f"entry {seq} of {lane!r} goes back in time, so that as_of would be wrong")

    def _check_lane_entry(self, entry: Entry) -> None:
        lane, seq = entry["lane"], entry["seq"]
        known = self.lanes.get(lane, [])
        if lane not in self.table.lane_ids:
            raise Violation(f"lane {lane!r} is written before it is declared")
        epoch = known[-1]["epoch"] if known else 0
        if entry["epoch"] != epoch + (entry["kind"] == "CLAIM"):
            raise Violation(
                f"S3 EpochMonotone: {entry['kind']} {seq} of {lane!r} has epoch {entry['epoch']} after epoch {epoch}"
            )
        if known and entry["table_rev"] < known[-1]["table_rev"]:
            raise Violation(f"S19 RevMonotone: entry {seq} of {lane!r} goes back in revision")
        finished = not known or known[-1].get("finishes", False)
        if known and finished and entry["kind"] != "CLAIM":
            raise Violation(f"S3 EpochMonotone: entry {seq} of {lane!r} follows the one that finishes the lane")
        if entry.get("for_batch") and not finished:
            raise Violation(f"L5 BatchesApart: claim {seq} of {lane!r} is for a batch, and fences another writer")
        is_claim = entry["kind"] == "CLAIM" and not (entry.get("for_batch") or entry.get("finishes"))
        if known and known[0].get("for_batch") and is_claim:
            raise Violation(f"W10: claim {seq} of {lane!r} leaves a lane for batches to nobody")
        if known and entry["stamp"] <= known[-1]["stamp"]:
            raise Violation(f"S22 ClockFree: entry {seq} of {lane!r} has a smaller stamp than the one before")
        if entry["kind"] != "DATA":
            return
        if entry["table_rev"] not in self.table.revisions:
            raise Violation(
                f"S19 RevMonotone: entry {seq} of {lane!r} has revision {entry['table_rev']}, which does not exist"
            )
        self._check_fencing_barriers(entry, known)
        self._check_batch(entry)
        self._check_promises(entry)
        self._check_table_seen(entry)
        self._check_files(entry, log_files(entry, self._objects))
        self.needs.add_data(entry, [_sidecar(file["index"], self._objects) for file in entry["files"]])

    def begin(self, batch: int, epoch: int) -> None:
        """A writer begins to commit a batch, maybe once more."""
        self.began[batch, epoch] = {lane: len(entries) for lane, entries in self.lanes.items()}
        if self.look_beside is not None:
            self._began_beside[batch, epoch] = self.look_beside()

    def follow(self, batch: int, epoch: int, cut: Mapping[str, int]) -> None:
        """The writer of a batch that has begun is handed a cut, by lane: its commit follows what the cut has."""
        began = self.began[batch, epoch]
        self.began[batch, epoch] = {lane: max(began.get(lane, 0), cut.get(lane, 0)) for lane in {*began, *cut}}

    def _check_table_seen(self, entry: Entry) -> None:
        """W9: a commit says what its writer had read of the table lane: no less than was there when it began."""
        begun = entry["source"]["id"], entry["epoch"]
        before = self.before[entry["lane"], entry["seq"]] = self.began[begun]
        self.before_beside[entry["lane"], entry["seq"]] = self._began_beside.get(begun, {})
        said = int(entry["commit_id"].partition("-")[2] or -1)
        if not before[TABLE] <= said <= len(self.lanes[TABLE]):
            raise Violation(
                f"W9: entry {entry['seq']} of {entry['lane']!r} says that its writer had read {said} entries of the "
                f"table lane, which had {before[TABLE]} when it began"
            )

    def _check_fencing_barriers(self, entry: Entry, known: list[Entry]) -> None:
        """No entry follows the claim of a fencing barrier unless its writer knew the restore."""
        for claim in known:
            slot = claim.get("intent", 0)
            if not slot:
                continue
            if self.table.intent is not None and self.table.intent["seq"] == slot:
                raise Violation(
                    f"S18 RolledBackNeverVisible: entry {entry['seq']} of {entry['lane']!r} crosses a barrier"
                )
            done = next((r.done for r in self.table.restorations if r.intent == slot), 0)
            if entry["table_rev"] < done:
                raise Violation(
                    f"S18 RolledBackNeverVisible: entry {entry['seq']} of {entry['lane']!r} ignores restore {slot}"
                )
        if entry["seq"] > self.table.closed.get(entry["lane"], entry["seq"]):
            raise Violation(f"entry {entry['seq']} of {entry['lane']!r} is in a closed lane")

    def _check_batch(self, entry: Entry) -> None:
        batch = self._batches.get(entry["source"].get("id", -1))
        asked = batch and (batch.lane or entry["lane"], batch.stream, batch.query, batch.number)
        if asked is None or asked != (entry["lane"], entry["stream"], entry["query_id"], entry["batch"]):
            raise Violation(f"S5 NoPhantom: no job of the plan committed entry {entry['seq']} of {entry['lane']!r}")
        if (batch is not None and not batch.lane) != entry.get("finishes", False):
            raise Violation(f"W10: entry {entry['seq']} of {entry['lane']!r} is of one batch, or it finishes its lane")
        lanes = self.lanes if batch is not None and not batch.lane else [entry["lane"]]
        for other in (other for lane in lanes for other in self.live_data(lane, 1 << 62, len(self.lanes[TABLE]))):
            if other["source"] == entry["source"]:
                raise Violation(f"S6 BatchExactlyOnce: batch {asked} is in entries {other['seq']} and {entry['seq']}")

    def _check_promises(self, entry: Entry) -> None:
        """The watermarks of a commit are those of the last live commit before it, or larger, except after a batch."""
        before = list(self.live_data(entry["lane"], entry["seq"] - 1, len(self.lanes[TABLE])))[-1:]
        if self.lanes[entry["lane"]][-1].get("for_batch"):
            return
        now = entry.get("watermarks", {})
        for group, promise in before[0].get("watermarks", {}).items() if before else ():
            if group not in now or int(now[group]["value"]) < int(promise["value"]):
                raise Violation(
                    f"S23 PromiseKept: entry {entry['seq']} of {entry['lane']!r} reduces the {promise} of group {group}"
                )

    def _check_files(self, entry: Entry, references: Iterator[Mapping[str, Any]]) -> None:
        for file in references:
            data = self._objects.get(file["path"])
            if data is None or len(data) != file["size"] or zlib.crc32(data) != file["crc32"]:
                raise Violation(
                    f"S7 NoDangling: entry {entry['seq']} of {entry['lane']!r} refers to {file['path']}, "
                    f"which {'is missing' if data is None else 'has other bytes'}"
                )

    def _check_table_entry(self, entry: Entry) -> None:
        slices = self._slices(entry)
        self.before[TABLE, entry["seq"]] = {lane: len(entries) for lane, entries in self.lanes.items()}
        self.named.update(_sidecar_paths(entry))
        if entry["kind"] == "FOLD":
            self._check_files(entry, log_files(entry, self._objects))
        if entry["kind"] in {"BASE", "DONE"}:
            self._check_files(entry, slice_files(slices))
            for made in slices:
                if any(seq > len(self.lanes.get(lane, ())) for lane, seq in made["cut"].items()):
                    raise Violation(
                        f"S8 SnapshotAtomic: entry {entry['seq']} contains entries that no lane has: {made['cut']}"
                    )
        claims = {lane: [e for e in entries if e["kind"] == "CLAIM"] for lane, entries in self.lanes.items()}
        if entry["kind"] == "MARK":
            self._check_mark(entry)
            self._check_stamp(entry, entry["lanes"])
        if entry["kind"] == "DONE":
            self._check_stamp(entry, entry["heads"])
        self.table.add(entry, slices, claims)
        listed = self.table.lane_ids.keys() - self.table.retired.keys()
        self._heads = {lane: len(self.lanes.get(lane, ())) for lane in listed}
        self.needs.add_table_entry(entry, slices)

    def _check_mark(self, entry: Entry) -> None:
        """A mark covers all entries that existed when the entry before it was written, and only existing ones."""
        for lane, there in self._heads.items():
            marked = entry["lanes"].get(lane, 0)
            if not min(there, self.table.closed.get(lane, there)) <= marked <= len(self.lanes.get(lane, ())):
                raise Violation(
                    f"S24 TimeStable: MARK {entry['seq']} reaches to {marked} of {lane!r}, which had {there}"
                )

    def _check_stamp(self, entry: Entry, named: Mapping[str, int]) -> None:
        """W2, T1: who has read a MARK, or the DONE that closed a lane, is ordered after the commits that it names."""
        for lane, seq in named.items():
            commits = (commit for commit in self.lanes.get(lane, [])[:seq] if commit["kind"] == "DATA")
            if any(commit["stamp"] >= entry["stamp"] for commit in commits):
                raise Violation(f"W2: {entry['kind']} {entry['seq']} is not ordered after the commits of {lane!r}")

    def _slices(self, entry: Entry) -> list[Mapping[str, Any]]:
        """Slices that an entry publishes or restores; of a FOLD its file groups."""
        if entry["kind"] == "BASE":
            return _sidecar(entry["slices"], self._objects)
        if entry["kind"] == "FOLD":
            return _sidecar(entry["file_groups"], self._objects)
        if entry["kind"] == "DONE" and self.table.intent is not None and self.table.intent["restore"] is not None:
            return _sidecar(self.table.intent["restore"]["slices"], self._objects)
        return []


def _without_indexes(entry: Entry) -> Entry:
    """An entry without the indexes that are in it, and without its checksum."""
    kept = [
        {**file, "index": None if _is_inline(file) or _is_redacted(file) else file["index"]} for file in _files(entry)
    ]
    return {name: value for name, value in entry.items() if name != "sha256"} | ({"files": kept} if kept else {})


def _files(entry: Entry) -> list[Mapping[str, Any]]:
    """The log files that an entry names."""
    return entry["files"] if entry["kind"] in {"DATA", "FOLD"} else []


def _is_inline(file: Mapping[str, Any]) -> bool:
    return "blocks" in file["index"]


def _is_redacted(file: Mapping[str, Any]) -> bool:
    return file["index"].get("sha256") == "0" * 64


def _decoded(path: str, data: bytes) -> Entry:
    body, end = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    match = _CHECKSUM.fullmatch(end)
    if match is None or match[1].decode() != hashlib.sha256(body).hexdigest():
        raise Violation(f"{path} is written without its checksum")
    return json.loads(data)


def _sidecar(reference: Any, objects: Mapping[str, bytes]) -> Any:
    """A part of an entry, read from the entry or its sidecar."""
    if not isinstance(reference, dict) or "sha256" not in reference:
        return reference
    data = objects.get(reference["path"])
    if data is None or hashlib.sha256(data).hexdigest() != reference["sha256"]:
        raise Violation(f"S7 NoDangling: {reference['path']} is missing, but an entry refers to it")
    return json.loads(data)


def _sidecar_paths(entry: Entry) -> Iterator[str]:
    for part in (entry.get("slices"), entry.get("file_groups"), (entry.get("restore") or {}).get("slices")):
        if isinstance(part, dict):
            yield part["path"]


def log_files(entry: Entry, objects: Mapping[str, bytes]) -> Iterator[Mapping[str, Any]]:
    """Files of a DATA or FOLD entry; their index sidecars must exist too."""
    for file in entry["files"]:
        _sidecar(file["index"], objects)
        yield file["file"]


def slice_files(slices: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for made in slices:
        overlays = (overlay["file"] for overlay in made.get("overlays", ()))
        yield from (file for file in (made["base"], made["shadow"], *overlays) if file is not None)
