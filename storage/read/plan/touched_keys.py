"""The keys that logs touch: which row groups of a base file must be read although no stored row in them matches.

Statistics show that no stored row of a row group is in the result, but a log may change a row so that it is. In most
merge modes a column of a merged row has the value of the base, the value of the log, or a constant where its group is
absent. So for a condition on one column that the base cannot fulfil, only keys matter whose value in the log fulfils
it:

    WHERE email = 'x'      base   [a ... f]  no email 'x'    [g ... m]  no email 'x'
                           logs      b: email 'y'               h: email 'x'
                                  not read: b is not 'x'     read: h may be in the result

The keys of a row group that is not read are merged as if they were new. The filter then removes them, because the value
is again that of the log or a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys
from weft.storage.core.arrays import take_rows
from weft.storage.core.keys import KeyVector
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.model import Group
from weft.storage.core.modes import mode_of
from weft.storage.core.predicate import And, Condition, RangeLookup, columns_of, may_hold, to_arrow
from weft.storage.core.schema.table_schema import TableSchema

_POSITION = "__weft_position"


@dataclass(slots=True)
class TouchedKeys:
    """The keys of the logs of a run of file groups.

    Attributes:
        schema: The schema of the snapshot.
        predicate: The filter.
        logs: The collapsed logs.
        groups: The merged groups.
    """

    schema: TableSchema
    predicate: Condition
    logs: LogState
    groups: Sequence[Group]
    _keys: KeyVector = field(init=False)
    _narrowed: list[tuple[Condition, KeyVector]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._keys = _ascending(self.schema, self.logs)

    def may_match(self, ranges: RangeLookup, bounds: KeyVector) -> bool:
        """Whether a touched key between two keys, inclusive, can be in the result.

        Args:
            ranges: Statistics of the stored rows between the two keys.
            bounds: The two keys.
        """
        if not keys.any_within(self._keys, bounds):
            return False
        if self._narrowed is None:
            # A merge function may refuse a log without its base.
            runs_code = any(mode_of(group).runs_merger for group in self.groups)
            self._narrowed = [] if runs_code else list(self._conditions())
        return all(
            may_hold(condition, ranges) or keys.any_within(possible, bounds) for condition, possible in self._narrowed
        )

    def _conditions(self) -> Iterator[tuple[Condition, KeyVector]]:
        """Conditions on single columns that a row must fulfil, each with the keys whose logs may fulfil it."""
        parts = self.predicate.conditions if isinstance(self.predicate, And) else (self.predicate,)
        for condition in parts:
            possible = self._possible_keys(condition)
            if possible is not None:
                yield condition, possible

    def _possible_keys(self, condition: Condition) -> KeyVector | None:
        """The keys whose value in the logs fulfils a condition; None if logs can make other keys fulfil it, too."""
        (name, *other_columns) = columns_of(condition) or ("",)
        group = self.schema.group_of_column.get(name)
        if other_columns or group is None or not mode_of(group).chooses_values:
            return None
        column = self.schema.column_by_name[name]
        try:
            expression = to_arrow(condition)
        except TypeError:  # only Arrow can evaluate the condition
            return None
        if len(_matching_positions(expression, name, pa.array([column.default, None], column.type))):
            return None
        registers = self.logs.registers.get(group.id)
        if registers is None:
            return keys.take(self._keys, slice(0, 0))
        matching_keys = keys.take(registers.keys, _matching_positions(expression, name, registers.columns[name]))
        return _ascending(self.schema, self.logs, matching_keys)


def _matching_positions(condition: pc.Expression, name: str, values: pa.Array) -> keys.Indices:
    """Positions of the values of a column that fulfil a condition on it."""
    numbered = pa.table({name: values, _POSITION: np.arange(len(values))})
    return np.asarray(numbered.filter(condition)[_POSITION])


def _ascending(schema: TableSchema, logs: LogState, selected: KeyVector | None = None) -> KeyVector:
    """Keys of the logs as base files have them, ascending; all, or only ``selected``."""
    if logs.run_keys is None:
        return logs.directory.keys if selected is None else selected
    columns = {schema.sort_column: logs.directory.columns[schema.sort_column]}
    if selected is not None:
        columns = take_rows(columns, keys.find(logs.directory.keys, selected)[0])
    return keys.in_order(keys.key_vector(columns[schema.sort_column]))[1]
