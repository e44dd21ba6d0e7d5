"""The oracle: MERGE semantics in plain Python, slow and obviously right. To be checked by eye against that page.

It knows nothing of files, lanes, batches or compaction: only the *set* of events that were accepted. The answer is
computed anew from all of them at every read. Rows and answers are dicts of Python values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

UPSERT_WORDS = {None, "upsert", "I", "U", "+I", "+U", "c", "u", "r", "insert", "update"}
DELETE_WORDS = {"delete", "D", "-D", "d"}
BEFORE_WORDS = {"-U", "update_before"}


@dataclass(frozen=True)
class Event:
    """One accepted input row. ``row`` has exactly the columns that its batch had; ``op``: upsert, group or row."""

    arrival: int
    position: int
    op: str
    row: Row


@dataclass(frozen=True)
class Register:
    """What is known of one group of one key. ``values`` is None where the group is absent."""

    values: Row | None
    hides_row: bool


class Oracle:
    """Collects events, answers reads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.key: Sequence[str] = config["key"]
        self.groups: Mapping[str, Any] = config["groups"]
        self.streams: Mapping[str, Any] = config["streams"]
        self.columns: Sequence[str] = list(config["columns"])
        self.defaults = {
            name: given["default"] if isinstance(given, Mapping) else None for name, given in config["columns"].items()
        }
        self.events: list[Event] = []

    def append(self, stream: str, rows: Iterable[Row], arrival: int) -> None:
        """Accept a batch; "Deletes": the policy is resolved at write time."""
        policy = self.streams[stream].get("on_delete", "group")
        for position, row in enumerate(rows):
            word = row.get("_op")
            assert word in UPSERT_WORDS | DELETE_WORDS | BEFORE_WORDS
            if word in BEFORE_WORDS or (word in DELETE_WORDS and policy == "ignore"):
                continue
            self.events.append(Event(arrival, position, policy if word in DELETE_WORDS else "upsert", row))

    def read(self, require: Iterable[str] = ()) -> dict[tuple[Any, ...], Row]:
        """The table: per key its row, where it is visible ("Row visibility")."""
        by_key: dict[tuple[Any, ...], list[Event]] = {}
        for event in self.events:
            by_key.setdefault(tuple(event.row[name] for name in self.key), []).append(event)
        answer = {}
        for key, events in by_key.items():
            registers = {name: self._register(name, events) for name in self.groups}
            present = {name for name, register in registers.items() if register.values is not None}
            hidden = any(register.hides_row for register in registers.values())
            if present and not hidden and present.issuperset(require):
                answer[key] = self._row(key, registers)
        return answer

    def _row(self, key: tuple[Any, ...], registers: Mapping[str, Register]) -> Row:
        shown = dict(zip(self.key, key, strict=True))
        for name, register in registers.items():
            for column in self.groups[name]["columns"]:
                # A default is shown where the group is absent, not where an event supplied NULL.
                shown[column] = self.defaults[column] if register.values is None else register.values[column]
        return {name: shown[name] for name in self.columns}

    def _register(self, name: str, events: Iterable[Event]) -> Register:
        group = self.groups[name]
        ordering = group.get("ordering", [])
        touching = [event for event in events if touches(event, group["columns"], ordering)]
        touching.sort(key=lambda event: version(event, ordering))
        return MODES[group.get("merge", "latest")](group, touching)


def touches(event: Event, columns: Sequence[str], ordering: Sequence[str]) -> bool:
    """A batch that omits a group does not touch it; nor does an event whose ordering values are all NULL."""
    if not all(name in event.row for name in columns):
        return False
    return not ordering or any(event.row[name] is not None for name in ordering)


def version(event: Event, ordering: Sequence[str]) -> tuple[Any, ...]:
    """(ordering tuple with NULLS FIRST, arrival, position); -0.0 equals 0.0 in Python as it does here."""
    return (tuple((event.row[name] is not None, event.row[name]) for name in ordering), event.arrival, event.position)


def latest(group: Mapping[str, Any], events: Sequence[Event]) -> Register:
    """The largest version wins the whole group; its NULLs are values; a delete makes the group absent."""
    if not events:
        return Register(values=None, hides_row=False)
    winner = events[-1]
    if winner.op != "upsert":
        return Register(values=None, hides_row=winner.op == "row")
    return Register({name: winner.row[name] for name in group["columns"]}, hides_row=False)


MODES: Mapping[str, Callable[[Mapping[str, Any], Sequence[Event]], Register]] = {"latest": latest}
"""Merge mode to a function of (group, events that touch it in version order)."""
