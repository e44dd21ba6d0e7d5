"""Back-pressure: while reads of a table are too expensive, its writers wait before each batch.

A writer that commits faster than the table is compacted makes every read slower. With back-pressure it then begins its
batches later, and says so. Waits are bounded, end when the writer has to stop, and never fail a batch: if the cost of
a read cannot be found out, nothing waits. Rows that arrive meanwhile are in the next batch; a limit of the rows of a
batch (``max_offsets_per_trigger``) also bounds these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.storage.core.plan.read_cost import ReadCost

if TYPE_CHECKING:
    from weft.streams.pipeline.file.model import BackPressureSection


def delay_seconds(settings: BackPressureSection, cost: ReadCost, trigger_seconds: float) -> float:
    """The wait before each batch: a trigger interval at twice the limit, two at three times the limit, and so on.

    Args:
        settings: When to slow down.
        cost: Cost of a read now.
        trigger_seconds: Time between two batches.
    """
    return min(settings.max_delay, max(trigger_seconds, 1.0) * max(0.0, _excess(settings, cost) - 1.0))


def describe_delay(settings: BackPressureSection, cost: ReadCost, seconds: float) -> str:
    """The reason of a wait, for the status of the writer."""
    if settings.max_read_amplification is not None and cost.amplification > settings.max_read_amplification:
        why = f"a read fetches {cost.amplification:.1f} times the bytes of the table (limit "
        why += f"{settings.max_read_amplification:g})"
    else:
        why = f"{cost.commits:,} commits wait for compaction (limit {settings.max_commits or 0:,})"
    return f"slowed down by {seconds:.1f} s a batch: {why}"


def _excess(settings: BackPressureSection, cost: ReadCost) -> float:
    """The cost as a multiple of the limit that is exceeded most."""
    factors = [0.0]
    if settings.max_read_amplification is not None:
        factors.append(cost.amplification / settings.max_read_amplification)
    if settings.max_commits is not None:
        factors.append(cost.commits / settings.max_commits)
    return max(factors)
