"""Operations of a table: each declares its request, the function that runs it, its result, and its properties.

    request    a frozen pydantic model: fields with description, unit, default and limits
    run        a function of the table, the request and a `Context`; it returns the result
    result     a frozen dataclass; `Operation.describe` turns it into text, `Operation.rows` into rows

The command, the procedure, the section of the pipeline file and the tables of the documents follow from it
(`weft.streams.cli.operation_commands`, `weft.streams.catalog.operation_procedures`, `weft.streams.pipeline.file.model`,
deploy/docs/operation_tables.py). `weft.storage.operations.all_operations`
collects every `Operation` that a module of this package defines.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

from weft.storage.config.config_file import parse_duration
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.steps.row_change import Function
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.table import Table

R = TypeVar("R", bound="Request")
T = TypeVar("T")
Row = Mapping[str, Any]

Completion = Literal["", "files", "savepoints", "stream_names", "lane_names", "group_names", "column_names"]


class Request(BaseModel):
    """The arguments of an operation.

    The docstring of a subclass is the help of the command and of the procedure: first what the operation does, in one
    sentence or two, then what else users have to know. Each field has a docstring, which describes it to users.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Face:
    """How commands and procedures take a field, if that does not follow from its type and default.

    Attributes:
        type: Type of the values that are passed, if the field's validator parses another type.
        argument: Whether the command takes it as a positional argument, not as an option.
        flag: Spelling of the command's option; by default the name of the field with dashes.
        metavar: What the command's help calls a value.
        completes: What shells propose for a value.
        repeated: Whether the command's help says that the option may be repeated.
        command: Whether the command takes it.
        procedure: Whether the procedure takes it.
        python: Its name in the method of `weft.Table`; "" if the method does not take it.
        optional: Whether the field counts only if it is passed: procedures show the default NULL.
        last: Whether it comes after all others in the procedure, because it was added later.
    """

    type: type | None = None
    argument: bool = False
    flag: str | None = None
    metavar: str | None = None
    completes: Completion = ""
    repeated: bool = False
    command: bool = True
    procedure: bool = True
    python: str | None = None
    optional: bool = False
    last: bool = False


def face_of(info: FieldInfo) -> Face:
    """The `Face` of a field."""
    return next((item for item in info.metadata if isinstance(item, Face)), Face())


def none_if_off(value: Any) -> Any:
    """None for ``false``, which switches a setting off in a pipeline file."""
    return None if value is False else value


Duration = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds; also a text such as ``10 minutes``."""
TEXT = Face(type=str)


@dataclass(frozen=True, slots=True)
class Context:
    """What the caller of an operation provides.

    Attributes:
        is_command: Whether the caller is a command line, where users easily forget an option.
        execute: Runs the tasks.
        progress: Called during the work.
        naming: Context manager around code that fails if a name or value of the request is wrong; a command then exits
            with code 2.
        spell: Spells a field of the request as the caller writes it, for hints: ``--delta``, ``delta => true``.
        keys: Reads keys of rows from a text of the request, for a table.
        function: Creates a function from a column of a table and an expression; see `weft.Table.rewrite`.
    """

    is_command: bool = False
    execute: Execute = one_by_one
    progress: OnStage = unobserved
    naming: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    spell: Callable[[str], str] = str
    keys: Callable[[Any, Table], Any] = lambda keys, _: keys
    function: Callable[[str, str, pa.DataType], Function] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Finished(Generic[R, T]):
    """An operation that has been run.

    Attributes:
        table: The table.
        name: What the caller calls the table.
        request: The request.
        result: The result.
    """

    table: Table
    name: str
    request: R
    result: T


def _keep(_table: Table, request: R, _context: Context) -> R:
    return request


def _result(finished: Finished[Any, Any]) -> Any:
    return finished.result


def _one_row(finished: Finished[Any, Any]) -> Iterable[Row]:
    return [finished.result]


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[R, T]):
    """An operation of a table.

    Attributes:
        name: Its name: that of the procedure.
        command_name: Name of the command; by default the name with dashes.
        group: The group of the command, as in ``weft alter add-column``; "" for none.
        request: Model of the request.
        method: The method of `weft.Table` that runs the operation, with the fields of the request as arguments; None
            if no method does.
        run: Runs the operation to the end; None if it only calls the method.
        describe: Describes the result for people.
        columns: Columns of the result as rows, as in SQL: ``lane string, entry bigint``.
        rows: Turns the result into rows: mappings, or objects with an attribute for each column. By default one row.
        json: Returns what ``--json`` prints; by default the result.
        examples: Command lines, for the help.
        stage: First text of the progress bar.
        section: The section of the pipeline file with defaults for the request; "" for none.
        prepare: Checks the names in the request, and reads the files that it names, before the question; returns the
            request.
        question: Returns the question that the user must confirm, from the request and the table's name; None to run
            without a confirmation.
        fails: Whether a result is a failure; the command then exits with code 1.
        on_cluster: Whether its tasks can run on a cluster.
        reads_only: Whether it changes nothing.
        opens: Whether the table must be opened first; otherwise the operation also takes damaged tables.
        needs_spark: Whether its request has SQL expressions.
        command: Whether a command is generated from this declaration.
        procedure: Whether it has a procedure.
        check: Refuses a wrong request before the table is opened; a command then exits with code 2.
    """

    name: str
    command_name: str = ""
    group: str = ""
    request: type[R]
    method: Callable[..., Any] | None = None
    run: Callable[[Table, R, Context], T] | None = None
    describe: Callable[[Finished[R, T]], str]
    columns: str
    rows: Callable[[Finished[R, T]], Iterable[Any]] = _one_row
    json: Callable[[Finished[R, T]], Any] = _result
    examples: tuple[str, ...] = ()
    stage: str = ""
    section: str = ""
    prepare: Callable[[Table, R, Context], R] = _keep
    question: Callable[[R, str], str] | None = None
    fails: Callable[[T], bool] = lambda _: False
    on_cluster: bool = False
    reads_only: bool = False
    opens: bool = True
    needs_spark: bool = False
    command: bool = True
    procedure: bool = True
    check: Callable[[R, Context], object] = lambda *_: None

    def __call__(self, table: Table, request: R, context: Context | None = None) -> T:
        """Run the operation to the end on an open table."""
        context = context or Context()
        if self.run is not None:
            return self.run(table, request, context)
        assert self.method is not None, "an operation has a function"
        arguments = {name: getattr(request, name) for name in self.request.model_fields}
        result: T = self.method(
            table, **arguments, **{name: getattr(context, name) for name in self._context_arguments}
        )
        return result

    @cached_property
    def _context_arguments(self) -> tuple[str, ...]:
        """Fields of the context that the method takes."""
        parameters = inspect.signature(self.method).parameters if self.method is not None else ()
        return tuple(name for name in ("execute", "progress") if name in parameters)

    def __post_init__(self) -> None:
        if not self.command_name:
            object.__setattr__(self, "command_name", self.name.replace("_", "-"))

    @property
    def help(self) -> str:
        """What the operation does, and what else users have to know, in paragraphs."""
        paragraphs = inspect.cleandoc(self.request.__doc__ or "").split("\n\n")
        return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)

    @property
    def summary(self) -> str:
        """What the operation does, on one line."""
        return self.help.partition("\n\n")[0]

    @property
    def column_types(self) -> Mapping[str, str]:
        """Type of each column of the result, as in SQL."""
        return dict(column.split(" ", 1) for column in self.columns.split(", "))

    def fields(self) -> Mapping[str, tuple[FieldInfo, Face]]:
        """Fields of the request by name, with how commands and procedures take them."""
        return {name: (info, face_of(info)) for name, info in self.request.model_fields.items()}

    def table_rows(self, finished: Finished[R, T]) -> list[dict[str, Any]]:
        """The result as rows with the columns `columns`."""
        return [
            {name: row[name] if isinstance(row, Mapping) else getattr(row, name) for name in self.column_types}
            for row in self.rows(finished)
        ]


def type_of(info: FieldInfo) -> type:
    """The plain type of the values that commands and procedures pass for a field, without None."""
    face_type = face_of(info).type
    if face_type is not None:
        return face_type
    annotation = info.annotation
    members = [member for member in getattr(annotation, "__args__", ()) if member is not type(None)]
    return members[0] if members and type(None) in annotation.__args__ else annotation  # type: ignore[union-attr, return-value]
