"""``weft import``: makes a table from a table of another format, and translates its options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from weft.storage.config.table_config import load_config
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import ForeignTable, open_foreign
from weft.storage.imports.import_table import ImportResult, import_table
from weft.storage.imports.table_text import TableText, read_table_text
from weft.storage.imports.translate import to_yaml, translate
from weft.storage.imports.translation import Declaration, Translation
from weft.storage.plural import counted
from weft.storage.store.open_store import check_reachable
from weft.streams.cli.arguments import Json, StorageOption, column_names, parse_storage_options, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_json, print_result
from weft.streams.cli.progress import Quiet, progress

import_command = typer.Typer()

_TEXTS: Final = (".sql", ".properties")
SourceFormat = Literal["parquet", "delta", "iceberg", "hudi", "paimon"]


@import_command.command(
    "import",
    epilog=examples(
        "weft import old/orders lake/orders_wide --from hudi",
        "weft import s3://lake/orders lake/orders_wide --from delta --source-version 12",
        "weft import create_table.sql --dry-run",
        "weft import export.parquet lake/orders_wide --key order_id --ordering updated_at",
    ),
)
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="Location of the source. Iceberg: a metadata file, or NAMESPACE.TABLE in a catalog. With --dry-run "
            "also a file with its options: a CREATE TABLE statement (*.sql), or properties (*.properties)."
        ),
    ],
    uri: Annotated[str | None, typer.Argument(metavar="[URI]", help="Location of the new table.")] = None,
    source_format: Annotated[SourceFormat, typer.Option("--from", help="Format of the source.")] = "parquet",
    source_version: Annotated[
        str | None,
        typer.Option(
            help="Version (Delta), snapshot id (Iceberg) or commit time (Hudi) to read; the newest by default."
        ),
    ] = None,
    source_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of the source's reader: of its store, or a property of the Iceberg catalog. May be repeated.",
        ),
    ] = None,
    options: Annotated[
        Path | None,
        typer.Option(
            help="A file with options of the source that its data do not carry: CREATE TABLE of Paimon, Hudi or Doris, "
            "or properties."
        ),
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key columns, if the source declares none; a,b,c.")] = None,
    ordering: Annotated[
        list[str] | None, typer.Option(help="Columns that order the rows of a key, if the source declares none; a,b,c.")
    ] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="Columns of the source to leave out; a,b,c.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the table (YAML), instead of the proposed one.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the proposed configuration and what became of each option, and stop."),
    ] = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a table from a table of another format: copies its rows, and translates its options.

    All rows become visible in one commit. If the import fails or is killed before that, there is no table, or an empty
    one, and the same command completes it. Needs the extra of the format: delta, iceberg, hudi or paimon.
    """
    with usage_errors():
        if uri is None and not dry_run:
            raise InvalidInput("the location of the new table is missing", hint="give URI, or --dry-run")
        if config is not None and (options or key or ordering or leave_out):
            raise InvalidInput(
                "--config says everything about the table", hint="leave out --options, --key, --ordering, --leave-out"
            )
        given = parse_storage_options(source_option or ())
        text = None if options is None else _read_text(options)
        chosen = None if config is None else load_config(config)
        opened = None
        if source.endswith(_TEXTS):
            if not dry_run:
                raise InvalidInput(f"{source} is text without rows", hint="add --dry-run, or give it as --options")
            text = _read_text(Path(source))
        else:
            opened = open_foreign(source_format, source, version=source_version, options=given)
        found = None
        if chosen is None:
            kind = source_format if opened is not None or text is None else text.dialect
            declaration = Declaration({}) if opened is None else opened.declaration(column_names(leave_out) or ())
            found = translate(kind, declaration, text, key=column_names(key), ordering=column_names(ordering) or ())
        target = parse_storage_options(storage_option or ())
    if dry_run:
        _print_proposal(found, as_json=as_json)
        return
    assert opened is not None, "only a dry run has no source"
    assert uri is not None, "only a dry run has no target"
    _copy(opened, uri, target, chosen if found is None else found.config, quiet=quiet, as_json=as_json)


def _copy(
    source: ForeignTable, uri: str, target: Mapping[str, Any], config: Any, *, quiet: bool, as_json: bool
) -> None:
    check_reachable(uri, target)
    with progress("importing", quiet=quiet) as show:
        done = import_table(
            uri,
            source,
            config,
            storage_options=target,
            progress=show,
        )
    print_result(done, _described(done), as_json=as_json)


def _described(done: ImportResult) -> str:
    what = " ".join(done.source.values())
    if not done.imported:
        return f"{what} is imported already: {done.uri} shows {counted(done.keys, 'row')} now"
    lines = [f"{counted(done.rows, 'row')} of {what} are in {done.uri}: it shows {counted(done.keys, 'row')}"]
    if done.merged:
        lines.append(f"{counted(done.merged, 'row')} had a key that another row has, which won")
    if done.rows_ignored:
        lines.append(f"{counted(done.rows_ignored, 'row')} had a key alone, without any value, and are left out")
    return "\n".join([*lines, f"next: weft compact {done.uri}"])


def _print_proposal(found: Translation | None, *, as_json: bool) -> None:
    if found is None:
        raise InvalidInput("--dry-run with --config: there is nothing to propose", hint="leave out one of them")
    if as_json:
        print_json({"config": found.config, "report": found.report})
    else:
        typer.echo(to_yaml(found), nl=False)


def _read_text(path: Path) -> TableText:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}", hint="check the file and its permissions") from error
    return read_table_text(text)
