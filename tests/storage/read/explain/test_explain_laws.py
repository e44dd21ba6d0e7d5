"""Explanations of any row: the winner is what a read shows, and every loser has the reason that the oracle gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given

from tests.oracle import Event, touches, version
from tests.storage.support.world import World, canonical
from tests.strategies import Append, Story, stories
from weft.storage.errors import NotFound
from weft.storage.read.explain.explanation import Explanation, StoredVersion

Where = tuple[str, int]
"""Lane and slot of a commit."""


class ExplainedWorld(World):
    """Remembers the commit of every event of the oracle."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.commits: dict[int, Where] = {}

    def append(self, append: Append, batch: tuple[str, int] | None = None) -> Any:
        commit = super().append(append, batch)
        self.commits[self.arrival] = (commit.lane, commit.seq)
        return commit

    def known_keys(self) -> set[tuple[Any, ...]]:
        return {tuple(event.row[name] for name in self.config["key"]) for event in self.oracle.events}

    def events_of(self, key: tuple[Any, ...]) -> list[Event]:
        names = self.config["key"]
        found = [event for event in self.oracle.events if tuple(event.row[name] for name in names) == key]
        return [event for event in found if self.is_stored(event)]

    def is_stored(self, event: Event) -> bool:
        """Rows that change nothing are not stored: no group is touched, or no group takes values back."""
        groups = [{"ordering": [], "merge": "latest", **group} for group in self.config["groups"].values()]
        having = [group for group in groups if any(name in event.row for name in group["columns"])]
        if event.op == "retract" and not any(group["merge"] == "aggregate" for group in having):
            return False
        return any(touches(event, group) for group in having)


def reasons(events: Sequence[Event], group: Mapping[str, Any], *, hidden: bool) -> list[tuple[str, str]]:
    """Result and reason of every event of one key that has columns of a group, in version order; by MERGE.md."""
    given = {"ordering": [], "merge": "latest", **group}
    having = [event for event in events if any(name in event.row for name in given["columns"])]
    ordered = sorted(having, key=lambda event: (event.arrival, event.position))
    found: dict[int, tuple[str, str]] = {}
    competing: list[Event] = []
    for event in ordered:
        if not touches(event, given):
            found[id(event)] = ("loses", "no_ordering")
        elif event.op == "retract" and given["merge"] != "aggregate":
            found[id(event)] = ("loses", "update_before")
        elif given["merge"] not in {"latest", "latest_non_null"}:
            found[id(event)] = ("loses", "hidden") if hidden else ("counts", "merged")
        else:
            competing.append(event)
    competing.sort(key=lambda event: version(event, given["ordering"]))
    rule = _latest if given["merge"] == "latest" else _non_null
    for event, (result, reason) in zip(competing, rule(competing, given), strict=True):
        hides = hidden and result == "wins" and event.op == "upsert"
        found[id(event)] = ("loses", "hidden") if hides else (result, reason)
    return [found[id(event)] for event in ordered]


def _beaten(event: Event, rivals: Sequence[Event], ordering: Sequence[str]) -> tuple[str, str]:
    """Why an event lost to these."""
    mine = version(event, ordering)[0]
    tie = bool(ordering) and any(version(rival, ordering)[0] == mine for rival in rivals)
    return ("loses", "tie" if tie else "older")


def _latest(events: Sequence[Event], group: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not events:
        return []
    *losers, winner = events
    if winner.op != "upsert":
        return [("loses", "tombstone")] * len(losers) + [("wins", "newest")]
    return [*(_beaten(event, [winner], group["ordering"]) for event in losers), ("wins", "newest")]


def _supplies(event: Event, name: str) -> bool:
    return event.row.get(name) is not None or name in (event.row.get("_supplied") or ())


def _non_null(events: Sequence[Event], group: Mapping[str, Any]) -> list[tuple[str, str]]:
    deletes = [i for i, event in enumerate(events) if event.op != "upsert"]
    floor = deletes[-1] if deletes else -1
    if floor == len(events) - 1:
        return [("loses", "tombstone")] * max(floor, 0) + [("wins", "newest")] * bool(events)
    top = events[-1]
    values = [name for name in group["columns"] if name not in group["ordering"]]
    supplier = {
        name: next((event for event in reversed(events[floor + 1 :]) if _supplies(event, name)), None)
        for name in values
    }
    found = [("loses", "tombstone")] * max(floor, 0)
    if floor >= 0:
        found.append(_beaten(events[floor], [top], group["ordering"]))
    for event in events[floor + 1 :]:
        rivals = [supplier[name] for name in values if _supplies(event, name)] or [top]
        wins = event is top or any(event is winner for winner in supplier.values())
        found.append(("wins", "newest") if wins else _beaten(event, [r for r in rivals if r], group["ordering"]))
    return found


def winners(explanation: Explanation) -> set[tuple[Any, ...]]:
    """Which commit every column comes from, and which delete wins. A merged row has one version for one commit."""
    return {
        (one.group, one.lane, one.commit, one.operation, canonical(one.ordering), column)
        for one in explanation.versions
        if one.result == "wins"
        for column in (one.columns if one.operation == "upsert" else [None])
    }


def given_by(one: StoredVersion) -> dict[str, Any]:
    """The values of the row that come from a winner."""
    return {name: {**one.ordering, **one.values}.get(name) for name in one.columns}


def check(world: ExplainedWorld) -> None:
    """Check the explanations of every key, without and with history."""
    snapshot = world.table.snapshot()
    rows = {
        tuple(row[name] for name in world.config["key"]): row
        for row in snapshot.to_arrow().to_pylist(maps_as_pydicts="strict")
    }
    declared = {name: {"ordering": [], "merge": "latest", **group} for name, group in world.config["groups"].items()}
    for key in world.known_keys():
        events = world.events_of(key)
        if not events:
            with pytest.raises(NotFound):
                snapshot.explain(key, history=True)
            continue
        history = snapshot.explain(key, history=True)
        for name, group in declared.items():
            found = [(str(one.result), str(one.reason)) for one in history.of_group(name)]
            where = [(one.lane, one.commit) for one in history.of_group(name)]
            hidden = any(state.hides_row for state in history.groups)
            assert found == reasons(events, group, hidden=hidden), (key, name)
            having = [event for event in events if any(column in event.row for column in group["columns"])]
            assert where == [world.commits[event.arrival] for event in having]
        try:
            present = snapshot.explain(key)
        except NotFound:
            # Events without effect are gone after a compaction.
            assert key not in rows
            assert not winners(history)
            continue
        for explanation in (history, present):
            assert canonical(explanation.row) == canonical(rows.get(key))
            assert len(explanation.to_arrow()) == len(explanation.versions)
            assert explanation.to_text()
            for one in explanation.versions:
                if one.result == "wins" and explanation.row is not None:
                    expected = {name: explanation.row[name] for name in one.columns}
                    assert canonical(given_by(one)) == canonical(expected)
            for name, group in declared.items():
                if explanation.row is None or group["merge"] not in {"latest", "latest_non_null"}:
                    continue
                given = [column for one in explanation.of_group(name) for column in one.columns]
                assert len(given) == len(set(given)), "a column has two winners"
                state = next(state for state in explanation.groups if state.name == name)
                unsupplied = {c for c in group["columns"] if c not in given}
                assert state.state != "present" or all(explanation.row[column] is None for column in unsupplied)
        assert winners(present) == winners(history)
        for explanation in (history, present):
            check_aggregates(explanation, declared)


def check_aggregates(explanation: Explanation, declared: Mapping[str, Mapping[str, Any]]) -> None:
    """A column that shows one of its values comes from versions with that value; no other version gives it."""
    for name, group in declared.items():
        present = next(state for state in explanation.groups if state.name == name).state == "present"
        if explanation.row is None or group["merge"] != "aggregate" or not present:
            continue
        versions = explanation.of_group(name)
        assert len([one for one in versions if set(group["ordering"]) & set(one.columns)]) <= 1
        for column, declared_function in group["functions"].items():
            function = declared_function if isinstance(declared_function, str) else next(iter(declared_function))
            given = [one.values.get(column) for one in versions if column in one.columns]
            shown = explanation.row[column]
            if function in {"min", "max", "first", "last"}:
                assert bool(given) == (shown is not None), (column, function)
                assert all(canonical(value) == canonical(shown) for value in given), (column, function)
            if function in {"first", "last"}:
                assert len(given) <= 1
            if function in {"sum", "count"}:
                assert len(given) == sum(one.values.get(column) is not None for one in versions)


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8))
def test_the_winner_is_what_a_read_shows_and_losers_have_the_reason_of_the_oracle(story: Story) -> None:
    with ExplainedWorld(story.config) as world:
        world.run(story.steps)
        if world.oracle.events:
            check(world)
