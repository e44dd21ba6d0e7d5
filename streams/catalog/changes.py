"""`weft_changes('shop.orders_wide', since, until)`: rows that differ between two states, as a table function.

Its columns are those of `weft.Table.changes`: the columns of the table, `_change` and `_changed_groups`. It is live:
without `until` every query ends at the snapshot that it reads of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage import Snapshot, Table
from weft.storage.core.predicate import Condition
from weft.storage.errors import InvalidInput
from weft.storage.operations.points import EARLIEST, parse_point
from weft.storage.read.changes.change_scan import ChangeScan, expiring
from weft.storage.read.changes.plan import plan_changes
from weft.streams.read.relation.planner_interface import Part, PinnedPlanner, ReadPlan

SINCE, UNTIL = "changes_since", "changes_until"
"""Options of such a relation, the same as those of ``format("weft")``."""


def states_between(table: Table, since: str, until: str | None, newest: Snapshot) -> tuple[Snapshot | None, Snapshot]:
    """The states between which a query reads the changes; the first is None for changes from the beginning.

    Args:
        table: The table.
        since: A time, a savepoint, a cut, or ``earliest``.
        until: Where the changes end, in the same forms; None for the snapshot of the query.
        newest: The snapshot of the table that the query reads.

    Raises:
        TableError: See `weft.Table.snapshot`.
    """
    first = None if since == EARLIEST else parse_point(since)
    with expiring():
        earlier = None if first is None else table.snapshot(first)
        later = newest if until is None else table.snapshot(parse_point(until))
    return earlier, later


@dataclass(frozen=True)
class PinnedChanges(PinnedPlanner):
    """The planned changes of one query.

    Which rows differ depends on the columns that are compared, so all are read, whatever columns the query needs.
    """

    scan: ChangeScan

    @classmethod
    def between(cls, earlier: Snapshot | None, later: Snapshot, *, before: bool) -> PinnedChanges:
        """Plan the changes between two states, with the rows before them if ``before``. Raises as `plan_changes`."""
        return cls(plan_changes(earlier, later, None, None, before=before))

    def schema(self) -> StructType:
        return from_arrow_schema(self.scan.arrow)

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        del columns, filters, part
        return ReadPlan(f"weft changes, {len(self.scan.tasks)} tasks", self.scan.tasks, self.scan.without_tasks().read)


def changes_arguments(given: Sequence[str | None]) -> tuple[str, dict[str, str]]:
    """The table and the options of a call of ``weft_changes``.

    Args:
        given: The arguments as text; NULL is None.

    Raises:
        InvalidInput: There are too few or too many, or the table or the beginning is NULL.
    """
    table, since, *rest = (*given, None, None)
    if not 2 <= len(given) <= 3 or table is None or since is None:
        raise InvalidInput(
            "weft_changes needs a table and where the changes begin",
            hint="weft_changes('shop.orders_wide', since [, until]); a point is a time, a savepoint or a cut, "
            "and since may be 'earliest'",
        )
    until = rest[0]
    return table, {SINCE: since} if until is None else {SINCE: since, UNTIL: until}
