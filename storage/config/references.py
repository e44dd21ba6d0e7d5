"""References in the configuration of a table: what can be checked without the tables that they refer to.

The rest is checked by `weft.storage.services.schema.resolve_references`.
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


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ReferenceConfig(BaseModel):
    """A reference to another table.

    Attributes:
        table: Location of the other table; a relative path starts at the location of this table.
        on: Columns of this table that hold the key of the other one, in the order of that key.
        columns: Columns of the other table to show; None for those outside its key that it has when the reference is
            made.
        prefix: Put before their names; by default the name of the reference and an underscore.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str = Field(min_length=1)
    on: Annotated[Names, BeforeValidator(_listed), Field(min_length=1)]
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
    """The references of a configuration.

    Args:
        config: The references by name.
        columns: The columns of the table.
        groups: The names of its column groups.
        is_key: Whether a type can be that of a key.
        reserved: Names that no column may have.

    Raises:
        InvalidInput: A name is taken or not allowed, or a foreign key is no column of the table or no key.
    """
    taken = {names.fold_case(name): f"column {name!r} of the table" for name in columns}
    states = (f"{prefix}{group}" for group in groups for prefix in (PRESENT, ARRIVAL))
    taken |= {names.fold_case(name): f"the state {name!r} of a group" for name in states}
    folded_groups = {names.fold_case(name) for name in groups}
    found: list[Reference] = []
    for name, given in config.items():
        field = f"references.{name}"
        if not _NAME.fullmatch(name) or name.lower() in {each.name.lower() for each in found}:
            raise InvalidInput(
                f"{field}: not a name of a reference",
                hint="up to 64 letters, digits and underscores, beginning with a letter; unique, also without case",
            )
        if names.fold_case(name) in folded_groups:
            raise InvalidInput(
                f"{field}: a group has this name", hint="`require` takes both: choose another name for the reference"
            )
        for column in given.on:
            if column not in columns:
                raise InvalidInput(f"{field}.on: there is no {column!r}", hint=f"known: {', '.join(columns)}")
            if not is_key(columns[column].type):
                raise InvalidInput(
                    f"{field}.on: column {column!r} has type {format_type(columns[column].type)}",
                    hint="no table has a key of this type",
                )
        prefix = f"{name}_" if given.prefix is None else given.prefix
        reference = Reference(name, given.table, tuple(given.on), tuple(given.columns or ()), prefix)
        for column, shown in zip(reference.columns, reference.shown, strict=True):
            folded = names.fold_case(shown)
            is_reserved = folded in reserved or folded.startswith(names.HIDDEN_PREFIX)
            if is_reserved or folded in taken:
                what = "a reserved name" if is_reserved else f"that of {taken[folded]}"
                raise InvalidInput(
                    f"{field}.columns: {column!r} would be shown as {shown!r}, which is {what}",
                    hint=f"choose another prefix than {prefix!r}, or list the columns that you need",
                )
            taken[folded] = f"column {column!r} of reference {name!r}"
        found.append(reference)
    return tuple(found)
