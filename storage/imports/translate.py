"""Proposes the configuration of a table from the declaration of a foreign table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import yaml

from weft.storage.errors import InvalidInput
from weft.storage.imports.doris_options import translate_doris
from weft.storage.imports.hudi_options import translate_hudi
from weft.storage.imports.paimon_options import translate_paimon
from weft.storage.imports.table_text import Dialect, TableText
from weft.storage.imports.translation import (
    MAIN,
    Declaration,
    GroupDraft,
    OptionReport,
    Report,
    Translation,
    build_configuration,
    check_columns_exist,
)

Format = Literal["parquet", "delta", "iceberg", "hudi", "paimon"]


def translate(
    kind: Format | Dialect,
    declaration: Declaration,
    text: TableText | None = None,
    *,
    key: Sequence[str] | None = None,
    ordering: Sequence[str] = (),
) -> Translation:
    """Propose a configuration.

    Args:
        kind: The format of the source, or the dialect of its options.
        declaration: The declaration of the source.
        text: Parsed options from a text, which override those of the source.
        key: Key columns, instead of the declared ones.
        ordering: Ordering columns, for a table that declares none.

    Raises:
        InvalidInput: The key is missing; a column does not exist; or ``ordering`` is set, but the table declares how
            its rows are ordered.
    """
    if text is not None:
        kind = text.dialect
        declaration = _combine(declaration, text.declaration)
    if key is not None:
        check_columns_exist("--key", key, declaration.columns)
        declaration = replace(declaration, key=list(key))
    match kind:
        case "paimon":
            translation = translate_paimon(declaration)
        case "hudi":
            translation = translate_hudi(declaration)
        case "doris":
            translation = translate_doris(declaration)
        case _:
            translation = _plain(declaration)
    return _with_ordering(translation, declaration, ordering) if ordering else translation


def _combine(source: Declaration, text: Declaration) -> Declaration:
    """Combine the declarations of a source and a text. The source's columns win, otherwise the text."""
    options: Mapping[str, str] = {**source.options, **text.options}
    return replace(
        text,
        columns=source.columns or text.columns,
        key=text.key or source.key,
        partition_by=text.partition_by or source.partition_by,
        options=options,
        comments={**source.comments, **text.comments},
        comment=text.comment or source.comment,
    )


def _plain(declaration: Declaration) -> Translation:
    """Translate a table without options about merging: one group in commit order."""
    main = GroupDraft(MAIN, [name for name in declaration.columns if name not in declaration.key], on_delete="row")
    return build_configuration(declaration, [main], Report(declaration.options))


def _with_ordering(translation: Translation, declaration: Declaration, ordering: Sequence[str]) -> Translation:
    check_columns_exist("--ordering", ordering, declaration.columns)
    groups = translation.config["groups"]
    if list(groups) != [MAIN] or "ordering" in groups[MAIN]:
        raise InvalidInput(
            "--ordering: the options of the source already say how its rows are ordered",
            hint="print the configuration with --dry-run, edit it, and give it with --config",
        )
    main_group = {**groups[MAIN], "ordering": list(ordering)}
    return replace(translation, config={**translation.config, "groups": {MAIN: main_group}})


def to_yaml(translation: Translation) -> str:
    """The configuration as YAML, after the report as comments."""
    lines = [f"# {_line(option_report)}" for option_report in translation.report]
    body = yaml.safe_dump(translation.config, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)
    return "\n".join([*lines, body])


def _line(line: OptionReport) -> str:
    return f"{line.option} = {line.value}: {line.fate} ({line.note})".replace("\n", " ")
