"""The environment damages one file: removes it, truncates it, or flips a byte.

Only damage that a reader can detect: a removed entry looks like one that was never written, so entries and archives
are truncated, not removed (`verify` reports a gap in a lane).
"""

from __future__ import annotations

import random

from tests.simulation.disk import Disk
from tests.simulation.history import History
from tests.simulation.published import LOG


def damage(chance: random.Random, disk: Disk, history: History) -> tuple[str, ...]:
    """Damage an object without a call of `Disk.watch`.

    Returns:
        Texts, one of which an error must contain to name the object.
    """
    path = chance.choice(sorted(path for path in disk.objects if not path.startswith(("_weft/probe/", LOG))))
    data = history.originals[path] = disk.objects[path]
    is_log = "/timeline/" in path or "/archive/" in path
    match chance.choice(["cut", "flip"] if is_log else ["remove", "cut", "flip"]):
        case "remove":
            del disk.objects[path]
        case "cut":
            disk.objects[path] = data[: chance.randrange(len(data))]
        case _:
            place = chance.randrange(len(data))
            disk.objects[path] = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    return (path, *_words(path, history))


def _words(path: str, history: History) -> list[str]:
    """How errors name an entry: by lane and number."""
    for lane, entries in history.lanes.items():
        for entry in entries:
            if path.endswith(f"timeline/{f'lanes/{lane}' if lane else 'table'}/{entry['seq']:020d}.json"):
                return [f"entry {entry['seq']} of {f'lane {lane!r}' if lane else 'the table lane'}"]
    return []
