"""Commands that run one operation of a table, generated from the declarations in `weft.storage.operations`.

A command whose effect cannot be undone asks for confirmation; without a terminal it needs ``--yes``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from annotated_types import Ge

from weft.storage import Table
from weft.storage.errors import InvalidInput
from weft.storage.operations.all_operations import OPERATIONS
from weft.storage.operations.operation import Context, Finished, Operation, Request, type_of
from weft.storage.plural import counted
from weft.storage.services.steps.tasks import Execute
from weft.storage.store.open_store import check_reachable
from weft.storage.table_facts import open_table_unchecked
from weft.streams.cli import completion
from weft.streams.cli.arguments import (
    FAILED,
    Concurrency,
    Json,
    Memory,
    StorageOption,
    Target,
    flag_of,
    load_target,
    open_location,
    override_and_print,
    print_override,
    print_overrides,
    usage_errors,
    validate,
)
from weft.streams.cli.examples import examples
from weft.streams.cli.key_files import read_keys
from weft.streams.cli.output import print_result
from weft.streams.cli.progress import Quiet, progress
from weft.streams.pipeline.file.letter_places import expire_letters, load_letter_places, retentions_of
from weft.streams.pipeline.file.model import CommandSettings, CompactionSection
from weft.streams.pipeline.file.pipeline import is_pipeline
from weft.streams.pipeline.run.services import COMPACTION
from weft.streams.read.plain_values import json_value

operation_commands = typer.Typer()
alter = typer.Typer(
    no_args_is_help=True, help="Change a table's schema while it is written. Writers that know the old schema continue."
)
_GROUPS: Final = {"": operation_commands, "alter": alter}

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
OnCluster = Annotated[
    bool | None,
    typer.Option("--on-cluster/--here", help="With Spark, by the pipeline's section spark; else in this process."),
]
_LIMITS: Final = ("concurrency", "memory")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on the terminal, unless ``yes`` is set.

    Raises:
        typer.Exit: There is no terminal; the error was printed.
        click.Abort: The user said no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        with usage_errors():
            raise InvalidInput(f"{question} There is no terminal to confirm it", hint="add --yes to confirm")
    typer.confirm(question, abort=True)


def build_parameter(operation: Operation[Any, Any], name: str) -> inspect.Parameter:
    """Build the argument or option of a command for a field of the request."""
    info, face = operation.fields()[name]
    kind: Any = Path if face.completes == "files" else type_of(info)
    words = f"{info.description} May be repeated." if face.repeated else info.description
    shared: dict[str, Any] = {"help": words, "metavar": face.metavar}
    if kind is int:
        shared["min"] = next((limit.ge for limit in info.metadata if isinstance(limit, Ge)), None)
    if face.completes and kind is not Path:
        shared["autocompletion"] = getattr(completion, face.completes)
    what = typer.Argument(**shared) if face.argument else typer.Option(face.flag or flag_of(name), **shared)
    default: Any = inspect.Parameter.empty if info.is_required() else info.default
    if kind in {list, dict}:
        kind, default = (list[str], default) if info.is_required() else (list[str] | None, None)
    elif not info.is_required() and kind is not bool:
        # None means that the option is absent; then the value of the pipeline file is used.
        kind, default = kind | None, None if operation.section else default
    return _parameter(name, Annotated[kind, what], default)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def build_command(operation: Operation[Any, Any]) -> Callable[..., None]:
    """Build the function from which typer makes the command of an operation."""
    parameters = [_parameter("target", Target)]
    parameters += [build_parameter(operation, name) for name, (_, face) in operation.fields().items() if face.command]
    if operation.question is not None:
        parameters.append(_parameter("yes", Yes, default=False))
    if operation.on_cluster:
        parameters += [_parameter(name, kind, None) for name, kind in zip(_LIMITS, (Concurrency, Memory), strict=True)]
        parameters.append(_parameter("on_cluster", OnCluster, None))
    parameters.append(_parameter("storage_option", StorageOption, None))
    if operation.stage:
        parameters.append(_parameter("quiet", Quiet, default=False))
    parameters.append(_parameter("as_json", Json, default=False))

    def command(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in operation.fields() if name in arguments}
        run_command(operation, values, **arguments)

    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 - typer asks for it
    command.__doc__ = operation.help
    return command


def run_command(
    operation: Operation[Any, Any],
    values: Mapping[str, Any],
    *,
    target: str,
    storage_option: list[str] | None = None,
    as_json: bool = False,
    quiet: bool = False,
    yes: bool = False,
    on_cluster: bool | None = None,
    concurrency: int | None = None,
    memory: str | None = None,
) -> None:
    """Run an operation on the table of a command line, and print its result.

    Args:
        operation: The operation.
        values: Fields of the request by name; None for an absent option.
        target: A pipeline file, or a table's location.
        storage_option: Options of the store.
        as_json: Print the result as JSON.
        quiet: Show no progress.
        yes: Do not ask for confirmation.
        on_cluster: Whether to run the tasks with Spark; None: as the pipeline file says.
        concurrency: Maximum number of tasks at the same time in this process.
        memory: Maximum of memory that these tasks need together, such as ``2 GB``.

    Raises:
        typer.Exit: The command line is wrong, or the operation has found damage or failed in part.
    """
    # A section that is not needed is not read: it may be wrong, which does not matter for a damaged table.
    sections = {
        operation.section: bool(operation.section),
        COMPACTION: operation.on_cluster and not operation.reads_only,
        "spark": operation.needs_spark or on_cluster or operation.section == COMPACTION,
    }
    settings = load_target(target, storage_option, *(name for name, needed in sections.items() if needed))
    context = Context(is_command=True, naming=usage_errors, spell=partial(_spell, operation), keys=_keys)
    with usage_errors():
        request = _request(operation, settings, values)
        operation.check(request, context)
        limits = override_and_print(
            settings,
            COMPACTION,
            settings.compaction or CompactionSection(),
            {"concurrency": concurrency, "memory": memory},
        )
        letters = load_letter_places(target)[1] if operation.section == "clean" and is_pipeline(target) else []
    location = settings.table
    if operation.opens:
        table = open_location(location)
    else:
        check_reachable(location.uri, location.storage_options)
        table = open_table_unchecked(location.uri, location.storage_options)
    request = operation.prepare(table, request, context)
    if operation.question is not None:
        confirm(operation.question(request, table.uri), yes=yes)
    if on_cluster is None:
        on_cluster = operation.section == COMPACTION and limits.on == "cluster"
    with ExitStack() as stack:
        show = stack.enter_context(progress(operation.stage, quiet=quiet or not operation.stage))
        execute = stack.enter_context(_executor(operation.name, settings, limits, on_cluster=on_cluster))
        context = Context(
            execute=execute,
            progress=show,
            naming=usage_errors,
            spell=context.spell,
            function=partial(_function, stack, settings),
        )
        result = operation(table, request, context)
    finished = Finished(table, table.uri, request, result)
    text, plain = operation.describe(finished), operation.json(finished)
    retentions = retentions_of(letters, table, location)
    if retentions:
        expired = expire_letters(retentions, dry_run=request.dry_run)
        verb = "would delete" if request.dry_run else "deleted"
        text += f"\n{verb} {counted(expired.files, 'file')} of dead letters, {expired.bytes / 1e6:.1f} MB"
        plain = {**json_value(plain), "dead_letters": expired}
    print_result(plain, text, as_json=as_json)
    if operation.fails(result):
        raise typer.Exit(FAILED)


def _request(operation: Operation[Any, Any], settings: CommandSettings, values: Mapping[str, Any]) -> Request:
    """Build the request from the command line, and from the section of the pipeline file for absent options.

    Raises:
        InvalidInput: A value is out of range or has the wrong type. The message names the flag.
    """
    fields = operation.request.model_fields
    options = {
        # Names in an argument are not quoted, unlike those in a text of SQL.
        name: [value] if isinstance(value, str) and list[str] in get_args(fields[name].annotation) else value
        for name, value in values.items()
        if value is not None and not (isinstance(value, bool) and value == fields[name].default)
    }
    section = getattr(settings, operation.section) if operation.section else None
    if section is None:
        return validate(operation.request, options)
    if options.get("everything"):
        request = validate(operation.request, options)
        print_override("--all", "settings that decide when compaction is due")
        return request
    inherited = {name: value for name, value in section.model_dump().items() if name in fields}
    request = validate(operation.request, {**inherited, **options})
    print_overrides(settings, operation.section, section, request, options)
    return request


def _executor(
    what: str, settings: CommandSettings, limits: CompactionSection, *, on_cluster: bool
) -> AbstractContextManager[Execute]:
    """Yield the `Execute` that runs the tasks of a command: on a cluster, or in this process within its limits."""
    if not on_cluster:
        return nullcontext(limits.execute)
    from weft.streams.write.cluster_job import cluster_executor

    return cluster_executor(what, settings)


def _spell(operation: Operation[Any, Any], name: str) -> str:
    face = operation.fields()[name][1]
    return " ".join(filter(None, ((face.flag or flag_of(name)).rpartition("/")[2], face.metavar)))


def _keys(file: Any, table: Table) -> Any:
    return read_keys(file, table.schema)


def _function(stack: ExitStack, settings: CommandSettings, column: str, expression: str, kind: Any) -> Any:
    """Build a function from an SQL expression, in a Spark session that ends with the stack."""
    from weft.streams.read.sql_function import sql_function

    return stack.enter_context(sql_function(settings.spark, column, expression, kind))


for _operation in OPERATIONS.values():
    if _operation.command:
        _register = _GROUPS[_operation.group].command
        _register(_operation.command_name, epilog=examples(*_operation.examples))(build_command(_operation))
