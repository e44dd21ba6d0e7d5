"""The scheduler: real code in threads of which exactly one runs; the seed decides which.

A thread runs until it reaches a yield point (`Scheduler.pause`), where the seed selects the next one. Threads pass
control by locks, so the code between two yield points is atomic, and a run is a function of the seed. Time is
simulated: it advances with every step, and jumps when all processes that could run are asleep.

A process dies by `Crash`, which is not an `Exception`, so that ``except Exception`` does not catch it. A dead process
has no further effect: every call that it makes while its stack unwinds raises `Crash` again.
"""

from __future__ import annotations

import faulthandler
import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

STEP_MS = 5  # a store call takes about this long
MAX_STEPS = (
    30_000  # a schedule has some hundred steps: one that does not end has processes that wait for each other (L1, L2)
)
JOIN_SECONDS = 120  # an unwinding thread needs almost no time
HANG_SECONDS = 280  # a whole schedule takes less than a second; one of a mutant, with `MAX_STEPS`, many
FIRST_MS = 1_800_000_000_000


class Crash(BaseException):
    """The process is killed here."""


class Violation(BaseException):
    """An invariant is violated. Not an `Exception`, so that the code under test does not handle it."""


@dataclass(eq=False)
class Process:
    """One simulated process: a thread with a clock and a state.

    Attributes:
        name: Name in the trace.
        skew_ms: Milliseconds by which its clock is ahead of simulated time.
        asleep_until: Simulated time before which it does not run.
        frozen_until: Step before which it does not run.
        offline_until: Simulated time before which the store does not answer its calls.
        on_freeze: Called when it freezes, for example to start another process as a cluster would.
    """

    name: str
    body: Callable[[Process], None]
    skew_ms: int = 0
    on_freeze: Callable[[], None] = lambda: None
    asleep_until: int = 0
    frozen_until: int = 0
    offline_until: int = 0
    dead: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None

    def kill(self) -> Crash:
        self.dead = True
        return Crash(self.name)


class Scheduler:
    """Runs processes until all have ended."""

    def __init__(self, chance: random.Random, stickiness: float) -> None:
        self.chance, self.stickiness = chance, stickiness
        self.step = 0
        self.now_ms = FIRST_MS
        self.trace: list[str] = []
        self.failure: str | None = None
        self.on_step: Callable[[], None] = lambda: None
        self._living: list[Process] = []
        self._all: list[Process] = []
        self._stopping = False
        self._main = threading.Lock()
        self._main.acquire()

    @property
    def living(self) -> list[Process]:
        return self._living

    def spawn(self, process: Process) -> None:
        """Add a process; it begins when it is first picked."""
        process.turn.acquire()
        process.thread = threading.Thread(target=self._run, args=(process,), name=process.name, daemon=True)
        self._living.append(process)
        self._all.append(process)
        process.thread.start()

    def run(self) -> None:
        """Run all processes to their ends, also spawned ones. Sets `failure` if an invariant is violated."""
        if self._living:
            self._pick(None).turn.release()
            if not self._main.acquire(timeout=HANG_SECONDS):
                faulthandler.dump_traceback()
                raise AssertionError(f"step {self.step}: a process waits for something that is not the store")
        for process in self._all:
            assert process.thread is not None
            process.thread.join(JOIN_SECONDS)
            assert not process.thread.is_alive(), f"{process.name} does not end"
        self._all.clear()

    def pause(self, process: Process) -> None:
        """A yield point.

        Raises:
            Crash: The process is dead, or the schedule is over.
        """
        if process.dead or self._stopping:
            raise process.kill()
        self.step += 1
        self.now_ms += STEP_MS
        if self.step > MAX_STEPS:
            raise Violation(f"L1 NonBlocking: {MAX_STEPS} steps, and {self._names()} have not ended")
        self.on_step()
        chosen = self._pick(process)
        if chosen is not process:
            chosen.turn.release()
            process.turn.acquire()
            if self._stopping:
                raise process.kill()

    def sleep(self, process: Process, seconds: float) -> None:
        """A yield point that the process passes only after some time."""
        process.asleep_until = self.now_ms + max(1, round(seconds * 1000))
        self.log(process, f"sleeps {seconds:g}")
        self.pause(process)

    def log(self, process: Process, what: str) -> None:
        self.trace.append(f"{self.step} {process.name}: {what}")

    def fail(self, message: str) -> None:
        """Record the first failure, and stop all processes."""
        if self.failure is None:
            self.failure = message
        self._stopping = True

    def _pick(self, current: Process | None) -> Process:
        """The next process: the current one with some probability, otherwise any that is neither frozen nor asleep."""
        ready = [p for p in self._living if p.frozen_until <= self.step and p.asleep_until <= self.now_ms]
        if not ready:
            awake = [p for p in self._living if p.frozen_until <= self.step]
            if not awake:
                first = min(self._living, key=lambda p: p.frozen_until)
                first.frozen_until = 0
                awake = [first]
            chosen = min(awake, key=lambda p: p.asleep_until)
            self.now_ms = max(self.now_ms, chosen.asleep_until)
            return chosen
        if current in ready and self.chance.random() < self.stickiness:
            return current
        return ready[self.chance.randrange(len(ready))]

    def _run(self, process: Process) -> None:
        process.turn.acquire()
        try:
            if not self._stopping:
                process.body(process)
        except Crash:
            pass
        except Violation as violation:
            self.fail(str(violation))
        except BaseException:
            self.fail(f"{process.name} raised an error that must not occur:\n{traceback.format_exc()}")
        self._living.remove(process)
        if self._stopping:
            # All other processes unwind in turn.
            nxt = self._living[0] if self._living else None
        else:
            nxt = self._pick(None) if self._living else None
        (nxt.turn if nxt is not None else self._main).release()

    def _names(self) -> str:
        return ", ".join(process.name for process in self._living)
