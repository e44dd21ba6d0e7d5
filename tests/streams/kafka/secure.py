"""A real broker that asks for a login: SASL_SSL with user and password, and TLS with a certificate of the client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.streams.kafka.certificates import Authority
from tests.streams.kafka.real_broker import REQUEST_SECONDS, RealBroker, Security, start_real_broker
from tests.wait_until import wait_until

USER = "weft"


@dataclass(frozen=True)
class SecureBroker:
    """A running broker with logins.

    Attributes:
        broker: The broker.
        authority: Signed the certificates of the broker and of the client.
        folder: Where all certificates are.
        client: Certificate and private key of the client; the key is encrypted.
        password: Of the user, and of the private key.
    """

    broker: RealBroker
    authority: Authority
    folder: Path
    client: tuple[Path, Path]
    password: str

    def sasl(self, password: str) -> dict[str, str]:
        """Settings of librdkafka for user and password; ``password`` may be a reference of a pipeline file."""
        return {
            "bootstrap.servers": self.broker.sasl_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.certificate),
        }

    def tls(self, password: str) -> dict[str, str]:
        """Settings of librdkafka for the certificate of the client."""
        certificate, key = self.client
        return {
            "bootstrap.servers": self.broker.tls_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": password,
        }

    def allow(self, principal: str, topic: str, *operations: AclOperation) -> None:
        """Allow a user some operations on a topic. No permission for a consumer group is given: none is needed."""
        bindings = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{principal}", "*", operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for answer in self.broker.admin.create_acls(bindings).values():
            answer.result(REQUEST_SECONDS)
        # The broker applies them after its answer.
        allowed = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{principal}", "*", AclOperation.ANY,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        describe = self.broker.admin.describe_acls
        wait_until(
            lambda: set(operations) <= {acl.operation for acl in describe(allowed).result(REQUEST_SECONDS)},
            REQUEST_SECONDS,
        )


@contextlib.contextmanager
def start_secure_broker(folder: Path, password: str) -> Iterator[SecureBroker]:
    """A running broker with logins.

    Raises:
        Unavailable: See `tests.streams.kafka.real_broker.find_jars`.
    """
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("broker")
    keystore = folder / "broker.pem"
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    client = authority.issue("client", password)
    security = Security(keystore, authority.certificate, USER, password)
    with start_real_broker(security) as broker:
        yield SecureBroker(broker, authority, folder, client, password)
