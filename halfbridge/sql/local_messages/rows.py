"""A row of the local message table as a message, and back."""

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

    from halfbridge.bridge.message import Header

# Of key, value and headers; what is larger fits into no message transaction, and is not read.
ROW_BYTES_MAX = TRANSACTION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """A row that is to be relayed.

    Attributes:
        id: Of the row; ascends with insertion.
        topic: The real topic.
        key: As written.
        value: As written.
        headers: As stored; see `headers_of`.
        partition: Of the real topic, or None: by key.
        key_hash: Of the key; None without a key.
        retries: How often an attempt has failed by the row's own fault.
        send_alone: It goes in a message transaction of its own.
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
        """Bytes of key, value and headers, as they count towards a message transaction's limit.

        Headers are taken at their stored length, which is more.
        """
        if self.oversize_bytes:
            return self.oversize_bytes
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or "")

    def message(self) -> Message:
        """Return it as a message.

        Raises:
            InvalidMessageError, ValueError: what stands in the row is no message, or `key_hash` is
                not that of the key; its writer acts.
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
    """Return the columns that hold a message."""
    return {
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": headers_text(message.headers),
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
        ValueError: they are not as `headers_text` makes them; the row's writer acts.
    """
    if not text:
        return ()
    try:
        return tuple(
            (name, None if value is None else b64decode(value, validate=True))
            for name, value in json.loads(text)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"headers are no JSON list of [name, base64 or null]: {error}") from error
