"""An annotation for fields of a state that checkpoints store in another form than the one in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import GetPydanticSchema
from pydantic_core import core_schema


def stored_as(form: Any, load: Callable[[Any], Any], dump: Callable[[Any], Any]) -> GetPydanticSchema:
    """Annotation of a field that is stored as ``form``, a JSON type; ``dump`` converts to it, ``load`` back."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            load,
            handler.generate_schema(form),
            serialization=core_schema.plain_serializer_function_ser_schema(
                dump, return_schema=handler.generate_schema(form)
            ),
        )
    )
