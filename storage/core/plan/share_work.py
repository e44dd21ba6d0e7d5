"""Divides work between compactions of one table that run at the same time. Pure functions.

Each compaction announces itself by its open PLAN, so no further object is needed. For each piece of work a hash ranks
the open plans (rendezvous hashing): a compaction first does the work in which it ranks first, then that in which it
ranks second, and so on. So compactions that run at once begin with different file groups, and the work of one that is
slow or dead is done by the others at the end. When a plan is opened or closed, only the work of that plan moves.

In what it takes over from another one a compaction begins at the end, because the other one begins at the beginning.

No result depends on this: of two slices of a file group the second is dropped (PROTOCOL.md, K3), whoever made it.
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
    others = sorted((name for name in plans if name != plan_id), key=lambda name: plans[name].slot)
    return frozenset([plan_id, *others[-(MAX_SHARING - 1) :]])


def next_share(plan_id: str, plans: Collection[str], keys: Sequence[str]) -> list[int]:
    """The work that a plan does next: the work in which it ranks highest, as positions in ``keys``, in order.

    Args:
        plan_id: The plan.
        plans: The plans that share the work, ``plan_id`` among them.
        keys: A name of each piece of work that is not done; the same for all plans.
    """
    ranked: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        ranked.setdefault(rank_of(plan_id, plans, key), []).append(position)
    best = min(ranked, default=0)
    share = ranked.get(best, [])
    return share if best == 0 else share[::-1]


def rank_of(plan_id: str, plans: Collection[str], key: str) -> int:
    """The rank of a plan for a piece of work: 0 for one of the plans, 1 for another one, and so on."""
    weight = _weight(plan_id, key)
    return sum(_weight(other, key) > weight for other in plans if other != plan_id)


def _weight(plan_id: str, key: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{plan_id} {key}".encode(), digest_size=8).digest(), plan_id
