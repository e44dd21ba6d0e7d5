"""The faults of a schedule: one decision per store call, drawn from the seed.

A schedule has a *mood*: quiet, a bad network, crashes, freezes, or all of these. Faults stop after some steps, so that
every schedule ends and all acknowledged commits can be checked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DAY_MS = 86_400_000
SKEWS_MS = [0, 0, 1, -1, 60_000, -60_000, DAY_MS, -DAY_MS, 365 * DAY_MS, -365 * DAY_MS]
FREEZE_STEPS = [10, 50, 200, 2_000]
LATE_STEPS = [1, 5, 20, 100, 500]
OUTAGE_MS = [1_000, 62_000, 62_000, 90_000]  # the longer ones exceed the deadline of a publication


class Fault(StrEnum):
    """Faults of a call, or of the process that makes it."""

    LOST_REQUEST = "fails before its effect"
    LOST_ANSWER = "fails after its effect"
    DELAYED = "fails, and takes effect later"
    DOUBLED = "takes effect, and again later"
    REFUSED = "is refused (403)"
    OUTAGE = "a minute without the store"
    CRASH = "process dies before the call"
    CRASH_AFTER = "process dies after the call's effect"
    CRASH_DELAYED = "process dies, and the call takes effect later"
    FREEZE = "process freezes before the call"
    FREEZE_AFTER = "process freezes after the call's effect"
    CLOCK = "process's clock jumps"
    LEAP = "two minutes pass"
    DAMAGE = "environment removes or tears a file"


_NETWORK = {
    Fault.LOST_REQUEST: 3,
    Fault.LOST_ANSWER: 3,
    Fault.DELAYED: 3,
    Fault.DOUBLED: 3,
    Fault.REFUSED: 0.5,
    Fault.OUTAGE: 3,
}
_CRASHES = {Fault.CRASH: 2, Fault.CRASH_AFTER: 2, Fault.CRASH_DELAYED: 2}
_FREEZES = {Fault.FREEZE: 2, Fault.FREEZE_AFTER: 2}
_TIME = {Fault.CLOCK: 2, Fault.LEAP: 0.5}
MOODS: Mapping[str, Mapping[Fault, float]] = {
    "quiet": {},
    "network": _NETWORK,
    "crashes": _CRASHES,
    "freezes": _FREEZES,
    "time": {**_TIME, **_FREEZES},
    "storm": {**_NETWORK, **_CRASHES, **_FREEZES, **_TIME},
}
"""Per mood the percentage of calls with each fault."""
_WRITES = {"put_if_absent", "put", "open_output", "delete"}
_EFFECTS = {Fault.LOST_ANSWER, Fault.DELAYED, Fault.DOUBLED, Fault.CRASH_AFTER, Fault.CRASH_DELAYED}


@dataclass
class Faults:
    """Draws faults, and counts them."""

    chance: random.Random
    mood: str
    last_step: int
    counts: Counter[Fault] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rates = MOODS[self.mood]
        self._faults, self._weights = list(self.rates), list(self.rates.values())
        self._total = sum(self._weights) / 100

    def active(self, step: int) -> bool:
        return step <= self.last_step

    def draw(self, call: str, step: int) -> Fault | None:
        """The fault of a call; None if there is none."""
        if not self.active(step) or self.chance.random() >= self._total:
            return None
        fault = self.chance.choices(self._faults, self._weights)[0]
        if fault in _EFFECTS and call not in _WRITES:
            return None  # reads have no effect that could be late
        if fault is Fault.OUTAGE and call != "put_if_absent":
            return None  # readers fail at once; publishers retry, and then do not know the outcome
        self.counts[fault] += 1
        return fault

    def draw_offline(self, call: str) -> Fault:
        """The fault of a call while the network is down: it gets no answer, but may take effect."""
        if call not in _WRITES:
            return Fault.LOST_REQUEST
        return self.chance.choice([Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.DELAYED])

    def order(self, count: int) -> list[int]:
        """The order in which concurrent requests arrive."""
        return self.chance.sample(range(count), count)

    def freeze_steps(self) -> int:
        return self.chance.choice(FREEZE_STEPS)

    def outage_ms(self) -> int:
        return self.chance.choice(OUTAGE_MS)

    def late_steps(self) -> int:
        return self.chance.choice(LATE_STEPS)

    def skew_ms(self) -> int:
        return self.chance.choice(SKEWS_MS)
