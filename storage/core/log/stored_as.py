"""How a field of a state is stored in a checkpoint, where that differs from what it is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import GetPydanticSchema
from pydantic_core import core_schema


def stored_as(form: Any, load: Callable[[Any], Any], dump: Callable[[Any], Any]) -> GetPydanticSchema:
    """Annotation of a field: ``dump`` gives a value of type ``form``, which is JSON, and ``load`` takes it back."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            load,
            handler.generate_schema(form),
            serialization=core_schema.plain_serializer_function_ser_schema(
                dump, return_schema=handler.generate_schema(form)
            ),
        )
    )
