"""The record of the daemon's limits: its key, its bytes, and what a reader believes of them.

Whoever may write to the settings topic may write anything there, so a reader of this record gets
limits or a SerdeError, and with an error goes on as if there were no record: with
`DaemonSettings()`.

The switch by which operators stop new transactions: its key, its bytes, what a reader believes.

Whoever may write to the settings topic may write anything there, so a reader gets a switch or a
SerdeError, and with an error goes on as if nobody had set the switch.

Types of real topics, as the policy names them and as clients read them in the settings topic.

Whoever may write to the settings topic may write anything there, so a reader gets a type or a
SerdeError, and with an error goes on as if the topic had no type.

Source: RocketMQ TopicMessageType. A topic without a type is what RocketMQ calls MIXED.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.limits import TOPIC_CHARS_MAX, shortened
from halfbridge.serde.records import DaemonSettings

# Of the records in the settings topic; readers ignore other keys.
DAEMON_KEY = b"daemon"
# A record of version 1 has less than 200 bytes; the rest is room for `further`.
SETTINGS_BYTES_MAX = 16 * 1024
_SETTINGS: Codec[DaemonSettings] = Codec(DaemonSettings, ("daemon_settings.v1",))


def encode_daemon_settings(settings: DaemonSettings) -> bytes:
    """Return the value of the record that says `settings`."""
    return _SETTINGS.encode(settings)


def decode_daemon_settings(value: bytes) -> DaemonSettings:
    """Return what a record with the key `DAEMON_KEY` says.

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


# Of the record in the settings topic.
SWITCH_KEY = b"transactions"
# Of the value; a reason of 1,024 bytes and a name fit.
SWITCH_BYTES_MAX = 4 * 1024
WHO_BYTES_MAX = 256
REASON_BYTES_MAX = 1024


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
    """Return what a record with the key `SWITCH_KEY` says.

    Raises:
        UnknownSchemaError: written by a newer version; upgrade this reader.
        DecodeError: too long or damaged; an operator sets the switch again.
    """
    return _SWITCH.decode(value)


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
    return _TYPE.encode(record._replace(who=shortened(record.who, _WHO_BYTES_MAX)))


def decode_type(value: bytes) -> TopicTypeRecord:
    """Return what a record says.

    Raises:
        UnknownSchemaError: written by a newer version; upgrade this reader.
        DecodeError: too long or damaged; an operator writes the type again.
    """
    return _TYPE.decode(value)
