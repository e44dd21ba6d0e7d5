"""Decides which state of the table a scan sees: all scans of a query see the same state.

A Spark query is a `QueryExecution`. Its `QueryPlanningTracker` is set on one JVM thread during analysis and
optimization, nested subqueries included, and no two queries share one. So the tracker identifies the query:

    spark.sql("SELECT ... FROM v a JOIN v b ... WHERE x IN (SELECT ... FROM v)")
      analysis      v -> planner() = 7        v -> 7      v -> 7           all with tracker T
      optimization  scan of a -> 7   scan of b -> 7   scan in subquery -> 7

The tracker is a JVM object. A weak map in the JVM has `tracker -> number`, this module has `number -> state`. When
there are more than SWEEP_AT states, those are removed whose tracker the JVM has collected. So a state is kept at least
as long as its query exists. No lock is held while Spark or the planner is called, because callbacks nest.
"""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.planner_interface import PinnedPlanner, Planner

__all__ = ["QueryState", "QueryStates"]

# Removing states costs a call into the JVM, which is not worth it for a few of them.
SWEEP_AT = 16


@dataclass(frozen=True)
class QueryState:
    """The state of one query.

    Attributes:
        state: Plans the scans of the query.
        scans: The scans by their parameters. Spark reads two equal scans only once if they are the same object.
        prepared: Logical plans over the state that are not used yet.
    """

    state: PinnedPlanner
    scans: dict[Any, Any] = field(default_factory=dict)
    prepared: list[Any] = field(default_factory=list)


class QueryStates:
    """The states of the queries over one view."""

    def __init__(self, jvm: Jvm, planner: Planner) -> None:
        self._jvm = jvm
        self._planner = planner
        self._numbers = jvm.weak_map()
        self._pins: dict[int, QueryState] = {}
        self._next_number = itertools.count(1)
        self._lock = threading.Lock()

    def current(self) -> QueryState:
        """Return the state of the query that is planned on this thread; the first call of a query takes the newest."""
        tracker = self._jvm.tracker()
        if tracker is None:
            return QueryState(self._planner())
        number = self._numbers.getOrDefault(tracker, 0)
        if number:
            with self._lock:
                return self._pins[number]
        pin = QueryState(self._planner())
        number = next(self._next_number)
        # Put into the map of the JVM first: `_sweep` removes numbers that are in `_pins` alone.
        with self._lock:
            crowded = len(self._pins) >= SWEEP_AT
        if crowded:
            self._sweep()
        self._numbers.put(tracker, number)
        with self._lock:
            self._pins[number] = pin
        return pin

    def _sweep(self) -> None:
        with self._lock:
            candidates = set(self._pins)
        alive = {int(number) for number in re.findall(r"=(\d+)", self._numbers.toString())}
        with self._lock:
            for number in candidates - alive:
                del self._pins[number]
