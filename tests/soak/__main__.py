"""``python -m tests.soak --minutes M [--seed N] [--writers 2|3] [--dir D]``: see `tests.soak.run`.

With ``--kafka real [--rate R] [--events NAME ...]``: a whole pipeline in operation, see `tests.soak.real.run`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from tests.download_cache import Unavailable
from tests.soak.real.events import EVENTS
from tests.soak.real.run import run_real_soak
from tests.soak.run import DRAIN_SECONDS, START_SECONDS, run_soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Real processes under kill -9.")
    parser.add_argument("--minutes", type=float, default=5.0, help="duration of the chaos, without start and end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writers", type=int, choices=(2, 3), default=3)
    parser.add_argument("--dir", type=Path, help="folder to keep table, logs and checkpoints in")
    parser.add_argument("--kafka", choices=("embedded", "real"), default="embedded", help="real: Kafka and a registry")
    parser.add_argument("--rate", type=float, default=60.0, help="events per second and topic, with --kafka real")
    parser.add_argument("--events", nargs="+", choices=tuple(EVENTS), help="with --kafka real: only these, in turn")
    given = parser.parse_args()
    started = time.monotonic()

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(f"ended by {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, end)
    # A time limit in case something hangs: the final comparison is slow after long runs.
    more = 3600 if given.kafka == "real" else 300  # commands of an operator take time, on a busy machine
    signal.alarm(round(given.minutes * 90 + 2 * START_SECONDS + DRAIN_SECONDS + more))

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)

    if given.kafka == "real":
        try:
            verdict = run_real_soak(
                given.minutes, seed=given.seed, rate=given.rate, folder=given.dir, events=given.events, say=say
            )
        except Unavailable as why:
            print(f"not run: {why}")
            return 0
    else:
        verdict = run_soak(given.minutes, seed=given.seed, writers=given.writers, folder=given.dir, say=say)
    print(*verdict.report, sep="\n")
    for what in verdict.wrong:
        print(what, file=sys.stderr)
    print(f"snapshot == oracle: {'no' if verdict.wrong else 'yes'} ({time.monotonic() - started:.0f} s)")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
