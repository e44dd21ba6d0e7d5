"""Makes a writer wait until its brokers, registry and store answer, and until its cluster gives it an executor.

Missing topics are reported here, too. The query waits for them when it starts, and fails if they are not created.

Brokers, schema registry and the store of the table are checked before a JVM is started, so that waiting costs little. A
running query survives an outage of the brokers between batches (`weft.streams.kafka.kafka_source`), and one of the
registry while all messages have schemas that it has already loaded. Otherwise the query fails, and the next process
waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.pipeline.run.outage import JobOutages, store_name
from weft.streams.pipeline.run.stop_signal import StopSignal

if TYPE_CHECKING:
    from weft.streams.kafka.cluster import Cluster
    from weft.streams.kafka.errors import TopicMissing
    from weft.streams.pipeline.file.pipeline import Pipeline, WriterSpec
    from weft.streams.spark.executors import ExecutorWatch


def await_source(writer: WriterSpec, stop: StopSignal, outages: JobOutages, *, once: bool) -> None:
    """Wait until the brokers of a Kafka source answer, and report missing topics. Returns at once for other sources.

    Raises:
        SourceUnavailable: The brokers do not answer, and ``once`` is set.
        SourceRefused: The brokers refuse access.
        InvalidInput: An option of the source is wrong.
    """
    from weft.streams import kafka
    from weft.streams.kafka.cluster import Cluster
    from weft.streams.kafka.options import parse_options

    if writer.reader_format != kafka.FORMAT:
        return

    what = _broker(writer)

    def waiting(reason: str) -> bool:
        outages.report_outage(what, reason)
        return not stop

    cluster = Cluster(parse_options(writer.reader_options, default_starting="latest"))
    try:
        if once:
            cluster.await_answer(waiting)
            outages.report_end(what)
        else:
            outages.wait_out(lambda: cluster.await_answer(waiting), what)
        if not stop:
            _check_topics(cluster, outages, writer)
    finally:
        cluster.close()


def _check_topics(cluster: Cluster, outages: JobOutages, writer: WriterSpec) -> None:
    from weft.streams.kafka.errors import SourceRefused, SourceUnavailable

    try:
        missing = cluster.look_for_topics()
    except SourceRefused:
        raise
    except SourceUnavailable:
        return  # the brokers answered a moment ago: the query will ask them again
    report_missing_topics(outages, writer, missing)


def await_registry(writer: WriterSpec, stop: StopSignal, outages: JobOutages, *, once: bool) -> None:
    """Wait until the schema registry answers; returns at once for formats without one.

    Raises:
        RegistryUnavailable: The registry does not answer, and ``once`` is set.
        RegistryRefused: The registry refuses access.
        InvalidInput: A setting of the registry is wrong.
    """
    from weft.streams.formats.registry import registry_client

    if stop or not writer.needs_registry:
        return
    client = registry_client(tuple(sorted(writer.registry.items())))
    if once:
        client.check()
    else:
        outages.wait_out(client.check, _registry(writer))


def await_store(pipeline: Pipeline, outages: JobOutages, *, once: bool) -> None:
    """Wait until the store of the table answers.

    Raises:
        StoreUnavailable: The store does not answer, and ``once`` is set.
        StoreRefused: The store refuses access.
        NotFound: There is no table.
    """
    if once:
        pipeline.table.open()
    else:
        outages.wait_out(pipeline.table.open, store_name(pipeline.table.uri))


def report_brokers(outages: JobOutages, writer: WriterSpec, error: Exception | None) -> None:
    """Report an outage of the brokers during a running query; with ``error`` None report that they answer again."""
    if error is None:
        outages.report_end(_broker(writer))
    else:
        outages.report_outage(_broker(writer), describe(error))


def report_missing_topics(outages: JobOutages, writer: WriterSpec, missing: TopicMissing | None) -> None:
    """Report that a query that starts waits for a topic; with ``missing`` None report that all topics exist."""
    topics = writer.reader_options.get("subscribe", "").split(",")
    what = f"the topic {topics[0]}" if len(topics) == 1 else f"the topics {', '.join(topics)}"
    if missing is None:
        outages.report_end(what, "exists now" if len(topics) == 1 else "exist now")
    else:
        outages.report_outage(what, describe(missing))


def report_executors(outages: JobOutages, watch: ExecutorWatch) -> bool:
    """Report that a running query waits for an executor of its cluster, or that it has one again.

    Returns:
        Whether it waits.
    """
    from weft.streams.spark.executors import HINT

    seconds = watch.starved_seconds()
    if seconds is None:
        outages.report_end(watch.name)
        return False
    outages.report_outage(watch.name, f"no executor is registered: {HINT}", seconds=seconds)
    return True


def _broker(writer: WriterSpec) -> str:
    return f"the broker {writer.reader_options.get('kafka.bootstrap.servers', '')}".rstrip()


def _registry(writer: WriterSpec) -> str:
    return f"the schema registry {writer.registry.get('url', '').rsplit('@', 1)[-1]}".rstrip()


def unreachable(failure: Exception, pipeline: Pipeline, name: str) -> str:
    """Name of the broker, registry or store that does not answer."""
    from weft.streams.formats.registry import RegistryUnavailable
    from weft.streams.kafka.errors import SourceUnavailable

    if isinstance(failure, SourceUnavailable):
        return _broker(pipeline.writer(name))
    if isinstance(failure, RegistryUnavailable):
        return _registry(pipeline.writer(name))
    return store_name(pipeline.table.uri)
