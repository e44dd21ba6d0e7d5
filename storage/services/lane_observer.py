"""Follows lanes of a table without opening it: reports what was committed to a lane since the last call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.storage.core.log.entries import Claim, Data
from weft.storage.core.names import LaneName, lane_name
from weft.storage.environment import open_environment
from weft.storage.log.commit_log import CommitLog


class LaneNews(NamedTuple):
    """New entries of a lane: number of claims, input rows of commits, and the last recorded source position."""

    claims: int
    rows: int
    source: Mapping[str, Any] | None


class LaneObserver:
    """Follows lanes of a table without opening it. Reads only new entries. Not thread-safe."""

    def __init__(self, uri: str | Path, storage_options: Mapping[str, Any] | None = None) -> None:
        self._log = CommitLog(open_environment(uri, storage_options))
        self._heads: dict[LaneName, int] = {}

    def news(self, lane: str) -> LaneNews:
        """Read what was committed to a lane since the last call; on the first call, since its beginning.

        Raises:
            CorruptData: An entry is damaged.
            StoreUnavailable: The store does not answer.
        """
        name = lane_name(lane)
        entries = self._log.read_after(name, self._heads.get(name, 0))
        commits = [entry for entry in entries if isinstance(entry, Data)]
        if entries:
            self._heads[name] = entries[-1].seq
            self._log.forget_before(name, entries[-1].seq)
        return LaneNews(
            claims=sum(isinstance(entry, Claim) for entry in entries),
            rows=sum(commit.rows + commit.rows_ignored for commit in commits),
            source=next((commit.source for commit in reversed(commits) if commit.source), None),
        )
