"""Serializers, commands and a real schema registry: Apicurio's, by its Confluent API."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.type.money_pb2 import Money

from halfbridge import InvalidMessageError, Message, RetriableError
from halfbridge.cli import cli
from halfbridge.cli.schema_registry import PayloadTexts
from halfbridge.kafka.schema_registry import SchemaRegistry
from halfbridge.testkit.children import Child, Children, Interrupts
from halfbridge.testkit.ports import HOST, free_ports
from tests.integration.installation import GROUP, Installation
from tests.kit.schema_registry import written
from tests.tools import tool

pytestmark = [pytest.mark.broker, pytest.mark.more]
_START_S_MAX = 120.0  # it takes 10 s on two cores that nobody else uses
_ORDER = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "shirts", "type": "int"}]}
)
_RENAMED = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "hats", "type": "int"}]}
)
_OBJECT = json.dumps(
    {"title": "Parcel", "type": "object", "properties": {"shirts": {"type": "integer"}}}
)


class Registry:
    """A registry in a process of its own, whose schemas end with it."""

    def __init__(self, children: Children, url: str, child: Child) -> None:
        self.url = url
        self._children, self._child = children, child

    def end(self) -> None:
        self._children.kill(self._child)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    program = tool("apicurio-registry", package="", how=".ci/tools fetches it")
    directory: Path = tmp_path_factory.mktemp("registry")
    (port,) = free_ports(1)
    place = (f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}")
    with Children(directory, interrupts=Interrupts()) as children:
        child = children.start("registry", (program, "-Xmx512m", *place))
        made = Registry(children, f"http://{HOST}:{port}/apis/ccompat/v7", child)
        children.wait_until(made.is_ready, what="the schema registry", timeout_s=_START_S_MAX)
        yield made


@pytest.fixture
def client(registry: Registry) -> Iterator[SchemaRegistryClient]:
    """A service's client of the registry."""
    with SchemaRegistryClient({"url": registry.url, "max.retries": 0, "timeout": 10}) as made:
        yield made


def shown(installation: Installation, registry: Registry, message: Message) -> object:
    """Send a message and take it back; return its value as `tx show --payload` has it."""
    installation.make(groups=(GROUP,))
    with installation.producer(lambda _: None) as producer:
        tx = producer.begin()
        tx.send(message)
        where = ("--bootstrap-servers", installation.servers)
        prefix = ("--topic-prefix", installation.names.prefix)
        words = ("tx", "show", tx.id, "--payload", "--schema-registry", registry.url, "--json")
        done = CliRunner().invoke(cli, [*words, *where, *prefix])
        tx.rollback()
    (half,) = (each for each in json.loads(done.stdout)["events"] if each.get("payload"))
    return json.loads(half["payload"]["decoded"]["value"])


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_a_message_is_shown_by_the_registry_that_wrote_it(
    installation: Installation, registry: Registry, client: SchemaRegistryClient, kind: str
) -> None:
    """The half message has the serializer's bytes, and `tx show --payload` has their JSON."""
    topic = installation.topic(kind)
    schema, serializer = _ORDER, AvroSerializer(client, _ORDER)
    if kind == "json":
        schema, serializer = _OBJECT, JSONSerializer(_OBJECT, client)
    message = Message.serialized(topic, value={"shirts": 2}, serializer=serializer)
    assert shown(installation, registry, message) == {"shirts": 2}
    (version,) = SchemaRegistry(registry.url).versions(f"{topic}-value")
    assert json.loads(version["schema"]) == json.loads(schema)


def test_a_message_of_protobuf_is_shown(
    installation: Installation, registry: Registry, client: SchemaRegistryClient
) -> None:
    """By the descriptor that Python's serializer has registered."""
    serializer = ProtobufSerializer(Money, client)
    topic = installation.topic("protobuf")
    message = Message.serialized(topic, value=Money(units=2), serializer=serializer)
    wanted = {"currency_code": "", "units": "2", "nanos": 0}
    assert shown(installation, registry, message) == wanted


def test_a_protobuf_schema_that_was_registered_as_text_is_compiled(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    """As the serializers of Java register theirs, with the file that it imports."""
    line = 'syntax = "proto3"; package shop; message Line { string item = 1; }'
    order = 'syntax = "proto3"; package shop; import "line.proto"; message Order { Line line = 1; }'
    client.register_schema("line.proto", Schema(line, "PROTOBUF"))
    references = [SchemaReference("line.proto", "line.proto", 1)]
    number = client.register_schema("text-value", Schema(order, "PROTOBUF", references))
    data = written(number, b"\x00\x0a\x07\x0a\x05a hat")
    assert PayloadTexts(registry.url).decoded(data).text == '{"line": {"item": "a hat"}}'


def test_a_schema_that_is_not_compatible_is_refused(client: SchemaRegistryClient) -> None:
    """Before anything is stored, by the registry's own rule for the subject."""
    client.set_compatibility("strict-value", "BACKWARD")
    Message.serialized("strict", value={"shirts": 2}, serializer=AvroSerializer(client, _ORDER))
    with pytest.raises(InvalidMessageError, match="strict"):
        Message.serialized("strict", value={"hats": 1}, serializer=AvroSerializer(client, _RENAMED))


def test_a_registry_that_is_down_is_an_error_to_repeat(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    """The last test of this file: the registry has ended."""
    registry.end()
    serializer = AvroSerializer(client, _ORDER)
    with pytest.raises(RetriableError):
        Message.serialized("orders", value={"shirts": 2}, serializer=serializer)
    with pytest.raises(RetriableError):
        SchemaRegistry(registry.url).schema(1)
