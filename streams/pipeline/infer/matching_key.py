"""Finds the field of each topic that names the same thing, so that their rows can be joined. Pure.

Fields match if their names mean the same (``machineId``, ``machine_id`` and ``machine``; ``id`` of the topic
``machines``), their types are of one kind, and their values have some in common. Among several matches, one with the
name of an identifier comes first, then the one with the most different values: ``status`` has few of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.streams.pipeline.infer.infer_key import KEY_TYPES, Fields
from weft.streams.pipeline.infer.nested_fields import nested_fields, value_of

_SUFFIX: Final = re.compile(r"(id|key|code|no|nr|number|uuid)$")
_FEW: Final = 0.1  # a field that is no identifier by name has different values in more than this share of messages

Rows = Sequence[Mapping[str, Any]]


def matching_field(name: str, of: Fields, there: Fields) -> str | None:
    """The only field of another topic whose name means the same; None without one."""
    if there.kind(name) is not None:
        return name
    meant = _meaning(name, of.stream)
    found = [other for other in there.simple_fields() if _meaning(other, there.stream) == meant]
    return found[0] if len(found) == 1 else None


def matching_fields(topics: Sequence[tuple[Fields, Rows]]) -> list[str] | None:
    """The field of each topic that is best joined; None if none looks right.

    Args:
        topics: What is known of each topic, and some of its messages.
    """
    best: tuple[tuple[bool, int], list[str]] | None = None
    first, _ = topics[0]
    candidates = [_candidates(*topic) for topic in topics]
    for name in candidates[0]:
        names = [matching_field(name, first, there) for there, _ in topics]
        if any(found not in fit for found, fit in zip(names, candidates, strict=True)):
            continue
        chosen = [found for found in names if found is not None]
        values = [{value_of(row, found) for row in of} for found, (_, of) in zip(chosen, topics, strict=True)]
        known = [each for each in values if each]
        if any(not known[0] & each for each in known[1:]):
            continue
        named = any(_SUFFIX.search(found.lower()) is not None for found in chosen)
        sizes = [(len(each), len(of)) for each, (_, of) in zip(values, topics, strict=True) if of]
        if not named and any(different <= most * _FEW for different, most in sizes):
            continue
        rank = named, min((different for different, _ in sizes), default=0)
        if best is None or rank > best[0]:
            best = rank, chosen
    return None if best is None else best[1]


def _candidates(fields: Fields, rows: Rows) -> list[str]:
    """Fields that can be a key: of a simple type, no time, and never null."""
    return [
        name
        for name, kind in {**fields.schema, **nested_fields(fields.schema)}.items()
        if (kind in KEY_TYPES or kind.startswith("decimal("))
        and name not in fields.epochs
        and all(value_of(row, name) is not None for row in rows)
    ]


def _meaning(name: str, stream: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    without = _SUFFIX.sub("", plain)
    return without or re.sub(r"[^a-z0-9]", "", stream.lower()).removesuffix("s")
