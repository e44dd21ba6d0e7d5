"""The aggregate functions of a group in a table's configuration: fields and checks (deploy/docs/configuration.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from weft.storage.core.model import Column, Function
from weft.storage.core.modes.functions import find_function, function_names
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput


class FunctionOptions(BaseModel):
    """Options of an aggregate function."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delimiter: str = ","


def _without_options(value: Any) -> Any:
    return {value: None} if isinstance(value, str) else value


FunctionConfig = Annotated[dict[str, FunctionOptions | None], BeforeValidator(_without_options), Field(min_length=1)]
"""A function by name; the options are None for their defaults."""


def build_functions(
    field: str,
    config: Mapping[str, Mapping[str, FunctionOptions | None]],
    names: Sequence[str],
    ordering: Sequence[str],
    columns: Mapping[str, Column],
) -> tuple[Function, ...]:
    """Check the functions of a group and build them: one per column outside its ordering.

    Args:
        field: The field of the group's functions.
        config: The functions by column.
        names: The columns of the group.
        ordering: The columns of the group that order its events.
        columns: The valid columns of the table, by name.

    Raises:
        InvalidInput: A column has no function, or its function is unknown or does not support its type.
    """
    hint = f"functions: {', '.join(function_names())}"
    functions = []
    for column, function in config.items():
        at = f"{field}.{column}"
        if column not in names or column in ordering:
            raise InvalidInput(
                f"{at}: is not an aggregated column", hint="list columns of the group outside its ordering"
            )
        (name, options), *more_functions = function.items()
        if more_functions or (options is not None and not has_options(name)):
            names_with_options = " and ".join(filter(has_options, function_names()))
            raise InvalidInput(
                f"{at}: only {names_with_options} has options", hint='for example {listagg: {delimiter: ";"}}'
            )
        if name not in function_names():
            raise InvalidInput(f"{at}: there is no function {name!r}", hint=hint)
        refusal = find_function(name).refuses(columns[column].type) if column in columns else None
        if refusal is not None:
            type_name = format_type(columns[column].type)
            raise InvalidInput(f"{at}: {name} of {type_name} {refusal.reason}", hint=refusal.hint)
        options = options or FunctionOptions()
        functions.append(Function(column, name, options.delimiter if has_options(name) else ""))
    for column in names:
        if column not in ordering and column not in config:
            raise InvalidInput(f"{field}: column {column!r} has no function", hint=hint)
    return tuple(functions)


def has_options(function: str) -> bool:
    """Whether a function of this name has options."""
    return function in function_names() and find_function(function).has_delimiter
