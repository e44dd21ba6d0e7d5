"""A limit of dead letters, which stops a writer before a broken source fills the folder."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from weft.storage.errors import TableError
from weft.storage.store.object_store import ObjectStore
from weft.streams.letters.letter_files import list_files, read_letters

_COUNTED: Final = 10_000  # letters whose reasons are counted for the message
_NAMED: Final = 3
HINT: Final = (
    "nothing of this batch was committed, and its letters are in the folder: weft dead-letters count PIPELINE; correct "
    "the source, schema or select, or raise the limit, and start the writer again"
)


class TooManyDeadLetters(TableError):
    """A batch has more dead letters than the writer allows. The batch was not committed."""

    code = "TOO_MANY_DEAD_LETTERS"
    guide = "deploy/OPERATIONS.md#alerts"


class LetterLimit(BaseModel):
    """How many dead letters a writer accepts.

    Attributes:
        max_rate: Largest share of the messages of one batch, from 0 to 1; None: no limit. Messages that ``where`` drops
            do not count. A single letter never exceeds it, because a batch may have only one message.
        max_count: Largest number since the writer started; None: no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rate: float | None = Field(default=None, ge=0, le=1)
    max_count: int | None = Field(default=None, ge=0)

    def describe_excess(self, letters: int, messages: int, before: int) -> str | None:
        """How a batch exceeds the limit, in words; None if it does not.

        Args:
            letters: Dead letters of the batch.
            messages: Messages of the batch, dead letters included.
            before: Dead letters of the batches before, since the writer started.
        """
        if self.max_rate is not None and letters > 1 and letters > self.max_rate * messages:
            return f"{letters:,} of {messages:,} messages of a batch are dead letters (max_rate: {self.max_rate})"
        if self.max_count is not None and letters and before + letters > self.max_count:
            return f"{before + letters:,} dead letters since the writer started (max_count: {self.max_count:,})"
        return None


def frequent_reasons(store: ObjectStore, part: str, batch: int) -> str:
    """The most frequent reasons of the letters of a batch, in words.

    Args:
        store: The folder of dead letters.
        part: The query id.
        batch: Number of the batch.
    """
    files = (file for file in list_files(store) if (file.part, file.batch) == (part, batch))
    letters = (letter for file in files for letter in read_letters(store, file.path))
    counts = Counter(str(letter.content["reason"]) for letter in itertools.islice(letters, _COUNTED))
    return "; ".join(f"{count:,} x {reason}" for reason, count in counts.most_common(_NAMED))
