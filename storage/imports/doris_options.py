"""Translates the ``CREATE TABLE`` statement of a Doris table.

``sequence_mapping.<column>`` becomes a column group, ``function_column.sequence_col`` the ordering of the only group.
Source: Doris' documentation, "Multi-Stream Updates for the Unique Model", "Sequence Column", "Data Model".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    split_names,
)

_MAPPING: Final = "sequence_mapping."
_SEQUENCE_COLUMN: Final = "function_column.sequence_col"
_SEQUENCE_TYPE: Final = "function_column.sequence_type"
_FUNCTIONS: Final[Mapping[str, tuple[str, Fate, str]]] = {
    "SUM": ("sum", Fate.CARRIED, ""),
    "MIN": ("min", Fate.CARRIED, ""),
    "MAX": ("max", Fate.CARRIED, ""),
    "REPLACE_IF_NOT_NULL": ("last", Fate.CARRIED, ""),
    "REPLACE": ("last", Fate.DIFFERS, "last skips NULLs, because its group aggregates"),
}
"""For each aggregation of Doris: the function of weft, whether it means the same, and what differs."""


def translate_doris(declaration: Declaration) -> Translation:
    """Translate a Doris table with the unique or the aggregate model.

    Raises:
        InvalidInput: The table has the duplicate model, so it has no key; or an option names a column that does not
            exist.
    """
    if declaration.key_model == "DUPLICATE":
        raise InvalidInput(
            "DUPLICATE KEY: rows of this table have no unique key",
            hint="a weft table has one row per key: name key columns that are unique with --key, or add one",
        )
    report = Report(declaration.options)
    if declaration.key_model:
        report.add(f"{declaration.key_model} KEY", ", ".join(declaration.key), Fate.CARRIED, "key")
    groups = _mapped_groups(declaration, report)
    grouped_columns = {name for group in groups for name in group.columns} | set(declaration.key)
    main = GroupDraft(MAIN, [name for name in declaration.columns if name not in grouped_columns], on_delete="row")
    sequence = declaration.options.get(_SEQUENCE_COLUMN)
    if sequence is not None:
        check_columns_exist(_SEQUENCE_COLUMN, [sequence], declaration.columns)
        main.ordering = [sequence]
        report.add(_SEQUENCE_COLUMN, sequence, Fate.CARRIED, f"groups.{MAIN}.ordering")
    if declaration.key_model == "AGGREGATE":
        _aggregate(declaration, main, report)
    note = "the sequence values are in a hidden column, which an export lacks: add a column, and order by it"
    report.add_if_set(_SEQUENCE_TYPE, Fate.MISSING, note)
    buckets = bucket_count("BUCKETS", declaration.buckets, report)
    return build_configuration(declaration, [*groups, main], report, buckets=buckets)


def _mapped_groups(declaration: Declaration, report: Report) -> list[GroupDraft]:
    groups = []
    for option, value in declaration.options.items():
        if not option.startswith(_MAPPING):
            continue
        sequence, mapped = option.removeprefix(_MAPPING), split_names(value)
        check_columns_exist(option, [sequence, *mapped], declaration.columns)
        groups.append(GroupDraft(sequence, [sequence, *mapped], [sequence]))
        report.add(option, value, Fate.CARRIED, f"groups.{sequence}, ordering: {sequence}")
    return groups


def _aggregate(declaration: Declaration, main: GroupDraft, report: Report) -> None:
    """Choose the merge mode of the aggregate model. If columns are only replaced, it needs no functions."""
    kinds = {declaration.aggregates.get(name, "REPLACE") for name in main.columns}
    if kinds <= {"REPLACE"}:
        main.merge = "latest"
    elif kinds <= {"REPLACE_IF_NOT_NULL"}:
        main.merge = "latest_non_null"
    else:
        main.merge = "aggregate"
    functions = {}
    for name in main.columns:
        if name in main.ordering:
            continue
        kind = declaration.aggregates.get(name, "REPLACE")
        fallback = ("last", Fate.MISSING, f"weft has no {kind}: last keeps the newest value as it is")
        function, fate, note = _FUNCTIONS.get(kind, fallback)
        if main.merge == "aggregate":
            functions[name] = function
            report.add(f"column {name}", kind, fate, f"function {function}{note and '; ' + note}")
        else:
            report.add(f"column {name}", kind, Fate.CARRIED, f"merge: {main.merge}")
    main.functions = functions
