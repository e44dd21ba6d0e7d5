"""The objects of the simulated store, which is strongly consistent, and requests that have not arrived yet.

A request whose caller got no answer (a time-out, a crash) may take effect later: `defer` keeps it until its step. Its
effect is decided then: a put-if-absent fails if the name has been taken meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

Watch = Callable[[str, bytes | None, bytes | None], None]
"""Called after every change with (path, old content, new content)."""


@dataclass(order=True)
class _Late:
    step: int
    number: int
    apply: Callable[[], object] = field(compare=False)


class Disk:
    """Objects by path. ``watch`` is called at every change."""

    def __init__(self, watch: Watch) -> None:
        self.objects: dict[str, bytes] = {}
        self._watch = watch
        self._late: list[_Late] = []
        self._count = 0

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self._set(path, data)
        return True

    def put(self, path: str, data: bytes) -> None:
        self._set(path, data)

    def delete(self, path: str) -> None:
        before = self.objects.pop(path, None)
        if before is not None:
            self._watch(path, before, None)

    def list(self, folder: str) -> list[tuple[str, int]]:
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        return sorted(
            (path.removeprefix(prefix), len(data)) for path, data in self.objects.items() if path.startswith(prefix)
        )

    def defer(self, step: int, apply: Callable[[], object]) -> None:
        """Let a request take effect at a later step."""
        self._count += 1
        heapq.heappush(self._late, _Late(step, self._count, apply))

    def arrive(self, step: int) -> None:
        """Let all requests take effect that are due."""
        while self._late and self._late[0].step <= step:
            heapq.heappop(self._late).apply()

    def arrive_all(self) -> None:
        while self._late:
            heapq.heappop(self._late).apply()

    def _set(self, path: str, data: bytes) -> None:
        before = self.objects.get(path)
        self.objects[path] = data
        self._watch(path, before, data)
