"""Decides which stored version of one key wins in a column group, and why each other version loses.

The merge modes decide: the values of every version are replaced by its number, the mode merges the versions, and the
numbers in the result name the winners. Only the reasons are determined here; property tests compare them with an
independent oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weft.storage.core import names, ordering
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes import GroupEvents, MergeMode, find_mode, mode_of

_NUMBER: Final = f"{names.HIDDEN_PREFIX}number"
"""An additional value column, which every upsert supplies, to find the winner."""
_DELETES: Final = frozenset({Op.DELETE_GROUP, Op.DELETE_ROW})


class Result(StrEnum):
    """Result of a version: it wins its group or a column of it, it counts together with others, or it loses."""

    WINS = "wins"
    COUNTS = "counts"
    LOSES = "loses"


class Reason(StrEnum):
    """The reason of a result.

    NEWEST: it has the largest version, of the group or among the versions that supply the column.
    MERGED: the group is computed from all of its events.
    OLDER: its ordering value is smaller; in a group without ordering columns, it was committed earlier.
    TIE: its ordering value is equal, and it was committed earlier, or is earlier in the same commit.
    TOMBSTONE: a newer delete removes it.
    HIDDEN: it would win, but a delete of the row in another group hides the row.
    NO_ORDERING: all of its ordering values are NULL, so it does not touch the group.
    UPDATE_BEFORE: an update-before row, which only has an effect in aggregate groups.
    """

    NEWEST = "newest"
    MERGED = "merged"
    OLDER = "older"
    TIE = "tie"
    TOMBSTONE = "tombstone"
    HIDDEN = "hidden"
    NO_ORDERING = "no_ordering"
    UPDATE_BEFORE = "update_before"


@dataclass(frozen=True, slots=True)
class Version:
    """One event, or one version in a register, of a column group of the key.

    Attributes:
        arrival: Arrival of its commit; 0 for a merged result without an upsert.
        op: The operation; None for a merged result of several events.
        ordering: The value of each ordering column.
        supplied: The value columns for which it has a value. A NULL counts only if it was sent explicitly.
    """

    arrival: int
    op: Op | None
    ordering: tuple[Any, ...]
    supplied: frozenset[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one version, and its reason.

    Attributes:
        result: Whether the version wins.
        reason: The reason.
        columns: The columns of the row whose values come from the version.
    """

    result: Result
    reason: Reason
    columns: tuple[str, ...] = ()


def decide(group: Group, columns: Mapping[str, Column], versions: Sequence[Version]) -> list[Outcome]:
    """Decide the outcome of every version of one key in one group, in the order of ``versions``.

    Args:
        group: The column group.
        columns: The table's columns by name.
        versions: All stored versions, in (arrival, position) order; a delete that a register keeps comes before the
            upserts of its commit in the same register, because these are newer.
    """
    mode = mode_of(group)
    merges_all = mode.retracts or mode.runs_merger
    outcomes: dict[int, Outcome] = {}
    for number, version in enumerate(versions):
        if version.op is not None and group.ordering and all(value is None for value in version.ordering):
            outcomes[number] = Outcome(Result.LOSES, Reason.NO_ORDERING)
        elif version.op == Op.RETRACT and not mode.retracts:
            outcomes[number] = Outcome(Result.LOSES, Reason.UPDATE_BEFORE)
        elif merges_all:
            supplied = tuple(name for name in group.values if name in version.supplied)
            outcomes[number] = Outcome(Result.COUNTS, Reason.MERGED, supplied)
    contest = _Contest(group, columns, versions, [i for i in range(len(versions)) if i not in outcomes])
    if contest.numbers:
        outcomes |= contest.by_column(mode) if mode.accepts_partial else contest.whole()
    return [outcomes[number] for number in range(len(versions))]


def hide(versions: Sequence[Version], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes in a row that a delete hides: only deletes win."""
    return [
        outcome
        if outcome.result == Result.LOSES or (version.op in _DELETES and outcome.result == Result.WINS)
        else Outcome(Result.LOSES, Reason.HIDDEN)
        for version, outcome in zip(versions, outcomes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Contest:
    """The versions of one key that compete for a group. ``numbers`` are positions in ``versions``, ascending."""

    group: Group
    columns: Mapping[str, Column]
    versions: Sequence[Version]
    numbers: Sequence[int]

    def whole(self) -> dict[int, Outcome]:
        """The outcomes if one version wins the whole group."""
        winner = self._newest(self.numbers)
        deletes = self.versions[winner].op != Op.UPSERT
        rank = self._ranks()
        outcomes = {
            number: Outcome(Result.LOSES, Reason.TOMBSTONE if deletes else _older_or_tie(rank[number], [rank[winner]]))
            for number in self.numbers
        }
        return outcomes | {winner: Outcome(Result.WINS, Reason.NEWEST, () if deletes else self.group.columns)}

    def by_column(self, mode: MergeMode) -> dict[int, Outcome]:
        """The outcomes if every value column has its own winner among the upserts after the newest delete."""
        numbered_group = replace(self.group, columns=(*self.group.columns, _NUMBER))
        winners = self._find_winners(mode, numbered_group, self.numbers)
        top = winners.pop(_NUMBER)
        deletes = [number for number in self.numbers if self.versions[number].op in _DELETES]
        floor = self._newest(deletes) if deletes else None
        outcomes = {number: Outcome(Result.LOSES, Reason.TOMBSTONE) for number in self.numbers}
        if top is None:
            assert floor is not None, "a group without a visible upsert has a delete"
            return outcomes | {floor: Outcome(Result.WINS, Reason.NEWEST)}
        rank = self._ranks()
        for number in self.numbers:
            version = self.versions[number]
            below = floor is not None and self._newest(sorted({number, floor})) == floor
            if below and number != floor:
                continue
            winning_columns = {name for name, winner in winners.items() if winner == number}
            winning_columns.update(self.group.ordering if number == top else ())
            if winning_columns or number == top:
                supplies = tuple(name for name in self.group.columns if name in winning_columns)
                outcomes[number] = Outcome(Result.WINS, Reason.NEWEST, supplies)
            else:
                rivals = [winner for name in version.supplied if (winner := winners.get(name)) is not None]
                beaten_by = [rank[rival] for rival in rivals] if rivals and version.op == Op.UPSERT else [rank[top]]
                outcomes[number] = Outcome(Result.LOSES, _older_or_tie(rank[number], beaten_by))
        return outcomes

    def _newest(self, numbers: Sequence[int]) -> int:
        """The number of the largest version, whatever its operation."""
        latest = find_mode("latest")
        assert latest is not None, "the default mode"
        group = replace(self.group, columns=(*self.group.ordering, _NUMBER), merge="latest", functions=(), state=())
        newest = self._find_winners(latest, group, numbers, as_upserts=True)[_NUMBER]
        assert newest is not None, "some upsert wins"
        return newest

    def _find_winners(
        self, mode: MergeMode, group: Group, numbers: Sequence[int], *, as_upserts: bool = False
    ) -> dict[str, int | None]:
        """Number of the version whose value a mode shows, by value column of ``group``; None if the column is NULL."""
        versions = [self.versions[number] for number in numbers]
        columns = dict(self.columns) | {name: Column(0, name, pa.int64()) for name in group.values}
        values = {
            name: [
                number if name == _NUMBER or name in version.supplied else None
                for number, version in zip(numbers, versions, strict=True)
            ]
            for name in group.values
        }
        events = GroupEvents(
            keys=np.zeros(len(versions), np.int64),
            arrival=pa.array([version.arrival for version in versions], pa.int64()),
            op=pa.array([Op.UPSERT if as_upserts else version.op for version in versions], pa.int8()),
            ordering=dict(zip(group.ordering, self._ordering(versions), strict=True)),
            values={name: pa.array(tags, pa.int64()) for name, tags in values.items()},
            supplied={},
        )
        merged = mode.collapse(group, columns, events).columns
        return {name: merged[name][0].as_py() for name in group.values}

    def _ordering(self, versions: Sequence[Version]) -> list[pa.Array]:
        return [
            pa.array([version.ordering[position] for version in versions], self.columns[name].type)
            for position, name in enumerate(self.group.ordering)
        ]

    def _ranks(self) -> dict[int, float | None]:
        """Numbers that compare like the ordering values; all None if the group has no ordering columns."""
        if not self.group.ordering:
            return dict.fromkeys(self.numbers)
        ranks = ordering.ranks(self._ordering([self.versions[number] for number in self.numbers]))
        return dict(zip(self.numbers, ranks.tolist(), strict=True))


def _older_or_tie(rank: float | None, beaten_by: Sequence[float | None]) -> Reason:
    """Why a version with this rank loses to versions with the ranks ``beaten_by``."""
    return Reason.TIE if rank is not None and rank in beaten_by else Reason.OLDER
