"""Back-pressure: while reads of a table are too expensive, its writers wait before each batch.

A writer that commits faster than the table is compacted makes every read slower. With back-pressure it begins its
batches later, and reports that in its status. A wait is bounded, ends when the writer has to stop, and never fails a
batch; if the cost of a read cannot be determined, there is no wait. Rows that arrive meanwhile are in the next batch,
whose size ``max_offsets_per_trigger`` limits as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.storage.core.plan.read_cost import ReadCost

if TYPE_CHECKING:
    from weft.streams.pipeline.file.model import BackPressureSection


def delay_seconds(settings: BackPressureSection, cost: ReadCost, trigger_seconds: float) -> float:
    """Return the wait before a batch: one trigger interval at twice the limit, two at three times the limit, and so on.

    Args:
        settings: When to slow down.
        cost: Present cost of a read.
        trigger_seconds: Time between two batches.
    """
    return min(settings.max_delay, max(trigger_seconds, 1.0) * max(0.0, _excess(settings, cost) - 1.0))


def describe_delay(settings: BackPressureSection, cost: ReadCost, seconds: float) -> str:
    """Describe the reason of a wait, for the status of the writer."""
    if settings.max_read_amplification is not None and cost.amplification > settings.max_read_amplification:
        why = f"a read fetches {cost.amplification:.1f} times the bytes of the table (limit "
        why += f"{settings.max_read_amplification:g})"
    else:
        why = f"{cost.commits:,} commits wait for compaction (limit {settings.max_commits or 0:,})"
    return f"slowed down by {seconds:.1f} s a batch: {why}"


def _excess(settings: BackPressureSection, cost: ReadCost) -> float:
    """Return the cost divided by its limit, for the limit that is exceeded most."""
    factors = [0.0]
    if settings.max_read_amplification is not None:
        factors.append(cost.amplification / settings.max_read_amplification)
    if settings.max_commits is not None:
        factors.append(cost.commits / settings.max_commits)
    return max(factors)
