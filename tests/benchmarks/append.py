"""How soon new values of one column group are visible: weft's append against a MERGE of Delta Lake, from one run.

    pip install deltalake
    python -m tests.benchmarks.append [--keys 2000000] [--rows 40000] [--rounds 5] [--folder DIR]

A wide table (63 columns by default) is there as a weft table, compacted, and as a Delta table with the same rows. Each
round sends the same ``rows`` new events of one group to both, of keys all over the table. *weft*: the append until its
commit is durable, then another reader that opens the table anew, plans a snapshot and looks one of the keys up, which
must show the new value. *Delta*: ``MERGE ... WHEN MATCHED UPDATE ... WHEN NOT MATCHED INSERT`` with ``deltalake``
until it is committed; nothing is read. Medians; the first round is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage import Table
from storage.writer import Writer
from tests.benchmarks.wide_table import GROUPS, Shape, build, events

try:
    from deltalake import DeltaTable, write_deltalake
except ImportError:
    sys.exit("this benchmark compares with Delta Lake: pip install deltalake")

GROUP = GROUPS[0]
TARGET = 30.0
PARTS = ("append", "open", "plan", "look-up")


def show(uri: Path, writer: Writer, rows: pa.Table) -> dict[str, float]:
    """Seconds of each part of making new rows visible; the reader knows nothing of the table before."""
    key, value = rows["k"][0].as_py(), rows[f"{GROUP}_ts"][0].as_py()
    moments = [time.perf_counter()]
    writer.append(rows)
    moments.append(time.perf_counter())
    snapshot = Table.open(uri).snapshot()
    moments.append(time.perf_counter())
    snapshot.scan([f"{GROUP}_ts"])
    moments.append(time.perf_counter())
    found = snapshot.get([key], [f"{GROUP}_ts"])
    moments.append(time.perf_counter())
    if found.to_pylist() != [{f"{GROUP}_ts": value}]:
        raise SystemExit(f"key {key}: {found.to_pylist()} instead of {value}")
    return dict(zip(PARTS, np.diff(moments).tolist(), strict=True))


def merge(delta: DeltaTable, rows: pa.Table) -> float:
    started = time.perf_counter()
    columns = {name: f"s.{name}" for name in rows.column_names}
    update = {name: value for name, value in columns.items() if name != "k"}
    (
        delta.merge(rows, predicate="t.k = s.k", source_alias="s", target_alias="t")
        .when_matched_update(update)
        .when_not_matched_insert(columns)
        .execute()
    )
    return time.perf_counter() - started


def compare(folder: Path, shape: Shape, count: int, rounds: int) -> tuple[dict[str, float], float]:
    """Median seconds of weft's parts, and of the MERGE."""
    built = build(folder / "data", shape)
    for name in ("weft", "delta"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "data" / "table", folder / "weft")
    table = Table.open(folder / "weft")
    table.compact()
    write_deltalake(str(folder / "delta"), built.snapshot().to_arrow())
    delta = DeltaTable(str(folder / "delta"))
    chance = np.random.default_rng(shape.seed)
    parts, merges = [], []
    with table.writer(GROUP) as writer:
        for number in range(rounds + 1):
            keys = chance.choice(shape.keys, count, replace=False)
            rows = events(shape, GROUP, keys, shape.commits + 2 + number, chance)
            own, other = show(folder / "weft", writer, rows), merge(delta, rows)
            if number:
                parts.append(own)
                merges.append(other)
    return {name: statistics.median(part[name] for part in parts) for name in PARTS}, statistics.median(merges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    shape = Shape(keys=asked.keys)
    try:
        parts, merged = compare(folder, shape, min(asked.rows, asked.keys), asked.rounds)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder)
    print(f"{asked.keys:,} keys x {shape.columns} columns, {asked.rows:,} new rows of one group")
    for name in PARTS:
        print(f"weft, {name:10s} {parts[name] * 1000:8.1f} ms")
    own = sum(parts.values())
    print(f"weft, in all     {own * 1000:8.1f} ms")
    print(
        f"Delta, MERGE     {merged * 1000:8.1f} ms   weft is {merged / own:.1f} x sooner (target: at least {TARGET:g})"
    )


if __name__ == "__main__":
    main()
