"""The identity of a message that a consumer has read."""

from __future__ import annotations

from typing import Any

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, real_identity
from halfbridge.sql.errors import InboxUsageError, NoIdentityError
from halfbridge.sql.inbox_table import KEY_CHARS_MAX


def identity_of(message: Any) -> tuple[str, int]:
    """Return transaction id and message index of a message.

    Raises:
        NoIdentityError: The message has no identity.
        InboxUsageError: `message` is an error of the Kafka client.
    """
    if message.error() is not None:
        raise InboxUsageError(f"not a message, but an error of the client: {message.error()}")
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
    """Return what is allowed if `text` cannot be stored unchanged; empty if it can."""
    is_good = 0 < len(text) <= KEY_CHARS_MAX and "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        is_good = False
    return "" if is_good else f"text of 1 to {KEY_CHARS_MAX} characters without NUL"
