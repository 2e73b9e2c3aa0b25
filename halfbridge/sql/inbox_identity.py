"""Which message it is that a consumer has read, and what of that a table can hold."""

from __future__ import annotations

from typing import Any

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, real_identity
from halfbridge.sql.errors import InboxUsageError, NoIdentityError
from halfbridge.sql.inbox_table import KEY_CHARS_MAX


def identity_of(message: Any) -> tuple[str, int]:
    """Return transaction id and index of a message.

    Raises:
        NoIdentityError: it has none.
        InboxUsageError: it is an error of the Kafka client.
    """
    if message.error() is not None:
        raise InboxUsageError(f"this is no message, but an error of Kafka's: {message.error()}")
    place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
    try:
        identity = real_identity(headers_of(message))
    except DecodeError as error:
        raise NoIdentityError(f"{place}: {error}; give key=") from error
    if identity is None:
        raise NoIdentityError(
            f"{place} has no transaction id: halfbridge did not write it; give key="
        )
    return identity


def storage_flaw(text: str) -> str:
    """Return what is allowed where `text` cannot be stored as it is; empty where it can be."""
    is_good = 0 < len(text) <= KEY_CHARS_MAX and "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        is_good = False
    return "" if is_good else f"text of 1 to {KEY_CHARS_MAX} characters without NUL"
