"""Types of real topics, as the policy names them and as clients read them in the settings topic.

Whoever may write to the settings topic may write anything there, so a reader gets a type or a
SerdeError, and with an error goes on as if the topic had no type.

Source: RocketMQ TopicMessageType. A topic without a type is what RocketMQ calls MIXED.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.limits import TOPIC_CHARS_MAX, shortened

_KEY = b"topic "
# Of the value in the settings topic.
TYPE_BYTES_MAX = 1024
_WHO_BYTES_MAX = 256


class TopicType(str, Enum):
    """What may be written to a real topic: by the daemon only, or by everybody but the daemon."""

    TRANSACTION = "TRANSACTION"
    PLAIN = "PLAIN"


class TopicTypeRecord(NamedTuple):
    """Value of the record; `schemas/topic_type.v1.avsc` has the fields."""

    type: TopicType
    at_ms: int
    who: str


_CODEC: Codec[TopicTypeRecord] = Codec(
    TopicTypeRecord, ("topic_type.v1",), bytes_max=TYPE_BYTES_MAX
)


def type_key(topic: str) -> bytes:
    """Return the key of the record of `topic`."""
    return _KEY + topic.encode()


def topic_of(key: bytes | None) -> str | None:
    """Return the topic whose type a record with `key` says; None: the record says no type."""
    if key is None or not key.startswith(_KEY) or len(key) > len(_KEY) + TOPIC_CHARS_MAX:
        return None
    return key[len(_KEY) :].decode("ascii", "replace")


def encode_type(record: TopicTypeRecord) -> bytes:
    """Return the value of a record."""
    return _CODEC.encode(record._replace(who=shortened(record.who, _WHO_BYTES_MAX)))


def decode_type(value: bytes) -> TopicTypeRecord:
    """Return what a record says.

    Raises:
        UnknownSchemaError: written by a newer version; upgrade this reader.
        DecodeError: too long or damaged; an operator writes the type again.
    """
    return _CODEC.decode(value)
