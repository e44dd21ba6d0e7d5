"""The table of the read benchmarks: the history of three streams, as Parquet files for others and as commits for weft.

2 M keys x 63 columns by default: the key and three groups of about 20 columns (half bigint, half double or string),
each with an ordering column; a first full load, then 10 % of the keys updated in each group over 5 commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft import Table
from weft.storage.core.log.file_refs import FileRef

GROUPS = ("a", "b", "c")


@dataclass(frozen=True)
class Shape:
    keys: int = 2_000_000
    columns: int = 63
    updated: float = 0.1
    commits: int = 5
    buckets: int = 8
    seed: int = 7
    key_type: str = "bigint"
    words: int = 10_000
    hours: int = 1  # between commits; the events of one are spread over two

    def value_columns(self, group: str) -> list[tuple[str, str]]:
        """Name and type of a group's columns except its ordering column; the first groups may have one more."""
        kinds = ("bigint", "double", "bigint", "string")
        each, more = divmod(self.columns - 1, len(GROUPS))
        count = each + (GROUPS.index(group) < more) - 1
        return [(f"{group}{i}", kinds[i % 4]) for i in range(count)]

    def config(self) -> dict[str, Any]:
        columns: dict[str, str] = {"k": self.key_type}
        groups = {}
        for group in GROUPS:
            of_group = dict([*self.value_columns(group), (f"{group}_ts", "timestamp")])
            columns |= of_group
            groups[group] = {"columns": list(of_group), "ordering": [f"{group}_ts"]}
        return {
            "key": ["k"],
            "buckets": self.buckets,
            "columns": columns,
            "groups": groups,
            "streams": {group: {"groups": [group]} for group in GROUPS},
        }


def key_column(shape: Shape, keys: np.ndarray) -> pa.Array:
    """Numbers as keys; strings have 16 characters, like order numbers."""
    if shape.key_type == "bigint":
        return pa.array(keys)
    return pc.binary_join_element_wise("key", pc.utf8_lpad(pa.array(keys).cast(pa.string()), 12, "0"), "-")


def events(shape: Shape, group: str, keys: np.ndarray, moment: int, rng: np.random.Generator) -> pa.Table:
    """One batch of a stream: the given keys at about one time."""
    columns: dict[str, pa.Array] = {"k": key_column(shape, keys)}
    words = pa.array([f"word-{i:05d}" for i in range(shape.words)])
    for name, kind in shape.value_columns(group):
        if kind == "bigint":
            columns[name] = pa.array(rng.integers(0, 1_000_000, len(keys)))
        elif kind == "double":
            columns[name] = pa.array(rng.random(len(keys)))
        else:
            columns[name] = words.take(pa.array(rng.integers(0, len(words), len(keys))))
    # To the microsecond: two events of one key never tie, so the result of the join is unique, too.
    micros = moment * 3_600_000_000 + rng.integers(0, 7_200_000_000, len(keys))
    columns[f"{group}_ts"] = pa.array(micros).view(pa.timestamp("us", tz="UTC"))
    return pa.table(columns)


def batches(shape: Shape) -> Iterator[tuple[str, int, pa.Table]]:
    """(group, commit, rows): commit 0 is the full load."""
    rng = np.random.default_rng(shape.seed)
    for group in GROUPS:
        yield group, 0, events(shape, group, rng.permutation(shape.keys), 0, rng)
    for commit in range(1, shape.commits + 1):
        for group in GROUPS:
            keys = rng.choice(shape.keys, int(shape.keys * shape.updated / shape.commits), replace=False)
            yield group, commit, events(shape, group, keys, commit * shape.hours, rng)


def build(folder: Path, shape: Shape) -> Table:
    """The table with its load compacted and its updates in the log, and a folder of Parquet files for each stream.

    ``folder/table`` and ``folder/streams/<group>/<commit>.parquet``. Kept between runs if it is complete.
    """
    if (folder / "done").exists():
        return Table.open(folder / "table")
    table = Table.create(folder / "table", shape.config())
    with contextlib.ExitStack() as stack:
        writers = {group: stack.enter_context(table.writer(group)) for group in GROUPS}
        compacted = False
        for group, commit, rows in batches(shape):
            if commit and not compacted:
                table.compact()
                compacted = True
            path = folder / "streams" / group / f"{commit}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, path)
            writers[group].append(rows)
    (folder / "done").touch()
    return table


def base_files(table: Table) -> list[FileRef]:
    """Base files of a compacted table, each once, in the order of the file groups."""
    slices = [part.slice for part in table.snapshot().slices if part.slice is not None]
    return list({part.base.path: part.base for part in slices if part.base is not None}.values())
