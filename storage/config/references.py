"""References in the configuration of a table: fields, and the checks that do not read the referenced tables.

`weft.storage.services.schema.resolve_references` checks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from weft.storage.config.config_file import Names
from weft.storage.core import names
from weft.storage.core.model import Column, Reference
from weft.storage.core.schema.state_columns import ARRIVAL, PRESENT
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # part of the text of a cut


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ReferenceConfig(BaseModel):
    """A reference to another table.

    Attributes:
        table: Location of the other table; a relative path starts at the location of this table.
        on: Columns of this table that hold the key of the other one, in the order of that key.
        columns: Columns of the other table to show; None for all columns outside its key that it has when the
            reference is created.
        prefix: Prefix of their names; by default the name of the reference and an underscore.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str = Field(min_length=1)
    on: Annotated[Names, BeforeValidator(_as_list), Field(min_length=1)]
    columns: Annotated[Names, Field(min_length=1)] | None = None
    prefix: str | None = None


def build_references(
    config: Mapping[str, ReferenceConfig],
    columns: Mapping[str, Column],
    groups: Collection[str],
    *,
    is_key: Callable[[pa.DataType], bool],
    reserved: Collection[str],
) -> tuple[Reference, ...]:
    """Check the references of a configuration and build them.

    Args:
        config: The references by name.
        columns: The columns of the table.
        groups: The names of its column groups.
        is_key: Whether a type can be that of a key.
        reserved: Names that no column may have.

    Raises:
        InvalidInput: A name is already used or not allowed, or a column of a foreign key does not exist or has a type
            that keys cannot have.
    """
    owners = {names.fold_case(name): f"column {name!r} of the table" for name in columns}
    states = (f"{prefix}{group}" for group in groups for prefix in (PRESENT, ARRIVAL))
    owners |= {names.fold_case(name): f"the state {name!r} of a group" for name in states}
    folded_groups = {names.fold_case(name) for name in groups}
    references: list[Reference] = []
    for name, fields in config.items():
        field = f"references.{name}"
        if not _NAME.fullmatch(name) or name.lower() in {reference.name.lower() for reference in references}:
            raise InvalidInput(
                f"{field}: is not a valid name of a reference",
                hint="use up to 64 letters, digits and underscores, beginning with a letter; case is ignored",
            )
        if names.fold_case(name) in folded_groups:
            raise InvalidInput(
                f"{field}: a group has this name", hint="choose another name: `require` accepts groups and references"
            )
        for column in fields.on:
            if column not in columns:
                raise InvalidInput(f"{field}.on: there is no {column!r}", hint=f"known: {', '.join(columns)}")
            if not is_key(columns[column].type):
                raise InvalidInput(
                    f"{field}.on: column {column!r} has type {format_type(columns[column].type)}",
                    hint="choose a column of a type that keys can have",
                )
        prefix = f"{name}_" if fields.prefix is None else fields.prefix
        reference = Reference(name, fields.table, tuple(fields.on), tuple(fields.columns or ()), prefix)
        for column, shown_name in zip(reference.columns, reference.shown_names, strict=True):
            folded = names.fold_case(shown_name)
            is_reserved = folded in reserved or folded.startswith(names.HIDDEN_PREFIX)
            if is_reserved or folded in owners:
                owner = "a reserved name" if is_reserved else f"the name of {owners[folded]}"
                raise InvalidInput(
                    f"{field}.columns: {column!r} would be shown as {shown_name!r}, which is {owner}",
                    hint=f"choose another prefix than {prefix!r}, or list the columns that you need",
                )
            owners[folded] = f"column {column!r} of reference {name!r}"
        references.append(reference)
    return tuple(references)
