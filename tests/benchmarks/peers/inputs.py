"""Inputs and oracles, generated once for all systems.

Kinds of columns as in `tests.benchmarks.wide_table`: half of the values are bigint, half double or string. Ordering
values are bigint, microseconds, which every format can order by. In each batch every sixth row is older than the load,
so it must lose; rows of batches that follow each other overlap by an hour, so that some of the others must lose, too.
The oracle takes of each key and group the row with the highest ordering value, with NumPy, and knows no table format.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks.peers.dataset import KEY, Batch, Dataset
from tests.benchmarks.wide_table import GROUPS, Shape

HOUR: Final = 3_600_000_000
LOADED: Final = 5
"""The hour of the load: what is late has an earlier one."""
LATE: Final = 6
"""One of so many rows of a batch is late."""
_FILES: Final = 8
_WORDS: Final = 10_000
_HOT_COLUMNS: Final = 5
_COLD_GROUPS: Final = 3

Groups = Mapping[str, Mapping[str, str]]
"""Type by column, by group."""
Keys = Callable[[int, str, np.random.Generator], np.ndarray]
"""The keys of a batch, by its round and its group."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a dataset should have.

    Attributes:
        name: Of the dataset; sizes are added to the name of its folder.
        keys: Number of keys.
        buckets: Number of file groups.
        columns: Number of columns, with the key.
        rounds: Number of batches for each group that is updated.
        updated: Share of the keys that a batch updates.
    """

    name: str
    keys: int
    buckets: int
    columns: int
    rounds: int
    updated: float

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.keys}-{self.columns}-{self.rounds}-{self.buckets}"

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return max(1, int(self.keys * self.updated))


def wide(plan: Plan, folder: Path) -> Dataset:
    """A table of three groups; each is updated in every round, in random keys."""
    return _made(plan, folder, _wide_groups(plan), GROUPS, lambda _round, _group, rng: _some_keys(plan, rng))


def same_keys(plan: Plan, folder: Path) -> Dataset:
    """The same, but in a round two groups are updated in the very same keys: for writers at the same time."""
    chosen: dict[int, np.ndarray] = {}

    def keys(number: int, _group: str, rng: np.random.Generator) -> np.ndarray:
        if number not in chosen:
            chosen[number] = _some_keys(plan, rng)
        return chosen[number]

    return _made(plan, folder, _wide_groups(plan), GROUPS[:2], keys)


def one_hot_group(plan: Plan, folder: Path) -> Dataset:
    """A table of four groups; only the first one, of five columns, is updated, and in the same keys each time."""
    each = (plan.columns - 1 - _HOT_COLUMNS) // _COLD_GROUPS
    groups = {"hot": _value_columns("hot", _HOT_COLUMNS)}
    groups |= {f"cold{number}": _value_columns(f"cold{number}_", each) for number in range(_COLD_GROUPS)}
    hot = _some_keys(plan, np.random.default_rng(2))
    return _made(plan, folder, groups, ("hot",), lambda _round, _group, _rng: hot)


def _wide_groups(plan: Plan) -> Groups:
    shape = Shape(keys=plan.keys, columns=plan.columns)
    return {group: dict(shape.value_columns(group)) | {f"{group}_ts": "bigint"} for group in GROUPS}


def _value_columns(prefix: str, count: int) -> dict[str, str]:
    kinds = ("bigint", "double", "bigint", "string")
    return {f"{prefix}{i}": kinds[i % 4] for i in range(count - 1)} | {f"{prefix.rstrip('_')}_ts": "bigint"}


def _some_keys(plan: Plan, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(plan.keys, plan.rows, replace=False)


def _made(plan: Plan, folder: Path, groups: Groups, updated: tuple[str, ...], keys: Keys) -> Dataset:
    """The dataset of this plan below ``folder``; it is generated unless it is there."""
    place = folder / plan.folder
    with (folder / f"{plan.folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run with this folder may generate it now
        return Dataset.open(place) or _generated(plan, place, groups, updated, keys)


def _generated(plan: Plan, place: Path, groups: Groups, updated: tuple[str, ...], keys: Keys) -> Dataset:
    shutil.rmtree(place, ignore_errors=True)  # what another run has not finished
    rng = np.random.default_rng(7)
    everyone = rng.permutation(plan.keys)
    tables = {group: [_events(groups[group], everyone, LOADED, rng)] for group in groups}
    _write(_beside({group: parts[0] for group, parts in tables.items()}), place / "load", _FILES)
    batches = []
    for number in range(1, plan.rounds + 1):
        for group in updated:
            rows = _with_late_rows(_events(groups[group], keys(number, group, rng), 2 * LOADED + number, rng), rng)
            batch = Batch(number, group, f"updates/{group}/{number}.parquet")
            (place / batch.path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, place / batch.path)
            tables[group].append(rows)
            batches.append(batch)
    _write(_beside({group: newest(pa.concat_tables(parts)) for group, parts in tables.items()}), place / "oracle", 1)
    made = Dataset(place, plan.keys, plan.buckets, groups, batches)
    made.save()
    return made


def newest(events: pa.Table) -> pa.Table:
    """Of each key the row with the highest ordering value, which is in the last column; in the order of the keys."""
    keys, moments = events[KEY].to_numpy(), events.column(events.num_columns - 1).to_numpy()
    order = np.lexsort((moments, keys))
    last = np.append(np.diff(keys[order]) != 0, [True])
    return events.take(pa.array(order[last]))


def _events(columns: Mapping[str, str], keys: np.ndarray, hour: int, rng: np.random.Generator) -> pa.Table:
    *values, ordering = columns
    return pa.table(
        {KEY: pa.array(keys)}
        | {name: _values(columns[name], len(keys), rng) for name in values}
        # To the microsecond: two events of one key do not tie.
        | {ordering: pa.array(hour * HOUR + rng.integers(0, 2 * HOUR, len(keys)))}
    )


def _values(kind: str, count: int, rng: np.random.Generator) -> pa.Array:
    match kind:
        case "bigint":
            return pa.array(rng.integers(0, 1_000_000, count))
        case "double":
            return pa.array(rng.random(count))
        case "string":
            words = pa.array([f"word-{i:05d}" for i in range(_WORDS)])
            return words.take(pa.array(rng.integers(0, _WORDS, count)))
        case _:
            raise ValueError(kind)


def _with_late_rows(rows: pa.Table, rng: np.random.Generator) -> pa.Table:
    moments = rows.column(rows.num_columns - 1).to_numpy().copy()
    late = rng.permutation(len(moments))[: len(moments) // LATE]
    moments[late] = rng.integers(0, HOUR, len(late))
    return rows.set_column(rows.num_columns - 1, rows.column_names[-1], pa.array(moments))


def _beside(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Rows of all groups; their keys are in the same order."""
    columns: dict[str, pa.ChunkedArray] = {}
    for table in tables.values():
        if not pc.all(pc.equal(columns.get(KEY, table[KEY]), table[KEY])).as_py():
            raise ValueError("the groups have different keys")
        columns |= {name: table[name] for name in table.column_names}
    return pa.table(columns)


def _write(rows: pa.Table, folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number, (start, length) in enumerate(_parts(rows.num_rows, files)):
        pq.write_table(rows.slice(start, length), folder / f"{number}.parquet", compression="zstd")


def _parts(rows: int, files: int) -> Iterator[tuple[int, int]]:
    each = -(-rows // files)
    for start in range(0, rows, each):
        yield start, min(each, rows - start)
