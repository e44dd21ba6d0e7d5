"""What a message format provides."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyspark.sql import Column
from pyspark.sql.types import StructType


class MessageFormat(ABC):
    """A message format: Spark expressions that decode values. Stateless.

    `streams.write.decode` evaluates `parse` once per message, and the two others on its result. It handles messages
    without a value (tombstones) and metadata itself.
    """

    @abstractmethod
    def parse(self, value: Column, fields: StructType) -> Column:
        """Parse values.

        Args:
            value: The value of the message, binary or string.
            fields: The declared fields of the message.

        Returns:
            Any type that `message` and `reason` understand. Must not fail for any value: use ``try_cast``, and let
            `reason` report what could not be cast.
        """

    @abstractmethod
    def message(self, parsed: Column) -> Column:
        """The decoded message: a struct of the declared fields. Its content does not matter if there is a reason."""

    @abstractmethod
    def reason(self, parsed: Column, value: Column) -> Column:
        """Why the value cannot be decoded, string; NULL if it was decoded as a whole. Not used for a NULL value."""
