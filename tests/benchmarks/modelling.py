"""What choices of a table's design cost: each against the choice that the guide recommends, in one run, without Spark.

    python -m tests.benchmarks.modelling [--keys 20000] [--rounds 5]

Bytes, rows and requests do not depend on the machine. CPU seconds are medians of rounds in which both take turns.

- *two sources in one group*: orders and payments with one ordering, in place of a group each. Rows that differ.
- *hot columns beside cold ones*: 2 columns change in 1 % of the rows. In a group of 42 columns an event carries all of
  them. Bytes of the log, and bytes that a compaction with overlays writes.
- *small commits*: the same events in commits of 20 rows, in place of 1,000. Bytes of the log, CPU of a read, objects.
- *a text as key*: UUIDs in place of integers. Stored bytes, CPU of a read with a log.
- *a key with the time in it*: each update is a new row. Rows and stored bytes after ten updates of a tenth of the keys.
- *latest_non_null everywhere*, in place of latest: CPU of a read with a log, bytes.
- *collect_list*, in place of count: stored bytes after ten events for each key.
- *too many file groups*: 256 in place of 4. Bytes and CPU of a read.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft import Table, Writer

Batches = Iterable[tuple[str, pa.Table]]


class Bench:
    """Tables in a temporary folder, and the two clocks."""

    def __init__(self, folder: Path, keys: int, rounds: int) -> None:
        self.folder, self.keys, self.rounds = folder, keys, rounds
        self.rng = np.random.default_rng(1)

    def table(self, name: str, groups: Mapping[str, Mapping[str, Any]], types: Mapping[str, str], **more: Any) -> Table:
        config = {
            "key": ["k"],
            "buckets": 4,
            "columns": types,
            "groups": groups,
            "streams": {"s": {"groups": list(groups)}},
        }
        return Table.create(self.folder / name.replace(" ", "_"), config | more)

    def fill(self, table: Table, batches: Batches) -> Table:
        with contextlib.ExitStack() as writers:
            opened: dict[str, Writer] = {}
            for stream, rows in batches:
                if stream not in opened:
                    opened[stream] = writers.enter_context(table.writer(stream))
                opened[stream].append(rows)
        return table

    def cpu(self, tables: Mapping[str, Table], columns: list[str]) -> dict[str, float]:
        seconds: dict[str, list[float]] = {name: [] for name in tables}
        for number in range(self.rounds + 1):  # the first warms up
            for name, table in tables.items():
                start = time.process_time()
                table.snapshot().to_arrow(columns)
                if number:
                    seconds[name].append(time.process_time() - start)
        return {name: statistics.median(values) for name, values in seconds.items()}


def log_bytes(table: Table) -> int:
    return sum(each.log_bytes for each in table.snapshot().slices)


def base_bytes(table: Table) -> int:
    return sum(each.base_bytes for each in table.snapshot().slices)


def objects(table: Table) -> int:
    return sum(1 for path in Path(table.uri.removeprefix("file://")).rglob("*") if path.is_file())


def say(title: str, what: str, good: float, bad: float, unit: str = "") -> None:
    print(f"{title}: {what}: {good:,.4g}{unit} -> {bad:,.4g}{unit}, {bad / max(good, 1e-9):.2f} x", flush=True)


def one_group(bench: Bench) -> None:
    n, keys = bench.keys, np.arange(bench.keys)
    status, paid = (pa.array(bench.rng.integers(0, 1_000, n)) for _ in range(2))
    order_ts, pay_ts = (pa.array(bench.rng.integers(0, 1_000, n)) for _ in range(2))
    types = {"k": "bigint", "status": "bigint", "order_ts": "bigint", "paid": "bigint", "pay_ts": "bigint"}
    two = {
        "order": {"columns": ["status", "order_ts"], "ordering": ["order_ts"]},
        "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"]},
    }
    streams = {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}}
    right = bench.table("two groups", two, types, streams=streams)
    orders = pa.table({"k": keys, "status": status, "order_ts": order_ts})
    payments = pa.table({"k": keys, "paid": paid, "pay_ts": pay_ts})
    bench.fill(right, [("orders", orders), ("payments", payments)])
    one = {"all": {"columns": ["status", "paid", "ts"], "ordering": ["ts"]}}
    kinds = {"k": "bigint", "status": "bigint", "paid": "bigint", "ts": "bigint"}
    wrong = bench.table("one group", one, kinds)
    nothing = pa.nulls(n, pa.int64())
    bench.fill(
        wrong,
        [
            ("s", pa.table({"k": keys, "status": status, "paid": nothing, "ts": order_ts})),
            ("s", pa.table({"k": keys, "status": nothing, "paid": paid, "ts": pay_ts})),
        ],
    )
    answers = [table.snapshot().to_arrow(["k", "status", "paid"]).sort_by("k") for table in (right, wrong)]
    same = pc.and_kleene(*(pc.equal(answers[0][name], answers[1][name]) for name in ("status", "paid")))
    differ = n - (pc.sum(pc.fill_null(same, fill_value=False)).as_py() or 0)
    print(f"two sources in one group: wrong rows: 0 -> {differ:,} of {n:,}", flush=True)


def hot_columns(bench: Bench) -> None:
    n, cold, hot = bench.keys, [f"c{i}" for i in range(40)], ["h0", "h1"]
    types = {"k": "bigint", "ts": "bigint", "hot_ts": "bigint"} | dict.fromkeys(cold + hot, "bigint")
    apart = {
        "cold": {"columns": [*cold, "ts"], "ordering": ["ts"]},
        "hot": {"columns": [*hot, "hot_ts"], "ordering": ["hot_ts"]},
    }
    together = {"all": {"columns": [*cold, *hot, "ts", "hot_ts"], "ordering": ["ts"]}}
    values = {name: bench.rng.integers(0, 1 << 30, n) for name in cold + hot}
    rows = pa.table({"k": np.arange(n), "ts": np.zeros(n, int), "hot_ts": np.zeros(n, int), **values})
    chosen = np.sort(bench.rng.choice(n, n // 100, replace=False))
    changed = rows.take(chosen)
    for name in ("ts", "hot_ts"):
        changed = changed.set_column(changed.column_names.index(name), name, pa.array(np.ones(len(chosen), int)))
    found = {}
    for name, groups in (("apart", apart), ("together", together)):
        table = bench.table(f"hot {name}", groups, types, buckets=1, overlays=True)
        bench.fill(table, [("s", rows)])
        table.compact()
        bench.fill(table, [("s", changed.select(["k", *hot, "hot_ts"]) if name == "apart" else changed)])
        found[name] = (log_bytes(table), table.compact().bytes_written)
    title = "hot columns beside cold ones"
    say(title, "bytes of the log", found["apart"][0], found["together"][0])
    say(title, "bytes that a compaction writes", found["apart"][1], found["together"][1])


def small_commits(bench: Bench) -> None:
    n = bench.keys // 2
    types = {"k": "bigint", "v": "bigint", "ts": "bigint"}
    groups = {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}}
    rows = pa.table({"k": bench.rng.permutation(n), "v": np.arange(n), "ts": np.arange(n)})
    tables = {}
    for name, size in (("large commits", 1_000), ("small commits", 20)):
        table = bench.table(name, groups, types)
        bench.fill(table, (("s", rows.slice(start, size)) for start in range(0, n, size)))
        tables[name] = table
    good, bad = tables
    say("small commits", "bytes of the log", log_bytes(tables[good]), log_bytes(tables[bad]))
    say("small commits", "objects", objects(tables[good]), objects(tables[bad]))
    cpu = bench.cpu(tables, ["k", "v"])
    say("small commits", "CPU of a read", cpu[good], cpu[bad], " s")
    for table in tables.values():
        table.compact()
    cpu = bench.cpu(tables, ["k", "v"])
    say("small commits", "CPU of a read, compacted", cpu[good], cpu[bad], " s")


def text_key(bench: Bench) -> None:
    n, groups = bench.keys, {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}}
    keys = {
        "bigint": pa.array(np.arange(n)),
        "string": pa.array([str(uuid.UUID(bytes=bench.rng.bytes(16))) for _ in range(n)]),
    }
    tables = {}
    for kind, values in keys.items():
        table = bench.table(f"key {kind}", groups, {"k": kind, "v": "bigint", "ts": "bigint"})
        rows = pa.table({"k": values, "v": np.arange(n), "ts": np.zeros(n, int)})
        bench.fill(table, [("s", rows)])
        table.compact()
        newer = rows.slice(0, n // 10).set_column(2, "ts", pa.array(np.ones(n // 10, int)))
        bench.fill(table, [("s", newer)])
        tables[kind] = table
    say("a text as key", "stored bytes", *(base_bytes(table) for table in tables.values()))
    cpu = bench.cpu(tables, ["k", "v"])
    say("a text as key", "CPU of a read with 10 % in the log", cpu["bigint"], cpu["string"], " s")


def time_in_key(bench: Bench) -> None:
    n, groups = bench.keys, {"g": {"columns": ["v"]}}
    of_key = bench.table(
        "key", {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}}, {"k": "bigint", "v": "bigint", "ts": "bigint"}
    )
    of_time = bench.table("key and time", groups, {"k": "bigint", "ts": "bigint", "v": "bigint"}, key=["k", "ts"])
    for table in (of_key, of_time):
        batches = [(np.arange(n), 0), *((np.arange(n // 10), moment) for moment in range(1, 11))]
        bench.fill(
            table,
            (
                ("s", pa.table({"k": keys, "v": keys + moment, "ts": np.full(len(keys), moment)}))
                for keys, moment in batches
            ),
        )
        table.compact()
    rows = [table.snapshot().to_arrow(["k"]).num_rows for table in (of_key, of_time)]
    say("a key with the time in it", "rows", *rows)
    say("a key with the time in it", "stored bytes", base_bytes(of_key), base_bytes(of_time))


def modes(bench: Bench) -> None:
    n, names = bench.keys, [f"c{i}" for i in range(10)]
    types = {"k": "bigint", "ts": "bigint"} | dict.fromkeys(names, "bigint")
    tables = {}
    for mode in ("latest", "latest_non_null"):
        group = {"columns": [*names, "ts"], "ordering": ["ts"], "merge": mode}
        table = bench.table(mode, {"g": group}, types)
        values = {name: bench.rng.integers(0, 1 << 30, n) for name in names}
        bench.fill(table, [("s", pa.table({"k": np.arange(n), "ts": np.zeros(n, int), **values}))])
        table.compact()
        some = np.sort(bench.rng.choice(n, n // 5, replace=False))
        newer = {name: values[name][some] for name in names}
        bench.fill(table, [("s", pa.table({"k": some, "ts": np.ones(len(some), int), **newer}))])
        tables[mode] = table
    cpu = bench.cpu(tables, ["k", *names])
    say("latest_non_null everywhere", "CPU of a read with 20 % in the log", *cpu.values(), " s")
    for table in tables.values():
        table.compact()
    say("latest_non_null everywhere", "stored bytes", *(base_bytes(table) for table in tables.values()))


def lists(bench: Bench) -> None:
    n, tables = bench.keys // 2, {}
    streams = {"s": {"groups": ["g"], "on_delete": "ignore"}}
    for function, kind in (("count", "bigint"), ("collect_list", "array<bigint>")):
        group = {"columns": ["v"], "merge": "aggregate", "functions": {"v": function}}
        table = bench.table(function, {"g": group}, {"k": "bigint", "v": kind}, streams=streams)
        bench.fill(table, (("s", pa.table({"k": np.arange(n), "v": np.arange(n)})) for _ in range(10)))
        table.compact()
        tables[function] = table
    say("collect_list", "stored bytes after ten events", *(base_bytes(table) for table in tables.values()))


def many_groups(bench: Bench) -> None:
    n, groups, tables = bench.keys, {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}}, {}
    rows = pa.table({"k": np.arange(n), "v": np.arange(n), "ts": np.zeros(n, int)})
    for buckets in (4, 256):
        table = bench.table(
            f"{buckets} buckets", groups, {"k": "bigint", "v": "bigint", "ts": "bigint"}, buckets=buckets
        )
        bench.fill(table, [("s", rows)])
        table.compact()
        bench.fill(table, [("s", rows.slice(0, n // 10).set_column(2, "ts", pa.array(np.ones(n // 10, int))))])
        tables[str(buckets)] = table
    say("too many file groups", "stored bytes", *(base_bytes(table) for table in tables.values()))
    cpu = bench.cpu(tables, ["k", "v"])
    say("too many file groups", "CPU of a read", *cpu.values(), " s")


CASES: tuple[Callable[[Bench], None], ...] = (
    one_group, hot_columns, small_commits, text_key, time_in_key, modes, lists, many_groups,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modelling-") as folder:
        for case in CASES:
            case(Bench(Path(folder), given.keys, given.rounds))


if __name__ == "__main__":
    main()
