"""A pipeline in which payments follow orders, and a reader that is slow at chosen requests (S31 OneMoment)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.support.shop import SHOP, new_uri, orders, payments
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.log.entries import Data, Entry
from weft.storage.core.names import LaneName, slot_path
from weft.storage.environment import Environment, RandomIds
from weft.storage.log.commit_log import CommitLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.store.open_store import open_store
from weft.storage.write.writer import Writer


class Pipeline:
    """Writers of orders and payments that are always open, and a reader whose requests can be followed by actions."""

    def __init__(self, stack: ExitStack, others: int = 0) -> None:
        self.uri = new_uri()
        Table.create(self.uri, SHOP)
        self._writers: dict[str, Writer] = {}
        self._stack = stack
        for lane in ["orders", "payments", *(f"other{number}" for number in range(others))]:
            self.add(lane)
            self.commit(lane, 0)
        self.store = FaultyStore(open_store(self.uri))
        self.reader = Table(Environment(self.store, FakeClock()), Stamps())

    def add(self, lane: str) -> None:
        stream = "payments" if lane.startswith("payments") else "orders"
        self._writers[lane] = self._stack.enter_context(Table.open(self.uri).writer(stream, lane=lane))

    def commit(self, lane: str, number: int) -> int:
        rows = payments(number) if lane.startswith("payments") else orders(number)
        return self._writers[lane].append(rows).seq

    def order_then_pay(self, number: int) -> Callable[[], None]:
        """A payment is made by a program that has seen its order."""

        def run() -> None:
            self.commit("orders", number)
            self.commit("payments", number)

        return run

    def after_end(self, lane: str, action: Callable[[], Any], later: int = 0) -> None:
        """Run an action after the reader has read the slot after the last entry of a lane, or a later one."""
        end = len(self.entries(lane))
        path = slot_path(LaneName(lane), end + 1 + later)
        self.store.faults.append(Fault("get", path, "after", action=action))

    def never_rest(self) -> None:
        """Let an order and its payment be committed whenever the reader has read the end of the lane of orders."""
        for number in range(20):
            self.after_end("orders", self.order_then_pay(100 + number), later=number)

    def entries(self, lane: str) -> list[Entry]:
        return CommitLog(Environment(open_store(self.uri))).read_after(LaneName(lane), 0)

    def commit_as_an_earlier_version(self, lane: str) -> None:
        last = self.entries(lane)[-1]
        assert isinstance(last, Data)
        changes = {"seq": last.seq + 1, "prev_id": last.commit_id, "stamp": last.stamp + 1}
        entry = last.model_copy(update={**changes, "commit_id": RandomIds().new(), "files": [], "rows": 0})
        assert CommitLog(Environment(open_store(self.uri))).publish(entry) == entry

    def read(self, **arguments: Any) -> Snapshot:
        """The newest snapshot; every action must have run."""
        found = self.reader.snapshot(**arguments)
        assert not any(fault.times for fault in self.store.faults)
        return found

    def orphans(self, found: Any) -> set[int]:
        """Payments in a snapshot without their order."""
        rows = found.to_arrow(["id", "status", "paid"]).to_pylist()
        return {row["id"] for row in rows if row["paid"] is not None and row["status"] is None}
