"""What happens to the processes during the soak: each function is one event, and waits until it is over.

`tests.soak.real.changes` has what an operator does.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.soak.real.changes import add_column, erase_keys, recreate_topic, rewrite_column
from tests.soak.real.topics import FORMATS

if TYPE_CHECKING:
    from tests.soak.real.run import Soak

Event: TypeAlias = "Callable[[Soak], None]"

WRITERS: Final = tuple(FORMATS)
SERVICES: Final = ("compaction", "clean")
OF_REGISTRY: Final = ("payments", "profiles")  # writers that need the registry
LOOP_KILLS: Final = 3  # the alert fires after the third failure in a row
PART_SECONDS: Final = 120.0  # until a killed part has a process again
OUTAGE_SECONDS: Final = (3.0, 15.0)
LONG_OUTAGE_SECONDS: Final = 400.0
"""The alert WeftOutage fires after 300 s; a writer may notice an outage a minute late."""
STARTS: Final = 10  # of weft run: parts that are still ending have its locks for a moment


def kill_writer(soak: Soak) -> None:
    """SIGKILL for one writer and its JVM; ``weft run`` restarts it."""
    _kill(soak, soak.rng.choice(soak.victims(WRITERS)))


def kill_compaction(soak: Soak) -> None:
    """SIGKILL for the compaction service."""
    for part in soak.victims(("compaction",)):
        _kill(soak, part)


def kill_clean(soak: Soak) -> None:
    """SIGKILL for the service that cleans."""
    _kill(soak, "clean")


def kill_again(soak: Soak) -> None:
    """SIGKILL for a writer three times, each time before it has committed anything."""
    part = soak.rng.choice(soak.victims(WRITERS))
    for _ in range(LOOP_KILLS):
        if not _kill(soak, part):
            return
        soak.until(lambda: not soak.weft.is_running(part), PART_SECONDS, f"the end of {part}")
    soak.loops.add(part)
    soak.flush()
    sent = {part: soak.sent_offsets()[part]}
    soak.until(lambda: soak.has_reached(sent), PART_SECONDS * 2, f"commits of {part}")


def kill_weft_run(soak: Soak) -> None:
    """SIGKILL for ``weft run`` itself: its parts end, and a new one continues, as systemd would start it."""
    soak.beside(lambda: _restart(soak, signal.SIGKILL), PART_SECONDS, "a restart of weft run")


def _restart(soak: Soak, how: signal.Signals) -> None:
    soak.weft.stop(how)
    for _ in range(STARTS):
        soak.weft.start()
        time.sleep(3)
        if soak.weft.ended is None:
            return
        soak.weft.stop()
    raise RuntimeError("weft run does not start")


def bad_messages(soak: Soak) -> None:
    """A bad message of every kind in one topic."""
    feed = soak.feeds[soak.rng.choice(WRITERS)]
    for _ in feed.encoder.bad_values(feed.stream):
        feed.produce_bad(soak.produce)


def restart_broker(soak: Soak) -> None:
    """The broker stops or is killed, and is away for some seconds; producers and writers wait for it."""
    how = soak.rng.choice((soak.broker.stop, soak.broker.kill))
    seconds = soak.rng.uniform(*OUTAGE_SECONDS)
    soak.say(f"  {how.__name__}, away for {seconds:.0f} s")
    _away(soak, how, seconds)


def outage(soak: Soak) -> None:
    """The broker is away until the alert for outages must have fired."""
    _away(soak, soak.broker.stop, LONG_OUTAGE_SECONDS)
    soak.outages = True


def _away(soak: Soak, stop: Callable[[], None], seconds: float) -> None:
    def restart() -> None:
        stop()
        time.sleep(seconds)
        soak.broker.start()

    soak.disturbed.update(WRITERS)
    soak.beside(restart, PART_SECONDS * 2 + seconds, "a restart of the broker")


def restart_registry(soak: Soak) -> None:
    """The registry is away while a writer starts that needs it."""
    soak.registry.kill()
    soak.disturbed.update(OF_REGISTRY)
    soak.kill(soak.rng.choice(soak.victims(OF_REGISTRY)))
    rest(soak, soak.rng.uniform(*OUTAGE_SECONDS))
    soak.beside(soak.registry.start, PART_SECONDS * 2, "a start of the registry")


def _kill(soak: Soak, part: str) -> bool:
    """Kill a part as soon as it has a process; returns whether it got one."""
    if not soak.until(lambda: soak.weft.is_running(part), PART_SECONDS, f"a process of {part}"):
        return False
    soak.kill(part)
    return True


def rest(soak: Soak, seconds: float) -> None:
    """Let messages and queries go on for some seconds."""
    end = time.monotonic() + seconds
    soak.until(lambda: time.monotonic() >= end, seconds + 60, "the end of a pause")


EVENTS: Final[dict[str, Event]] = {
    event.__name__: event
    for event in (
        kill_writer,
        kill_compaction,
        kill_clean,
        bad_messages,
        kill_again,
        kill_weft_run,
        restart_broker,
        restart_registry,
        add_column,
        erase_keys,
        rewrite_column,
        recreate_topic,
        outage,
    )
}
