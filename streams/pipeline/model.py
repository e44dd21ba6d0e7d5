"""Shape of a pipeline: the file's sections as pydantic models, and the settled values that everything else works with.

`PipelineConfig` is what stands in the file. `Pipeline` is what it means: every default filled in, every path absolute.
Meaning of the fields: example_pipeline.yaml, which `weft init` writes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from storage.config import TableConfig
from storage.errors import InvalidInput
from storage.services.clean.clean import DEFAULT_ABANDON, DEFAULT_RETENTION
from streams.pipeline.pipeline_file import parse_duration, parse_lateness

_MIN_EVERY_SECONDS: Final = 0.1  # a service that looks more often does nothing but look


def _text(value: Any) -> Any:
    """A setting as its consumer spells it: YAML's ``true`` and ``10`` are text to Kafka and Spark."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _none_if_off(value: Any) -> Any:
    return None if value is False else value


Duration = Annotated[float, BeforeValidator(parse_duration)]
Lateness = Annotated[int | dt.timedelta, BeforeValidator(parse_lateness)]
Setting = Annotated[str, BeforeValidator(_text)]
Settings = dict[str, Setting]


Tombstones = Literal["ignore", "delete", "dead_letter"]
OnError = Literal["dead_letter", "stop"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableSection(_Model):
    """Where the table is, how its store is reached, and what it is made of if it does not exist yet."""

    uri: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    storage_options: dict[str, Any] = {}


class KafkaSection(_Model):
    """Messages of Kafka topics, read by ``weft_kafka``."""

    type: Literal["kafka"]
    topic: str | None = None
    topics: list[str] = []
    format: Literal["json"] = "json"
    starting_offsets: Literal["earliest", "latest"] | dict[str, dict[str, int]] = "earliest"
    max_offsets_per_trigger: int | None = Field(default=None, ge=1)
    options: Settings = {}


class SparkSection(_Model):
    """Any other streaming source of Spark, by the name of its format."""

    type: Literal["spark"]
    format: str = Field(min_length=1)
    options: Settings = {}
    ddl: str | None = Field(default=None, alias="schema")


class WriterSection(_Model):
    """One writer: where its events come from and which columns they give."""

    source: Annotated[KafkaSection | SparkSection, Field(discriminator="type")]
    message: dict[str, str] | None = Field(default=None, alias="schema")
    select: dict[str, Setting] | None = Field(default=None, min_length=1)
    where: str | None = None
    trigger: Duration = 5.0
    key: dict[str, str] | None = Field(default=None, min_length=1)
    tombstones: Tombstones = "ignore"
    dead_letter: str | None = None
    on_error: OnError = "dead_letter"
    stream: str | None = None
    lane: str | None = None
    takeover: bool = False
    resume: Literal["checkpoint", "table"] = "checkpoint"
    lateness: Lateness | None = None
    checkpoint: str | None = None
    kafka: Settings = {}
    spark: Settings = {}


class CompactionSection(_Model):
    """How often compaction looks at the table, when it finds a file group due, and when it folds logs meanwhile."""

    every: Duration = Field(default=30.0, ge=_MIN_EVERY_SECONDS)
    min_commits: int = Field(default=8, ge=1)
    max_log_ratio: float = Field(default=0.5, gt=0)
    fold_commits: Annotated[int | None, BeforeValidator(_none_if_off)] = Field(default=64, ge=2)


class CleanSection(_Model):
    """How often what nobody needs any more is deleted, what is kept, and when a compaction is taken for dead."""

    every: Duration = Field(default=600.0, ge=_MIN_EVERY_SECONDS)
    retain: Duration = DEFAULT_RETENTION.total_seconds()
    versions: int | None = Field(default=None, ge=1)
    abandon_after: Duration = DEFAULT_ABANDON.total_seconds()


class PipelineConfig(_Model):
    """The file."""

    table: TableSection
    writers: dict[str, WriterSection] = Field(min_length=1)
    kafka: Settings = {}
    spark: Settings = {}
    compaction: Annotated[CompactionSection | None, BeforeValidator(_none_if_off)] = CompactionSection()
    clean: Annotated[CleanSection | None, BeforeValidator(_none_if_off)] = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Where a table is. Options may hold secrets, so they are kept out of ``repr``."""

    uri: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The table's folder name as an SQL identifier."""
        last = self.uri.rstrip("/").rsplit("/", 1)[-1]
        plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in last) or "table"
        return f"_{plain}" if plain[0].isdigit() else plain


class CommandConfig(_Model):
    """Those sections of the file that commands other than ``weft run`` take settings from."""

    table: TableSection
    spark: Settings = {}
    compaction: Annotated[CompactionSection | None, BeforeValidator(_none_if_off)] = CompactionSection()
    clean: Annotated[CleanSection | None, BeforeValidator(_none_if_off)] = None


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """What a command that takes a pipeline file or a table's location knows from it.

    Attributes:
        table: Where the table is.
        spark: Spark settings of the file.
        compaction: When the file's compaction finds something due; None for a location, or where it is switched off.
        clean: What the file's cleaning keeps; None for a location, or where the file has none.
        written: Each section that was looked at, as it stands in the file; empty for a location.
    """

    table: TableLocation
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    compaction: CompactionSection | None = None
    clean: CleanSection | None = None
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def as_written(self, section: str, name: str) -> Any:
        """A setting in the file's own words; None if the file leaves it to the default."""
        values = self.written.get(section)
        return values.get(name) if isinstance(values, Mapping) else None


@dataclass(frozen=True, slots=True)
class WriterSpec:
    """One writer with everything settled.

    Attributes:
        reader_format: For ``spark.readStream.format``.
        reader_options: Of that format; may hold secrets.
        reader_schema: DDL for ``.schema(...)``, None where the format has its own.
        message: Columns of the JSON in column ``value``; None where the source's rows are used as they are.
        select: Output column to SQL expression; None: the source's or the message's columns as they are.
        trigger_seconds: At least so long from one batch's start to the next.
        resume: What says where to go on: the checkpoint alone, or the table (`streams.write.resume`).
        lateness: How late its events come at most; None: it promises nothing (`storage.core.plan.watermarks`).
        key: Fields of the Kafka key and their types; None: those that the table's key columns are.
        tombstones: What becomes of messages without a value (`streams.write.tombstones`).
        dead_letter: Folder for messages that cannot be stored; None: beside the table, see `streams.write_stream`.
        on_error: ``stop``: such a message is fatal.
        spark: Spark settings of this writer, the pipeline's included.
    """

    name: str
    stream: str
    lane: str
    reader_format: str
    reader_options: Mapping[str, str] = field(repr=False)
    reader_schema: str | None
    message: Mapping[str, str] | None
    select: Mapping[str, str] | None
    where: str | None
    trigger_seconds: float
    key: Mapping[str, str] | None
    tombstones: Tombstones
    dead_letter: str | None
    on_error: OnError
    takeover: bool
    resume: Literal["checkpoint", "table"]
    lateness: int | dt.timedelta | None
    checkpoint: str
    spark: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked pipeline file.

    Attributes:
        path: The file, absolute.
        table: Where the table is.
        config: The table's configuration, None if the file leaves it to the table.
        writers: By name, in the file's order.
        compaction: None: no compaction service.
        clean: None: nothing is ever deleted.
        spark: Spark settings for everything.
        state: Folder for checkpoints, logs and scratch files.
    """

    path: Path
    table: TableLocation
    config: TableConfig | None
    writers: Mapping[str, WriterSpec]
    compaction: CompactionSection | None
    clean: CleanSection | None
    spark: Mapping[str, str] = field(repr=False)
    state: Path

    def writer(self, name: str) -> WriterSpec:
        """The writer of that name.

        Raises:
            InvalidInput: There is none; the hint names those there are.
        """
        if name not in self.writers:
            raise InvalidInput(f"the pipeline has no writer {name!r}", hint=f"writers: {', '.join(self.writers)}")
        return self.writers[name]
