"""The oracle: the semantics of MERGE.md in plain Python, slow and simple enough to be checked against that document by
reading.

It has no files, lanes, batches or compaction, only the *set* of accepted events. Every read computes the result from
all of them. Rows and results are dicts of Python values.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Row = Mapping[str, Any]

UPSERT_WORDS = {None, "upsert", "I", "U", "+I", "+U", "c", "u", "r", "insert", "update"}
DELETE_WORDS = {"delete", "D", "-D", "d"}
BEFORE_WORDS = {"-U", "update_before"}


@dataclass(frozen=True)
class Event:
    """An accepted input row. ``row`` has the columns that its batch had; ``op``: upsert, group, row, retract."""

    arrival: int
    position: int
    op: str
    row: Row


@dataclass(frozen=True)
class Register:
    """The state of one group of one key. ``values`` is None if the group is absent."""

    values: Row | None
    hides_row: bool = False


class Oracle:
    """Collects events and computes the rows that a reader must see."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.key: Sequence[str] = config["key"]
        self.groups: Mapping[str, Any] = config["groups"]
        self.streams: Mapping[str, Any] = config["streams"]
        given = {name: c if isinstance(c, Mapping) else {"type": c} for name, c in config["columns"].items()}
        self.types = {name: column["type"] for name, column in given.items()}
        self.defaults = {name: column.get("default") for name, column in given.items()}
        self.events: list[Event] = []

    def append(self, stream: str, rows: Iterable[Row], arrival: int) -> None:
        """Accept a batch; "Deletes": the policy is resolved at write time."""
        policy = self.streams[stream].get("on_delete", "group")
        for position, row in enumerate(rows):
            word = row.get("_op")
            assert word in UPSERT_WORDS | DELETE_WORDS | BEFORE_WORDS
            op = "upsert" if word in UPSERT_WORDS else policy if word in DELETE_WORDS else "retract"
            if op == "upsert" or policy != "ignore":
                self.events.append(Event(arrival, position, op, row))

    def erase(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Forget all events of some keys so far ("Erased keys"); later events of them are new data."""
        gone = set(keys)
        self.events = [event for event in self.events if self._key(event) not in gone]

    def rewrite(self, column: str, function: Callable[[Any], Any]) -> None:
        """Change the values of a column in all events so far ("Rewritten values"); their versions stay."""
        self.events = [
            event
            if event.row.get(column) is None
            else replace(event, row={**event.row, column: function(event.row[column])})
            for event in self.events
        ]

    def old_rows(self, group: str, column: str, before: Any) -> set[tuple[Any, ...]]:
        """Keys of the visible rows in which a column of a group that is present has a smaller value."""
        return {key for key, row in self.read([group]).items() if row[column] is not None and row[column] < before}

    def old_deletes(self, group: str, before: Any) -> set[tuple[Any, ...]]:
        """Keys of which only a delete of a group is known, whose first ordering value is smaller, or NULL."""
        declared = {name: {"ordering": [], "merge": "latest", **given} for name, given in self.groups.items()}
        found = set()
        for key in {self._key(event) for event in self.events}:
            known = {
                name: [
                    event
                    for event in self.events
                    if self._key(event) == key
                    and touches(event, given)
                    and (event.op != "retract" or given["merge"] == "aggregate")
                ]
                for name, given in declared.items()
            }
            ordering = declared[group]["ordering"]
            newest = max(known[group], key=lambda event: version(event, ordering), default=None)
            others = any(events for name, events in known.items() if name != group)
            if newest is not None and newest.op != "upsert" and not others:
                value = newest.row[ordering[0]]
                if value is None or value < before:
                    found.add(key)
        return found

    def expired(
        self, rows: int | None, deletes: int, committed: Mapping[int, int], by: tuple[str, str, Any] | None = None
    ) -> set[tuple[Any, ...]]:
        """Keys of the rows that are older than the time to live ("Time to live").

        Args:
            rows: Rows are old whose last event was committed before this time; None: rows do not expire.
            deletes: Deletes are old that were committed before this time.
            committed: Time of each commit, by its arrival.
            by: A group, one of its columns (or one of the key), and the value below which a row is old instead.
        """
        found = set()
        for key in {self._key(event) for event in self.events}:
            events = [event for event in self.events if self._key(event) == key]
            upserts, deleted, others = set(), set(), False
            for name in self.groups:
                group = {"ordering": [], "merge": "latest", **self.groups[name]}
                touching = sorted(
                    (event for event in events if touches(event, group)),
                    key=lambda event: version(event, group["ordering"]),
                )
                if group["merge"] != "aggregate":
                    touching = [event for event in touching if event.op != "retract"]
                if group["merge"] in {"latest", "latest_non_null"}:
                    last = touching[-1:]
                    if group["merge"] == "latest_non_null":
                        last += [event for event in touching if event.op != "upsert"][-1:]
                    deleted |= {committed[event.arrival] for event in last if event.op != "upsert"}
                else:
                    last = [event for event in touching if event.op == "upsert"][-1:]
                    # Nothing is kept of a group that has ordering columns alone, once its events are taken back.
                    others |= bool(touching) and set(group["columns"]) != set(group["ordering"])
                upserts |= {committed[event.arrival] for event in last if event.op == "upsert"}
            if any(at >= deletes for at in deleted):
                continue
            last_event = max(upserts | deleted, default=None)
            is_old = rows is not None and last_event is not None and last_event < rows
            if by is not None:
                group_name, column, limit = by
                register = self._register(group_name, events) if group_name else Register(events[0].row)
                if register.values is not None and register.values[column] is not None:
                    is_old = register.values[column] < limit
            if is_old or (deleted and not upserts and not others):
                found.add(key)
        return found

    def _key(self, event: Event) -> tuple[Any, ...]:
        return tuple(event.row[name] for name in self.key)

    def read(self, require: Iterable[str] = ()) -> dict[tuple[Any, ...], Row]:
        """The visible rows by key ("Row visibility")."""
        by_key: dict[tuple[Any, ...], list[Event]] = {}
        for event in self.events:
            by_key.setdefault(self._key(event), []).append(event)
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
                # A default is shown if the group is absent, not if an event supplied NULL.
                shown[column] = self.defaults[column] if register.values is None else register.values[column]
        return {name: shown[name] for name in self.types}

    def _register(self, name: str, events: Iterable[Event]) -> Register:
        group = {"ordering": [], "merge": "latest", **self.groups[name]}
        touching = [event for event in events if touches(event, group)]
        touching.sort(key=lambda event: version(event, group["ordering"]))
        if group["merge"] == "aggregate":
            return aggregate(group, touching, self.types)
        # An update-before row is dropped, except in aggregate groups.
        touching = [event for event in touching if event.op != "retract"]
        return MODES[group["merge"]](group, touching)


def touches(event: Event, group: Mapping[str, Any]) -> bool:
    """Neither a batch that omits a group nor an event whose ordering values are all NULL touches the group."""
    if not any(name in event.row for name in group["columns"]):
        return False
    return not group["ordering"] or any(event.row[name] is not None for name in group["ordering"])


def version(event: Event, ordering: Sequence[str]) -> tuple[Any, ...]:
    """(ordering tuple with NULLS FIRST, arrival, position); -0.0 equals 0.0 in Python as it does here."""
    return (tuple((event.row[name] is not None, event.row[name]) for name in ordering), event.arrival, event.position)


def latest(group: Mapping[str, Any], events: Sequence[Event]) -> Register:
    """The largest version wins the whole group; its NULLs are values; a delete makes the group absent."""
    if not events:
        return Register(values=None)
    winner = events[-1]
    if winner.op != "upsert":
        return Register(values=None, hides_row=winner.op == "row")
    return Register({name: winner.row[name] for name in group["columns"]})


def latest_non_null(group: Mapping[str, Any], events: Sequence[Event]) -> Register:
    """For each column, the largest upsert that supplies it, above the largest delete."""
    deletes = [i for i, event in enumerate(events) if event.op != "upsert"]
    upserts = events[deletes[-1] + 1 :] if deletes else events
    if not upserts:
        return Register(values=None, hides_row=bool(events) and events[-1].op == "row")
    values: dict[str, Any] = dict.fromkeys(group["columns"])
    for event in upserts:
        for name in group["columns"]:
            supplied = event.row.get(name) is not None or name in (event.row.get("_supplied") or ())
            if supplied or name in group["ordering"]:
                values[name] = event.row.get(name)
    return Register(values)


def aggregate(group: Mapping[str, Any], events: Sequence[Event], types: Mapping[str, str]) -> Register:
    """For each column, a function of all events; events other than upserts retract their values."""
    upserts = [event for event in events if event.op == "upsert"]
    if not upserts:
        return Register(values=None)
    values = {name: upserts[-1].row[name] for name in group["ordering"]}
    for name, given in group["functions"].items():
        function = given if isinstance(given, str) else next(iter(given))
        some = [event for event in events if event.row[name] is not None]
        if function in {"sum", "count"}:
            signed = [
                (event.row[name] if function == "sum" else 1) * (1 if event.op == "upsert" else -1) for event in some
            ]
            values[name] = fitting(exact_sum(signed), types[name]) if signed or function == "count" else None
        else:
            options = {} if isinstance(given, str) else given[function]
            plain = [event.row[name] for event in some]
            values[name] = FUNCTIONS[function](plain, **options) if plain else None
    return Register(values)


def exact_sum(values: Sequence[Any]) -> Any:
    with decimal.localcontext(prec=100):
        return sum(values)


def fitting(value: Any, type_name: str) -> Any:
    """NULL if a result does not fit its column."""
    if type_name.startswith("decimal"):
        precision, scale = (int(part) for part in type_name[len("decimal(") : -1].split(","))
        return value if value.copy_abs() < decimal.Decimal(10) ** (precision - scale) else None
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[type_name]
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def nan_last(value: Any) -> tuple[bool, Any]:
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def collect_set(values: Sequence[Any]) -> list[Any]:
    """Distinct (NaN equals NaN, -0.0 equals 0.0), sorted."""
    return [value for _, value in sorted({nan_last(value): value for value in values}.items())]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": lambda values: min(values, key=nan_last),
    "max": lambda values: max(values, key=nan_last),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "bool_and": all,
    "bool_or": any,
    "collect_set": collect_set,
    "collect_list": list,
    "listagg": lambda values, delimiter=",": delimiter.join(values),
}
"""Functions of the non-null values of the upserts in version order."""


def balance(group: Mapping[str, Any], events: Sequence[Event]) -> Register:
    """The merger of `tests.mergers`: present while upserts outnumber deletes; largest ``n``, newest ``t``."""
    upserts = [event for event in events if event.op == "upsert"]
    if 2 * len(upserts) <= len(events):
        return Register(values=None)
    values = {name: upserts[-1].row[name] for name in group["columns"]}
    for name in group["columns"]:
        if name.endswith("_n"):
            values[name] = max((event.row[name] for event in upserts if event.row[name] is not None), default=None)
    return Register(values)


MODES: Mapping[str, Callable[[Mapping[str, Any], Sequence[Event]], Register]] = {
    "latest": latest,
    "latest_non_null": latest_non_null,
    "tests.mergers:balance": balance,
}
"""Merge mode to a function of (group, events that touch it in version order)."""
