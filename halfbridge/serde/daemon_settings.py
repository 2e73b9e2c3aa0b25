"""The record of the daemon's limits: its key, its bytes, and what a reader believes of them.

Whoever may write to the settings topic may write anything there, so a reader of this record gets
limits or a SerdeError, and with an error goes on as if there were no record: with
`DaemonSettings()`.
"""

from __future__ import annotations

from halfbridge.serde.avro import Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import DaemonSettings

# Of the records in the settings topic; readers ignore other keys.
DAEMON_KEY = b"daemon"
# A record of version 1 has less than 200 bytes; the rest is room for `further`.
SETTINGS_BYTES_MAX = 16 * 1024

_CODEC: Codec[DaemonSettings] = Codec(DaemonSettings, ("daemon_settings.v1",))


def encode_daemon_settings(settings: DaemonSettings) -> bytes:
    """Return the value of the record that says `settings`."""
    return _CODEC.encode(settings)


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
    settings = _CODEC.decode(value)
    for name, limit in settings.limits().items():
        if limit < 1:
            raise DecodeError(f"DaemonSettings: {name} is {limit}, less than 1", value)
    return settings
