"""All faces of an operation have the fields of its request, so that they cannot drift apart."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.streams.catalog.test_procedures import Lake, call
from tests.streams.support.pipelines import weft
from weft.storage.errors import InvalidInput
from weft.storage.operations.all_operations import OPERATIONS
from weft.storage.operations.clean import RetentionSettings
from weft.storage.operations.compact import DueSettings
from weft.storage.operations.operation import Operation
from weft.streams.catalog.procedure_table import PROCEDURES
from weft.streams.cli.main import app
from weft.streams.cli.savepoint_command import savepoint
from weft.streams.pipeline.file.model import CleanSection, CompactionSection

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OF_EVERY_COMMAND = {"target", "storage_option", "as_json"}
OF_SOME_COMMANDS = {"yes", "quiet", "concurrency", "memory", "on_cluster"}
OF_METHODS = {"execute", "progress", "only", "now"}  # functions and objects, which only Python can pass


each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
with_command = pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS.values() if each.command], ids=lambda operation: operation.name
)
with_method = pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS.values() if each.method], ids=lambda operation: operation.name
)


@each_operation
def test_request_fields_and_result_columns_are_described(operation: Operation[Any, Any]) -> None:
    assert operation.summary.endswith(".")
    assert operation.column_types
    for name, (info, _) in operation.fields().items():
        assert info.description, name


@with_command
def test_the_command_has_the_fields_of_the_request(operation: Operation[Any, Any]) -> None:
    command = (COMMANDS[operation.group].commands if operation.group else COMMANDS)[operation.command_name]
    names = {parameter.name for parameter in command.params} - {"help"}
    fields = {name for name, (_, face) in operation.fields().items() if face.command}
    assert names - OF_SOME_COMMANDS == fields | OF_EVERY_COMMAND
    assert ("yes" in names) == (operation.question is not None)
    assert ("on_cluster" in names) == operation.on_cluster
    shown = {parameter.name: getattr(parameter, "help", None) for parameter in command.params}
    for name in fields:
        info, face = operation.fields()[name]
        assert shown[name] == f"{info.description}{' May be repeated.' if face.repeated else ''}", name


@pytest.mark.parametrize(
    ("operation", "arguments", "message"),
    [
        ("publish", {}, "publish: the format is missing"),
        ("undo", {"stream": "orders", "since": "2999-01-01T00:00:00Z"}, "nothing can have been committed since 2999"),
        ("fence", {"lane": "a b"}, "'a b' is not a lane or stream name"),
        ("close", {"lane": "a b"}, "'a b' is not a lane or stream name"),
    ],
)
def test_a_wrong_request_is_refused_before_the_table_is_opened(
    operation: str, arguments: dict[str, str], message: str, tmp_path: Path
) -> None:
    options = [f"--since={text}" if name == "since" else text for name, text in arguments.items()]
    refused = weft(operation, tmp_path / "no table", *options)
    assert (refused.exit_code, message in refused.stderr) == (2, True)
    with pytest.raises(InvalidInput, match=message):
        call(Lake(tmp_path), operation, table="no_table", **arguments)


def test_the_hand_written_command_of_savepoints_has_the_fields_of_both_requests() -> None:
    fields = {*OPERATIONS["savepoint"].request.model_fields, *OPERATIONS["release"].request.model_fields}
    assert set(inspect.signature(savepoint).parameters) - OF_EVERY_COMMAND == fields | {"release"}


@each_operation
def test_the_procedure_has_the_fields_of_the_request(operation: Operation[Any, Any]) -> None:
    procedure = PROCEDURES[operation.name]
    fields = {name for name, (_, face) in operation.fields().items() if face.procedure}
    flags = {"confirm": operation.question is not None, "on_cluster": operation.on_cluster}
    also = {name for name, exists in flags.items() if exists}
    assert {parameter.name for parameter in procedure.parameters} == {"table"} | fields | also
    assert procedure.columns == operation.column_types
    assert procedure.reads == operation.reads_only


@with_method
def test_the_method_has_the_fields_of_the_request(operation: Operation[Any, Any]) -> None:
    assert operation.method is not None
    names = set(inspect.signature(operation.method).parameters) - {"self"}
    fields = {name if face.python is None else face.python for name, (_, face) in operation.fields().items()} - {""}
    if operation.name == "fold":
        fields |= {"policy"}  # the procedure folds everything
    assert names - OF_METHODS == fields


@with_method
def test_methods_of_operations_show_progress_in_one_way(operation: Operation[Any, Any]) -> None:
    assert operation.method is not None
    method = inspect.signature(operation.method)
    if "progress" in method.parameters:
        assert method.parameters["progress"].annotation == "OnStage"


@pytest.mark.parametrize(("section", "settings"), [(CompactionSection, DueSettings), (CleanSection, RetentionSettings)])
def test_sections_of_a_pipeline_file_have_the_settings_of_the_operation(section: Any, settings: Any) -> None:
    for name, info in settings.model_fields.items():
        inherited = section.model_fields[name]
        assert (inherited.annotation, inherited.default, inherited.metadata) == (
            info.annotation,
            info.default,
            info.metadata,
        )


def test_the_tables_of_the_documents_are_up_to_date() -> None:
    """``python deploy/docs/operation_tables.py`` writes them."""
    path = Path(__file__).parents[2] / "deploy/docs/operation_tables.py"
    spec = importlib.util.spec_from_file_location("operation_tables", path)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    for document, text in tables.documents().items():
        assert document.read_text(encoding="utf-8") == text, document.name
