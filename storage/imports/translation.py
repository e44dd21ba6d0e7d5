"""Input and result of a translation of foreign options, and the parts that all dialects share.

An option without counterpart is reported, and does not make the translation fail. It fails if no table can be created,
for example without a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from weft.storage.config.table_config import MAX_BUCKETS
from weft.storage.core.modes.functions import find_function
from weft.storage.errors import InvalidInput

MAIN: Final = "main"
"""Name of the group for columns that no option assigns to a group."""

NOT_NEEDED: Final = "weft decides this itself, or has a setting for it in the pipeline file"
"""Note for options that the translation does not use."""


class Fate(StrEnum):
    """What happened to an option.

    CARRIED: the configuration means the same.
    DIFFERS: the configuration means something similar; the note says what differs.
    MISSING: weft has no counterpart; the note says why, or what to use instead.
    UNUSED: weft does not need it.
    """

    CARRIED = "carried over"
    DIFFERS = "carried over, but differs"
    MISSING = "no counterpart"
    UNUSED = "not needed"


@dataclass(frozen=True, slots=True)
class OptionReport:
    """What happened to one option.

    Attributes:
        option: Name of the option, or a clause such as ``PRIMARY KEY``.
        value: Its value as text.
        fate: What happened to it.
        note: The field of the configuration, what differs, or why it has no counterpart.
    """

    option: str
    value: str
    fate: Fate
    note: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a foreign table.

    Attributes:
        columns: Spark SQL type names by column, in the order of the table.
        key: Columns of the primary key; empty if it has none.
        partition_by: Partition columns.
        options: Options by name, unchanged.
        aggregates: Aggregations in column definitions, by column (Doris); upper case.
        key_model: ``UNIQUE``, ``AGGREGATE`` or ``DUPLICATE`` (Doris); empty for other systems.
        buckets: Number of buckets in a clause, ``AUTO``, or empty.
        comments: Comments by column; only columns that have one.
        comment: Comment of the table; empty if it has none.
    """

    columns: Mapping[str, str]
    key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    aggregates: Mapping[str, str] = field(default_factory=dict)
    key_model: str = ""
    buckets: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Translation:
    """A proposed table.

    Attributes:
        config: A table configuration as plain values, for `weft.storage.config.table_config.load_config`.
        report: What happened to each option.
    """

    config: dict[str, Any]
    report: tuple[OptionReport, ...]


@dataclass(slots=True)
class GroupDraft:
    """A column group under construction.

    Attributes:
        name: Its name.
        columns: Its columns, including those in ``ordering``.
        ordering: Its ordering columns.
        merge: Its merge mode.
        functions: Functions by column, for the mode ``aggregate``.
        on_delete: What a delete in its stream removes.
    """

    name: str
    columns: Sequence[str]
    ordering: Sequence[str] = ()
    merge: str = "latest"
    functions: Mapping[str, Any] = field(default_factory=dict)
    on_delete: str = "group"


class Report:
    """Collects what happened to each option of a source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self.lines: list[OptionReport] = []

    def add(self, option: str, value: str, fate: Fate, note: str) -> None:
        """Add a line."""
        self.lines.append(OptionReport(option, value, fate, note))

    def add_if_set(self, option: str, fate: Fate, note: str) -> None:
        """Add a line if the source sets the option."""
        if option in self._options:
            self.add(option, self._options[option], fate, note)

    @property
    def rest(self) -> dict[str, str]:
        """The options that are not reported yet."""
        reported_options = {line.option for line in self.lines}
        return {option: value for option, value in self._options.items() if option not in reported_options}


def build_configuration(
    declaration: Declaration, groups: Iterable[GroupDraft], report: Report, *, buckets: int | None = None
) -> Translation:
    """Build a translation: one stream for each group, and partitions if weft supports them.

    Options that are not reported yet are reported as not needed.

    Raises:
        InvalidInput: The table has no key, or no other column.
    """
    key = list(declaration.key)
    if not key:
        raise InvalidInput(
            "the source declares no primary key", hint="name the key columns with --key, or give a --config"
        )
    drafts = [draft for draft in groups if draft.columns]
    if not drafts:
        raise InvalidInput(
            "the source has no columns besides its key", hint="leave fewer columns out: a table needs a column group"
        )
    for option, value in report.rest.items():
        report.add(option, value, Fate.UNUSED, NOT_NEEDED)
    config: dict[str, Any] = {"comment": declaration.comment} if declaration.comment else {}
    config["key"] = key
    if partitions := _partitions(declaration, report):
        config["partition_by"] = partitions
    if buckets is not None:
        config["buckets"] = buckets
    config["columns"] = {
        name: _column(kind, declaration.comments.get(name, "")) for name, kind in declaration.columns.items()
    }
    config["groups"] = {draft.name: _group(draft, declaration.columns) for draft in drafts}
    config["streams"] = {draft.name: _stream(draft) for draft in drafts}
    return Translation(config, tuple(report.lines))


def _column(kind: str, comment: str) -> str | dict[str, str]:
    return {"type": kind, "comment": comment} if comment else kind


def _partitions(declaration: Declaration, report: Report) -> list[str]:
    partition_names = ", ".join(declaration.partition_by)
    if not partition_names:
        return []
    if set(declaration.partition_by) <= set(declaration.key):
        report.add("partition columns", partition_names, Fate.CARRIED, "partition_by")
        return list(declaration.partition_by)
    note = "a key must stay in one partition: add the columns to the key, or do without; reads skip files by statistics"
    report.add("partition columns", partition_names, Fate.MISSING, note)
    return []


def _group(draft: GroupDraft, columns: Mapping[str, str]) -> dict[str, Any]:
    group: dict[str, Any] = {"columns": [name for name in columns if name in draft.columns]}
    if draft.ordering:
        group["ordering"] = list(draft.ordering)
    if draft.merge != "latest":
        group["merge"] = draft.merge
    if draft.functions:
        group["functions"] = dict(draft.functions)
    return group


def _stream(draft: GroupDraft) -> dict[str, Any]:
    on_delete = draft.on_delete
    names = [next(iter(item)) if isinstance(item, Mapping) else item for item in draft.functions.values()]
    if not all(find_function(name).retractable for name in names):
        on_delete = "ignore"  # these functions cannot take back what a delete removes
    stream: dict[str, Any] = {"groups": [draft.name]}
    if on_delete != "group":
        stream["on_delete"] = on_delete
    return stream


def bucket_count(option: str, value: str | None, report: Report) -> int | None:
    """Round a declared number of buckets up to a power of two; None for the default."""
    if not value:
        return None
    try:
        requested_buckets = int(value)
    except ValueError:
        requested_buckets = 0
    if requested_buckets < 1:
        report.add(option, value, Fate.UNUSED, "the number of buckets is fixed in weft; the default is used")
        return None
    buckets = min(1 << (requested_buckets - 1).bit_length(), MAX_BUCKETS)
    if buckets == requested_buckets:
        report.add(option, value, Fate.CARRIED, "buckets")
    else:
        report.add(option, value, Fate.DIFFERS, f"buckets: {buckets}, because it must be a power of two")
    return buckets


def split_names(text: str) -> list[str]:
    """Names in a text, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def is_true(value: str) -> bool:
    """Whether the value of an option is true."""
    return value.strip().lower() == "true"


def check_columns_exist(option: str, names: Iterable[str], columns: Mapping[str, str]) -> None:
    """Refuse an option that names a column that does not exist.

    Raises:
        InvalidInput: The message names the option and the column.
    """
    for name in names:
        if name not in columns:
            raise InvalidInput(f"{option}: the table has no column {name!r}", hint=f"columns: {', '.join(columns)}")
