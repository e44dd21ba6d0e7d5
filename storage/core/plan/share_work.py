"""Divides work between compactions of one table that run at the same time. Pure functions.

Each compaction announces itself by its open PLAN, so no further object is needed. For each piece of work a hash ranks
the open plans (rendezvous hashing): a compaction first does the work for which it ranks first, then the work for
which it ranks second, and so on. So simultaneous compactions begin with different file groups, and take over the work
of a slow or dead compaction at the end. When a plan is opened or closed, only the work of that plan moves.

A compaction begins with the last piece of work that it takes over, because the other one begins with the first.

No result depends on this: if two compactions write a slice of a file group, the second slice is dropped (PROTOCOL.md,
K3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from weft.storage.core.log.table_state import OpenPlan

MAX_SHARING: Final = 16
"""At most this many plans share work; dead plans stay open until cleaning aborts them."""


def sharing_plans(plan_id: str, plans: Mapping[str, OpenPlan]) -> frozenset[str]:
    """The plans that share work with a plan: itself, and the newest other open plans.

    Args:
        plan_id: The plan.
        plans: The open plans.
    """
    other_plans = sorted((name for name in plans if name != plan_id), key=lambda name: plans[name].slot)
    return frozenset([plan_id, *other_plans[-(MAX_SHARING - 1) :]])


def next_share(plan_id: str, plans: Collection[str], keys: Sequence[str]) -> list[int]:
    """The next work of a plan: the work for which it ranks highest, as positions in ``keys``, in order.

    Args:
        plan_id: The plan.
        plans: The plans that share the work, including ``plan_id``.
        keys: A name for each remaining piece of work; the same for all plans.
    """
    ranked: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        ranked.setdefault(rank_of(plan_id, plans, key), []).append(position)
    best = min(ranked, default=0)
    share = ranked.get(best, [])
    return share if best == 0 else share[::-1]


def rank_of(plan_id: str, plans: Collection[str], key: str) -> int:
    """The rank of a plan for a piece of work: 0 for the first of the plans, 1 for the second, and so on."""
    weight = _weight(plan_id, key)
    return sum(_weight(other, key) > weight for other in plans if other != plan_id)


def _weight(plan_id: str, key: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{plan_id} {key}".encode(), digest_size=8).digest(), plan_id
