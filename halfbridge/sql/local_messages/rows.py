"""Converts rows of the local message table to messages, and messages to rows."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.message import Message
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.partitioner import key_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.headers import Header

# Most bytes of key, value and headers. A larger row exceeds the limit of a message transaction, and
# is not read.
ROW_BYTES_MAX = TRANSACTION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """A row that is to be relayed.

    Attributes:
        id: Id of the row; ascends with insertion.
        topic: The real topic.
        key: As written.
        value: As written.
        headers: As stored; see `headers_of`.
        partition: Partition of the real topic; None: by key.
        key_hash: Hash of the key; None without a key.
        retries: Number of failed attempts that the row itself has caused.
        send_alone: Whether the row is sent in its own message transaction.
        created_at: The database's clock, epoch milliseconds.
        oversize_bytes: Bytes of a row with more than ROW_BYTES_MAX, whose key, value and headers
            are not read; else 0.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    partition: int | None
    key_hash: int | None
    retries: int
    send_alone: bool
    created_at: int
    oversize_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and headers that count towards a message transaction's limit.

        Headers count with their stored length, which is an upper bound.
        """
        if self.oversize_bytes:
            return self.oversize_bytes
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or "")

    def message(self) -> Message:
        """Return the message in the row.

        Raises:
            InvalidMessageError, ValueError: The row does not contain a valid message, or `key_hash`
                is not the hash of the key; the row's writer must act.
        """
        if self.oversize_bytes:
            raise ValueError(
                f"{self.oversize_bytes} bytes are more than the {ROW_BYTES_MAX} of a row"
            )
        expected = None if self.key is None else key_hash(self.key)
        if self.key_hash != expected:
            raise ValueError(
                f"key_hash is {self.key_hash}, and toPositive(murmur2(key)) is {expected}"
            )
        return Message(
            self.topic,
            key=self.key,
            value=self.value,
            headers=headers_of(self.headers),
            partition=self.partition,
        )


def columns_of(message: Message) -> dict[str, Any]:
    """Return the values of the columns for a message."""
    return {
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": headers_text(message.header_pairs),
        "partition": message.partition,
        "key_hash": None if message.key is None else key_hash(message.key),
    }


def headers_text(headers: Sequence[Header]) -> str | None:
    """Return headers as they are stored: JSON, a list of [name, base64 or null]; None for none."""
    if not headers:
        return None
    return json.dumps(
        [[name, None if value is None else b64encode(value).decode()] for name, value in headers],
        separators=(",", ":"),
    )


def headers_of(text: str | None) -> tuple[Header, ...]:
    """Return stored headers.

    Raises:
        ValueError: The headers are not in the form of `headers_text`; the row's writer must act.
    """
    if not text:
        return ()
    try:
        return tuple(
            (name, None if value is None else b64decode(value, validate=True))
            for name, value in json.loads(text)
        )
    except (RecursionError, TypeError, ValueError) as error:  # RecursionError: JSON nested too deep
        raise ValueError(f"headers are no JSON list of [name, base64 or null]: {error}") from error
