"""Reservations: a plan that rewrites rows keeps compactions from publishing for a bounded time. Pure functions.

A rewrite or an erase that lost an attempt against another service would lose again if it takes longer than the pauses
between compactions. So the plans of its further attempts reserve the table: while a reservation holds, no plan without
one publishes a BASE (PROTOCOL.md, K6). Writers, readers and folds are not affected, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.storage.core.log.entries import LONGEST_RESERVATION_MS
from weft.storage.core.log.table_state import OpenPlan

SHORTEST_RESERVATION_MS: Final = 60_000
RESERVATION_FACTOR: Final = 4  # an attempt may take this many times as long as the longest earlier one


def next_reservation_ms(attempts: int, longest_ms: int) -> int:
    """How long the next attempt reserves the table, in milliseconds; 0 for no reservation.

    Args:
        attempts: Number of earlier attempts.
        longest_ms: Duration of the longest of them.
    """
    if not attempts:
        return 0  # most first attempts succeed; compactions should not pause for them
    return min(max(RESERVATION_FACTOR * longest_ms, SHORTEST_RESERVATION_MS), LONGEST_RESERVATION_MS)


def is_reserved(plans: Mapping[str, OpenPlan], now_ms: int) -> bool:
    """Whether the reservation of an open plan holds.

    A reservation that begins further in the future than its duration does not hold: the clocks differ, and it would
    hold for much longer than it should.

    Args:
        plans: The open plans.
        now_ms: Time of this process, in Unix milliseconds.
    """
    return any(abs(now_ms - plan.committed_at_ms) < plan.reserves_ms for plan in plans.values())
