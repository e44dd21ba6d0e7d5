"""Translates the options of a Paimon table. Source: Paimon's documentation, "Merge Engines" and "Options".

A sequence group becomes a column group with its sequence fields as ordering columns. Columns outside sequence groups
make one group, `MAIN`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.storage.errors import InvalidInput
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
    is_true,
    split_names,
)

_SEQUENCE_GROUP: Final = re.compile(r"fields\.(.+)\.sequence-group")
_FUNCTION: Final = re.compile(r"fields\.(.+)\.aggregate-function")
_FIELD_OPTION: Final = re.compile(r"fields\.(.+)\.([a-z-]+)")
_DEFAULT_FUNCTION: Final = "fields.default-aggregate-function"
_ENGINE: Final = "merge-engine"
_SEQUENCE: Final = "sequence.field"
_IGNORE_DELETE: Final = (
    "ignore-delete",
    "first-row.ignore-delete",
    "deduplicate.ignore-delete",
    "partial-update.ignore-delete",
)
_REMOVE_ROW: Final = "partial-update.remove-record-on-delete"
_REMOVE_ROW_OF_GROUP: Final = "partial-update.remove-record-on-sequence-group"

_FUNCTIONS: Final[Mapping[str, tuple[str, Fate, str]]] = {
    "sum": ("sum", Fate.CARRIED, ""),
    "max": ("max", Fate.CARRIED, ""),
    "min": ("min", Fate.CARRIED, ""),
    "bool_and": ("bool_and", Fate.CARRIED, ""),
    "bool_or": ("bool_or", Fate.CARRIED, ""),
    "listagg": ("listagg", Fate.CARRIED, ""),
    "last_non_null_value": ("last", Fate.CARRIED, ""),
    "first_non_null_value": ("first", Fate.CARRIED, ""),
    "first_not_null_value": ("first", Fate.CARRIED, ""),
    "last_value": ("last", Fate.DIFFERS, "last skips NULLs"),
    "first_value": ("first", Fate.DIFFERS, "first skips NULLs"),
    "count": ("sum", Fate.DIFFERS, "sum, so that imported counts go on: new events must give 1 for each value"),
}
"""For each function of Paimon: the function of weft, whether it means the same, and what differs."""

_MISSING: Final[Mapping[str, str]] = {
    "sequence.field.sort-order": "ordering values are ascending: negate the values on the way in if it is descending",
    "rowkind.field": "map the column to _op in the writer's select",
    "record-level.expire-time": "rows expire with ttl: weft alter set-ttl URI --rows ... --by ...",
    "record-level.time-field": "rows expire with ttl: weft alter set-ttl URI --rows ... --by ...",
    "partition.expiration-time": "rows expire with ttl: weft alter set-ttl URI --rows ... --by ...",
    "cross-partition-upsert.index-ttl": "a key must stay in one partition",
    "merge-engine.custom": "a merger of your own: merge: module:function",
}
_MISSING_OF_FIELD: Final[Mapping[str, str]] = {
    "ignore-retract": "deletes are subtracted by sum and count: set on_delete: ignore for the stream to ignore them",
    "distinct": "use collect_set, which keeps distinct values",
    "nested-key": "nested tables have no counterpart: store the last value, or a table for each nested row",
    "default-value": "a default is shown only where the whole group is absent: weft alter set-default URI",
    "count-limit": "nested tables have no counterpart",
}


def translate_paimon(declaration: Declaration) -> Translation:
    """Translate a Paimon table with a primary key.

    Raises:
        InvalidInput: The table has no primary key, or an option names a column that does not exist.
    """
    return _Paimon(declaration).translation()


class _Paimon:
    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._options = dict(declaration.options)
        self._report = Report(declaration.options)
        self._values = [name for name in declaration.columns if name not in declaration.key]

    def translation(self) -> Translation:
        engine = self._options.get(_ENGINE, "deduplicate")
        if engine not in {"deduplicate", "partial-update", "aggregation", "first-row"}:
            raise InvalidInput(
                f"{_ENGINE}: there is no merge engine {engine!r}",
                hint="merge engines: deduplicate, partial-update, aggregation, first-row",
            )
        sequence = split_names(self._options.get(_SEQUENCE, ""))
        check_columns_exist(_SEQUENCE, sequence, self._declaration.columns)
        groups = self._sequence_groups()
        grouped_columns = {name for group in groups for name in group.columns}
        main = GroupDraft(MAIN, [name for name in self._values if name not in grouped_columns])
        main.ordering = [name for name in sequence if name in main.columns]
        main.merge = {"partial-update": "latest_non_null", "deduplicate": "latest"}.get(engine, "aggregate")
        for group in (*groups, main):
            self._aggregate(group, engine)
        self._set_deletes([*groups, main], engine)
        self._report_engine(engine, sequence, main)
        buckets = bucket_count("bucket", self._options.get("bucket"), self._report)
        self._report_rest()
        return build_configuration(self._declaration, [*groups, main], self._report, buckets=buckets)

    def _sequence_groups(self) -> list[GroupDraft]:
        groups = []
        for option, value in self._options.items():
            if (option_match := _SEQUENCE_GROUP.fullmatch(option)) is None:
                continue
            ordering, group_columns = split_names(option_match[1]), split_names(value)
            check_columns_exist(option, [*ordering, *group_columns], self._declaration.columns)
            group = GroupDraft("_".join(ordering), [*ordering, *group_columns], ordering)
            groups.append(group)
            self._report.add(option, value, Fate.CARRIED, f"groups.{group.name}, ordering: {', '.join(ordering)}")
        return groups

    def _aggregate(self, group: GroupDraft, engine: str) -> None:
        """Set the functions of a group if one of its columns has a function, or if the merge engine aggregates."""
        default = self._options.get(_DEFAULT_FUNCTION)
        requested_functions = {
            name: function
            for name in group.columns
            if name not in group.ordering and (function := self._function(name, default)) is not None
        }
        if engine == "first-row" and group.name == MAIN:
            values = (name for name in group.columns if name not in group.ordering)
            requested_functions = dict.fromkeys(values, "first_value")
        elif not requested_functions and (engine != "aggregation" or group.name != MAIN):
            return
        group.merge = "aggregate"
        functions: dict[str, Any] = {}
        for name in group.columns:
            if name in group.ordering:
                continue
            function, fate, note = self._find_function(requested_functions.get(name, "last_non_null_value"))
            if name in requested_functions or engine == "aggregation":
                functions[name] = function
            else:  # in the same sequence group, without a function
                functions[name], fate, note = "last", Fate.DIFFERS, "last skips NULLs, because its group aggregates"
                self._report.add(f"column {name}", "no function", fate, note)
            delimiter = self._options.get(f"fields.{name}.list-agg-delimiter")
            if function == "listagg" and delimiter is not None:
                functions[name] = {"listagg": {"delimiter": delimiter}}
                self._report.add(f"fields.{name}.list-agg-delimiter", delimiter, Fate.CARRIED, "delimiter of listagg")
            place = f"groups.{group.name}.functions.{name}: {function}"
            self._report.add_if_set(f"fields.{name}.aggregate-function", fate, f"{place}{note and '; ' + note}")
        group.functions = functions

    def _function(self, column: str, default: str | None) -> str | None:
        return self._options.get(f"fields.{column}.aggregate-function", default)

    @staticmethod
    def _find_function(function: str) -> tuple[str, Fate, str]:
        fallback = ("last", Fate.MISSING, f"weft has no {function}: last keeps the newest value as it is")
        return _FUNCTIONS.get(function.strip().lower(), fallback)

    def _set_deletes(self, groups: Sequence[GroupDraft], engine: str) -> None:
        ignore_option = next((name for name in _IGNORE_DELETE if is_true(self._options.get(name, ""))), None)
        for name in _IGNORE_DELETE:
            note = "on_delete: ignore of every stream" if name == ignore_option else "deletes count, as by default"
            self._report.add_if_set(name, Fate.CARRIED, note)
        all_rows = engine == "deduplicate" or is_true(self._options.get(_REMOVE_ROW, ""))
        of_rows = split_names(self._options.get(_REMOVE_ROW_OF_GROUP, ""))
        for group in groups:
            if ignore_option is not None:
                group.on_delete = "ignore"
            elif all_rows or any(name in of_rows for name in group.ordering):
                group.on_delete = "row"
        for name in (_REMOVE_ROW, _REMOVE_ROW_OF_GROUP):
            self._report.add_if_set(name, Fate.CARRIED, "on_delete: row")

    def _report_engine(self, engine: str, sequence: Sequence[str], main: GroupDraft) -> None:
        if engine == "first-row":
            note = f"groups.{MAIN}: first per column, which skips NULLs"
            self._report.add_if_set(_ENGINE, Fate.DIFFERS, note)
        else:
            note = f"groups.{MAIN}.merge: {main.merge}" if main.columns else "every column is in a sequence group"
            self._report.add_if_set(_ENGINE, Fate.CARRIED, note)
        if sequence and list(main.ordering) == list(sequence):
            self._report.add_if_set(_SEQUENCE, Fate.CARRIED, f"groups.{MAIN}.ordering")
        elif sequence:
            note = "it orders only columns outside sequence groups, and is in a sequence group or in the key itself"
            self._report.add_if_set(_SEQUENCE, Fate.MISSING, note)

    def _report_rest(self) -> None:
        for option, value in self._report.rest.items():
            if option == _DEFAULT_FUNCTION:
                function, fate, note = self._find_function(value)
                self._report.add(option, value, fate, f"function {function} of its columns{note and '; ' + note}")
            elif option in _MISSING:
                self._report.add(option, value, Fate.MISSING, _MISSING[option])
            elif (option_match := _FUNCTION.fullmatch(option)) is not None:
                check_columns_exist(option, [option_match[1]], self._declaration.columns)
                self._report.add(option, value, Fate.UNUSED, "the column is in the key or orders its group")
            elif (option_match := _FIELD_OPTION.fullmatch(option)) is not None:
                note = _MISSING_OF_FIELD.get(option_match[2], "weft has no such option of a column")
                self._report.add(option, value, Fate.MISSING, note)
            elif option in {"primary-key", "partition"}:
                self._report.add(option, value, Fate.CARRIED, "key" if option == "primary-key" else "partition_by")
