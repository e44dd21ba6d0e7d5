"""Histories of the shop table: random sequences of operations."""

from __future__ import annotations

import datetime as dt

from tests.faulty_store import FakeClock
from tests.storage.support.shop import SHOP, new_uri, orders, payments
from weft import Table
from weft.storage.errors import TableError

STEPS = [
    *("orders", "payments", "orders", "payments", "fix"),
    *("compact", "compact some", "fold", "savepoint", "release", "clean"),
    *("restore", "restore", "undo", "close", "schema", "fence"),
]


class History:
    """Runs operations on a table, and remembers snapshots for restores."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.table = Table.create(new_uri(), SHOP, clock=self.clock)
        self.moments = [self.clock.time_ms]
        self.done = 0

    def run(self, step: str) -> None:
        self.done += 1
        self.clock.time_ms += 1_000
        try:
            self._run(step)
        except TableError as error:
            # May be refused: nothing was written yet, the lane is closed, or there is no snapshot to restore.
            assert error.code in {"NOT_FOUND", "CONFLICT", "SNAPSHOT_EXPIRED"}, error  # noqa: PT017
        self.moments.append(self.clock.time_ms)

    def _run(self, step: str) -> None:
        table, number = self.table, self.done
        match step:
            case "orders" | "payments" | "fix":
                stream = "payments" if step == "payments" else "orders"
                with table.writer(stream, lane=step) as writer:
                    rows = payments(number) if stream == "payments" else orders(number, number - 1)
                    batch = writer.last_batch("q")
                    writer.append(rows, batch=("q", 0 if batch is None else batch + 1), source={"at": number})
            case "compact":
                table.compact()
            case "compact some":
                table.compact(only=lambda file_slice: (file_slice.group.bucket + number) % 3 > 0)
            case "fold":
                table.fold()
            case "clean":
                table.clean(dt.timedelta(seconds=number % 7))
            case "release":
                table.release_savepoint(table.savepoints()[0].name if table.savepoints() else "none")
            case "savepoint":
                table.savepoint(f"s{number}")
            case "restore":
                kept = table.savepoints()
                table.restore(kept[number % len(kept)].name if kept else str(table.snapshot().cut))
            case "undo":
                moment = self.moments[number * 7 % len(self.moments)]
                table.undo("orders", dt.datetime.fromtimestamp(moment / 1000, dt.UTC))
            case "close":
                table.close_lane("fix")
            case "schema":
                table.add_column("order", f"c{number}", "bigint")
            case "fence":
                table.fence("payments")
