"""A real Apache Kafka broker: one node, KRaft, from Maven artifacts.

The jars are fetched once per machine (`tests.maven`). Where Maven, Java or Maven's repository is missing the tests are
skipped and say why.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.download_cache import Unavailable
from tests.end_process import end_process
from tests.maven import maven_jars

KAFKA_VERSION: Final = "4.3.1"
_SLF4J_VERSION: Final = "1.7.36"

START_SECONDS: Final = 240  # an idle machine takes 4
REQUEST_SECONDS: Final = 120
POLL_SECONDS: Final = 0.1
STARTS: Final = 3  # another process may take a port between its choice and its use

_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
log.retention.ms=-1
log.segment.delete.delay.ms=1000
"""


_SECURE_PROPERTIES: Final = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},{secure}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},{secure}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config={login} required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""Of a broker with logins. The listener PLAINTEXT stays, for the tests' own requests; its user may do everything."""


@dataclass(frozen=True)
class Security:
    """Logins of a secure broker.

    Attributes:
        keystore: PEM file with the key and the certificate of the broker.
        authority: PEM file with the certificate that signed all others.
        user, password: The only login of SASL_SSL.
    """

    keystore: Path
    authority: Path
    user: str
    password: str


def find_jars() -> Path:
    """Folder of the broker's jars, fetched by Maven on first use.

    Raises:
        Unavailable: Maven or Java is missing, or Maven cannot fetch the jars.
    """
    if shutil.which("java") is None:
        raise Unavailable("there is no program `java`; install a Java runtime, 17 or newer")
    artifacts = {"org.apache.kafka:kafka_2.13": KAFKA_VERSION, "org.slf4j:slf4j-simple": _SLF4J_VERSION}
    return maven_jars(f"kafka-{KAFKA_VERSION}", artifacts)


class RealBroker:
    """One broker with a separate data folder, which runs during a ``with`` block.

    It keeps data and port across `stop` and `start`. It listens only on the loopback interface. It deletes no record by
    its age, because tests write records with timestamps of years ago and the broker looks for them every five minutes.
    """

    def __init__(self, jars: Path, security: Security | None = None) -> None:
        self._jars, self._security = jars, security
        self._secure_ports = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._port = 0
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="weft-kafka-"))
        try:
            for attempt in range(STARTS):
                self._configure()
                try:
                    self.start()
                    break
                except RuntimeError:
                    if attempt == STARTS - 1:
                        raise
        except BaseException:
            self.__exit__()
            raise
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return self

    def __exit__(self, *_: object) -> None:
        self._admin = None
        self._end(signal.SIGKILL)  # its files are not needed, so it need not stop cleanly
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def sasl_servers(self) -> str:
        """The listener that takes user and password over TLS."""
        return f"127.0.0.1:{self._secure_ports[0]}"

    @property
    def tls_servers(self) -> str:
        """The listener that asks for a certificate of the client."""
        return f"127.0.0.1:{self._secure_ports[1]}"

    def start(self) -> None:
        """Start the process with its earlier data and port; returns when it answers."""
        assert self._process is None, "the broker is already running"
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command("-Xmx512m", "kafka.Kafka", self._properties), stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                client.list_topics(timeout=1)
                return
            time.sleep(POLL_SECONDS)
        self._end(signal.SIGKILL)
        raise RuntimeError(f"the broker does not start:\n{log.read_text(errors='replace')[-3_000:]}")

    def stop(self) -> None:
        """Stop the process cleanly; data and port are kept."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, so that it cannot close its logs; data and port are kept."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def create_topics(self, topics: Mapping[str, int], **config: str) -> None:
        """Create topics with the given numbers of partitions.

        Args:
            config: Settings of the topics with ``_`` for ``.``.

        Raises:
            RuntimeError: The broker refuses the request.
        """
        settings = {name.replace("_", "."): value for name, value in config.items()}
        asked = [NewTopic(name, count, 1, config=settings) for name, count in topics.items()]
        self._ask(self.admin.create_topics(asked))
        for name, count in topics.items():
            self._await_partitions(name, count)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; returns when the broker does not list it any more."""
        self._ask(self.admin.delete_topics([topic]))
        self._await_partitions(topic, 0)

    def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions: ``count`` in all."""
        self._ask(self.admin.create_partitions([NewPartitions(topic, count)]))
        self._await_partitions(topic, count)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete the first records of a log, as retention does; the first remaining offset is ``before_offset``."""
        self._ask(self.admin.delete_records([TopicPartition(topic, partition, before_offset)]))

    def producer(self, **conf: Any) -> Producer:
        settings = {name.replace("_", "."): value for name, value in conf.items()}
        return Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 2, "linger.ms": 5, **settings})

    @property
    def admin(self) -> AdminClient:
        assert self._admin is not None, "the broker was never started"
        return self._admin

    def _configure(self) -> None:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            self._port, controller, *secure = (one.getsockname()[1] for one in sockets)
        self._secure_ports = (secure[0], secure[1])
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        text = _PROPERTIES.format(port=self._port, controller=controller, folder=self._folder)
        if self._security is not None:  # of two values of a property the last one counts
            text += _SECURE_PROPERTIES.format(
                port=self._port,
                controller=controller,
                secure=f"SASL_SSL://127.0.0.1:{secure[0]},SSL://127.0.0.1:{secure[1]}",
                login="org.apache.kafka.common.security.plain.PlainLoginModule",
                **vars(self._security),
            )
        self._properties.write_text(text)
        name = urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
        # Joined with "=", because one name in 64 begins with "-", which would be taken for an option.
        arguments = ("format", f"--cluster-id={name}", "-c", self._properties, "--standalone")
        command = self._command("-Xmx256m", "kafka.tools.StorageTool", *arguments)
        subprocess.run(command, check=True, capture_output=True, timeout=START_SECONDS)

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _command(self, memory: str, program: str, *arguments: object) -> Sequence[str]:
        tuning = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # faster start, less load on the machine
        return ["java", memory, *tuning, "-cp", f"{self._jars}/*", program, *map(str, arguments)]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, how)

    def _ask(self, answers: Mapping[Any, Any]) -> None:
        for subject, answer in answers.items():
            try:
                answer.result(REQUEST_SECONDS)
            except KafkaException as error:
                raise RuntimeError(f"the broker refused what was asked for {subject}: {error}") from error

    def _await_partitions(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + REQUEST_SECONDS
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic]
            gone = found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            led = sum(partition.leader >= 0 for partition in found.partitions.values())
            if (gone and count == 0) or (not gone and led == count and count):
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"topic {topic} does not have {count} partitions after {REQUEST_SECONDS} s")


@contextlib.contextmanager
def start_real_broker(security: Security | None = None) -> Iterator[RealBroker]:
    """A running broker.

    Raises:
        Unavailable: See `find_jars`.
    """
    with RealBroker(find_jars(), security) as broker:
        yield broker
