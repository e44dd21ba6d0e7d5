"""Model of a pipeline: the sections of the file as pydantic models, and the resolved values.

`PipelineConfig` is the content of the file. `Pipeline` is the resolved form: defaults filled in, paths absolute.
deploy/docs/pipelines.md, and example_pipeline.yaml, which `weft init` writes, explain the fields.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from weft.storage import Table
from weft.storage.config.config_file import FieldError
from weft.storage.config.table_config import TableConfig
from weft.storage.errors import InvalidInput
from weft.storage.operations.clean import RetentionSettings
from weft.storage.operations.compact import DueSettings
from weft.storage.operations.operation import Duration, none_if_off
from weft.storage.publish.targets import DeltaTarget, IcebergTarget, Target
from weft.storage.services.steps.parallel_tasks import in_threads
from weft.storage.services.steps.tasks import Execute
from weft.storage.store.open_store import check_reachable
from weft.streams.formats import check_format
from weft.streams.formats.registry import uses_registry
from weft.streams.letters.limit import LetterLimit
from weft.streams.pipeline.file.pipeline_file import parse_lateness, parse_size

_MIN_EVERY_SECONDS: Final = 0.1  # at shorter intervals the service would only check the table


def _text(value: Any) -> Any:
    """Convert YAML's ``true`` and ``10`` into the texts that Kafka and Spark expect."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _parse_place_section(value: Any) -> Any:
    """Convert the short forms of a section: ``inline``, ``cluster``, or ``false``."""
    return {"on": value} if isinstance(value, str) else none_if_off(value)


def _parse_switch(value: Any) -> Any:
    """Convert ``true`` into an empty section, and ``false`` into None."""
    return {} if value is True else none_if_off(value)


def _check_format_name(name: str) -> str:
    try:
        return check_format(name)
    except InvalidInput as error:
        raise FieldError(error.message, hint=error.hint) from None


Size = Annotated[int, BeforeValidator(parse_size)]
Lateness = Annotated[int | dt.timedelta, BeforeValidator(parse_lateness)]
Setting = Annotated[str, BeforeValidator(_text)]
Settings = dict[str, Setting]


Tombstones = Literal["ignore", "delete", "dead_letter"]
OnError = Literal["dead_letter", "stop"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableSection(_Model):
    """Location of the table, options of its store, and the configuration to create it with."""

    uri: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    storage_options: dict[str, Any] = {}


class KafkaSection(_Model):
    """Kafka topics, read by ``weft_kafka``."""

    type: Literal["kafka"]
    topic: str | None = None
    topics: list[str] = []
    format: Annotated[str, AfterValidator(_check_format_name)] = "json"
    format_options: Settings = {}
    key_format: Annotated[str, AfterValidator(_check_format_name)] = "json"
    starting_offsets: Literal["earliest", "latest"] | dict[str, dict[str, int]] = "earliest"
    max_offsets_per_trigger: int | None = Field(default=None, ge=1)
    options: Settings = {}


class FilesSection(_Model):
    """Files of a folder, for backfills; read by Spark's file source, each once."""

    type: Literal["files"]
    format: Literal["json", "csv", "parquet"]
    path: str = Field(min_length=1)
    max_files_per_trigger: int | None = Field(default=None, ge=1)
    options: Settings = {}


class SparkSection(_Model):
    """Another streaming source of Spark, by the name of its format."""

    type: Literal["spark"]
    format: str = Field(min_length=1)
    options: Settings = {}
    ddl: str | None = Field(default=None, alias="schema")


class DeadLetterSection(LetterLimit):
    """Where dead letters go, how long they are kept, and how many are accepted."""

    path: str | None = Field(default=None, min_length=1)
    keep: Duration | None = Field(default=None, gt=0)


def as_section(value: Any) -> Any:
    """Convert a path into a section that has only this path."""
    return {"path": value} if isinstance(value, str) else value


class LetterFields(_Model):
    """The fields of a writer that say where its dead letters are."""

    dead_letter: Annotated[DeadLetterSection | None, BeforeValidator(as_section)] = None
    on_error: OnError = "dead_letter"
    stream: str | None = None
    lane: str | None = None

    def names(self, writer: str) -> tuple[str, str]:
        """Stream and lane of the writer of that name."""
        stream = self.stream or writer
        return stream, self.lane or stream


class WriterSection(LetterFields):
    """One writer: its source, and how messages become columns."""

    source: Annotated[KafkaSection | FilesSection | SparkSection, Field(discriminator="type")]
    message: dict[str, str] | None = Field(default=None, alias="schema")
    select: dict[str, Setting] | None = Field(default=None, min_length=1)
    where: str | None = None
    trigger: Duration = 5.0
    key: dict[str, str] | None = Field(default=None, min_length=1)
    tombstones: Tombstones = "ignore"
    takeover: bool = False
    resume: Literal["checkpoint", "table"] = "checkpoint"
    lateness: Lateness | None = None
    checkpoint: str | None = None
    kafka: Settings = {}
    registry: Settings = {}
    spark: Settings = {}


class CompactionSection(DueSettings):
    """How often compaction runs, what is due, where it runs, and how much of the machine it may use."""

    every: Duration = Field(default=30.0, ge=_MIN_EVERY_SECONDS)
    on: Literal["here", "cluster", "inline"] = "here"
    share: float = Field(default=0.2, gt=0, le=1)
    concurrency: int = Field(default=1, ge=1)
    memory: Size | None = None

    @property
    def execute(self) -> Execute:
        """Runs tasks in this process, as many at the same time as the section allows."""
        return in_threads(self.concurrency, self.memory)


class BackPressureSection(_Model):
    """When writers of a table slow down.

    Attributes:
        max_read_amplification: Writers slow down when a read of the table fetches more than this many times the bytes
            that it would fetch if the table was compacted (`weft.storage.core.plan.read_cost.ReadCost`). None: no
            limit.
        max_commits: They also slow down when a read opens the files of more than this many commits. None: no limit.
        max_delay: Longest wait before a batch, in seconds.
        every: Shortest time between two measurements of the table, in seconds.
    """

    max_read_amplification: Annotated[float | None, BeforeValidator(none_if_off)] = Field(default=8.0, gt=1)
    max_commits: Annotated[int | None, BeforeValidator(none_if_off)] = Field(default=10_000, ge=1)
    max_delay: Duration = Field(default=60.0, gt=0, le=300)
    every: Duration = Field(default=30.0, ge=_MIN_EVERY_SECONDS)


class CleanSection(RetentionSettings):
    """How often to clean, and what to keep."""

    every: Duration = Field(default=600.0, ge=_MIN_EVERY_SECONDS)


class TtlSection(_Model):
    """How often a service removes rows and deletes that are older than the time to live of the table."""

    every: Duration = Field(default=600.0, ge=_MIN_EVERY_SECONDS)


def _name_in_namespace(name: str) -> str:
    if not all(name.split(".")) or "." not in name:
        raise FieldError(f"{name!r} is not NAMESPACE.TABLE", hint="for example shop.orders")
    return name


class IcebergSection(IcebergTarget):
    """The Iceberg table to publish to, and its catalog, as pyiceberg takes it."""

    table: Annotated[str, AfterValidator(_name_in_namespace)]
    properties: Settings = Field(default={}, repr=False)


class PublishSection(_Model):
    """To which open formats base files are published, and how often to check whether they have changed."""

    every: Duration = Field(default=30.0, ge=_MIN_EVERY_SECONDS)
    iceberg: IcebergSection | None = None
    delta: Annotated[DeltaTarget | None, BeforeValidator(_parse_switch)] = None

    @property
    def targets(self) -> list[Target]:
        """The published tables."""
        return [target for target in (self.iceberg, self.delta) if target is not None]


class PipelineConfig(_Model):
    """The content of a pipeline file."""

    table: TableSection
    writers: dict[str, WriterSection] = Field(min_length=1)
    kafka: Settings = {}
    registry: Settings = {}
    spark: Settings = {}
    compaction: Annotated[CompactionSection | None, BeforeValidator(_parse_place_section)] = CompactionSection()
    clean: Annotated[CleanSection | None, BeforeValidator(none_if_off)] = None
    ttl: Annotated[TtlSection | None, BeforeValidator(_parse_switch)] = None
    publish: Annotated[PublishSection | None, BeforeValidator(none_if_off)] = None
    back_pressure: Annotated[BackPressureSection | None, BeforeValidator(_parse_switch)] = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location of a table. Options may hold secrets, so they are not in ``repr``."""

    uri: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The table's folder name as an SQL identifier."""
        last = self.uri.rstrip("/").rsplit("/", 1)[-1]
        plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in last) or "table"
        return f"_{plain}" if plain[0].isdigit() else plain

    def open(self) -> Table:
        """Open the table, after a check that its store answers: the SDKs of stores would retry for minutes.

        Raises:
            NotFound: There is no table.
            StoreUnavailable: The store does not answer.
        """
        check_reachable(self.uri, self.storage_options)
        return Table.open(self.uri, storage_options=self.storage_options)


class CommandConfig(PipelineConfig):
    """Some sections of the file, for commands other than ``weft run``."""

    writers: dict[str, WriterSection] = {}
    ttl: Annotated[TtlSection | None, BeforeValidator(_parse_switch)] = TtlSection()


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """Settings of a command that takes a pipeline file or the location of a table.

    Attributes:
        table: Location of the table.
        spark: Spark settings of the file.
        compaction: The ``compaction`` section; None for a location, or if it is ``false``.
        clean: The ``clean`` section; None for a location, or if the file has none.
        ttl: The ``ttl`` section; None if it is ``false``.
        publish: The ``publish`` section; None for a location, or if the file has none.
        written: The sections that were read, as in the file; empty for a location.
    """

    table: TableLocation
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    compaction: CompactionSection | None = None
    clean: CleanSection | None = None
    ttl: TtlSection | None = field(default_factory=TtlSection)
    publish: PublishSection | None = None
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def as_written(self, section: str, name: str) -> Any:
        """A setting as written in the file; None if the file does not have it."""
        values = self.written.get(section)
        return values.get(name) if isinstance(values, Mapping) else None


@dataclass(frozen=True, slots=True)
class WriterSpec:
    """One writer, resolved.

    Attributes:
        reader_format: For ``spark.readStream.format``.
        reader_options: Options of that format; may hold secrets.
        reader_schema: DDL for ``.schema(...)``; None if the format has a schema.
        file_format: Format of the files (`weft.streams.write.file_source`); None for a source other than files.
        message_format: Name of the format of column ``value``, see `weft.streams.formats`; not used if ``message`` is
            None.
        format_options: Options of that format.
        key_format: Name of the format of column ``key``, if ``key`` is given.
        registry: Settings of the schema registry's client; may hold secrets.
        message: Fields of the message in column ``value`` and their types; None: use the rows of the source.
        select: Output column to SQL expression; None: the columns of the message or the source.
        trigger_seconds: Shortest time from the start of one batch to the start of the next.
        resume: Where to continue: from the checkpoint alone, or from the table (`weft.streams.write.resume`).
        lateness: How far the first ordering value of an event may be below the largest one before it; None: no
            watermarks.
        key: Fields of the Kafka key and their types; None: the fields that are the key columns of the table.
        tombstones: How messages without a value are handled (`weft.streams.write.tombstones`).
        dead_letter: Folder for messages that cannot be stored; None: the default of `weft.write_stream`.
        on_error: ``stop``: such a message stops the writer.
        letter_limit: How many dead letters are accepted; None: any number.
        spark: Spark settings of this writer, including those of the pipeline.
    """

    name: str
    stream: str
    lane: str
    reader_format: str
    reader_options: Mapping[str, str] = field(repr=False)
    reader_schema: str | None
    file_format: str | None
    message_format: str
    format_options: Mapping[str, str]
    key_format: str
    registry: Mapping[str, str] = field(repr=False)
    message: Mapping[str, str] | None
    select: Mapping[str, str] | None
    where: str | None
    trigger_seconds: float
    key: Mapping[str, str] | None
    tombstones: Tombstones
    dead_letter: str | None
    on_error: OnError
    letter_limit: LetterLimit | None
    takeover: bool
    resume: Literal["checkpoint", "table"]
    lateness: int | dt.timedelta | None
    checkpoint: str
    spark: Mapping[str, str] = field(repr=False)

    @property
    def needs_registry(self) -> bool:
        """Whether a format of the value or of the key fetches schemas from a registry."""
        return uses_registry(self.message_format, self.format_options) or (
            bool(self.key) and uses_registry(self.key_format)
        )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked pipeline file.

    Attributes:
        path: Absolute path of the file.
        table: Location of the table.
        config: Configuration of the table; None if the file has none.
        writers: Writers by name, in the order of the file.
        compaction: None: no compaction service.
        clean: None: no cleaning service.
        ttl: None: no service that applies a time to live.
        publish: None: no service that publishes base files.
        back_pressure: When writers slow down; None: never.
        spark: Spark settings of all sessions.
        state: Folder of checkpoints, logs and scratch files.
    """

    path: Path
    table: TableLocation
    config: TableConfig | None
    writers: Mapping[str, WriterSpec]
    compaction: CompactionSection | None
    clean: CleanSection | None
    spark: Mapping[str, str] = field(repr=False)
    state: Path
    back_pressure: BackPressureSection | None = None
    ttl: TtlSection | None = None
    publish: PublishSection | None = None

    @property
    def compacts_on_cluster(self) -> bool:
        """Whether the compaction service is a Spark application."""
        return self.compaction is not None and self.compaction.on == "cluster"

    @property
    def compacts_inline(self) -> bool:
        """Whether the writers compact, instead of a service."""
        return self.compaction is not None and self.compaction.on == "inline"

    def writer(self, name: str) -> WriterSpec:
        """The writer of that name.

        Raises:
            InvalidInput: There is no such writer; the hint names the writers.
        """
        if name not in self.writers:
            raise InvalidInput(f"the pipeline has no writer {name!r}", hint=f"writers: {', '.join(self.writers)}")
        return self.writers[name]

    def service_name(self, service: str) -> str:
        """The name of a service; followed by ``-service`` if a writer has that name."""
        name = service
        while name in self.writers:
            name += "-service"
        return name
