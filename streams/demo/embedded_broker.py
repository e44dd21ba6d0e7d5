"""An embedded Kafka broker: the mock cluster of librdkafka, which is part of confluent-kafka.

``python -m weft.streams.demo.broker --topic orders`` runs it for users without a Kafka.

It listens on loopback and speaks the Kafka protocol, so other processes (Spark's Python workers, writer jobs) use it
like Kafka. Nothing is installed and no JVM is started. A client with ``test.mock.num.brokers`` would start the same
cluster, but then every topic has 4 partitions. So this module calls the C functions of the library (`rdkafka_mock.h`).

Limits and differences, found by reading and measuring librdkafka 2.16:
- Data is in memory and ends with the broker. A partition keeps about 5 MB *as stored* or 100 000 produce batches,
  whichever is less, and then silently drops the oldest batch. Therefore `producer` compresses and fills batches.
- A fetch returns one produce batch per partition, and finds it by walking the list of the partition. Many small batches
  make it slow, so flush rarely.
- A fetch at the end of a log is answered after ``fetch.wait.max.ms``, even if something is written meanwhile.
- There is no replication, access control, TLS, retention by time, compaction, or look-up of offsets by time. Requests
  that change the cluster fail (such as creating topics through an AdminClient). Transactions are accepted; aborted
  records are delivered.
- It names broker 0 as the controller, but does not start it. Clients ask the controller for topic ids, so this module
  adds broker 0. All topics are on broker 1.
- Producing to an unknown topic creates it, with `DEFAULT_PARTITIONS`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Producer, cimpl

DEFAULT_PARTITIONS: Final = 4
"""Number of partitions of a topic that is created by producing to it; fixed in librdkafka."""

PARTITION_LIMIT_BYTES: Final = 5 * 1024 * 1024
"""Stored (compressed) bytes that a partition keeps; fixed in librdkafka."""

_BROKER: Final = 1
"""The broker that leads all partitions."""
_CONTROLLER: Final = 0

_PRODUCER: Final = 0  # RD_KAFKA_PRODUCER: the cluster needs a handle, of either kind
_CONF_OK: Final = 0
_ERROR_BYTES: Final = 512

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_SIGNATURES: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (ctypes.c_int, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_conf_destroy": (None, [_POINTER]),
    "rd_kafka_new": (_POINTER, [ctypes.c_int, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_err2name": (_TEXT, [ctypes.c_int]),
    "rd_kafka_handle_mock_cluster": (_POINTER, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_POINTER]),
    "rd_kafka_mock_topic_create": (ctypes.c_int, [_POINTER, _TEXT, ctypes.c_int, ctypes.c_int]),
    "rd_kafka_mock_broker_add": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_partition_set_leader": (ctypes.c_int, [_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int32]),
}


def library_function(name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """Return a C function of confluent-kafka's librdkafka, with the types of its result and arguments."""
    # The handle of the extension module also searches the libraries that it is linked with.
    library = ctypes.CDLL(cimpl.__file__)
    try:
        function = getattr(library, name)
    except AttributeError:
        raise RuntimeError(
            f"this build of confluent-kafka ({cimpl.libversion()[0]}) has no function {name};"
            " install its wheel from PyPI, version 2.15 or newer",
        ) from None
    function.restype = result
    function.argtypes = arguments
    return function


def _function(name: str) -> Any:
    return library_function(name, *_SIGNATURES[name])


class EmbeddedBroker:
    """A Kafka cluster of one broker that runs during a ``with`` block, for all processes of this machine.

    with EmbeddedBroker() as broker:
        broker.create_topics({"orders": 2})
        broker.producer().produce("orders", b"...")
    """

    def __init__(self) -> None:
        """Prepare a broker; the ``with`` block starts it."""
        self._handle: int | None = None
        self._bootstrap_servers = ""

    def __enter__(self) -> Self:
        """Start the broker on a free port of the loopback interface."""
        assert self._handle is None, "the broker is already running"
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = _function("rd_kafka_conf_new")()
        # Without the second setting librdkafka reports on stderr that it started the cluster.
        for name, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"2")):
            if _function("rd_kafka_conf_set")(conf, name, value, error, _ERROR_BYTES) != _CONF_OK:
                _function("rd_kafka_conf_destroy")(conf)
                raise RuntimeError(f"librdkafka has no mock cluster: {error.value.decode()}")
        handle = _function("rd_kafka_new")(_PRODUCER, conf, error, _ERROR_BYTES)
        if not handle:
            _function("rd_kafka_conf_destroy")(conf)  # rd_kafka_new frees it only if it succeeds
            raise RuntimeError(f"the embedded broker did not start: {error.value.decode()}")
        self._handle = handle
        self._bootstrap_servers = _function("rd_kafka_mock_cluster_bootstraps")(self._cluster()).decode()
        self._call(_function("rd_kafka_mock_broker_add"), _CONTROLLER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the broker and delete its data."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _function("rd_kafka_destroy")(handle)

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, ``127.0.0.1:<port>``."""
        assert self._bootstrap_servers, "the broker was never started"
        return self._bootstrap_servers

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics.

        Args:
            topics: Number of partitions by topic.

        Raises:
            RuntimeError: A topic exists, or its name or number of partitions is invalid.
        """
        for topic, partitions in topics.items():
            self._call(_function("rd_kafka_mock_topic_create"), topic.encode(), partitions, 1)
            for partition in range(partitions):
                self.elect_leader(topic, partition)

    def elect_leader(self, topic: str, partition: int) -> None:
        """Elect the broker leader of a partition (again), which increases the leader epoch by one.

        Raises:
            RuntimeError: There is no such partition.
        """
        self._call(_function("rd_kafka_mock_partition_set_leader"), topic.encode(), partition, _BROKER)

    def producer(self, **conf: Any) -> Producer:
        """Create a producer for this broker that compresses and fills batches, because of the broker's limits.

        Args:
            conf: Further settings of librdkafka, with ``_`` for ``.``.
        """
        settings = {name.replace("_", "."): value for name, value in conf.items()}
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "compression.type": "zstd",
                "linger.ms": 50,
                # A producer that outlives the broker would write to stderr; failed deliveries are reported anyway.
                "log_level": 2,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1_000_000,
                **settings,
            },
        )

    def _cluster(self) -> int:
        assert self._handle is not None, "the broker is not running"
        cluster = _function("rd_kafka_handle_mock_cluster")(self._handle)
        assert cluster, "the handle was created with a mock cluster"
        return int(cluster)

    def _call(self, function: Any, *arguments: Any) -> None:
        code = function(self._cluster(), *arguments)
        if code:
            reason = _function("rd_kafka_err2name")(code).decode()
            subject = ", ".join(a.decode() if isinstance(a, bytes) else str(a) for a in arguments)
            raise RuntimeError(f"the embedded broker refused {function.__name__}({subject}): {reason}")
