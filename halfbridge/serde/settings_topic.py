"""The records of the settings topic: the daemon's limits, the switch of transactions, topic types.

Everybody with WRITE on the topic can write anything there, so a reader gets a valid record or a
SerdeError, after which it continues as without that record: with the limits `DaemonSettings()`,
with transactions accepted, with a topic of no type.

Source of the types: RocketMQ TopicMessageType. A topic without a type is MIXED there.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.limits import TOPIC_CHARS_MAX, shortened
from halfbridge.serde.records import DaemonSettings

# Keys of the records in the settings topic; readers ignore other keys.
DAEMON_KEY = b"daemon"
# A record of version 1 has less than 200 bytes; the remainder is for `further`.
SETTINGS_BYTES_MAX = 16 * 1024
_SETTINGS: Codec[DaemonSettings] = Codec(DaemonSettings, ("daemon_settings.v1",))


def encode_daemon_settings(settings: DaemonSettings) -> bytes:
    """Return the value of the record that says `settings`."""
    return _SETTINGS.encode(settings)


def decode_daemon_settings(value: bytes) -> DaemonSettings:
    """Return the settings of a record with the key `DAEMON_KEY`.

    Raises:
        UnknownSchemaError: written by a newer daemon; upgrade this reader.
        DecodeError: too long, damaged, or with a limit below 1; an operator restarts the daemon,
            which writes the record again.
    """
    if len(value) > SETTINGS_BYTES_MAX:
        detail = f"{len(value)} bytes, more than {SETTINGS_BYTES_MAX}"
        raise DecodeError(f"DaemonSettings: {detail}", value)
    settings = _SETTINGS.decode(value)
    for name, limit in settings.limits().items():
        if limit < 1:
            raise DecodeError(f"DaemonSettings: {name} is {limit}, less than 1", value)
    return settings


# Key of the switch's record in the settings topic.
SWITCH_KEY = b"transactions"
# Bytes of the record's value; a reason of 1,024 bytes and a name fit.
SWITCH_BYTES_MAX = 4 * 1024
WHO_BYTES_MAX = 256  # as ACTOR_BYTES_MAX of an op
REASON_BYTES_MAX = 1024  # twice an op's: the whole reason is shown to who is refused


class TransactionsSwitch(NamedTuple):
    """Value of the record of the switch; `schemas/transactions_switch.v1.avsc` has the fields."""

    is_rejecting: bool
    at_ms: int
    who: str
    reason: str


_SWITCH: Codec[TransactionsSwitch] = Codec(
    TransactionsSwitch, ("transactions_switch.v1",), bytes_max=SWITCH_BYTES_MAX
)


def encode_switch(switch: TransactionsSwitch) -> bytes:
    """Return the value of the record that says `switch`, whose texts are cut at their limits."""
    return _SWITCH.encode(
        switch._replace(
            who=shortened(switch.who, WHO_BYTES_MAX),
            reason=shortened(switch.reason, REASON_BYTES_MAX),
        )
    )


def decode_switch(value: bytes) -> TransactionsSwitch:
    """Return the switch of a record. DecodeError: damaged; an operator sets the switch again."""
    return _SWITCH.decode(value)


_KEY = b"topic "
# Bytes of the record's value: a type, a time and a name of WHO_BYTES_MAX fit several times.
TYPE_BYTES_MAX = 1024


class TopicType(str, Enum):
    """What may be written to a real topic: by the daemon only, or by everybody but the daemon."""

    TRANSACTION = "TRANSACTION"
    PLAIN = "PLAIN"


class TopicTypeRecord(NamedTuple):
    """Value of the record; `schemas/topic_type.v1.avsc` has the fields."""

    type: TopicType
    at_ms: int
    who: str


_TYPE: Codec[TopicTypeRecord] = Codec(TopicTypeRecord, ("topic_type.v1",), bytes_max=TYPE_BYTES_MAX)


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
    return _TYPE.encode(record._replace(who=shortened(record.who, WHO_BYTES_MAX)))


def decode_type(value: bytes) -> TopicTypeRecord:
    """Return a record's type; UnknownSchemaError, or DecodeError: an operator writes it again."""
    return _TYPE.decode(value)
