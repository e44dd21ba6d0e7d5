"""A schema registry as a process that can be killed: ``python -m tests.soak.real.registry_process PORT FILE``.

Every registered schema is appended to the file, and registered again at the start, so that ids stay.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.streams.formats.registry_server import SchemaRegistry


class KeptRegistry(SchemaRegistry):
    """A registry that keeps its schemas in a file."""

    def __init__(self, port: int, file: Path) -> None:
        super().__init__(port)
        self._file = file
        kept = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in kept:
            super().register(*json.loads(line))

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        with self._file.open("a", encoding="utf-8") as kept:
            kept.write(json.dumps([subject, schema, kind, references or []]) + "\n")
        return super().register(subject, schema, kind, references)


def main() -> int:
    port, file = int(sys.argv[1]), Path(sys.argv[2])
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # before a thread starts: threads inherit it
    with KeptRegistry(port, file):
        signal.sigwait(stops)
    return 0


if __name__ == "__main__":
    sys.exit(main())
