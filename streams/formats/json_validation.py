"""Validates JSON with the JSON Schema that a message names. Runs in Spark's workers, so it does not import Spark.

The validator is that of confluent-kafka's deserializer (`jsonschema`), and so are its rules: the draft is that of
``$schema``, and ``format`` is not checked. A reference is looked up among those that the registry knows for the schema,
and never fetched from an address in the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from streams.formats.registry import NO_HEADER, RegistryClient, SchemaId, Schemas, UnknownSchema, registry_client

_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """How to validate: settings of the registry's client, sorted."""

    registry: tuple[tuple[str, str], ...] = field(repr=False)


def validate_values(settings: ValidationSettings, values: pa.Array) -> pa.Array:
    """Why values do not match their schema.

    A reason names the place and the rule, and not the value: so equal mistakes have equal reasons.

    Args:
        settings: How to validate.
        values: Binary; NULL for a message without a value.

    Returns:
        Text; NULL for a value that matches, has no schema id, or is not JSON.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _validators(settings).split(values.to_pylist())
    reasons: list[str | None] = []
    for part in split.parts:
        if isinstance(part, tuple):
            reasons.append(_reason(*part))
        else:
            reasons.append(None if part == NO_HEADER else part)
    return pa.array(reasons, pa.string())


@lru_cache(maxsize=8)
def _validators(settings: ValidationSettings) -> Schemas[Any]:
    """The validators of a worker, remembered between batches."""
    client = registry_client(settings.registry)
    return Schemas(lambda schema_id: _load(client, schema_id))


def _load(client: RegistryClient, schema_id: SchemaId) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    schema = client.schema(schema_id)
    if schema.schema_type != "JSON":
        raise UnknownSchema(f"schema {schema_id} is of type {schema.schema_type or 'AVRO'}, not JSON")
    try:
        plain = json.loads(schema.schema_str)
        documents = referenced_documents(schema, client)
        kind = validator_for(plain)
        kind.check_schema(plain)
    except (ValueError, SchemaError, RecursionError) as error:
        text = error.message if isinstance(error, SchemaError) else str(error)
        raise UnknownSchema(f"schema {schema_id} is not a JSON Schema: {text[:_SHOWN]}") from None
    resources = [(name, DRAFT202012.detect(document).create_resource(document)) for name, document in documents.items()]
    known: Any = Registry().with_resources(resources)
    return kind(plain, registry=known)


def referenced_documents(schema: Any, client: RegistryClient) -> Mapping[str, Any]:
    """All schemas that a schema of the registry refers to, also through others, by the name of the reference.

    Raises:
        UnknownSchema: The registry lacks one.
        ValueError: One is not JSON.
    """
    found: dict[str, Any] = {}
    _add_documents(schema, client, found)
    return found


def _add_documents(schema: Any, client: RegistryClient, found: dict[str, Any]) -> None:
    for reference in schema.references or ():
        if reference.name not in found:
            inner = client.version(reference.subject, reference.version)
            found[reference.name] = json.loads(inner.schema_str)
            _add_documents(inner, client, found)


def _reason(validator: Any, data: bytes) -> str | None:
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(data)
        error = next(validator.iter_errors(value), None)
    except Unresolvable as unknown:
        return f"the JSON Schema refers to {unknown.ref}, which the registry does not have for it"
    except (ValueError, RecursionError):
        return None  # not JSON, or too deep, which the decoder says
    if error is None:
        return None
    rule = f"{error.validator}: {json.dumps(error.validator_value)}"
    return f"the value does not match its JSON Schema: {error.json_path} must have {rule[:_SHOWN]}"
