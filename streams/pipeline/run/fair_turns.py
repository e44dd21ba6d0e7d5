"""Decides whose turn it is: shares one worker between tables by the bytes that they read. Pure; uses no clock.

This is deficit round robin. Tables take turns in a fixed order. At each turn a table gets a credit of ``quantum``
bytes, and runs steps while its credit is positive. A step cannot be interrupted, so the credit may become negative;
then the table misses turns. Between two turns of a table that has work and no negative credit, every other table reads
at most ``quantum`` bytes plus the rest of one step. Tables that always have work read equally much in the long run,
whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairTurns(Generic[K]):
    """The order of turns."""

    def __init__(self, names: Iterable[K], quantum: int) -> None:
        """Start before the first turn.

        Args:
            names: Names of the tables, in the order of their turns.
            quantum: Credit for a turn, in bytes.
        """
        self._order = list(names)
        self._quantum = quantum
        self._credit = dict.fromkeys(self._order, 0)
        self._at = len(self._order) - 1

    def next(self, has_work: Callable[[K], bool]) -> K | None:
        """The table that runs the next step; None if no table has work."""
        if not self._order:
            return None
        current = self._order[self._at]
        if self._credit[current] > 0 and has_work(current):
            return current
        waiting = {name for name in self._order if has_work(name)}
        # Credit cannot be saved up: a table without work loses it.
        for name in self._order:
            if name == current or name not in waiting:
                self._credit[name] = min(self._credit[name], 0)
        while waiting:
            self._at = (self._at + 1) % len(self._order)
            name = self._order[self._at]
            if name in waiting:
                self._credit[name] += self._quantum
                if self._credit[name] > 0:
                    return name
        return None

    def charge(self, name: K, cost: int) -> None:
        """Subtract the bytes that a step of a table has read from its credit."""
        self._credit[name] -= cost
