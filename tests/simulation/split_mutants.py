"""Mutants of splits: which rows belong to a part, which slices replace which, and who reads which logs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from tests.simulation.log_mutants import all_offered
from tests.simulation.mutant import Mutant
from weft.storage.core.log.regroup import reached
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan import regroup_ranges
from weft.storage.files import log_reader
from weft.storage.services.compaction import compaction, compaction_task
from weft.storage.services.verify.check_lanes import MergedEntries

THEME: Final = "splits"


def everything(_: Any) -> Any:
    return lambda schema, rows, group: np.ones(len(next(iter(rows.values()))), np.bool_)


def all_rows(_: Any) -> Any:
    return lambda schema, stitched, parts: [stitched] * len(parts)


def only_slices(merged_parts: Any) -> Any:
    def broken(slices: Any, chosen: Any, bits: int) -> Any:
        found = merged_parts(slices, chosen, bits)
        return {target: [each for each in parts if each.slice] or parts for target, parts in found.items()}

    return broken


def as_fine_as_the_log(file_groups: Any) -> Any:
    return lambda group, levels, finest, has: file_groups(group, levels, group.bits, has)


def one_after_the_other(_: Any) -> Any:
    return lambda schema, streams: itertools.chain(*streams)


def an_even_one(buckets: Any) -> Any:
    return lambda schema, rows, bits: buckets(schema, rows, bits) & ~1


def in_the_order_of_the_old_ones(keys: Any) -> Any:
    return SimpleNamespace(key_vector=keys.key_vector, stable_order=lambda vector: np.arange(len(vector)))


def of_the_schema(_: Any) -> Any:
    return property(lambda self: frozenset({self.schema.bucket_bits}))


def wants_every_part(_: Any) -> Any:
    def broken(self: MergedEntries, group: Any, entry: Any, _file: Any) -> bool:
        ends = (until.get(entry.lane, 0) for until in reached(self._until, self._levels, group))
        return bool(entry.seq > min(ends, default=0))

    return broken


SPLITS: Final[Mapping[str, Mutant]] = {
    "S15 a part has the rows of the others": Mutant(compaction_task, "rows_of_parts", all_rows, THEME),
    "S15 a row is in the part of another bucket": Mutant(compaction_task, "buckets", an_even_one, THEME),
    "S11 every part reads all rows of older buckets": Mutant(log_reader, "in_bucket", everything, THEME),
    "S15 slices are published beside their parts": Mutant(compaction, "may_follow", all_offered, THEME),
    "G2 logs without a slice are not merged": Mutant(compaction, "merged_parts", only_slices, THEME, rare=True),
    "G3 logs are read in the buckets of their writer": Mutant(
        regroup_ranges, "_file_groups", as_fine_as_the_log, THEME
    ),
    "G3 file groups of other buckets are overlooked": Mutant(TableState, "levels", of_the_schema, THEME),
    "S8 verify takes a part without rows for a lost one": Mutant(MergedEntries, "_lacks", wants_every_part, "verified"),
    "G2 merged rows are not in order": Mutant(compaction_task, "merge_sorted", one_after_the_other, THEME),
    "G2 rows that are merged together are not in order": Mutant(
        compaction_task, "keys", in_the_order_of_the_old_ones, THEME, rare=True
    ),
}
