"""The cut of a reader as a token for a writer: its commit follows all commits in the cut (W11, S31, S25)."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_process import end_process
from tests.faulty_store import FakeClock, other_process
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from weft import Table
from weft.storage.core.log.entries import Data
from weft.storage.core.names import LaneName
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.write.write_task import write_rows
from weft.storage.write.writer import Commit, WriteTicket

ROOT = Path(__file__).resolve().parents[3]
READER = """
import sys
from weft import Table
print(Table.open(sys.argv[1]).snapshot().cut)
"""
WRITER = """
import sys
from weft import Table
from weft.storage.write.write_task import write_rows
from tests.storage.support.shop import payments
with Table.open(sys.argv[1]).writer("payments") as writer:
    begun = writer.begin()
    print("begun", flush=True)
    seen = sys.stdin.readline().strip() or None
    print(writer.commit(begun, [write_rows(begun, payments(7))], seen=seen).seq, flush=True)
"""


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_commit_that_began_earlier_follows_what_another_process_has_read(
    tmp_path: Path, *, is_handed_over: bool
) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    arguments = [sys.executable, "-c", WRITER, table.uri]
    process = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        table.mark()
        append(table, orders(7))
        reader = [sys.executable, "-c", READER, table.uri]
        cut = subprocess.run(reader, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        process.stdin.write(cut if is_handed_over else "\n")
        process.stdin.flush()
        seq = int(process.stdout.readline())
        assert process.wait(240) == 0
    finally:
        end_process(process, signal.SIGKILL)
    entry = table.snapshot().table_log.commit_log.entry(LaneName("payments"), seq)
    assert isinstance(entry, Data)
    moment = table.snapshot(dt.datetime.now(dt.UTC), moment=True)  # that of the last entry of the table lane
    rows = moment.to_arrow(["id", "status", "paid"]).to_pylist()
    if is_handed_over:
        assert (entry.table_seen, rows) == (int(cut.split(":")[2]), [])
    else:
        assert rows == [{"id": 7, "status": None, "paid": 1.0}], "the commit that it follows began later"
    table.mark()
    assert table.snapshot().to_arrow(["status", "paid"]).to_pylist() == [{"status": "new", "paid": 1.0}]


def test_a_commit_wins_ties_against_what_it_follows_whatever_the_clocks_say() -> None:
    uri, behind, right = new_uri(), FakeClock(), FakeClock()
    table = Table.create(uri, SHOP, clock=right)
    with ExitStack() as stack:
        rivals = [stack.enter_context(table.writer("orders", lane=f"lane{number}")) for number in range(10)]
        late = stack.enter_context(other_process(uri, behind).writer("orders", lane="late"))
        right.time_ms += 30_000  # no mark is due
        cuts = []
        for number, rival in enumerate(rivals):
            rival.append(orders(number, status="first"))
            cuts.append(str(table.snapshot().cut))
        late.append(orders(0, status="second"))
        assert [row["status"] for row in table.get([0], ["status"]).to_pylist()] == ["first"], "clocks decide"
        late.append(orders(9, status="second"), seen=cuts[9])
    assert [row["status"] for row in table.get([9], ["status"]).to_pylist()] == ["second"]


def test_a_cut_of_another_table_is_refused_and_changes_nothing() -> None:
    table, other = Table.create(new_uri(), SHOP), Table.create(new_uri(), SHOP)
    append(other, orders(1))
    append(table, orders(1))
    wrong = {
        "cut:1:9:": "no entry 9 of the table lane",
        "cut:1:2:payments=9": "no entry 9 of lane 'payments'",
        "cut:1:2:orders=5": "no entry 5 of lane 'orders'",
    }
    with table.writer("payments") as writer:
        begun = writer.begin()
        assert isinstance(begun, WriteTicket)
        written = [write_rows(begun, payments(1))]
        head = table.snapshot().cut
        for cut, message in wrong.items():
            with pytest.raises(NotFound, match=message):
                writer.commit(begun, written, seen=cut)
        with pytest.raises(InvalidInput, match="cut"):
            writer.commit(begun, written, seen="yesterday")
        assert table.snapshot().cut == head
        assert isinstance(writer.commit(begun, written, seen=str(head)), Commit)
