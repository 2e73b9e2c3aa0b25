"""Errors of the wire format."""

from __future__ import annotations

from halfbridge.serde.errors import DecodeError, SerdeError, UnknownSchemaError


def test_errors_keep_the_bytes_and_the_reason() -> None:
    """Whoever catches one can show what was read and say who must act."""
    error = UnknownSchemaError("no such schema", b"\1", "ab")
    assert (error.reason, error.data, error.fingerprint) == ("no such schema", b"\1", "ab")
    assert isinstance(error, DecodeError)
    assert isinstance(error, SerdeError)
    assert isinstance(error, ValueError)
