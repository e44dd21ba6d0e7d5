"""Decides by pure functions whether a topic is the one that was read before, or a later one of the same name.

A topic that is deleted and created again starts with offset 0, and may already be past the offset at which a query
continues. So offsets are stored with the identity of their topic, in Spark's checkpoint and in the commits of the
table:

    {"orders": {"0": 23, "1": 7, "topic_id": "km8rgRHeSCOtrsJ2iGC14Q"}}         Kafka 2.8 and later: a random id
    {"orders": {"0": 23, "1": 7, "leader_epochs": {"0": 4, "1": 4}}}            a broker without topic ids

A topic id is never used again, so the same id before and after a request means that the topic was the same throughout.
Leader epochs increase with every election and begin at 0 in a new topic. So a smaller epoch means another topic; an
equal or larger one proves nothing. Offsets without id and epochs were written by an older version, and count as offsets
of the topic that exists now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TOPIC_ID: Final = "topic_id"
LEADER_EPOCHS: Final = "leader_epochs"
IDENTITY_KEYS: Final = frozenset({TOPIC_ID, LEADER_EPOCHS})
"""Keys in offsets as JSON that are not partition numbers."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The known part of the identity of a topic.

    Attributes:
        topic_id: Id as Kafka's tools print it; "" if it is not known.
        epochs: Leader epochs by partition number; used only if there is no topic id.
    """

    topic_id: str = ""
    epochs: Mapping[int, int] = field(default_factory=dict)

    def difference(self, other: Identity) -> str:
        """Describe why ``other`` is another topic; "" if the two may be the same."""
        if self.topic_id and other.topic_id:
            if self.topic_id == other.topic_id:
                return ""
            return f"has id {other.topic_id}, but the offsets belong to the topic with id {self.topic_id}"
        for number in sorted(self.epochs.keys() & other.epochs.keys()):
            if other.epochs[number] < self.epochs[number]:
                return (
                    f"has leader epoch {other.epochs[number]} in partition {number},"
                    f" but the offsets belong to leader epoch {self.epochs[number]}"
                )
        return ""


def parse_identities(json: Mapping[str, Mapping[str, Any]]) -> dict[str, Identity]:
    """Parse the identities in offsets as JSON; topics without one are left out.

    Raises:
        TypeError, ValueError: An identity is malformed.
    """
    identities: dict[str, Identity] = {}
    for topic, parts in json.items():
        topic_id, epochs = parts.get(TOPIC_ID, ""), parts.get(LEADER_EPOCHS, {})
        if not isinstance(topic_id, str) or not isinstance(epochs, Mapping):
            raise TypeError(f"{TOPIC_ID} of {topic} is not a text, or {LEADER_EPOCHS} not an object")
        if topic_id or epochs:
            identities[topic] = Identity(topic_id, {int(number): int(epoch) for number, epoch in epochs.items()})
    return identities


def format_identity(identity: Identity) -> dict[str, Any]:
    """Format the identity of one topic for `parse_identities`, with sorted keys."""
    json: dict[str, Any] = {}
    if identity.topic_id:
        json[TOPIC_ID] = identity.topic_id
    if identity.epochs:
        json[LEADER_EPOCHS] = {str(number): identity.epochs[number] for number in sorted(identity.epochs)}
    return json


def find_recreated(offsets_of: Mapping[str, Identity], brokers: Mapping[str, Identity]) -> dict[str, str]:
    """Return the topics that were deleted and created again since the offsets were stored, each with the reason."""
    recreated: dict[str, str] = {}
    for topic in sorted(offsets_of.keys() & brokers.keys()):
        if difference := offsets_of[topic].difference(brokers[topic]):
            recreated[topic] = f"topic {topic} {difference}"
    return recreated
