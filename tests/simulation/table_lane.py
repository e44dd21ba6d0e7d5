"""The table lane, read by independent code: plans, savepoints, closed lanes and restores, and checks of each entry.

Liveness follows the definition, not the spans that `storage` computes: an entry is live under a restore if it was
written after the restore's boundary, or was kept by it and was live in the restored state (S18 RolledBackNeverVisible).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.changes import config_of, lost
from tests.simulation.file_groups import Group, is_filled, others
from tests.simulation.scheduler import Violation
from tests.strategies import Config

Entry = Mapping[str, Any]
REVISIONS = {"CREATE", "SCHEMA", "DONE"}


@dataclass(frozen=True)
class Restoration:
    """A completed restore.

    Attributes:
        done: Slot of its DONE.
        intent: Slot of its INTENT.
        table: The prefix whose state was restored.
        full: Whether the whole table was restored; otherwise some lanes were undone and the others did not change.
        last_kept: Last entry that is kept, by fenced lane.
        heads: The boundary of each fenced lane: later entries are new.
        covered: Entry of each lane up to which file groups without a slice are covered.
        rolled_back: Spans, as in the INTENT; needed for closed lanes, which are not fenced.
    """

    done: int
    intent: int
    table: int
    full: bool
    last_kept: Mapping[str, int]
    heads: Mapping[str, int]
    rolled_back: Mapping[str, list[tuple[int, int]]]
    covered: Mapping[str, int]


@dataclass(frozen=True)
class Erasure:
    """A BASE without some keys.

    Attributes:
        slot: Its slot.
        note: The note of the erase.
        cuts: Cuts of its slices: earlier events of the keys are gone.
    """

    slot: int
    note: str
    cuts: Mapping[Group, Mapping[str, int]]


@dataclass
class TableLane:
    """The state of the table lane, and all restores and schemas so far.

    Attributes:
        cuts: Cuts of the newest slices.
        folded: Ends of the folds on top of them.
        configs: Configurations by slot of the entry with the schema.
        plans: The snapshots of open plans.
        archived: Last slot of each lane that may be archived.
        disturbed: Whether there was a restore, a clean or an erase, so that work that had begun before may be refused.
        erasures: All BASE entries of erases.
        kept: The snapshots of referenced tables that belong to each savepoint, by reference.
        retired: Slot of the RETIRE, and the last entry, of each retired lane. They remain in the attributes above.
    """

    lane_ids: dict[str, int] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    cuts: dict[Group, Mapping[str, int]] = field(default_factory=dict)
    folded: dict[Group, Mapping[str, int]] = field(default_factory=dict)
    configs: dict[int, Config] = field(default_factory=dict)
    plans: dict[str, tuple[int, Mapping[str, int]]] = field(default_factory=dict)
    savepoints: dict[str, tuple[int, Mapping[str, int]]] = field(default_factory=dict)
    restorations: list[Restoration] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    intent: Entry | None = None
    oldest_retained: int = 1
    archived: dict[str, int] = field(default_factory=dict)
    disturbed: bool = False
    erasures: list[Erasure] = field(default_factory=list)
    kept: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    retired: dict[str, tuple[int, int]] = field(default_factory=dict)

    def is_live(self, lane: str, seq: int, table: int) -> bool:
        """Whether an entry is live in a snapshot of that prefix of the table lane."""
        for restored in reversed(self.restorations):
            if restored.done > table:
                continue
            if lane in restored.heads:
                if seq > restored.heads[lane]:
                    return True
                if seq > restored.last_kept.get(lane, 0):
                    return False
            elif lane in restored.rolled_back:
                if any(after < seq <= until for after, until in restored.rolled_back[lane]):
                    return False
            elif restored.full:
                return True  # the lane is younger than the restore
            table = restored.table if restored.full else restored.intent - 1
        return True

    def whole(self, table: int, lanes: Mapping[str, int]) -> dict[str, int]:
        """The lanes of a cut at a prefix of the table lane, with those that it does not name because it has all."""
        return {**{lane: end for lane, (slot, end) in self.retired.items() if slot <= table}, **lanes}

    def erasures_at(self, table: int) -> list[Erasure]:
        """The erasures that the slices of a prefix of the table lane contain: a restore goes back to earlier slices."""
        after = max((restored.done for restored in self.restorations if restored.done <= table), default=0)
        earlier = next((self.erasures_at(r.table) for r in self.restorations if r.done == after), [])
        return [*earlier, *(erasure for erasure in self.erasures if after < erasure.slot <= table)]

    def promises(self, table: int, lanes: Mapping[str, int]) -> bool:
        """Whether a snapshot must remain readable."""
        return table >= self.oldest_retained or (table, _reached(lanes)) in self.savepoints.values()

    def config(self, table: int) -> Config:
        """The schema of a prefix of the table lane."""
        return self.configs[max(slot for slot in self.configs if slot <= table)]

    def add(self, entry: Entry, slices: list[Mapping[str, Any]], claims: Mapping[str, list[Entry]]) -> None:
        """Add the next entry.

        Args:
            entry: The entry.
            slices: The slices that it publishes or restores.
            claims: Claims per lane.

        Raises:
            Violation: The entry is not allowed in this state.
        """
        if entry["kind"] in REVISIONS and not (entry["kind"] == "DONE" and self._intent(entry)["restore"] is None):
            self.revisions.append(entry["seq"])
        match entry["kind"]:
            case "CREATE" | "SCHEMA":
                config = config_of(entry["table_schema"])
                gone = lost(self.config(entry["seq"]), config, entry["change"]) if self.configs else []
                if gone:
                    raise Violation(f"entry {entry['seq']} of the table lane removes from the schema: {gone}")
                self.configs[entry["seq"]] = config
            case "LANE_ADD":
                if entry["name"] in self.lane_ids or entry["lane_id"] in self.lane_ids.values():
                    raise Violation(f"lane {entry['name']!r} ({entry['lane_id']}) is declared twice")
                self.lane_ids[entry["name"]] = entry["lane_id"]
                self.streams[entry["name"]] = entry["stream"]
            case "PLAN" | "ABORT" | "BASE" | "FOLD":
                self._add_work(entry, slices)
            case "SAVEPOINT":
                if entry["name"] in self.savepoints:
                    raise Violation(f"savepoint {entry['name']} is made twice")
                if not self.promises(entry["table"], entry["lanes"]):
                    raise Violation(f"S16 CleanSafe: savepoint {entry['name']} keeps an expired snapshot")
                self.savepoints[entry["name"]] = (entry["table"], _reached(entry["lanes"]))
                self.kept[entry["name"]] = entry.get("references", {})
            case "RELEASE":
                if self.savepoints.pop(entry["name"], None) is None:
                    raise Violation(f"savepoint {entry['name']} is released, but does not exist")
                del self.kept[entry["name"]]
            case "INTENT":
                if self.intent is not None:
                    raise Violation(f"L4: INTENT {entry['seq']} begins while {self.intent['seq']} is open")
                self.intent = entry
                self.disturbed = True
                if entry["restore"] is not None:
                    self.plans.clear()
                    target = entry["restore"]["table"]
                    if target < self.oldest_retained and target not in [table for table, _ in self.savepoints.values()]:
                        raise Violation(f"S16 CleanSafe: INTENT {entry['seq']} goes back to an expired snapshot")
            case "DONE":
                self._done(entry, slices, claims)
            case "RETIRE":
                for lane, end in entry["lanes"].items():
                    if self.closed.get(lane) != end or lane in self.retired or self.intent is not None:
                        raise Violation(f"S32 RetiredWhole: lane {lane!r} is in use, and is retired at {end}")
                    self.retired[lane] = (entry["seq"], end)
            case "CLEAN_INTENT":
                self.oldest_retained = max(self.oldest_retained, entry["oldest_retained"])
                for lane, seq in entry.get("archived", {}).items():
                    self.archived[lane] = max(self.archived.get(lane, 0), seq)
                self.disturbed = True

    def _add_work(self, entry: Entry, slices: list[Mapping[str, Any]]) -> None:
        """Add an entry of a compaction or fold."""
        match entry["kind"]:
            case "PLAN":
                if entry["table"] < max(self.oldest_retained, max((r.done for r in self.restorations), default=0)):
                    raise Violation(f"S16 CleanSafe: PLAN {entry['seq']} pins an expired snapshot")
                if self.erasures and entry["table"] < self.erasures[-1].slot:
                    raise Violation(f"S26 ErasedGone: PLAN {entry['seq']} begins from before an erase")
                self.plans[entry["plan_id"]] = (entry["table"], entry["cut"])
            case "ABORT":
                self._close_plan(entry)
            case "BASE":
                self._check_chain(entry, slices)
                if entry.get("rewrites"):
                    self._close_plan(entry)
                    self.plans.clear()
                    self.disturbed = True
                    note = entry["rewrites"].rpartition(": ")[2]
                    cuts = {_group(made): self.whole(entry["seq"], made["cut"]) for made in slices}
                    self.erasures.append(Erasure(entry["seq"], note, cuts))
                elif entry["last"]:
                    self._close_plan(entry)
                elif entry["plan_id"] not in self.plans:
                    raise Violation(f"K3: BASE {entry['seq']} of a plan that is not open")
            case "FOLD":
                self._check_fold(entry, slices)
                self._close_plan(entry)

    def _end_lanes(self) -> None:
        """Closed lanes end no earlier than slices and folds; claims may follow after the end."""
        for cut in [*self.cuts.values(), *self.folded.values()]:
            self.closed |= {lane: max(end, cut.get(lane, 0)) for lane, end in self.closed.items()}

    def _close_plan(self, entry: Entry) -> None:
        if self.plans.pop(entry["plan_id"], None) is None:
            raise Violation(f"K3: {entry['kind']} {entry['seq']} of a plan that is not open")

    def _check_chain(self, entry: Entry, slices: list[Mapping[str, Any]]) -> None:
        groups = [_group(made) for made in slices]
        ended: dict[Group, Mapping[str, int]] = {}
        for group, made in zip(groups, slices, strict=True):
            newest = self.cuts.get(group, {})
            if made["parent"] != newest:
                raise Violation(f"S10 CutChain: the slice of {group} is made from {made['parent']}, not from {newest}")
            replaced = {other: self.cuts[other] for other in others(group, self.cuts)}
            named = {(group[0], each["bits"], each["bucket"]): each["cut"] for each in made.get("replaces", ())}
            if named != replaced:
                raise Violation(f"S10 CutChain: the slice of {group} replaces {named}, and there are {replaced}")
            for cut in (newest, *replaced.values()):
                if self._goes_back(cut, made["cut"]):
                    raise Violation(f"S10 CutChain: the slice of {group} goes back to {made['cut']} from {cut}")
            ended |= replaced
        for before in {*ended, *(other for group in groups for other in others(group, self.folded))}:
            if not is_filled(before, groups):
                raise Violation(f"S15 KeySingleHome: the new slices {groups} do not have all keys of {before}")
            self.cuts.pop(before, None)
            self.folded.pop(before, None)
        for group, made in zip(groups, slices, strict=True):
            self.cuts[group] = made["cut"]
            self.folded.pop(group, None)
            self._check_apart(group)
        self._end_lanes()

    def _goes_back(self, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Whether a cut lacks entries of an earlier one; a retired lane is the same in both."""
        return any(after.get(lane, 0) < seq for lane, seq in before.items() if lane not in self.retired)

    def _check_apart(self, group: Group) -> None:
        if found := [*others(group, self.cuts), *others(group, self.folded)]:
            raise Violation(f"S15 KeySingleHome: {group} has keys of {found}")

    def _check_fold(self, entry: Entry, parts: list[Mapping[str, Any]]) -> None:
        for part in parts:
            group = _group(part)
            base = self.cuts.get(group, {})
            reached = self.folded.get(group, base)
            if part["parent"] != base or part["start"] not in (base, reached):
                raise Violation(f"S11 ExactlyOnceFold: the fold of {group} begins at {part['start']}, not at {reached}")
            if self._goes_back(reached, entry["to"]):
                raise Violation(f"S11 ExactlyOnceFold: the fold of {group} goes back to {entry['to']} from {reached}")
            self.folded[group] = entry["to"]
            self._check_apart(group)
        self._end_lanes()

    def _intent(self, done: Entry) -> Entry:
        if self.intent is None or self.intent["seq"] != done["intent"]:
            raise Violation(f"L4: DONE {done['seq']} of a barrier that is not open")
        return self.intent

    def _done(self, entry: Entry, slices: list[Mapping[str, Any]], claims: Mapping[str, list[Entry]]) -> None:
        intent = self._intent(entry)
        first = {
            lane: next((c["seq"] for c in claims.get(lane, ()) if c["intent"] == intent["seq"]), None)
            for lane in intent["lanes"]
        }
        if entry["heads"] != first:
            raise Violation(f"L4: DONE {entry['seq']} has heads {entry['heads']}, but the barrier's claims are {first}")
        self.intent = None
        restore = intent["restore"]
        if restore is None:
            self.closed |= entry["heads"]
            self._end_lanes()
            return
        self.restorations.append(
            Restoration(
                done=entry["seq"],
                intent=intent["seq"],
                table=restore["table"],
                full=restore["label"].startswith("restore"),
                last_kept=restore["last_kept"],
                heads=entry["heads"],
                covered=restore["covered"],
                rolled_back={
                    lane: [(after, until) for after, until in spans] for lane, spans in restore["rolled_back"].items()
                },
            )
        )
        self.plans.clear()
        self.folded.clear()
        self.cuts = {_group(made): made["cut"] for made in slices}


def _group(part: Mapping[str, Any]) -> Group:
    return (part["partition"], part["bits"], part["bucket"])


def _reached(lanes: Mapping[str, int]) -> dict[str, int]:
    """A cut without lanes that have no entry in it, because naming them makes no difference."""
    return {lane: seq for lane, seq in lanes.items() if seq}
