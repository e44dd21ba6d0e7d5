"""Which topic an offset belongs to: what tells a topic from a later one of the same name. Pure.

A topic that is deleted and created again counts its offsets from 0 again, and may long have passed the offset at which
a query goes on. So every set of offsets says which topic it is of, in Spark's checkpoint and in the table's commits:

    {"orders": {"0": 23, "1": 7, "topic_id": "km8rgRHeSCOtrsJ2iGC14Q"}}         Kafka 2.8 and later: a random id
    {"orders": {"0": 23, "1": 7, "leader_epochs": {"0": 4, "1": 4}}}            a broker without topic ids

A topic id is never used again, so that the same id before and after a question means the same topic all the while.
Leader epochs grow with every election and begin again at 0 with a new topic: one that has become smaller is another
topic; one that has not proves nothing. Offsets without either are older than this rule and take on what is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TOPIC_ID: Final = "topic_id"
LEADER_EPOCHS: Final = "leader_epochs"
IDENTITY_KEYS: Final = frozenset({TOPIC_ID, LEADER_EPOCHS})
"""Keys beside the partitions' numbers in offsets as JSON."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of which topic it is.

    Attributes:
        topic_id: In the form that Kafka's tools print; "" if it is not known.
        epochs: Leader epochs by partition number; only used where there is no topic id.
    """

    topic_id: str = ""
    epochs: Mapping[int, int] = field(default_factory=dict)

    def difference(self, found: Identity) -> str:
        """Say why ``found`` is another topic than this one; "" if nothing tells them apart."""
        if self.topic_id and found.topic_id:
            if self.topic_id == found.topic_id:
                return ""
            return f"has id {found.topic_id}, the offsets are of the topic with id {self.topic_id}"
        for number in sorted(self.epochs.keys() & found.epochs.keys()):
            if found.epochs[number] < self.epochs[number]:
                return (
                    f"has leader epoch {found.epochs[number]} in partition {number},"
                    f" the offsets are of leader epoch {self.epochs[number]}"
                )
        return ""


def parse_identities(json: Mapping[str, Mapping[str, Any]]) -> dict[str, Identity]:
    """Read the identities in offsets as JSON; topics without one are left out.

    Raises:
        TypeError, ValueError: An identity does not have its form.
    """
    found: dict[str, Identity] = {}
    for topic, parts in json.items():
        topic_id, epochs = parts.get(TOPIC_ID, ""), parts.get(LEADER_EPOCHS, {})
        if not isinstance(topic_id, str) or not isinstance(epochs, Mapping):
            raise TypeError(f"{TOPIC_ID} of {topic} is not a text, or {LEADER_EPOCHS} not an object")
        if topic_id or epochs:
            found[topic] = Identity(topic_id, {int(number): int(epoch) for number, epoch in epochs.items()})
    return found


def format_identity(identity: Identity) -> dict[str, Any]:
    """Inverse of `parse_identities` for one topic, sorted."""
    json: dict[str, Any] = {}
    if identity.topic_id:
        json[TOPIC_ID] = identity.topic_id
    if identity.epochs:
        json[LEADER_EPOCHS] = {str(number): identity.epochs[number] for number in sorted(identity.epochs)}
    return json


def find_recreated(offsets_of: Mapping[str, Identity], found: Mapping[str, Identity]) -> dict[str, str]:
    """Topics that are not those that the offsets are of, each with a sentence that says why."""
    recreated: dict[str, str] = {}
    for topic in sorted(offsets_of.keys() & found.keys()):
        if difference := offsets_of[topic].difference(found[topic]):
            recreated[topic] = f"topic {topic} {difference}"
    return recreated
