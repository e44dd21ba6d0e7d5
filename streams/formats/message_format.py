"""Interface of message formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql.types import StructType

from weft.streams.formats.format_options import FormatSettings


@dataclass(frozen=True, slots=True)
class Extras:
    """Columns with details of a message besides its fields; None if the format does not have the detail.

    Attributes:
        operation: ``upsert`` or ``delete``, string: the default of the column ``_op``.
        unavailable: Names of fields whose value the row has and the message lacks; array of strings, or NULL. The
            columns that use them keep their present values.
        absent: Names of declared fields that the message does not have at all; array of strings, or NULL.
        metadata: Further columns for `select` and `where`, by name.
        schema_id: Id of the message's schema in the registry, integer.
    """

    operation: Column | None = None
    unavailable: Column | None = None
    absent: Column | None = None
    metadata: Mapping[str, Column] = field(default_factory=dict)
    schema_id: Column | None = None


class MessageFormat(ABC):
    """A message format: Spark expressions that decode values. Stateless.

    `weft.streams.write.decode` evaluates `parse` once per message, and the others on its result. It handles messages
    without a value (tombstones) and metadata of Kafka itself.
    """

    reserved: ClassVar[tuple[str, ...]] = ()
    """Names of the columns in `Extras.metadata`, which fields of a message must not have."""

    names_schema: ClassVar[bool] = False
    """Whether a message begins with the id of its schema. An id in a header of Kafka is put there before `parse`."""

    def __init__(self, settings: FormatSettings) -> None:
        self.settings = settings

    @abstractmethod
    def parse(self, value: Column, fields: StructType) -> Column:
        """Parse values.

        Args:
            value: The value of the message, binary or string.
            fields: The declared fields of the message.

        Returns:
            Any type that `message` and `reason` understand. It must not fail for any value: use ``try_cast``, and let
            `reason` report values that could not be cast.
        """

    @abstractmethod
    def message(self, parsed: Column) -> Column:
        """Return the decoded message, a struct of the declared fields. It is not used if there is a reason."""

    @abstractmethod
    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        """Return a string that says why the value cannot be decoded; NULL if it can. It is not used for a NULL value.

        Args:
            parsed: The result of `parse`.
            value: The value of the message, binary or string.
            fields: The declared fields of the message.
        """

    def extras(self, parsed: Column) -> Extras:
        """Return details of a message besides its fields."""
        return Extras()
