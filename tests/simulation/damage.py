"""The environment damages one file: removes it, truncates it, or flips a byte.

Only damage that a reader can detect: a removed entry looks like one that was never written, so entries and archives
are truncated, not removed (`verify` reports a gap in a lane).
"""

from __future__ import annotations

import random

from tests.simulation.disk import Disk
from tests.simulation.history import History
from tests.simulation.published import LOG

CHECKPOINTS = 1 / 4
"""Share of the damage that is in checkpoints of the table lane, if there are any."""


def damage(chance: random.Random, disk: Disk, history: History) -> tuple[str, ...]:
    """Damage an object without a call of `Disk.watch`.

    Returns:
        Texts, one of which an error must contain to name the object.
    """
    paths = sorted(path for path in disk.objects if not path.startswith(("_weft/probe/", LOG)))
    # Each table has a few among very many objects, and most of their bytes are read late.
    checkpoints = [path for path in paths if path.startswith("_weft/checkpoints/table/")]
    path = chance.choice(checkpoints if checkpoints and chance.random() < CHECKPOINTS else paths)
    data = history.originals[path] = disk.objects[path]
    is_log = "/timeline/" in path or "/archive/" in path
    match chance.choice(["cut", "flip"] if is_log else ["remove", "cut", "flip"]):
        case "remove":
            del disk.objects[path]
        case "cut":
            disk.objects[path] = data[: chance.randrange(len(data))]
        case _:
            # The slices of large tables are most of their checkpoints.
            slices = data.rfind(b'\n{"version"') if path in checkpoints else 0
            place = chance.randrange(slices if slices > 0 else len(data))
            disk.objects[path] = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    return (path, *_words(path, history))


def _words(path: str, history: History) -> list[str]:
    """How errors name an entry: by lane and number."""
    for lane, entries in history.lanes.items():
        for entry in entries:
            if path.endswith(f"timeline/{f'lanes/{lane}' if lane else 'table'}/{entry['seq']:020d}.json"):
                return [f"entry {entry['seq']} of {f'lane {lane!r}' if lane else 'the table lane'}"]
    return []
