"""Validates JSON with the JSON Schema that a message names. Runs in Spark's workers, so it does not import Spark.

The validator (`jsonschema`) and its rules are those of confluent-kafka's deserializer: the draft is that of
``$schema``, and ``format`` is not checked. A reference is looked up among those that the registry has for the schema,
and never fetched from an address in the schema.

A value that cannot be validated is not valid. The limit for a value is `MAX_SECONDS` of CPU time: a pattern such as
``^(a+)+$`` takes longer than the age of the universe for some short texts. The signal of a timer can interrupt a
regular expression, which runs in C; it is delivered only to the main thread, in which Spark's workers run.
"""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.registry import NO_HEADER, RegistryClient, SchemaId, Schemas, UnknownSchema, registry_client

MAX_SECONDS: Final = 1.0
"""Limit of the CPU time for one value. A value of 1 MB with ordinary rules takes a tenth of it."""
TOO_DEEP: Final = "the value, or its JSON Schema, has too many arrays and objects within each other to be checked"
_SHOWN: Final = 80
_SHOWN_PROBLEM: Final = 160


def validate_values(settings: FormatSettings, values: pa.Array) -> pa.Array:
    """Return why values do not match their schema.

    A reason names the place and the rule, but not the value, so that equal mistakes have equal reasons.

    Args:
        settings: Settings of the format; those of the registry's client are used.
        values: Binary; NULL for a message without a value.

    Returns:
        Text; NULL for a value that matches, has no schema id, or is not JSON.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _validators(settings).split(values.to_pylist())
    reasons: list[str | None] = []
    before = signal.signal(signal.SIGVTALRM, _end)
    try:
        for part in split.parts:
            if isinstance(part, tuple):
                reasons.append(_reason_in_time(*part))
            else:
                reasons.append(None if part == NO_HEADER else part)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return pa.array(reasons, pa.string())


class _TimeIsUp(Exception):
    """The CPU time for a value is used up."""


def _end(_number: int, _frame: object) -> None:
    raise _TimeIsUp


def _reason_in_time(validator: Any, data: bytes) -> str | None:
    # A garbage collection takes a second in a process with millions of objects, which do not belong to this value.
    collects = gc.isenabled()
    gc.disable()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        try:
            return _reason(validator, data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TimeIsUp:
        return f"the value takes more than {MAX_SECONDS:g} s to check with its JSON Schema"
    finally:
        if collects:
            gc.enable()


@lru_cache(maxsize=8)
def _validators(settings: FormatSettings) -> Schemas[Any]:
    """Return the validators of a worker, which are kept between batches."""
    client = registry_client(settings.registry)
    return Schemas(lambda schema_id: _load(client, schema_id))


def _load(client: RegistryClient, schema_id: SchemaId) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    schema = client.schema(schema_id, "JSON")
    try:
        plain = json.loads(schema.schema_str)
        documents = referenced_documents(schema, client)
        kind = validator_for(plain)
        kind.check_schema(plain)
    except (ValueError, SchemaError, RecursionError) as error:
        text = error.message if isinstance(error, SchemaError) else str(error)
        raise UnknownSchema(f"schema {schema_id} is not a JSON Schema: {text[:_SHOWN]}") from None
    kind = extend(kind, {"uniqueItems": _unique_items})
    resources = [(name, DRAFT202012.detect(document).create_resource(document)) for name, document in documents.items()]
    registry_with_parts: Any = Registry().with_resources(resources)
    return kind(plain, registry=registry_with_parts)


def referenced_documents(schema: Any, client: RegistryClient) -> Mapping[str, Any]:
    """Fetch all schemas that a schema of the registry refers to, also indirectly, by the name of the reference.

    Raises:
        UnknownSchema: The registry lacks one of the schemas.
        ValueError: One of the schemas is not JSON.
    """
    return {name: json.loads(text) for name, text in client.references(schema).items()}


def _unique_items(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """Check the rule ``uniqueItems``; the implementation of `jsonschema` compares all pairs of objects of an array."""
    from jsonschema.exceptions import ValidationError

    if unique and validator.is_type(instance, "array") and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("an item is repeated")


def _hashable(value: Any) -> Any:
    """Convert a value to a hashable one that is equal for equal JSON: 1 and 1.0 are equal, 1 and true are not."""
    match value:
        case dict():
            return "object", frozenset((name, _hashable(item)) for name, item in value.items())
        case list():
            return "array", tuple(map(_hashable, value))
        case bool():
            return "boolean", value
    return value


def _reason(validator: Any, data: bytes) -> str | None:
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(data)
    except RecursionError:
        return TOO_DEEP
    except ValueError:
        return None  # the decoder reports that it is not JSON
    try:
        error = next(validator.iter_errors(value), None)
    except _TimeIsUp:
        raise
    except Unresolvable as unknown:
        return f"the JSON Schema refers to {unknown.ref}, which the registry does not have for it"
    except RecursionError:
        return TOO_DEEP
    except Exception as problem:
        return f"the value cannot be checked with its JSON Schema: {type(problem).__name__}: {problem}"[:_SHOWN_PROBLEM]
    if error is None:
        return None
    rule = f"{error.validator}: {json.dumps(error.validator_value)}"
    return f"the value does not match its JSON Schema: {error.json_path} must have {rule[:_SHOWN]}"
