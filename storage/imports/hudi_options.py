"""Translates the options of a Hudi table: those of ``hoodie.properties``, of writers, and of ``CREATE TABLE``.

The table becomes one column group. Source: Hudi's documentation, "Record Merger" and "Configurations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.storage.imports.translation import (
    MAIN,
    Declaration,
    Fate,
    GroupDraft,
    Report,
    Translation,
    bucket_count,
    build_configuration,
    check_columns_exist,
    split_names,
)

RECORD_KEY: Final = ("hoodie.table.recordkey.fields", "hoodie.datasource.write.recordkey.field", "primaryKey")
PARTITION: Final = ("hoodie.table.partition.fields", "hoodie.datasource.write.partitionpath.field")
_ORDERING: Final = (
    "hoodie.table.ordering.fields",
    "hoodie.table.precombine.field",
    "hoodie.datasource.write.precombine.field",
    "orderingFields",
    "preCombineField",
)
_MODE: Final = ("hoodie.record.merge.mode", "hoodie.write.record.merge.mode", "recordMergeMode")
_PAYLOAD: Final = (
    "hoodie.compaction.payload.class",
    "hoodie.table.legacy.payload.class",
    "hoodie.datasource.write.payload.class",
    "payloadClass",
)
_PARTIAL: Final = ("hoodie.table.partial.update.mode", "hoodie.write.partial.update.mode")
_BUCKETS: Final = "hoodie.bucket.index.num.buckets"

_BY_EVENT: Final = frozenset({"DefaultHoodieRecordPayload", "EventTimeAvroPayload"})
_BY_COMMIT: Final = frozenset({"OverwriteWithLatestAvroPayload"})
_PARTIAL_PAYLOADS: Final[Mapping[str, bool]] = {
    "PartialUpdateAvroPayload": True,
    "OverwriteNonDefaultsWithLatestAvroPayload": False,
}
"""Payloads that keep the value of a column if the new record has none; whether the ordering value decides."""

_MISSING: Final[Mapping[str, str]] = {
    "hoodie.datasource.write.payload.delete.field": "map the column to _op in the writer's select",
    "hoodie.payload.delete.field": "map the column to _op in the writer's select",
    "hoodie.payload.delete.marker": "map the column to _op in the writer's select",
    "hoodie.record.merge.strategy.id": "a merger of your own: merge: module:function",
    "hoodie.write.record.merge.custom.implementation.classes": "a merger of your own: merge: module:function",
    "hoodie.clean.commits.retained": "snapshots are kept by time: clean: {retain: ...} in the pipeline file",
    "hoodie.cleaner.commits.retained": "snapshots are kept by time: clean: {retain: ...} in the pipeline file",
}


def translate_hudi(declaration: Declaration) -> Translation:
    """Translate a Hudi table.

    Raises:
        InvalidInput: The table has no record key, or an option names a column that does not exist.
    """
    options, report = declaration.options, Report(declaration.options)
    columns = {name: kind for name, kind in declaration.columns.items() if not name.startswith("_hoodie_")}
    key = list(declaration.key) or _names(options, RECORD_KEY)
    partition_by = list(declaration.partition_by) or [name.split(":")[0] for name in _names(options, PARTITION)]
    check_columns_exist("record key", key, columns)
    check_columns_exist("partition", partition_by, columns)
    declaration = replace(declaration, columns=columns, key=key, partition_by=partition_by)
    ordering = _names(options, _ORDERING)
    check_columns_exist("ordering fields", ordering, columns)
    main = GroupDraft(MAIN, [name for name in columns if name not in key], on_delete="row")
    by_event = _decide(options, main, report, ordering=bool(ordering))
    usable = [name for name in ordering if name not in key]
    if by_event:
        main.ordering = usable
    _report_ordering(report, by_event=by_event, in_key=usable != ordering)
    for name in (*RECORD_KEY, *PARTITION):
        in_key = name in RECORD_KEY
        report.add_if_set(name, *((Fate.CARRIED, "key") if in_key else (Fate.UNUSED, "see partition columns")))
    buckets = bucket_count(_BUCKETS, options.get(_BUCKETS), report)
    for name, note in _MISSING.items():
        report.add_if_set(name, Fate.MISSING, note)
    return build_configuration(declaration, [main], report, buckets=buckets)


def _names(options: Mapping[str, str], aliases: Sequence[str]) -> list[str]:
    """Column names in the first of these options that is set."""
    return next((split_names(options[option]) for option in aliases if options.get(option, "").strip()), [])


def _decide(options: Mapping[str, str], main: GroupDraft, report: Report, *, ordering: bool) -> bool:
    """Set the merge mode of the group. Returns whether the ordering fields decide, instead of the commit time."""
    mode = next((option for option in _MODE if option in options), None)
    merge_mode = options[mode].strip().upper() if mode is not None else ""
    by_event = ordering if merge_mode in {"", "CUSTOM"} else merge_mode == "EVENT_TIME_ORDERING"
    payload = next((option for option in _PAYLOAD if option in options), None)
    if payload is not None:
        name = options[payload].rsplit(".", 1)[-1]
        is_supported = True
        if name in _PARTIAL_PAYLOADS:
            main.merge = "latest_non_null"
            by_event = _PARTIAL_PAYLOADS[name] and ordering
        elif merge_mode in {"", "CUSTOM"}:
            is_supported = name in _BY_EVENT | _BY_COMMIT
            by_event = ordering and name not in _BY_COMMIT
        note = f"groups.{MAIN}.merge: {main.merge}"
        if not is_supported:
            note = f"the merge of {name} is not known here: {note}; or a merger of your own, merge: module:function"
        for option in _PAYLOAD:
            report.add_if_set(option, Fate.CARRIED if is_supported else Fate.MISSING, note)
    for option in _PARTIAL:
        if option in options:
            main.merge = "latest_non_null"
            note = f"groups.{MAIN}.merge: latest_non_null; only NULL counts as missing, no other default or marker"
            report.add(option, options[option], Fate.DIFFERS, note)
    for option in _MODE:
        if option in options:
            custom = options[option].strip().upper() == "CUSTOM" and payload is None
            note = "a merger of your own: merge: module:function" if custom else f"groups.{MAIN}"
            report.add(option, options[option], Fate.MISSING if custom else Fate.CARRIED, note)
    return by_event


def _report_ordering(report: Report, *, by_event: bool, in_key: bool) -> None:
    fate, note = Fate.CARRIED, f"groups.{MAIN}.ordering"
    if not by_event:
        fate, note = Fate.UNUSED, "the commit time decides in this table, so its group has no ordering columns"
    elif in_key:
        fate, note = Fate.MISSING, "a key column orders nothing: the key has only one value"
    for option in _ORDERING:
        report.add_if_set(option, fate, note)
