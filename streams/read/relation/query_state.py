"""Which state of the table a scan sees: one for each query, whichever of its scans asks first.

A Spark query is a `QueryExecution`; its `QueryPlanningTracker` accompanies analysis and optimization on one JVM thread,
nested subqueries included, and no two queries share one. So the tracker *is* the query:

    spark.sql("SELECT ... FROM v a JOIN v b ... WHERE x IN (SELECT ... FROM v)")
      analysis      v -> pin() = state 7      v -> 7      v -> 7           all with tracker T
      optimization  scan of a -> 7   scan of b -> 7   scan in subquery -> 7

The tracker lives in the JVM and is known there by identity in a weak map, `tracker -> number`; `number -> state` is
kept here. Numbers whose tracker is gone are swept when there are more than SWEEP_AT, so the states that are held are
those of queries the JVM still has, never less. No lock is held while Spark or the planner is called: callbacks nest.
"""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from streams.read.relation.jvm import Jvm
from streams.read.relation.planner_interface import PinnedPlanner, Planner

__all__ = ["QueryState", "QueryStates"]

# Sweeping costs one call into the JVM; a handful of states is not worth it.
SWEEP_AT = 16


@dataclass(frozen=True)
class QueryState:
    """One query's state, and the scans already made of it: an equal scan is the same one, which Spark then reuses."""

    state: PinnedPlanner
    scans: dict[Any, Any] = field(default_factory=dict)


class QueryStates:
    """The pins of one view."""

    def __init__(self, jvm: Jvm, planner: Planner) -> None:
        self._jvm = jvm
        self._planner = planner
        self._numbers = jvm.weak_map()
        self._pins: dict[int, QueryState] = {}
        self._next_number = itertools.count(1)
        self._lock = threading.Lock()

    def current(self) -> QueryState:
        """The pin of the query that is being planned on this thread; a new one if it has none."""
        tracker = self._jvm.tracker()
        if tracker is None:
            return QueryState(self._planner.pin())
        number = self._numbers.getOrDefault(tracker, 0)
        if number:
            with self._lock:
                return self._pins[number]
        pin = QueryState(self._planner.pin())
        number = next(self._next_number)
        # First the JVM, then here: whatever is here and not there may be swept.
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
