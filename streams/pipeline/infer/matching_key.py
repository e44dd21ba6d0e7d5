"""Finds the fields with which topics are joined: those that identify the same thing. Pure.

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
_MIN_DISTINCT_SHARE: Final = 0.1
"""A field without the name of an identifier must have different values in more than this share of the messages."""

Rows = Sequence[Mapping[str, Any]]


def matching_field(name: str, fields: Fields, other_fields: Fields) -> str | None:
    """The field of another topic whose name means the same; None unless there is exactly one.

    Args:
        name: A field of the first topic.
        fields: Fields of the first topic.
        other_fields: Fields of the other topic.
    """
    if other_fields.kind(name) is not None:
        return name
    meaning = _meaning(name, fields.stream)
    matches = [other for other in other_fields.simple_fields() if _meaning(other, other_fields.stream) == meaning]
    return matches[0] if len(matches) == 1 else None


def matching_fields(topics: Sequence[tuple[Fields, Rows]]) -> list[str] | None:
    """Choose the field of each topic with which they are joined; None if no choice looks right.

    Args:
        topics: The fields of each topic, and some of its messages.
    """
    best: tuple[tuple[bool, int], list[str]] | None = None
    first, _ = topics[0]
    candidates = [_candidates(*topic) for topic in topics]
    for name in candidates[0]:
        names = [matching_field(name, first, fields) for fields, _ in topics]
        if any(field not in usable for field, usable in zip(names, candidates, strict=True)):
            continue
        chosen = [field for field in names if field is not None]
        values = [{value_of(row, field) for row in rows} for field, (_, rows) in zip(chosen, topics, strict=True)]
        present = [distinct for distinct in values if distinct]
        if any(not present[0] & distinct for distinct in present[1:]):
            continue
        is_identifier = any(_SUFFIX.search(field.lower()) is not None for field in chosen)
        sizes = [(len(distinct), len(rows)) for distinct, (_, rows) in zip(values, topics, strict=True) if rows]
        if not is_identifier and any(count <= rows * _MIN_DISTINCT_SHARE for count, rows in sizes):
            continue
        rank = is_identifier, min((count for count, _ in sizes), default=0)
        if best is None or rank > best[0]:
            best = rank, chosen
    return None if best is None else best[1]


def _candidates(fields: Fields, rows: Rows) -> list[str]:
    """Fields that can be a key: of a simple type, not a time, and never null."""
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
