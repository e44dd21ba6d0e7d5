"""Decides whether a row is visible: at least one group is present, and no delete hides the row (MERGE.md, "Rows")."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Mask
from weft.storage.core.model import Op
from weft.storage.core.schema.table_schema import TableSchema


def visible_rows(rows: Arrays, schema: TableSchema) -> Mask:
    """Mask of the merged rows that are visible.

    Args:
        rows: Slice columns, n rows: the sort column, and the arrival and the kind of the floor of every group.
        schema: The schema of the columns.

    Returns:
        n booleans: at least one group is present, and no group was deleted by a delete of the whole row.
    """
    present = np.zeros(len(rows[schema.sort_column]), np.bool_)
    is_deleted = np.zeros_like(present)
    for group in schema.groups:
        has_group = np.asarray(rows[names.arrival(group.id)].is_valid())
        present |= has_group
        kind = rows.get(names.floor_kind(group.id))  # not every mode has a floor
        if kind is not None and kind.null_count < len(kind):
            row_delete = np.asarray(pc.equal(kind, int(Op.DELETE_ROW)).fill_null(False))
            is_deleted |= row_delete & ~has_group
    return present & ~is_deleted
