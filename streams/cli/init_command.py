"""``weft init``: writes a pipeline file. On a terminal it asks for what it needs; flags answer beforehand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from weft.storage.config.config_file import parse_fields as parse_sections
from weft.storage.errors import InvalidInput, TableError
from weft.streams.cli.arguments import column_names, errors, print_error, usage_errors
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
_SHOWN: Final = 20  # topics
_PROPOSED: Final = 5  # topics: more are not likely to be meant all together
EXAMPLE: Final = Path(__file__).with_name("example_pipeline.yaml")


@dataclass(frozen=True)
class _Given:
    """Answers of the command line; None for what was not given."""

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
        given = _Given(
            topics=column_names(topic),
            brokers=brokers,
            form=None if message_format is None else check_format(message_format),
            registry=registry,
            table=table,
            key=column_names(key),
            ordering=_by_topic(ordering, "--ordering"),
            fields=_by_topic(fields, "--fields"),
            groups=_by_topic(group, "--group"),
            look=look,
        )
    if target.exists():
        raise InvalidInput(f"{target} already exists", hint="nothing was changed; choose another folder")
    asks = sys.stdin.isatty() and not example
    if example or (given.topics is None and not asks):
        _write(target, EXAMPLE.read_text(encoding="utf-8"))
        typer.echo(f"{target} is written. Adapt it to your topics, then: weft run {target}")
        return
    with usage_errors():
        text, summary = _Conversation(given, folder, asks=asks, quiet=quiet).pipeline()
    _write(target, text)
    for line in summary:
        typer.echo(line)
    typer.echo(f"{target} is written. Next: weft check {target}, then weft run {target}")


class _Conversation:
    """Takes each answer from the command line, or asks, or takes the default. Checks each at once."""

    def __init__(self, given: _Given, folder: Path, *, asks: bool, quiet: bool) -> None:
        self._given, self._folder, self._asks, self._quiet = given, folder, asks, quiet
        self._looks = given.look and not (given.topics and given.fields.keys() >= set(given.topics))
        self._doubted: set[str] = set()  # answers that were refused once, and are taken if they are given again

    def pipeline(self) -> tuple[str, list[str]]:
        """The text of the file that all answers make, and its summary.

        Raises:
            InvalidInput: An answer of the command line is wrong, or one is missing that has no default.
        """
        given = self._given
        brokers, there = self._brokers()
        topics = self._topics(brokers, there)
        form = self._answer(f"Format of the messages ({', '.join(FORMATS)})", given.form, "json", check_format)
        registry = self._registry(form)
        streams = [self._stream(topic, brokers, form, registry) for topic in topics]
        streams = self._with_key(streams)
        streams = [self._with_groups(self._with_ordering(stream)) for stream in streams]
        uri = self._answer(
            "Location of the table, a folder or a URL", given.table, f"./lake/{_table_name(self._folder)}", _required
        )
        return build(str(self._folder / FILE), uri, brokers, form, streams, registry)

    def _brokers(self) -> tuple[str, list[str] | None]:
        """The brokers, and the topics that they have; None if they do not answer, or nobody is to look at them."""
        there: list[str] | None = None

        def parse(text: str) -> str:
            nonlocal there
            brokers = _required(text)
            if not self._looks:
                return brokers
            from weft.streams.kafka.sample import topic_names

            try:
                with progress(f"looking for topics at {brokers}", quiet=self._quiet):
                    there = topic_names(brokers)
            except TableError as error:
                self._doubt(
                    brokers,
                    error.message,
                    "give another address, or the same again to go on without looking at messages; one for trying "
                    "out: python -m weft.streams.demo.broker --topic NAME",
                )
                if self._given.brokers is not None or not self._asks:
                    errors.print(f"no message was looked at: {error.message}", style="yellow", soft_wrap=True)
                self._looks = False
            return brokers

        brokers = self._answer("Kafka's bootstrap servers", self._given.brokers, BROKERS, parse)
        return brokers, there

    def _topics(self, brokers: str, there: list[str] | None) -> list[str]:
        """The topics. One that the brokers do not have is asked for again."""
        default = None
        if there is not None and self._given.topics is None:
            shown = ", ".join(there[:_SHOWN]) + (f", and {len(there) - _SHOWN:,} more" if len(there) > _SHOWN else "")
            errors.print(f"topics at {brokers}: {shown or 'none yet'}", style="dim", soft_wrap=True)
            default = ", ".join(there) if 0 < len(there) <= _PROPOSED else None

        def parse(text: str) -> list[str]:
            names = _topics(text)
            missing = [name for name in names if there is not None and name not in {*there, *self._given.fields}]
            if there is not None and missing:
                known = f"{ask_for_closest(missing[0], there)}topics there: {', '.join(there[:_SHOWN]) or 'none'}"
                what = f"there is no topic {missing[0]} at {brokers}"
                if self._given.topics is not None:
                    raise InvalidInput(what, hint=f"{known}; for a topic that will be created, give --fields")
                self._doubt(text, what, f"{known}; the same again, if it will be created later")
            return names

        return self._answer("Topics, separated by commas", _names(self._given.topics), default, parse)

    def _doubt(self, answer: str, what: str, hint: str) -> None:
        """Refuse an answer that a person has given, unless it is given a second time.

        Raises:
            InvalidInput: It was given for the first time.
        """
        if self._asks and answer not in {*self._doubted, self._given.brokers}:
            self._doubted.add(answer)
            raise InvalidInput(what, hint=hint)

    def _registry(self, form: str) -> str:
        """The URL of the schema registry; "" if there is none."""
        given = self._given.registry
        if uses_registry(form, {}):
            return self._answer("URL of the schema registry", given, REGISTRY, _required)
        if form == "json-schema":  # the messages can be read without
            question = f"URL of the schema registry, for the types of fields ({NONE}: none)"
            return self._answer(question, given, NONE, lambda text: text.strip().removeprefix(NONE))
        if given is not None:
            raise InvalidInput(
                f"--registry: format {form} has no schemas in a registry", hint="leave it out, or --format"
            )
        return ""

    def _stream(self, topic: str, brokers: str, form: str, registry: str) -> NewStream:
        said = self._given.fields.get(topic)
        found = None if said is not None or not self._looks else self._look(topic, brokers, form, registry)
        if found is not None:
            shown = ", ".join(f"{name} {kind}" for name, kind in found.fields.schema.items())
            errors.print(f"topic {topic}: {shown}", style="dim", soft_wrap=True)
            for note in found.fields.notes:
                errors.print(f"topic {topic}: {note}", style="dim", soft_wrap=True)
            return found
        if said is None and not self._asks:
            raise InvalidInput(
                f"the fields of topic {topic} are not known",
                hint=f"name them: --fields '{topic}={self._known_names(topic)} TYPE, ...', with types such as bigint, "
                "string and timestamp; or start the brokers, or send messages, and let weft init look at them",
            )
        schema = self._answer(f"Fields of {topic}, as NAME TYPE, ...", said, None, parse_fields)
        return NewStream(topic, Fields(stream_name(topic), schema, keys=()))

    def _known_names(self, topic: str) -> str:
        """A field that the user has named for a topic; else a word for one."""
        keys = [part.rpartition("=")[2] for part in self._given.key or () if part.partition("=")[0] in {part, topic}]
        return " TYPE, ".join([*keys, *(column_names([self._given.ordering.get(topic, "")]) or [])]) or "NAME"

    def _look(self, topic: str, brokers: str, form: str, registry: str) -> NewStream | None:
        """What the messages of a topic show; None if it is empty, or the broker does not answer."""
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
                given = self._read(raw)
                if registry and _have_schemas(given.keys):
                    source["key_format"] = form.removeprefix("debezium-")
                    given = self._read(raw)
                found = propose_fields(given)
        except (TableError, typer.Exit) as error:
            if isinstance(error, TableError):
                errors.print(f"topic {topic} shows no fields: {error.message}", style="yellow", soft_wrap=True)
            return None
        if found is None:
            errors.print(f"topic {topic} shows no fields: it has no messages", style="yellow", soft_wrap=True)
            return None
        return NewStream(topic, found, key_format=source.get("key_format", "json"), rows=given.rows)

    def _read(self, raw: dict[str, Any]) -> Messages:
        """The newest messages of the only writer of a pipeline."""
        pipeline = parse_sections(PipelineConfig, raw, SECTIONS)
        ((name, section),) = pipeline.writers.items()
        return read_messages(name, section, pipeline, self._folder, SAMPLE)

    def _with_key(self, streams: Sequence[NewStream]) -> list[NewStream]:
        proposed = [
            part.name for part in streams[0].fields.keys if all(each.fields.kind(part.name) for each in streams)
        ]
        known = all(each.fields.keys for each in streams) and self._given.key is None
        matched = None if known and proposed else matching_fields([(each.fields, each.rows) for each in streams])
        if known and not proposed:
            if matched is not None and len(set(matched)) > 1:
                streams = [
                    replace(each, fields=with_key(each.fields, [name]))
                    for each, name in zip(streams, matched, strict=True)
                ]
            if matched is None or len(set(matched)) > 1:
                return [self._with_own_key(stream, sure=matched is not None) for stream in streams]
        default = ", ".join(proposed) or (matched[0] if matched else "")
        answer = self._answer(
            "Key of the table, its fields", _names(self._given.key), default or None, lambda text: _keys(text, streams)
        )
        return [
            stream
            if known and key == [part.name for part in stream.fields.keys]
            else replace(stream, fields=with_key(stream.fields, key))
            for stream, key in zip(streams, answer, strict=True)
        ]

    def _with_own_key(self, stream: NewStream, *, sure: bool) -> NewStream:
        """A topic whose key has another name than in other topics. A key that only Kafka's key has stays."""
        known = [part.name for part in stream.fields.keys]
        if any(stream.fields.kind(name) is None for name in known):
            return stream

        def parse(text: str) -> list[str]:
            names = column_names([_required(text)]) or []
            check_names(names, stream, "key")
            if len(names) != len(known):
                raise InvalidInput(f"the key has {len(known)} fields, not {len(names)}")
            return names

        why = "other topics call it otherwise" if sure else "no field is in all topics: values are joined"
        key = self._answer(f"Key of {stream.topic} ({why})", None, ", ".join(known), parse)
        return stream if key == known else replace(stream, fields=with_key(stream.fields, key))

    def _with_ordering(self, stream: NewStream) -> NewStream:
        given = [part for part in stream.fields.order if part.name not in stream.fields.schema]
        said = self._given.ordering.get(stream.topic)
        if given and said is None:
            return stream  # the source has an order of its own, such as a position in a database's log
        keys = {part.name for part in stream.fields.keys}
        default = ", ".join(part.name for part in stream.fields.order if part.name not in keys)
        if not default and not stream.fields.guesses[1:]:  # nobody has looked at messages
            schema = stream.fields.schema
            default, _ = choose_ordering(schema, schema.keys() - keys, {})
        question = f"Fields that order the events of {stream.topic} ({NONE}: the time of the Kafka message)"

        def parse(text: str) -> list[str]:
            names = [] if text.strip() == NONE else column_names([text]) or []
            check_names(names, stream, "ordering")
            if keys & set(names):
                raise InvalidInput("a key column orders nothing: it is the same in all events of a row")
            return names

        return replace(stream, ordering=self._answer(question, said, default or NONE, parse))

    def _with_groups(self, stream: NewStream) -> NewStream:
        def parse(text: str) -> dict[str, list[str]]:
            groups = {} if text.strip() == NONE else parse_groups(text)
            for name, names in groups.items():
                check_names(names, stream, f"group {name}")
            return groups

        question = f"Groups of {stream.topic} that change independently, as GROUP: FIELD, ...; ({NONE}: one group)"
        return replace(stream, groups=self._answer(question, self._given.groups.get(stream.topic), NONE, parse))

    def _answer(self, question: str, given: str | None, default: str | None, parse: Callable[[str], T]) -> T:
        """An answer: that of the command line; else the user is asked until it is right; else the default.

        Raises:
            InvalidInput: That of the command line is wrong, or the default is.
        """
        if given is not None:
            return parse(given)
        while self._asks:
            text = typer.prompt(question, default=default, show_default=bool(default), err=True)
            try:
                return parse(text)
            except TableError as error:
                print_error(error)
        return parse(default or "")


def _keys(text: str, streams: Sequence[NewStream]) -> list[list[str]]:
    """The key of each topic, from ``FIELD, ...`` and ``TOPIC=FIELD`` for topics in which a field has another name.

    Raises:
        InvalidInput: A topic has no such field, or there is no such topic.
    """
    parts = column_names([_required(text)]) or []
    names = [part for part in parts if "=" not in part]
    said: dict[str, list[str]] = {}
    for topic, _, name in (part.partition("=") for part in parts if "=" in part):
        said.setdefault(topic.strip(), []).append(name.strip())
    topics = [stream.topic for stream in streams]
    for topic in said:
        if topic not in topics:
            raise InvalidInput(f"key: there is no topic {topic!r}", hint=f"topics: {', '.join(topics)}")
    found = [said.get(stream.topic) or _key_of(stream, names, streams) for stream in streams]
    for stream, key in zip(streams, found, strict=True):
        check_names(key, stream, "key")
        if len(key) != len(found[0]):
            raise InvalidInput(f"key: {', '.join(found[0])} and {', '.join(key)} of {stream.topic} are not as many")
    return found


def _key_of(stream: NewStream, names: Sequence[str], streams: Sequence[NewStream]) -> list[str]:
    """The fields of a topic with these names, or with names that mean the same."""
    found = []
    for name in names:
        owner = next((each for each in streams if each.fields.kind(name) is not None), stream)
        match = matching_field(name, owner.fields, stream.fields)
        if match is None:
            known = ", ".join(stream.fields.simple_fields())
            hint = f"its fields are {known}; if one has another name there: --key {name},{stream.topic}=FIELD"
            raise InvalidInput(f"key: topic {stream.topic} has no field {name!r}", hint=hint)
        found.append(match)
    return found


def _have_schemas(keys: Sequence[Any]) -> bool:
    """Whether Kafka keys, read as text, begin with the zero byte of a value with a schema in a registry."""
    known = [key for key in keys if key is not None]
    return bool(known) and all(isinstance(key, str) and key.startswith("\0") for key in known)


def _names(given: Sequence[str] | None) -> str | None:
    return None if given is None else ", ".join(given)


def _topics(text: str) -> list[str]:
    names = column_names([_required(text)]) or []
    streams = [stream_name(name) for name in names]
    repeated = next((name for name in streams if streams.count(name) > 1), None)
    if repeated is not None:
        raise InvalidInput(
            f"two topics give the stream {repeated!r}", hint="write the file by hand: weft init --example"
        )
    return names


def _required(text: str) -> str:
    if not text.strip():
        raise InvalidInput("an answer is needed")
    return text.strip()


def _by_topic(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    found = {}
    for text in given or ():
        topic, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"{flag} {text!r} is not TOPIC=...", hint=f"for example {flag} orders=ts")
        found[topic.strip()] = value.strip()
    return found


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
