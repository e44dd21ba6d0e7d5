"""The table function `weft_changes('shop.orders_wide', since, until)`: rows that differ between two states of a table.

Its columns are those of `weft.Table.changes`: the columns of the table, `_change` and `_changed_groups`. Without
`until`, the changes of each query end at the snapshot of the table that the query reads.
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
"""Options of a relation of changes, the same as those of ``format("weft")``."""


def states_between(table: Table, since: str, until: str | None, newest: Snapshot) -> tuple[Snapshot | None, Snapshot]:
    """Take the two snapshots between which a query reads the changes.

    Args:
        table: The table.
        since: A time, a savepoint, a cut, or ``earliest``.
        until: The end of the changes, in the same forms; None for the snapshot of the query.
        newest: The snapshot of the table that the query reads.

    Returns:
        The earlier snapshot, None for changes since the table was created; and the later snapshot.

    Raises:
        TableError: See `weft.Table.snapshot`.
    """
    with expiring():
        earlier = None if since == EARLIEST else table.snapshot(parse_point(since))
        later = newest if until is None else table.snapshot(parse_point(until))
    return earlier, later


@dataclass(frozen=True)
class PinnedChanges(PinnedPlanner):
    """The planned changes of one query.

    All columns are read, whatever columns the query needs, because rows are compared by all columns.

    Attributes:
        scan: The scan that compares the two states.
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


def parse_arguments(arguments: Sequence[str | None]) -> tuple[str, dict[str, str]]:
    """Parse the arguments of a call of ``weft_changes``.

    Args:
        arguments: The arguments as text; NULL is None.

    Returns:
        The name of the table, and the options `SINCE` and `UNTIL`.

    Raises:
        InvalidInput: There are fewer than two or more than three arguments, or one of the first two is NULL.
    """
    table, since, until, *_ = (*arguments, None, None, None)
    if not 2 <= len(arguments) <= 3 or table is None or since is None:
        raise InvalidInput(
            "weft_changes needs a table and the point at which the changes begin",
            hint="write weft_changes('shop.orders_wide', since [, until]); a point is a time, a savepoint or a cut, "
            "and since may be 'earliest'",
        )
    return table, {SINCE: since} if until is None else {SINCE: since, UNTIL: until}
