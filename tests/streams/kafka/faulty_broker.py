"""The embedded broker with faults that tests cause: deleted data, failed requests, outages, and no topic ids."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, Self

from weft.streams.demo.embedded_broker import EmbeddedBroker, library_function

_METADATA: Final = 3
_METADATA_WITHOUT_TOPIC_IDS: Final = 9
"""Number of the metadata request in Kafka's protocol, and its last version without topic ids."""

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p


def _fault(name: str, *arguments: Any) -> Any:
    """A function of the mock cluster that returns an error code."""
    return library_function(f"rd_kafka_mock_{name}", ctypes.c_int, [_POINTER, *arguments])


class FaultyBroker(EmbeddedBroker):
    """An embedded broker that has faults on demand."""

    def __init__(self, *, topic_ids: bool = True) -> None:
        """Describe a broker; the ``with`` block starts it.

        Args:
            topic_ids: Whether topics have ids; False for the behaviour before Kafka 2.8.
        """
        super().__init__()
        self._has_topic_ids = topic_ids

    def __enter__(self) -> Self:
        super().__enter__()
        if not self._has_topic_ids:
            set_version = _fault("set_apiversion", ctypes.c_int16, ctypes.c_int16, ctypes.c_int16)
            self._call(set_version, _METADATA, 0, _METADATA_WITHOUT_TOPIC_IDS)
        return self

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records; a later one of the same name starts at offset 0.

        Raises:
            RuntimeError: There is no such topic.
        """
        self._call(_fault("topic_delete", _TEXT), topic.encode())

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete the records before an offset, as retention does.

        Raises:
            RuntimeError: There is no such partition, or its log ends before that offset.
        """
        delete = _fault("partition_delete_records", _TEXT, ctypes.c_int32, ctypes.c_int64)
        self._call(delete, topic.encode(), partition, before_offset)

    def fail_requests(self, api_key: int, errors: Sequence[int]) -> None:
        """Answer the next requests of one kind with protocol errors.

        Args:
            api_key: Number of the request in Kafka's protocol: 1 fetch, 2 list offsets, 3 metadata, ...
            errors: Codes as in `confluent_kafka.KafkaError`, one per request.
        """
        codes = (ctypes.c_int * len(errors))(*errors)
        types = [_POINTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)]
        self._call(
            library_function("rd_kafka_mock_push_request_errors_array", None, types), api_key, len(errors), codes
        )

    def set_reachable(self, *, reachable: bool) -> None:
        """Make all brokers of the cluster unreachable, or reachable again. Their data is kept."""
        set_state = _fault("broker_set_up" if reachable else "broker_set_down", ctypes.c_int32)
        for broker in (1, 0):
            self._call(set_state, broker)
