"""Summarizes why messages have become dead letters since a moment, for a user who has just started a pipeline."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from weft.streams.letters.letter_files import Letter, read_letters
from weft.streams.letters.letter_folder import Survey

_COUNTED: Final = 10_000  # letters whose reasons are counted
_NAMED: Final = 3
_VALUE_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class RecentLetters:
    """Letters of the query that runs, or ran last.

    Attributes:
        reasons: Number of letters by reason.
        example: One of the letters with the most frequent reason; None if there is no letter.
    """

    reasons: Counter[str]
    example: Letter | None

    @property
    def words(self) -> list[str]:
        """The most frequent reasons, and the example."""
        lines = [f"{count:,} x {reason}" for reason, count in self.reasons.most_common(_NAMED)]
        if len(self.reasons) > _NAMED:
            lines.append(f"and {len(self.reasons) - _NAMED:,} other reasons")
        if self.example is not None:
            lines.append(f"for example {self.example.name}{_position(self.example.content)}")
        return lines


def recent_letters(survey: Survey, since_ms: int) -> RecentLetters:
    """The newest letters of a lane.

    Args:
        survey: From `LetterFolder.survey`.
        since_ms: Leave out letters that were written before.

    Raises:
        CorruptData: A file has a line that is not a letter.
        StoreUnavailable: The store does not answer.
    """
    reasons: Counter[str] = Counter()
    examples: dict[str, Letter] = {}
    files = [file for file in survey.files if file.part == survey.end.query_id]
    for file in sorted(files, key=lambda file: -file.batch):
        new = 0
        for letter in read_letters(survey.store, file.path):
            if letter.content.get("written_at_ms", 0) >= since_ms and letter.content["lane"] == survey.lane:
                new += 1
                reason = str(letter.content["reason"])
                reasons[reason] += 1
                examples.setdefault(reason, letter)
        if not new or reasons.total() >= _COUNTED:
            break  # older batches have older letters
    most = reasons.most_common(1)
    return RecentLetters(reasons, examples[most[0][0]] if most else None)


def _position(content: Any) -> str:
    """Where a message is, and the beginning of it."""
    parts = [f"{name} {content[name]}" for name in ("topic", "partition", "offset") if content.get(name) is not None]
    place = f" ({', '.join(parts)})" if parts else ""
    value = content.get("value")
    if value is None:
        return place
    short = str(value)[:_VALUE_CHARS]
    return f"{place}: {short}{'...' if len(str(value)) > len(short) else ''}"
