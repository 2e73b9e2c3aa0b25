"""Actions of operators, as records of the audit topic.

Everybody with WRITE on the topic can write anything there, so a reader gets a valid action or a
SerdeError. No decision depends on these records.
"""

from __future__ import annotations

from halfbridge.serde.avro import Codec
from halfbridge.serde.limits import shortened
from halfbridge.serde.records import OperatorAction

# Size of the encoded record; the fields below take less than 11 KiB together.
ACTION_BYTES_MAX = 16 * 1024
# Bytes in UTF-8 of each text of an action.
FIELD_BYTES_MAX = {
    "action_id": 64,
    "who": 256,
    "action": 64,
    "subject": 1024,
    "why": 1024,
    "before": 4096,
    "after": 4096,
}

_CODEC: Codec[OperatorAction] = Codec(
    OperatorAction, ("operator_action.v1",), bytes_max=ACTION_BYTES_MAX
)


def encode_action(action: OperatorAction) -> bytes:
    """Return the value of the record of `action`, whose texts are cut at `FIELD_BYTES_MAX`."""
    cut = {name: shortened(getattr(action, name), most) for name, most in FIELD_BYTES_MAX.items()}
    return _CODEC.encode(OperatorAction(**{**action._asdict(), **cut}))


def decode_action(value: bytes) -> OperatorAction:
    """Return the action of a record.

    Raises:
        UnknownSchemaError: a newer writer; upgrade this reader.
        DecodeError: too long or damaged; the writer of the record is wrong.
    """
    return _CODEC.decode(value)
