"""Whose turn it is: shares one worker between tables by the bytes that they read. Pure; knows no clock.

It is deficit round robin. Tables take turns in a fixed order. At each turn a table is credited with ``quantum`` bytes,
and works, step by step, while its credit is positive. A step cannot be interrupted, so a table may be in debt
afterwards, and pays by missing turns. So between two turns of a table that has work and no debt, every other table
reads at most ``quantum`` bytes and the rest of one step. Two tables that always have work read the same in the long
run, however large they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairTurns(Generic[K]):
    """The order of turns."""

    def __init__(self, names: Iterable[K], quantum: int) -> None:
        """Nobody has had a turn.

        Args:
            names: Those who take turns, in this order.
            quantum: Credit for a turn, in bytes.
        """
        self._order = list(names)
        self._quantum = quantum
        self._credit = dict.fromkeys(self._order, 0)
        self._at = len(self._order) - 1

    def next(self, has_work: Callable[[K], bool]) -> K | None:
        """Whose step is next; None if nobody has work."""
        if not self._order:
            return None
        current = self._order[self._at]
        if self._credit[current] > 0 and has_work(current):
            return current
        waiting = {name for name in self._order if has_work(name)}
        # Credit is for those who wait: it cannot be saved up.
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
        """A step of somebody has read so many bytes."""
        self._credit[name] -= cost
