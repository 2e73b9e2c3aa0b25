"""The switch by which operators stop new transactions: its key, its bytes, what a reader believes.

Whoever may write to the settings topic may write anything there, so a reader gets a switch or a
SerdeError, and with an error goes on as if nobody had set the switch.
"""

from __future__ import annotations

from typing import NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.limits import shortened

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


_CODEC: Codec[TransactionsSwitch] = Codec(
    TransactionsSwitch, ("transactions_switch.v1",), bytes_max=SWITCH_BYTES_MAX
)


def encode_switch(switch: TransactionsSwitch) -> bytes:
    """Return the value of the record that says `switch`, whose texts are cut at their limits."""
    return _CODEC.encode(
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
    return _CODEC.decode(value)
