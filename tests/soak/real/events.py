"""What happens to the pipeline during the soak: each function is one event, and waits until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.soak.real.topics import FORMATS

if TYPE_CHECKING:
    from tests.soak.real.run import Soak

Event: TypeAlias = "Callable[[Soak], None]"

WRITERS: Final = tuple(FORMATS)
SERVICES: Final = ("compaction", "clean")


def kill_writer(soak: Soak) -> None:
    """SIGKILL for one writer and its JVM; ``weft run`` restarts it."""
    _kill(soak, soak.rng.choice(WRITERS))


def kill_service(soak: Soak) -> None:
    """SIGKILL for compaction or cleaning."""
    _kill(soak, soak.rng.choice(SERVICES))


def bad_messages(soak: Soak) -> None:
    """A bad message of every kind in one topic."""
    feed = soak.feeds[soak.rng.choice(WRITERS)]
    for _ in feed.encoder.bad_values(feed.stream):
        feed.produce_bad(soak.produce)


def _kill(soak: Soak, part: str) -> None:
    if soak.weft.kill_part(part):
        soak.kills[part] += 1
    soak.say(f"killed: {part}")


def rest_of(soak: Soak, seconds: float) -> None:
    """Let messages and queries go on for some seconds."""
    end = time.monotonic() + seconds
    soak.until(lambda: time.monotonic() >= end, seconds + 60, "the end of a pause")


EVENTS: Final[dict[str, Event]] = {event.__name__: event for event in (kill_writer, kill_service, bad_messages)}
