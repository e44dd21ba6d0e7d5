"""Deletes dead letters that are older than the time for which a writer keeps them.

A file is deleted as a whole when its youngest letter is old enough. These are never deleted:

- letters in a replay that has not committed
- letters of a batch that its query may still run again: the file could be replaced at the same time
- letters without a time, which older versions wrote
- every file that is not a file of dead letters of the lane
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from weft.storage.errors import CorruptData
from weft.streams.letters.letter_files import LetterFile, read_letters
from weft.streams.letters.letter_folder import LetterFolder, PlanState, Survey, delete
from weft.streams.letters.plans import plan_path


@dataclass(frozen=True, slots=True)
class Expired:
    """The letters that were deleted.

    Attributes:
        files: Number of files.
        bytes: Their size.
    """

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Expired) -> Expired:
        return Expired(self.files + other.files, self.bytes + other.bytes)


@dataclass(slots=True)
class Retention:
    """Deletes the old letters of one lane. Remembers the times of files, so a service reads each file once.

    Attributes:
        folder: The letters of the lane.
        keep_seconds: How long to keep them.
    """

    folder: LetterFolder
    keep_seconds: float
    _youngest: dict[tuple[str, int], int | None] = field(default_factory=dict)

    def expire(self, now_ms: int | None = None, *, dry_run: bool = False) -> Expired:
        """Delete files whose letters are all older than the retention.

        Args:
            now_ms: The time in Unix milliseconds; that of the clock by default.
            dry_run: Only count.

        Raises:
            CorruptData: A plan is damaged.
            StoreUnavailable: The store does not answer.
        """
        before_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - round(self.keep_seconds * 1000)
        survey = self.folder.survey()
        expired, remaining = Expired(), set()
        for file in survey.files:
            youngest = self._youngest_of(file)
            if youngest is None or youngest >= before_ms or not _is_deletable(survey, file):
                remaining.add(file.path)
                continue
            expired += Expired(1, file.size)
            if not dry_run:
                delete(survey.store, file.path)
        if not dry_run:
            _forget_plans(survey, remaining, before_ms)
        return expired

    def _youngest_of(self, file: LetterFile) -> int | None:
        """The time of the youngest letter; None if it has letters without a time, or of other lanes, or other lines."""
        key = (file.path, file.size)
        if key not in self._youngest:
            try:
                contents = [letter.content for letter in read_letters(self.folder.store, file.path)]
            except CorruptData:
                contents = []
            times = [content.get("written_at_ms") for content in contents]
            valid_times = [time_ms for time_ms in times if isinstance(time_ms, int)]
            is_ours = all(content["lane"] == self.folder.lane for content in contents)
            self._youngest[key] = (
                max(valid_times) if is_ours and valid_times and len(valid_times) == len(times) else None
            )
        return self._youngest[key]


def _is_deletable(survey: Survey, file: LetterFile) -> bool:
    """Whether an old file may be deleted: no replay needs it, and no batch can still replace it."""
    if any(survey.states[plan.number] is PlanState.OPEN and file.path in plan.letters for plan in survey.plans):
        return False
    if file.part.startswith("replay-"):
        # A run of an open replay may be the one that commits.
        open_plan = survey.open
        return open_plan is None or not file.part.startswith(f"{open_plan.query_id}-")
    return survey.is_committed(file) or file.part != survey.end.query_id


def _forget_plans(survey: Survey, remaining: set[str], before_ms: int) -> None:
    """Delete old plans whose letters are all gone. The newest plan stays, because it holds the last number."""
    for plan in survey.plans[:-1]:
        # A committed replay also says which run its own letters are of.
        runs = any(survey.runs.get(path.partition("/")[0]) is plan for path in remaining)
        if plan.made_at_ms < before_ms and not runs and not remaining & plan.letters.keys():
            delete(survey.store, plan_path(plan))
