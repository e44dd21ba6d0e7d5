"""The schema registry: the wire format of its messages, and schemas by id. Runs in Spark's workers.

    00  00 00 00 07  ...        a zero, the id of the schema, and the data
    01  (16 bytes)   ...        a one, the GUID of the schema, and the data

Clients of Confluent Platform 8.1 and later may write the id into a header of Kafka instead, `VALUE_HEADER` or
`KEY_HEADER`. The decoders get the id before the data in both cases (`add_schema_id`).

A worker keeps one client for each registry, and every schema that it has fetched: the schema of an id never changes.

A registry that does not answer is an outage, which says nothing about a message. Requests are repeated after
`RETRY_SECONDS`, and each failure is logged; then the task fails with `RegistryUnavailable`, so the batch is not
committed, and its messages are read again later. A message is undecodable only if the registry answers that it does not
know the id (error code 40403).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from weft.storage.errors import InvalidInput, TableError

logger = logging.getLogger("weft.registry")

T = TypeVar("T")

HEADER_BYTES: Final = 5
MOST_SIGNIFICANT: Final = 0x7F
"""Largest first byte of an id, which is a positive number of 32 bits."""
GUID_BYTES: Final = 17
"""Number of bytes before the data if the schema is named by its GUID."""
VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
NO_HEADER: Final = (
    "the value does not begin with the id of a schema (a zero byte and 4 bytes, or a byte 1 and a GUID), and no header "
    f"{VALUE_HEADER} or {KEY_HEADER} has one"
)
SchemaId = int | str
"""The id of a schema, or its GUID."""
RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0)
"""Pauses between requests to a registry that does not answer; the setting ``max.retries`` limits their number."""
REQUEST_SECONDS: Final = 10.0
"""Time-out of a request, unless the setting ``timeout`` is set. The client has none by default."""
UNKNOWN_SECONDS: Final = 1.0
"""Pause before unknown ids are requested again: an instance of the registry may be behind the others."""
NOT_FOUND: Final = 40403

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_NUMBERS: Final = ("timeout", "cache.capacity", "cache.latest.ttl.sec")
"""Settings of the client that are numbers."""
EXTRA: Final = "registry"
_EXTRAS: Final = {"json-schema": f"{EXTRA},json-schema"}
_CLIENT: Final = ("confluent_kafka", "httpx2", "authlib", "cachetools", "attr", "certifi")
_NEEDS: Final = {
    "avro": (*_CLIENT, "fastavro"),
    "debezium-avro": (*_CLIENT, "fastavro"),
    "protobuf": (*_CLIENT, "google.protobuf"),
    "json-schema": (*_CLIENT, "jsonschema"),
}
"""Modules that a format needs if it uses the registry, besides the dependencies of weft."""


class RegistryUnavailable(TableError):
    """The schema registry did not answer. Nothing was skipped; retrying is safe."""

    code = "REGISTRY_UNAVAILABLE"


class RegistryRefused(RegistryUnavailable):
    """The schema registry refused access or does not understand the request. Waiting does not help."""

    code = "REGISTRY_REFUSED"


class UnknownSchema(LookupError):
    """The registry does not know the id, or the schema cannot be used; the text is the reason."""


def names_schema(name: str) -> bool:
    """Whether messages of a format have the id of their schema, before the data or in a header."""
    return name in _NEEDS


def add_schema_id(data: bytes | None, headers: Sequence[Mapping[str, Any]] | None, name: str) -> bytes | None:
    """Return a value or key with the id of its schema before the data, also if a header has the id.

    Args:
        data: The value or key.
        headers: Headers of the message, each with ``key`` and ``value``.
        name: `VALUE_HEADER` or `KEY_HEADER`.
    """
    schema = next((header["value"] for header in headers or () if header["key"] == name), None)
    return data if data is None or schema is None else schema + data


def uses_registry(name: str, options: Mapping[str, str] = _NO_OPTIONS) -> bool:
    """Whether a format with these options fetches schemas from a registry."""
    return name in _NEEDS and (name != "json-schema" or options.get("validate") == "true")


def check_registry_settings(name: str, settings: Mapping[str, str], options: Mapping[str, str] = _NO_OPTIONS) -> None:
    """Check that a format has the settings and packages that it needs, without a request to the registry.

    Args:
        name: Name of the format.
        settings: Settings of the registry's client.
        options: Options of the format.

    Raises:
        InvalidInput: A package or the setting ``url`` is missing, or a setting is unknown.
    """
    from importlib.util import find_spec

    if not uses_registry(name, options):
        return
    missing = [module for module in _NEEDS[name] if not _is_installed(module, find_spec)]
    if missing:
        raise InvalidInput(
            f"format {name!r} needs packages that are not installed: {', '.join(missing)}",
            hint=f"install weft[{_EXTRAS.get(name, EXTRA)}], also on the executors",
        )
    if not settings.get("url"):
        raise InvalidInput(f"format {name!r} needs a schema registry", hint='add registry: {url: "http://host:8081"}')
    _new_client(settings)


def _is_installed(module: str, find_spec: Callable[[str], Any]) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """Fetches schemas.

    Attributes:
        url: URL of the registry, without a password.
        client: A ``SchemaRegistryClient`` of confluent_kafka.
        retries: Number of retries if the registry does not answer; None for one after each of `RETRY_SECONDS`.
    """

    url: str
    client: Any
    retries: int | None = None

    def schema(self, schema_id: SchemaId, kind: str = "", *, serialized: bool = False) -> Any:
        """Fetch the schema with an id or a GUID, with its references.

        Args:
            schema_id: The id.
            kind: The type that the schema must have: ``AVRO``, ``PROTOBUF`` or ``JSON``; any by default.
            serialized: Return the descriptor of a Protobuf schema instead of its text.

        Raises:
            UnknownSchema: The registry does not know the id, or the schema has another type.
            RegistryUnavailable: The registry does not answer.
        """
        fmt = "serialized" if serialized else None
        fetch = self.client.get_schema if isinstance(schema_id, int) else self.client.get_schema_by_guid
        schema: Any = self._ask(lambda: fetch(schema_id, fmt=fmt), f"schema {schema_id}")
        actual = schema.schema_type or "AVRO"
        if kind and actual != kind:
            raise UnknownSchema(f"schema {schema_id} is of type {actual}, not {kind}")
        return schema

    def references(self, schema: Any, *, serialized: bool = False) -> dict[str, str]:
        """Fetch the texts of all schemas that a schema refers to, by name of the reference, in order of dependency.

        Raises:
            UnknownSchema: The registry does not know one of them.
            RegistryUnavailable: The registry does not answer.
        """
        texts: dict[str, str] = {}
        visited: set[str] = set()

        def add(references: Any) -> None:
            for reference in references or ():
                if reference.name not in visited:
                    visited.add(reference.name)
                    referenced = self.version(reference.subject, reference.version, serialized=serialized)
                    add(referenced.references)
                    texts[reference.name] = referenced.schema_str

        add(schema.references)
        return texts

    def version(self, subject: str, version: int, *, serialized: bool = False) -> Any:
        """Fetch the schema of a reference.

        Raises:
            UnknownSchema: The registry does not know it.
            RegistryUnavailable: The registry does not answer.
        """
        fmt = "serialized" if serialized else None
        name = f"version {version} of subject {subject!r}"
        return self._ask(lambda: self.client.get_version(subject, version, True, fmt).schema, name)

    def latest(self, subject: str, *, serialized: bool = False) -> tuple[int, Any]:
        """Fetch the id and the schema of the newest version of a subject.

        Raises:
            UnknownSchema: The registry does not know the subject.
            RegistryUnavailable: The registry does not answer.
        """
        fmt = "serialized" if serialized else None
        version = self._ask(lambda: self.client.get_latest_version(subject, fmt), f"subject {subject!r}")
        return version.schema_id, version.schema

    def check(self) -> None:
        """Check that the registry answers.

        Raises:
            RegistryUnavailable: The registry does not answer.
            RegistryRefused: The registry refuses access.
        """
        self._ask_once(self.client.get_schema_types, "the types of its schemas")

    def _ask(self, request: Callable[[], T], subject: str) -> T:
        pauses: Sequence[float] = RETRY_SECONDS
        if self.retries is not None:
            pauses = [RETRY_SECONDS[min(number, len(RETRY_SECONDS) - 1)] for number in range(self.retries)]
        for pause in pauses:
            try:
                return self._ask_once(request, subject)
            except RegistryRefused:
                raise
            except RegistryUnavailable as error:
                logger.warning("%s; next try in %g s", error.message, pause)
                time.sleep(pause)
        return self._ask_once(request, subject)

    def _ask_once(self, request: Callable[[], T], subject: str) -> T:
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        where = f"the schema registry {self.url}"
        try:
            return request()
        except SchemaRegistryError as error:
            status, code = error.http_status_code, error.error_code
            if status == 404 and code in {NOT_FOUND, 40401, 40402}:
                raise UnknownSchema(f"{subject} is not in the schema registry") from None
            text = f"{where} does not give {subject}: HTTP {status}, {error.error_message}"
            if status in {408, 429} or status >= 500:
                raise RegistryUnavailable(text) from None
            raise RegistryRefused(text, hint="check url, credentials and permissions of the registry") from None
        except (httpx.TransportError, OAuthTokenError, OSError) as error:
            raise RegistryUnavailable(f"{where} does not answer: {type(error).__name__}: {error}") from None


def _new_client(settings: Mapping[str, str]) -> RegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    try:
        numbers = {name: float(value) for name, value in settings.items() if name in _NUMBERS}
        retries = int(settings["max.retries"]) if "max.retries" in settings else None
        # `_ask` retries instead of the client, because it logs failures.
        client_settings: dict[str, Any] = {"timeout": REQUEST_SECONDS, **settings, **numbers, "max.retries": 0}
        client = SchemaRegistryClient.new_client(client_settings)
    except (ValueError, TypeError, OSError) as error:
        # The client's text may contain the URL, which may contain a password.
        text = str(error).replace(settings["url"], "url")
        raise InvalidInput(
            f"the settings of the schema registry are wrong: {text}",
            hint="use settings of confluent_kafka's SchemaRegistryClient: url, basic.auth.user.info, "
            "ssl.ca.location, ...",
        ) from None
    return RegistryClient(settings["url"].rsplit("@", 1)[-1], client, retries)


@lru_cache(maxsize=8)
def registry_client(settings: tuple[tuple[str, str], ...]) -> RegistryClient:
    """Return the client of a registry; a worker uses one for all batches.

    Args:
        settings: Names and values, sorted.

    Raises:
        InvalidInput: A setting is wrong.
    """
    return _new_client(dict(settings))


def fetch_each(ids: Collection[SchemaId], fetch: Callable[[SchemaId], T]) -> dict[SchemaId, T | str]:
    """Fetch a value for each id; the result has the value, or the reason why there is none.

    Ids that the registry does not know are requested once more after `UNKNOWN_SECONDS`.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    results: dict[SchemaId, T | str] = {}
    for again in (False, True):
        missing = [schema_id for schema_id in ids if not again or isinstance(results[schema_id], str)]
        if again and missing:
            time.sleep(UNKNOWN_SECONDS)
        for schema_id in missing:
            try:
                results[schema_id] = fetch(schema_id)
            except UnknownSchema as reason:
                results[schema_id] = str(reason)
    return results


def split_header(value: bytes) -> tuple[SchemaId, bytes] | None:
    """Split a value into the id or GUID of its schema and the data; None if it does not have the wire format."""
    if len(value) < HEADER_BYTES:
        return None
    magic = value[0]
    if magic == 0 and value[1] <= MOST_SIGNIFICANT:
        return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]
    if magic == 1 and len(value) >= GUID_BYTES:
        return str(uuid.UUID(bytes=value[1:GUID_BYTES])), value[GUID_BYTES:]
    return None


class Schemas(Generic[T]):
    """The schemas of a worker by id, each fetched once, in the form that the fetching function returns."""

    def __init__(self, fetch: Callable[[SchemaId], T]) -> None:
        """Begin without schemas. ``fetch`` raises `UnknownSchema` for a schema that does not exist or is invalid."""
        self._fetch = fetch
        self._schemas: dict[SchemaId, T] = {}

    def split(self, values: Sequence[bytes | None]) -> Split[T]:
        """Split each value of a batch into its schema and its data.

        Raises:
            RegistryUnavailable: The registry does not answer.
        """
        headers = [None if value is None else split_header(value) for value in values]
        unknown = {header[0] for header in headers if header is not None} - self._schemas.keys()
        reasons: dict[SchemaId, str] = {}
        for schema_id, result in fetch_each(sorted(unknown, key=str), self._fetch).items():
            if isinstance(result, str):
                reasons[schema_id] = result
            else:
                self._schemas[schema_id] = result
        parts: list[tuple[T, bytes] | str | None] = []
        for value, header in zip(values, headers, strict=True):
            if header is None:
                parts.append(None if value is None else NO_HEADER)
            elif header[0] in reasons:
                parts.append(reasons[header[0]])
            else:
                parts.append((self._schemas[header[0]], header[1]))
        ids = [None if header is None else header[0] for header in headers]
        return Split(parts, [schema_id if isinstance(schema_id, int) else None for schema_id in ids])


@dataclass(slots=True)
class Split(Generic[T]):
    """The values of a batch.

    Attributes:
        parts: Schema and data of each value, the reason why it has none, or None for a message without a value.
        ids: Id of the schema of each value; None if the value has a GUID or not the wire format.
    """

    parts: list[tuple[T, bytes] | str | None]
    ids: list[int | None]
