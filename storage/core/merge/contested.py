"""Decides from statistics which registers of the logs are newer than everything that was compacted.

Most streams are nearly in order: most events in the logs are newer than the versions in base and shadow. A slice
records the largest first ordering value of each group. A register above it wins over any version of the slice. Only
other registers are *contested*, and compared with the older register. If a group has none, its older versions are not
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.keys import Mask
from weft.storage.core.log.file_refs import SliceFile
from weft.storage.core.model import Group
from weft.storage.core.modes import Registers, mode_of
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalars

Bounds = Mapping[int, pa.Scalar]
"""The largest first ordering value of some slices, by id of the column group; NULL if they have none."""


def stored_bounds(schema: TableSchema, groups: Iterable[Group], slices: Sequence[SliceFile | None]) -> Bounds:
    """The bounds of slices for the groups in which they can decide.

    These are groups in which a register with a larger first ordering value replaces all older versions
    (`weft.storage.core.modes.base.MergeMode.replaces`). Without ordering columns the arrival decides, and slices have
    no statistics of it.

    Args:
        schema: The schema of the registers.
        groups: The column groups to compute bounds for.
        slices: The slices; None for a file group that was never compacted.
    """
    bounds = {}
    for group in groups:
        maxima = [item.ordering_max for item in slices if item is not None and group.id in item.groups]
        if mode_of(group).replaces and group.ordering and all(group.id in largest for largest in maxima):
            ordering_type = schema.column_by_name[group.ordering[0]].type
            values = decode_scalars((largest[group.id] for largest in maxima), ordering_type)
            valid = [value for value in values if value is not None]
            bounds[group.id] = pa.scalar(max(valid) if valid else None, ordering_type)
    return bounds


def contested(group: Group, registers: Registers, bound: pa.Scalar) -> Mask:
    """Mask of the registers of the logs that may be older than a version of the slices. NULL is the smallest value."""
    columns = registers.columns
    arrival, versions = columns[names.arrival(group.id)], columns[group.ordering[0]]
    if arrival.null_count:  # of deletes
        versions = pc.if_else(arrival.is_valid(), versions, columns[names.floor_ordering(group.id, 0)])
    if not bound.is_valid:
        return np.asarray(versions.is_null())
    return np.asarray(pc.less_equal(versions, bound).fill_null(True))
