"""Checks the options of Kafka sources. No broker is asked."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.file_problems import WrongFile
from weft.streams.pipeline.file.model import Pipeline


def check_sources(pipeline: Pipeline) -> None:
    """Check the options of Kafka sources before any process is started.

    Raises:
        WrongFile: Options are wrong; the message names the writers and the options.
    """
    if problems := list(source_problems(pipeline)):
        raise WrongFile(pipeline.path, problems)


def source_problems(pipeline: Pipeline, reported: AbstractSet[str] = frozenset()) -> Iterator[InvalidInput]:
    """Options of Kafka sources that are wrong.

    Args:
        pipeline: The pipeline.
        reported: Messages of the problems that are reported already. Sources and Kafka settings that they name are not
            checked again.
    """
    from weft.streams.kafka import FORMAT
    from weft.streams.kafka.client_settings import wrong_settings
    from weft.streams.kafka.options import parse_options

    for writer in pipeline.writers.values():
        fields = (f"writers.{writer.name}.source", f"writers.{writer.name}: kafka.")
        if writer.reader_format == FORMAT and not any(message.startswith(fields) for message in reported):
            try:
                options = parse_options(writer.reader_options, default_starting="latest")
            except InvalidInput as error:
                yield InvalidInput(f"writers.{writer.name}.source: {error.message}", hint=error.hint)
                continue
            for problem in wrong_settings(options.kafka):
                yield InvalidInput(f"writers.{writer.name}.source: {problem.message}", hint=problem.hint)
