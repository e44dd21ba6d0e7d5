"""Dead letters against the bad messages that were sent: the bytes, the position and the key of each. Pure functions."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

SHOWN = 5


class Message(NamedTuple):
    """What a dead letter must keep of its message."""

    key: str
    topic: str
    partition: int
    offset: int
    value: bytes | None


def message_of(letter: Mapping[str, Any]) -> Message:
    """The message that a line of a file of dead letters holds."""
    value = letter["value"]
    if value is not None:
        value = base64.b64decode(value) if letter["encoding"] == "base64" else value.encode()
    return Message(letter["key"], letter["topic"], letter["partition"], letter["offset"], value)


def letter_errors(letters: Iterable[Mapping[str, Any]], sent: Iterable[Message]) -> Iterator[str]:
    """Bad messages that are not exactly one dead letter, letters of other messages, and letters without a reason."""
    found: Counter[Message] = Counter()
    for letter in letters:
        found[message_of(letter)] += 1
        if not letter["reason"]:
            yield f"a dead letter has no reason: {letter}"
    wanted = Counter(sent)
    for message, count in sorted((wanted - found).items(), key=str)[:SHOWN]:
        yield f"bad message {message} is missing in the dead letters ({count} times)"
    for message, count in sorted((found - wanted).items(), key=str)[:SHOWN]:
        yield f"{message} is in the dead letters {count} times too often"
