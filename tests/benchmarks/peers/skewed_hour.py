"""What compactions write in an hour in which one group of a wide table changes, and always in the same keys.

The hour is modelled as a sequence, without waiting: a commit for each minute, each with new values of the hot group (5
columns of 300) for the same 1 % of the keys, of which a sixth is late; and a compaction after every fifth. Once each
compacts *everything*, so that after it reads cost no merging, and once, if the format has a policy that decides what is
due, each does what *its own policy* says, which may be nothing. Bytes are those of files that are in the table's
folder after a compaction and were not before. The query afterwards reads two columns of each group; plain are the
files of the load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.benchmarks.peers.queries import SUMS, measured_in_turns, queries, wrong_rows
from tests.benchmarks.peers.system import System


def measure(
    make: Callable[[str], System], every: int, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Run the hour for each kind of compaction.

    Args:
        make: Makes a table of this name.
        every: Commits between two compactions.
        rounds: Of the query at the end.
        say: Prints progress.

    Returns:
        Figures by kind, ``everything`` and ``own policy``.
    """
    found = {"everything": _run_hour(make("everything"), every, rounds, say, everything=True)}
    if make("own_policy").own_policy:
        found["own policy"] = _run_hour(make("own_policy"), every, rounds, say, everything=False)
    return found


def _run_hour(
    system: System, every: int, rounds: int, say: Callable[[str], None], *, everything: bool
) -> dict[str, Any]:
    spark, data = system.spark, system.data
    spark.read.parquet(data.load).createOrReplaceTempView("plain")
    system.create()
    system.load(data.load)
    system.clean()
    loaded = system.stored_bytes()
    committed = written = compactions = 0
    for number, batch in enumerate(data.batches, 1):
        before = system.stored_files()
        system.commit(data.path(batch), batch.group)
        committed += _new_bytes(before, after := system.stored_files())
        if number % every == 0:
            system.compact(everything=everything)
            compactions += 1
            written += _new_bytes(after, system.stored_files())
            say(f"minute {number}: committed {committed:,} bytes, compactions wrote {written:,}")
    tables = {"plain": "plain", "table": system.table}
    costs = measured_in_turns(spark, queries(data)[SUMS], tables, rounds, system.refresh)
    system.clean()
    return {
        "bytes after load": loaded,
        "commits": len(data.batches),
        "bytes committed": committed,
        "compactions": compactions,
        "bytes written": written,
        "bytes after clean": system.stored_bytes(),
        **costs["table"].figures("sums"),
        **costs["plain"].figures("plain sums"),
        "wrong rows": wrong_rows(spark, system.table, data),
    }


def _new_bytes(before: dict[str, int], after: dict[str, int]) -> int:
    """Bytes of files that are new or have grown."""
    return sum(max(0, size - before.get(path, 0)) for path, size in after.items())
