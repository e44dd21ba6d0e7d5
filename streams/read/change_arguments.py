"""The fields of schema changes as arguments of commands and procedures: the same for both, from
`weft.storage.alter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from weft.storage.alter import Change
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.foreign_text import parse_json

Form = Literal["text", "names", "map", "flag", "value"]
_FORMS: Final[Mapping[Any, Form]] = {Sequence: "names", Mapping: "map", bool: "flag", Any: "value"}


def change_arguments(model: type[Change]) -> dict[str, tuple[Form, FieldInfo]]:
    """The fields of a change that are arguments, with their forms, in order.

    A stream in ``streams`` that the table does not have is a new one, so ``new_streams`` is no argument.
    """
    fields = {name: field for name, field in model.model_fields.items() if name != "new_streams"}
    return {name: (_form(field.annotation), field) for name, field in fields.items()}


def _form(annotation: Any) -> Form:
    while get_origin(annotation) in {Annotated, Union, UnionType}:
        annotation = get_args(annotation)[0]
    return _FORMS.get(get_origin(annotation) or annotation, "text")


def change_of(model: type[Change], schema: TableSchema, arguments: Mapping[str, Any]) -> Change:
    """The change that arguments ask for.

    Args:
        model: The model of the change.
        schema: The schema of the table.
        arguments: Texts, numbers, lists of names and mappings by name; None for those that were left out. A value is
            JSON or plain text.

    Raises:
        InvalidInput: An argument has a wrong type.
    """
    forms = change_arguments(model)
    fields = {
        name: _parse_default(value) if forms[name][0] == "value" else value
        for name, value in arguments.items()
        if value is not None
    }
    if "streams" in fields:
        known = {stream.name for stream in schema.streams}
        fields["new_streams"] = {name: "group" for name in fields["streams"] if name not in known}
        fields["streams"] = [name for name in fields["streams"] if name in known]
    return model.model_validate(fields)


def _parse_default(text: str | None) -> Any:
    """A default value: of JSON if the text is JSON, else the text. None stays None."""
    if text is not None:
        with suppress(ValueError):
            return parse_json(text)
    return text
