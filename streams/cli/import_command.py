"""``weft import``: creates a table from a table of another format, and translates its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from weft.storage.config.table_config import load_config
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import open_foreign
from weft.storage.imports.import_table import ImportResult, import_table
from weft.storage.imports.table_text import TableText, read_table_text
from weft.storage.imports.translate import to_yaml, translate
from weft.storage.imports.translation import Declaration, Translation
from weft.storage.plural import counted
from weft.storage.store.open_store import check_reachable
from weft.streams.cli.arguments import Json, StorageOption, parse_storage_options, split_names, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_json, print_result
from weft.streams.cli.progress import Quiet, progress

import_command = typer.Typer()

_TEXT_SUFFIXES: Final = (".sql", ".properties")
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
                "--config defines the whole table", hint="leave out --options, --key, --ordering and --leave-out"
            )
        source_options = parse_storage_options(source_option or ())
        text = None if options is None else _read_text(options)
        table_config: Any = None if config is None else load_config(config)
        foreign_table = None
        if source.endswith(_TEXT_SUFFIXES):
            if not dry_run:
                raise InvalidInput(f"{source} is text without rows", hint="add --dry-run, or give it as --options")
            text = _read_text(Path(source))
        else:
            foreign_table = open_foreign(source_format, source, version=source_version, options=source_options)
        proposal = None
        if table_config is None:
            kind = source_format if foreign_table is not None or text is None else text.dialect
            without = split_names(leave_out) or ()
            declared = Declaration({}) if foreign_table is None else foreign_table.declaration(without)
            proposal = translate(kind, declared, text, key=split_names(key), ordering=split_names(ordering) or ())
            table_config = proposal.config
        target_options = parse_storage_options(storage_option or ())
    if dry_run:
        _print_proposal(proposal, as_json=as_json)
        return
    assert foreign_table is not None, "only a dry run has no source"
    assert uri is not None, "only a dry run has no target"
    check_reachable(uri, target_options)
    with progress("importing", quiet=quiet) as show:
        result = import_table(uri, foreign_table, table_config, storage_options=target_options, progress=show)
    print_result(result, _describe(result), as_json=as_json)


def _describe(result: ImportResult) -> str:
    source = " ".join(result.source.values())
    if not result.imported:
        return f"{source} is imported already: {result.uri} shows {counted(result.keys, 'row')} now"
    lines = [f"{counted(result.rows, 'row')} of {source} are in {result.uri}: it shows {counted(result.keys, 'row')}"]
    if result.merged:
        lines.append(f"{counted(result.merged, 'row')} had a key that another row has, which won")
    if result.rows_ignored:
        lines.append(f"{counted(result.rows_ignored, 'row')} had a key alone, without any value, and are left out")
    return "\n".join([*lines, f"next: weft compact {result.uri}"])


def _print_proposal(proposal: Translation | None, *, as_json: bool) -> None:
    if proposal is None:
        raise InvalidInput("--dry-run with --config: there is nothing to propose", hint="leave out one of them")
    if as_json:
        print_json({"config": proposal.config, "report": proposal.report})
    else:
        typer.echo(to_yaml(proposal), nl=False)


def _read_text(path: Path) -> TableText:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}", hint="check the file and its permissions") from error
    return read_table_text(text)
