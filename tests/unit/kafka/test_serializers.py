"""Serializers of a schema registry: what they make is sent, and their errors are sorted."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer
from google.protobuf.wrappers_pb2 import StringValue

from halfbridge import InvalidMessageError, Message, RetriableError
from halfbridge.cli.schema_registry import PayloadTexts
from halfbridge.testkit.ports import HOST
from tests.kit.http import answer_json

ORDER = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "shirts", "type": "int"}]}
)
OBJECT = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"shirts": {"type": "integer"}},
        "required": ["shirts"],
    }
)
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def mock() -> Any:
    """A registry in memory, as confluent-kafka has it for tests."""
    return SchemaRegistryClient.new_client({"url": "mock://halfbridge"})


class Registry(ThreadingHTTPServer):
    """A registry that has one schema, or answers each request with `status`."""

    status = 200
    schema = ""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Registry

    def do_GET(self) -> None:
        """Return schema 7; there is nothing else."""
        if self.path.split("?")[0] == "/schemas/ids/7":
            answer_json(self, 200, {"schema": self.server.schema})
        else:
            answer_json(self, 404, {"error_code": 40401, "message": "nothing here"})

    def do_POST(self) -> None:
        """Register the schema as number 7."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.schema = asked["schema"]
        if self.server.status == 200:
            answer_json(self, 200, {"id": 7})
        else:
            answer_json(self, self.server.status, {"error_code": 1, "message": "not\nnow"})

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry((HOST, 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def avro_at(port: int) -> AvroSerializer:
    """Return a serializer whose registry is at a port, and is asked once."""
    conf = {"url": f"http://{HOST}:{port}", "max.retries": 0, "timeout": 10}
    return AvroSerializer(SchemaRegistryClient(conf), ORDER)


def test_avro_is_read_by_a_deserializer(mock: Any) -> None:
    """The key by a serializer of its own, or by the rules of JSON messages."""
    message = Message.serialized(
        "orders", key=42, value={"shirts": 2}, serializer=AvroSerializer(mock, ORDER)
    )
    assert message.key == b"42"
    assert AvroDeserializer(mock)(message.value, VALUE) == {"shirts": 2}
    message = Message.serialized(
        "orders",
        key={"shirts": 1},
        key_serializer=AvroSerializer(mock, ORDER),
        value="two",
        serializer=StringSerializer(),
        partition=3,
    )
    key = SerializationContext("orders", MessageField.KEY)
    assert AvroDeserializer(mock)(message.key, key) == {"shirts": 1}
    assert (message.value, message.partition) == (b"two", 3)


def test_protobuf_is_read_by_a_deserializer(mock: Any) -> None:
    """Its serializer is called as the others are."""
    conf = {"use.deprecated.format": False}
    message = Message.serialized(
        "orders",
        value=StringValue(value="two shirts"),
        serializer=ProtobufSerializer(StringValue, mock, conf),
    )
    assert ProtobufDeserializer(StringValue, conf)(message.value, VALUE).value == "two shirts"


def test_a_schema_id_in_the_headers_is_sent(mock: Any) -> None:
    """What a serializer appends to the context's headers stands behind the message's."""
    by_header = AvroSerializer(
        mock, ORDER, conf={"schema.id.serializer": header_schema_id_serializer}
    )
    headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    message = Message.serialized(
        "orders", value={"shirts": 2}, serializer=by_header, headers=headers
    )
    assert [name for name, _ in message.header_pairs] == ["a", "__value_schema_id"]
    assert headers == [("a", b"1")]


def test_what_does_not_fit_its_schema_is_refused(mock: Any) -> None:
    """In one line that names field and topic."""
    for serializer, value in (
        (AvroSerializer(mock, ORDER), {"shirts": "two"}),
        (JSONSerializer(OBJECT, mock), {}),
        (ProtobufSerializer(StringValue, mock, {"use.deprecated.format": False}), "two"),
    ):
        with pytest.raises(InvalidMessageError, match="value for orders") as caught:
            Message.serialized("orders", value=value, serializer=serializer)
        assert caught.value.field == "value"
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidMessageError) as caught:
        Message.serialized(
            "orders",
            key={},
            key_serializer=AvroSerializer(mock, ORDER),
            value="two",
            serializer=StringSerializer(),
        )
    assert caught.value.field == "key"


@pytest.mark.process
def test_a_registry_that_is_away_can_be_asked_later(registry: Registry) -> None:
    """The same serializer works once the registry answers."""
    with pytest.raises(RetriableError, match="registry does not answer"):
        Message.serialized("orders", value={"shirts": 2}, serializer=avro_at(1))
    serializer = avro_at(registry.server_port)
    for status in (503, 429):
        registry.status = status
        with pytest.raises(RetriableError, match="repeat the call") as caught:
            Message.serialized("orders", value={"shirts": 2}, serializer=serializer)
        assert "\n" not in str(caught.value)
    registry.status = 200
    assert Message.serialized("orders", value={"shirts": 2}, serializer=serializer).value


@pytest.mark.process
@pytest.mark.parametrize("status", [401, 409, 422])
def test_a_schema_that_the_registry_refuses_is_no_matter_of_time(
    registry: Registry, status: int
) -> None:
    """Such as one that is not compatible: a repetition would fail too."""
    registry.status = status
    serializer = avro_at(registry.server_port)
    with pytest.raises(InvalidMessageError, match=str(status)):
        Message.serialized("orders", value={"shirts": 2}, serializer=serializer)


@pytest.mark.process
def test_commands_decode_what_a_serializer_made(registry: Registry) -> None:
    """By the address of the same registry, as `halfbridge tx show --payload` does."""
    serializer = avro_at(registry.server_port)
    message = Message.serialized("orders", value={"shirts": 2}, serializer=serializer)
    decoder = PayloadTexts(f"http://{HOST}:{registry.server_port}")
    assert decoder.decoded(message.value).text == '{"shirts": 2}'


async def _later(_value: object, _context: object) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("serializer", "text"),
    [(_later, "asynchronous"), (lambda *_: "text", "returned str"), (lambda *_: 1 / 0, "ZeroDiv")],
)
def test_what_is_no_serializer_is_refused(serializer: Any, text: str) -> None:
    """A coroutine, text, an error of the user's function."""
    with pytest.raises(InvalidMessageError, match=text):
        Message.serialized("orders", value=1, serializer=serializer)
