"""Merge modes without a table: registers of parts of a history merge to the register of all events (S13, M3, M5).

Compactions may divide a history in any way: into any sets of commits, not only runs of them, merged in any order and
nesting. The result of a mode must not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.support.world import canonical, to_arrow
from tests.strategies import Append, Config, Story, stories
from weft.storage import mergers
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.merge.collapse import LogRange, collapse_group
from weft.storage.core.merge.events import prepare
from weft.storage.core.model import Group
from weft.storage.core.modes import Mergers, latest, merging_mode
from weft.storage.core.schema.table_schema import TableSchema

ONE_KEY = np.zeros(1, np.int64)


# No files are written, so many more histories can be tried.
@settings(max_examples=settings().max_examples * 6)
@given(stories(max_steps=10, max_rows=4, max_groups=2), st.data())
def test_merging_registers_of_parts_gives_the_register_of_all_events(story: Story, data: st.DataObject) -> None:
    mergers.allow("tests.mergers")
    schema = build_schema(load_config(story.config))
    loaded = mergers.load(schema, mergers.allowed())
    ranges = list(_ranges(story, schema))
    for group in schema.groups:
        touching = [log_range for log_range in ranges if group.id in log_range.groups]
        whole = _register(schema, group, touching, loaded)
        parts: list[list[LogRange]] = [[] for _ in range(data.draw(st.integers(1, 4), label="parts"))]
        for log_range in touching:
            parts[data.draw(st.integers(0, len(parts) - 1), label="part")].append(log_range)
        registers = [register for part in parts if (register := _register(schema, group, part, loaded)) is not None]
        while len(registers) > 1:
            # Either may be the older one: compactions read the logs of lanes in any order.
            chosen = data.draw(st.permutations(range(len(registers))), label="merged")[:2]
            old, new = (registers[i] for i in chosen)
            rest = [register for i, register in enumerate(registers) if i not in chosen]
            registers = [*rest, _merge(schema, group, old, new, loaded)]
        assert _shown(group, registers[0] if registers else None) == _shown(group, whole)


def _ranges(story: Story, schema: TableSchema) -> Iterator[LogRange]:
    """The commits with one key for all rows."""
    for arrival, append in enumerate(story.appends, start=1):
        batch = prepare(_batch(story.config, append), schema, schema.stream(append.stream))
        rows = batch.rows.combine_chunks()
        if len(rows):
            columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
            columns = {n: c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for n, c in columns.items()}
            arrivals = np.full(len(rows), arrival, np.int64)
            yield LogRange(np.zeros(len(rows), np.int64), [group.id for group in batch.groups], columns, arrivals)


def _batch(config: Config, append: Append) -> pa.Table:
    return to_arrow(config, append.rows, append.stream)


def _register(schema: TableSchema, group: Group, ranges: list[LogRange], loaded: Mergers) -> Arrays | None:
    """One register as it is stored in a slice: merged with nothing."""
    collapsed = collapse_group(ranges, schema, group, group.values, loaded)
    return None if collapsed is None else _merge(schema, group, _blank(schema, group), collapsed.columns, loaded)


def _blank(schema: TableSchema, group: Group) -> Arrays:
    fields = [*(schema.field(name) for name in group.columns), *schema.state_fields(group)]
    return {field.name: pa.nulls(1, field.type) for field in fields}


def _merge(schema: TableSchema, group: Group, old: Arrays, new: Arrays, loaded: Mergers) -> Arrays:
    mode = merging_mode(group, loaded)
    reads = mode.reads(group, schema.column_by_name, group.values)
    changed, merged = mode.merge(group, schema.column_by_name, ONE_KEY, {n: old[n] for n in reads}, new)
    return {**old, **merged} if changed.all() else old


def _shown(group: Group, register: Arrays | None) -> dict[str, Any]:
    """Values, and whether the group is present; of an absent group only a delete of the row counts."""
    if register is None:
        return {"present": False, "hides": None}
    present = register[names.arrival(group.id)][0].is_valid
    kind = register.get(names.floor_kind(group.id))
    values = {name: canonical(register[name][0].as_py()) if present else None for name in group.columns}
    return values | {"present": present, "hides": kind[0].as_py() if kind is not None and not present else None}


@given(st.lists(st.lists(st.sampled_from([-1.5, -0.0, 0.0, 2.5, float("nan")]), min_size=1, max_size=5), min_size=1))
def test_the_last_event_wins_among_equal_ordering_values(runs: list[list[float]]) -> None:
    lengths = np.array([len(run) for run in runs])
    rank, run = np.concatenate(runs), np.repeat(np.arange(len(runs)), lengths)
    starts = np.cumsum(lengths) - lengths
    for values in (rank, np.nan_to_num(rank, nan=9.0).astype(np.int64)):
        expected = np.lexsort((values, run))[np.cumsum(lengths) - 1]
        assert latest._last_of_largest(values, run, starts).tolist() == expected.tolist()
