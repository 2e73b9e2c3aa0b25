"""The wire format: records, Avro, header and topic names. Uses no Kafka client."""

from halfbridge.serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError, SerdeError, UnknownSchemaError
from halfbridge.serde.records import (
    CheckRequest,
    DeadLetter,
    DeadReason,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)
from halfbridge.serde.topics import TopicNames

__all__ = [
    "CHECK_REQUEST",
    "DEAD_LETTER",
    "HALF_METADATA",
    "OP",
    "CheckRequest",
    "DeadLetter",
    "DeadReason",
    "DecodeError",
    "HalfMetadata",
    "Op",
    "OpKind",
    "OpSource",
    "SerdeError",
    "TopicNames",
    "UnknownSchemaError",
]
