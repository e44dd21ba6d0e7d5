"""``weft init``: writes a pipeline file. On a terminal it asks for everything that no option sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from weft.storage.config.config_file import parse_fields as parse_sections
from weft.storage.errors import InvalidInput, TableError
from weft.streams.cli.arguments import print_error, split_names, stderr, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.infer_command import read_messages
from weft.streams.cli.progress import Quiet, progress
from weft.streams.formats import FORMATS, check_format
from weft.streams.formats.registry import uses_registry
from weft.streams.kafka.closest_topic import ask_for_closest
from weft.streams.pipeline.file.model import PipelineConfig
from weft.streams.pipeline.file.pipeline import SECTIONS
from weft.streams.pipeline.infer.infer_key import Fields, Messages, choose_ordering, propose_fields
from weft.streams.pipeline.infer.matching_key import matching_field, matching_fields
from weft.streams.pipeline.infer.new_pipeline import (
    NewStream,
    build,
    check_names,
    parse_fields,
    parse_groups,
    stream_name,
    with_key,
)

init_command = typer.Typer()

T = TypeVar("T")

FILE: Final = "pipeline.yaml"
SAMPLE: Final = 200  # messages of each topic to look at
NONE: Final = "-"
BROKERS: Final = "localhost:9092"
REGISTRY: Final = "http://localhost:8081"
_MAX_LISTED_TOPICS: Final = 20
_MAX_PROPOSED_TOPICS: Final = 5  # if brokers have more topics, hardly anybody wants all of them
EXAMPLE: Final = Path(__file__).with_name("example_pipeline.yaml")


@dataclass(frozen=True)
class _Options:
    """Values of the options; None for an absent option."""

    topics: list[str] | None
    brokers: str | None
    form: str | None
    registry: str | None
    table: str | None
    key: list[str] | None
    ordering: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    look: bool = True


@init_command.command(
    epilog=examples(
        "weft init shop",
        "weft init shop --topic orders --topic payments --brokers localhost:9092",
        "weft init shop --topic orders --fields 'orders=order_id bigint, status string, ts timestamp' --key order_id "
        "--ordering orders=ts --no-look",
        "weft init shop --example",
    )
)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; created if it does not exist.")],
    topic: Annotated[list[str] | None, typer.Option(help="A topic of Kafka. May be repeated, or a,b,c.")] = None,
    brokers: Annotated[str | None, typer.Option(metavar="HOST:PORT,...", help="Kafka's bootstrap servers.")] = None,
    message_format: Annotated[
        str | None, typer.Option("--format", help=f"Format of the messages: {', '.join(FORMATS)}.")
    ] = None,
    registry: Annotated[str | None, typer.Option(metavar="URL", help="Schema registry, for formats with one.")] = None,
    table: Annotated[str | None, typer.Option(metavar="URI", help="Location of the table.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key of the table, its fields; a,b. TOPIC=FIELD where a topic has another name for one."),
    ] = None,
    ordering: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=FIELD,...", help="Fields that order the events of a topic. May be repeated."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=GROUP: FIELD, ...; ...",
            help="Groups of a topic whose fields change independently; without, it has one. May be repeated.",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=NAME TYPE,...", help="Fields of a topic, instead of looking at it. May be repeated."
        ),
    ] = None,
    look: Annotated[bool, typer.Option("--look/--no-look", help="Look at messages of the topics for fields.")] = True,
    example: Annotated[bool, typer.Option("--example", help="Write the commented example, and ask nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a pipeline file. Asks on a terminal for what the options leave open, and proposes what topics show.

    Never asks without a terminal: with --topic everything else has a default, without it the commented example of a
    pipeline is written. An existing file is not changed. Nothing is created but the file.
    """
    target = folder / FILE
    with usage_errors():
        options = _Options(
            topics=split_names(topic),
            brokers=brokers,
            form=None if message_format is None else check_format(message_format),
            registry=registry,
            table=table,
            key=split_names(key),
            ordering=_by_topic(ordering, "--ordering"),
            fields=_by_topic(fields, "--fields"),
            groups=_by_topic(group, "--group"),
            look=look,
        )
    if target.exists():
        raise InvalidInput(f"{target} already exists", hint="nothing was changed; choose another folder")
    asks = sys.stdin.isatty() and not example
    if example or (options.topics is None and not asks):
        _write(target, EXAMPLE.read_text(encoding="utf-8"))
        typer.echo(f"{target} is written. Adapt it to your topics, then: weft run {target}")
        return
    with usage_errors():
        text, summary = _Conversation(options, folder, asks=asks, quiet=quiet).build_pipeline()
    _write(target, text)
    for line in summary:
        typer.echo(line)
    typer.echo(f"{target} is written. Next: weft check {target}, then weft run {target}")


class _Conversation:
    """Takes each answer from its option, from the user, or from the default, and checks it at once.

    Args:
        options: Values of the options.
        folder: Folder of the new file.
        asks: Whether the user is asked.
        quiet: Show no progress.
    """

    def __init__(self, options: _Options, folder: Path, *, asks: bool, quiet: bool) -> None:
        self._options, self._folder, self._asks, self._quiet = options, folder, asks, quiet
        self._looks = options.look and not (options.topics and options.fields.keys() >= set(options.topics))
        self._refused_answers: set[str] = set()  # an answer that is given again is accepted

    def build_pipeline(self) -> tuple[str, list[str]]:
        """Ask all questions; return the text of the pipeline file, and the lines of its summary.

        Raises:
            InvalidInput: The value of an option is wrong, or one without a default is missing.
        """
        options = self._options
        brokers, existing_topics = self._ask_brokers()
        topics = self._ask_topics(brokers, existing_topics)
        form = self._answer(f"Format of the messages ({', '.join(FORMATS)})", options.form, "json", check_format)
        registry = self._ask_registry(form)
        streams = [self._ask_fields(topic, brokers, form, registry) for topic in topics]
        streams = self._ask_key(streams)
        streams = [self._ask_groups(self._ask_ordering(stream)) for stream in streams]
        uri = self._answer(
            "Location of the table, a folder or a URL", options.table, f"./lake/{_table_name(self._folder)}", _required
        )
        return build(str(self._folder / FILE), uri, brokers, form, streams, registry)

    def _ask_brokers(self) -> tuple[str, list[str] | None]:
        """The brokers and their topics; no topics (None) if the brokers do not answer or are not to be asked."""
        existing_topics: list[str] | None = None

        def parse(text: str) -> str:
            nonlocal existing_topics
            brokers = _required(text)
            if not self._looks:
                return brokers
            from weft.streams.kafka.sample import topic_names

            try:
                with progress(f"looking for topics at {brokers}", quiet=self._quiet):
                    existing_topics = topic_names(brokers)
            except TableError as error:
                self._refuse_once(
                    brokers,
                    error.message,
                    "give another address, or the same again to go on without looking at messages; one for trying "
                    "out: python -m weft.streams.demo.broker --topic NAME",
                )
                if self._options.brokers is not None or not self._asks:
                    stderr.print(f"no message was looked at: {error.message}", style="yellow", soft_wrap=True)
                self._looks = False
            return brokers

        brokers = self._answer("Kafka's bootstrap servers", self._options.brokers, BROKERS, parse)
        return brokers, existing_topics

    def _ask_topics(self, brokers: str, existing_topics: list[str] | None) -> list[str]:
        """The topics to read. The user confirms a topic that the brokers do not have by a second answer."""
        default = None
        listed = ", ".join((existing_topics or [])[:_MAX_LISTED_TOPICS])
        if existing_topics is not None and self._options.topics is None:
            more = len(existing_topics) - _MAX_LISTED_TOPICS
            rest = f", and {more:,} more" if more > 0 else ""
            stderr.print(f"topics at {brokers}: {listed or 'none yet'}{rest}", style="dim", soft_wrap=True)
            default = ", ".join(existing_topics) if 0 < len(existing_topics) <= _MAX_PROPOSED_TOPICS else None

        def parse(text: str) -> list[str]:
            names = _parse_topics(text)
            if existing_topics is None:
                return names
            missing = next((name for name in names if name not in {*existing_topics, *self._options.fields}), None)
            if missing is not None:
                hint = f"{ask_for_closest(missing, existing_topics)}topics there: {listed or 'none'}"
                what = f"there is no topic {missing} at {brokers}"
                if self._options.topics is not None:
                    raise InvalidInput(what, hint=f"{hint}; for a topic that will be created, give --fields")
                self._refuse_once(text, what, f"{hint}; give the same again if it will be created later")
            return names

        return self._answer("Topics, separated by commas", _join_names(self._options.topics), default, parse)

    def _refuse_once(self, answer: str, what: str, hint: str) -> None:
        """Refuse a doubtful answer of the user, unless it is given a second time.

        Raises:
            InvalidInput: The answer was given for the first time.
        """
        if self._asks and answer not in {*self._refused_answers, self._options.brokers}:
            self._refused_answers.add(answer)
            raise InvalidInput(what, hint=hint)

    def _ask_registry(self, form: str) -> str:
        """The URL of the schema registry; "" if the format needs none, or the user has none."""
        option = self._options.registry
        if uses_registry(form, {}):
            return self._answer("URL of the schema registry", option, REGISTRY, _required)
        if form == "json-schema":  # the registry is optional: messages can be read without it
            question = f"URL of the schema registry, for the types of fields ({NONE}: none)"
            return self._answer(question, option, NONE, lambda text: text.strip().removeprefix(NONE))
        if option is not None:
            raise InvalidInput(
                f"--registry: format {form} has no schemas in a registry",
                hint="leave it out, or change --format",
            )
        return ""

    def _ask_fields(self, topic: str, brokers: str, form: str, registry: str) -> NewStream:
        """The stream of a topic, with the fields of the option, of its messages, or of the user's answer."""
        option = self._options.fields.get(topic)
        inferred = None if option is not None or not self._looks else self._infer(topic, brokers, form, registry)
        if inferred is not None:
            schema_text = ", ".join(f"{name} {kind}" for name, kind in inferred.fields.schema.items())
            for text in (schema_text, *inferred.fields.notes):
                stderr.print(f"topic {topic}: {text}", style="dim", soft_wrap=True)
            return inferred
        if option is None and not self._asks:
            raise InvalidInput(
                f"the fields of topic {topic} are not known",
                hint=f"name them: --fields '{topic}={self._example_fields(topic)} TYPE, ...', with types such as "
                "bigint, string and timestamp; or start the brokers, or send messages, and let weft init look at them",
            )
        schema = self._answer(f"Fields of {topic}, as NAME TYPE, ...", option, None, parse_fields)
        return NewStream(topic, Fields(stream_name(topic), schema, keys=()))

    def _example_fields(self, topic: str) -> str:
        """The fields of a topic that the options --key and --ordering name, for a hint; else ``NAME``."""
        keys = [part.rpartition("=")[2] for part in self._options.key or () if part.partition("=")[0] in {part, topic}]
        return " TYPE, ".join([*keys, *(split_names([self._options.ordering.get(topic, "")]) or [])]) or "NAME"

    def _infer(self, topic: str, brokers: str, form: str, registry: str) -> NewStream | None:
        """Infer the fields of a topic from its messages; None if it is empty, or the broker does not answer."""
        source = {"type": "kafka", "topic": topic, "format": form}
        raw: dict[str, Any] = {
            "table": {"uri": "./t"},
            "kafka": {"bootstrap.servers": brokers},
            "writers": {stream_name(topic): {"source": source}},
        }
        if registry:
            raw["registry"] = {"url": registry}
        try:
            with progress(f"looking at {topic}", quiet=self._quiet):
                messages = self._read(raw)
                if registry and _have_schemas(messages.keys):
                    source["key_format"] = form.removeprefix("debezium-")
                    messages = self._read(raw)
                fields = propose_fields(messages)
        except (TableError, typer.Exit) as error:
            if isinstance(error, TableError):
                stderr.print(f"topic {topic} shows no fields: {error.message}", style="yellow", soft_wrap=True)
            return None
        if fields is None:
            stderr.print(f"topic {topic} shows no fields: it has no messages", style="yellow", soft_wrap=True)
            return None
        return NewStream(topic, fields, key_format=source.get("key_format", "json"), rows=messages.rows)

    def _read(self, raw: dict[str, Any]) -> Messages:
        """Read the newest messages of the only writer of a pipeline."""
        pipeline = parse_sections(PipelineConfig, raw, SECTIONS)
        ((name, section),) = pipeline.writers.items()
        return read_messages(name, section, pipeline, self._folder, SAMPLE)

    def _ask_key(self, streams: Sequence[NewStream]) -> list[NewStream]:
        """The streams with their keys: one key for all, or one for each topic if no field is common to all."""
        common_key = [
            part.name for part in streams[0].fields.keys if all(stream.fields.kind(part.name) for stream in streams)
        ]
        all_have_keys = all(stream.fields.keys for stream in streams) and self._options.key is None
        matches = None
        if not (all_have_keys and common_key):
            matches = matching_fields([(stream.fields, stream.rows) for stream in streams])
        if all_have_keys and not common_key:
            if matches is None:
                return [self._ask_own_key(stream, has_match=False) for stream in streams]
            if len(set(matches)) > 1:
                return [
                    self._ask_own_key(replace(stream, fields=with_key(stream.fields, [name])), has_match=True)
                    for stream, name in zip(streams, matches, strict=True)
                ]
        default = ", ".join(common_key) or (matches[0] if matches else "")
        answer = self._answer(
            "Key of the table, its fields",
            _join_names(self._options.key),
            default or None,
            lambda text: _parse_keys(text, streams),
        )
        return [
            stream
            if all_have_keys and key == [part.name for part in stream.fields.keys]
            else replace(stream, fields=with_key(stream.fields, key))
            for stream, key in zip(streams, answer, strict=True)
        ]

    def _ask_own_key(self, stream: NewStream, *, has_match: bool) -> NewStream:
        """The stream with its own key, if topics call the key differently. A key that is not in the message stays.

        Args:
            stream: The stream, with the proposed key.
            has_match: Whether values show that the proposed fields of the topics mean the same.
        """
        proposed_key = [part.name for part in stream.fields.keys]
        if any(stream.fields.kind(name) is None for name in proposed_key):
            return stream

        def parse(text: str) -> list[str]:
            names = split_names([_required(text)]) or []
            check_names(names, stream, "key")
            if len(names) != len(proposed_key):
                raise InvalidInput(
                    f"the key has {len(proposed_key)} fields, not {len(names)}",
                    hint=f"name {len(proposed_key)} fields, separated by commas",
                )
            return names

        reason = "other topics call it otherwise" if has_match else "no field is in all topics: values are joined"
        key = self._answer(f"Key of {stream.topic} ({reason})", None, ", ".join(proposed_key), parse)
        return stream if key == proposed_key else replace(stream, fields=with_key(stream.fields, key))

    def _ask_ordering(self, stream: NewStream) -> NewStream:
        option = self._options.ordering.get(stream.topic)
        if option is None and any(part.name not in stream.fields.schema for part in stream.fields.order):
            return stream  # the source has an order of its own, such as a position in a database's log
        keys = {part.name for part in stream.fields.keys}
        default = ", ".join(part.name for part in stream.fields.order if part.name not in keys)
        if not default and not stream.fields.guesses[1:]:  # no messages were looked at
            schema = stream.fields.schema
            default, _ = choose_ordering(schema, schema.keys() - keys, {})
        question = f"Fields that order the events of {stream.topic} ({NONE}: the time of the Kafka message)"

        def parse(text: str) -> list[str]:
            names = [] if text.strip() == NONE else split_names([text]) or []
            check_names(names, stream, "ordering")
            if keys & set(names):
                raise InvalidInput(
                    "a key column orders nothing: it is the same in all events of a row", hint="choose another field"
                )
            return names

        return replace(stream, ordering=self._answer(question, option, default or NONE, parse))

    def _ask_groups(self, stream: NewStream) -> NewStream:
        def parse(text: str) -> dict[str, list[str]]:
            groups = {} if text.strip() == NONE else parse_groups(text)
            for name, names in groups.items():
                check_names(names, stream, f"group {name}")
            return groups

        question = f"Groups of {stream.topic} that change independently, as GROUP: FIELD, ...; ({NONE}: one group)"
        return replace(stream, groups=self._answer(question, self._options.groups.get(stream.topic), NONE, parse))

    def _answer(self, question: str, option: str | None, default: str | None, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question: the option, else the user's valid answer, else the default.

        Args:
            question: Asked again after an error, if the user is asked at all.
            option: Value of the option; None if it is absent.
            default: Answer without an option and a user.
            parse: Parses an answer, or raises `TableError`.

        Raises:
            InvalidInput: The option or the default is wrong.
        """
        if option is not None:
            return parse(option)
        while self._asks:
            text = typer.prompt(question, default=default, show_default=bool(default), err=True)
            try:
                return parse(text)
            except TableError as error:
                print_error(error)
        return parse(default or "")


def _parse_keys(text: str, streams: Sequence[NewStream]) -> list[list[str]]:
    """Parse a key, ``FIELD, ...``, with ``TOPIC=FIELD`` for a topic that has another name for a field.

    Returns:
        The key fields of each stream, in the order of the streams.

    Raises:
        InvalidInput: A topic lacks a field, a topic is unknown, or keys have different numbers of fields.
    """
    parts = split_names([_required(text)]) or []
    names = [part for part in parts if "=" not in part]
    names_by_topic: dict[str, list[str]] = {}
    for topic, _, name in (part.partition("=") for part in parts if "=" in part):
        names_by_topic.setdefault(topic.strip(), []).append(name.strip())
    topics = [stream.topic for stream in streams]
    for topic in names_by_topic:
        if topic not in topics:
            raise InvalidInput(f"key: there is no topic {topic!r}", hint=f"topics: {', '.join(topics)}")
    keys = [names_by_topic.get(stream.topic) or _find_key(stream, names, streams) for stream in streams]
    for stream, key in zip(streams, keys, strict=True):
        check_names(key, stream, "key")
        if len(key) != len(keys[0]):
            raise InvalidInput(
                f"key: {', '.join(keys[0])} and {', '.join(key)} of {stream.topic} have different numbers of fields",
                hint="name as many fields for each topic",
            )
    return keys


def _find_key(stream: NewStream, names: Sequence[str], streams: Sequence[NewStream]) -> list[str]:
    """The fields of a topic with these names, or with names that mean the same."""
    key = []
    for name in names:
        owner = next((other for other in streams if other.fields.kind(name) is not None), stream)
        match = matching_field(name, owner.fields, stream.fields)
        if match is None:
            fields = ", ".join(stream.fields.simple_fields())
            hint = f"its fields are {fields}; if one has another name there: --key {name},{stream.topic}=FIELD"
            raise InvalidInput(f"key: topic {stream.topic} has no field {name!r}", hint=hint)
        key.append(match)
    return key


def _have_schemas(keys: Sequence[Any]) -> bool:
    """Whether Kafka keys, read as text, begin with the zero byte of a value with a schema in a registry."""
    non_null_keys = [key for key in keys if key is not None]
    return bool(non_null_keys) and all(isinstance(key, str) and key.startswith("\0") for key in non_null_keys)


def _join_names(names: Sequence[str] | None) -> str | None:
    return None if names is None else ", ".join(names)


def _parse_topics(text: str) -> list[str]:
    names = split_names([_required(text)]) or []
    streams = [stream_name(name) for name in names]
    repeated = next((name for name in streams if streams.count(name) > 1), None)
    if repeated is not None:
        raise InvalidInput(
            f"two topics give the stream {repeated!r}", hint="write the file by hand: weft init --example"
        )
    return names


def _required(text: str) -> str:
    if not text.strip():
        raise InvalidInput("an answer is needed", hint="give a value that is not empty")
    return text.strip()


def _by_topic(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Parse the values ``TOPIC=...`` of an option."""
    values = {}
    for text in texts or ():
        topic, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"{flag} {text!r} is not TOPIC=...", hint=f"for example {flag} orders=ts")
        values[topic.strip()] = value.strip()
    return values


def _table_name(folder: Path) -> str:
    return f"{folder.absolute().name or 'orders'}_wide"


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"{target} already exists", hint="nothing was changed; choose another folder") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error}", hint="choose another folder") from error
