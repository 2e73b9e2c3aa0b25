"""Header names, and the headers of half and real records. No other module knows them."""

from __future__ import annotations

import re
from operator import methodcaller
from typing import TYPE_CHECKING

from halfbridge.serde.avro import HALF_METADATA
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.limits import (
    IDENTITY_BYTES_MAX,
    METADATA_BYTES_MAX,
    ORIGINAL_METADATA_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
)
from halfbridge.serde.topics import holds_internal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.records import HalfMetadata

HALF = "RMQ_HALF"
CONTEXT = "RMQ_CONTEXT"
CHECK = "RMQ_CHECK"
# The signature of a half or op record (halfbridge.serde.signatures).
SIGN = "RMQ_SIGN"
DEAD = "RMQ_DEAD"
# The last header of a record that marks a dead letter, and is none itself. The name may be in
# a user's headers: the last header of a dead letter is RMQ_DEAD.
DEAD_MARK = "RMQ_DEAD_MARK"
TRANSACTION_ID = "__transactionId__"
BORN_TIMESTAMP = "__bornTimestamp__"
# Only where the index is above 0: most transactions have one message, whose record needs no more.
MESSAGE_INDEX = "__messageIndex__"
# Headers that a client may add to a half record, each once: the daemon's metadata, the sender's
# context for the answer to a check, and a signature. None of them is delivered.
INTERNAL = (HALF, CONTEXT, SIGN)
# Headers that commands show decoded, and not as bytes.
CARRIED = frozenset((HALF, CHECK, DEAD, DEAD_MARK))
RESERVED = frozenset((*INTERNAL, CHECK, DEAD, TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX))

# A user's header by W3C Trace Context, as OpenTelemetry writes it by default: version, trace, span.
_TRACE_PARENT = "traceparent"
_TRACE = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-")

# Digits of a 32-bit integer, which RMQ_HALF has room for; the daemon writes no index above 999.
_INDEX_DIGITS_MAX = 10

# Bytes that a copy takes over in addition to RMQ_HALF.
_LIMITS = {CONTEXT: METADATA_BYTES_MAX, SIGN: SIGNATURE_BYTES_MAX}

# For a name that is not UTF-8 the client returns a broken list and an error at once. Python's own
# call of a method stops checking that once it is warm; methodcaller checks it every time.
_headers = methodcaller("headers")

Header = tuple[str, "bytes | None"]
Headers = list[Header]


def headers_of(record: object) -> Headers | None:
    """Return the headers of a record as the Kafka client hands it over; None without any.

    Raises:
        DecodeError: a name is not UTF-8 text; the record's writer must act. The Python client does
            not return it, and its list is broken from then on: the record's headers must not be
            asked for again.
    """
    try:
        headers: Headers | None = _headers(record)
    except (SystemError, UnicodeDecodeError) as error:
        raise DecodeError("a header name is not UTF-8: the headers cannot be read", None) from error
    return headers


def trace_id_of(headers: Sequence[Header] | None) -> str:
    """Return the id of the trace in which a message was sent; empty: its headers name none."""
    for name, value in headers or ():
        if name == _TRACE_PARENT and (found := _TRACE.match(value or b"")):
            return found[1].decode()
    return ""


def parse_half(headers: Sequence[Header] | None) -> tuple[HalfMetadata, str]:
    """Return the decoded RMQ_HALF, and why this message must never be delivered; empty: it may.

    That is a reserved name among the user's headers, or a second RMQ_HALF or RMQ_CONTEXT.

    Raises:
        DecodeError: no RMQ_HALF, or one that cannot be read, or a RMQ_CONTEXT or RMQ_SIGN that is
            too long, or more than one RMQ_SIGN; the record's writer must act.
    """
    if not headers:
        raise DecodeError(f"no {HALF} header", None)
    mine = headers[_half_at(headers)][1]
    if mine is None:
        raise DecodeError(f"no {HALF} header", None)
    metadata = HALF_METADATA.decode(mine)
    texts = metadata.transaction_id and metadata.producer_group and metadata.real_topic
    if metadata.message_index < 0 or not texts:
        raise DecodeError(
            f"{HALF} names no transaction, message index, producer group or real topic", mine
        )
    if holds_internal_name(metadata.producer_group):
        raise DecodeError(f"{HALF} names a producer group that cannot be asked", mine)
    if len(mine) > IDENTITY_BYTES_MAX:
        _check_room(metadata, mine)
    return metadata, _flaw(headers) if len(headers) > 1 else ""


def user_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[Header], *, has_flaw: bool
) -> int:
    """Return the bytes of a half record that count towards TRANSACTION_BYTES_MAX.

    As the client counts: key, value, and the user's headers (names in UTF-8 and values). Of a
    flawed record all headers count: there may be any number of internal ones.
    """
    size_bytes = len(key or b"") + len(value or b"")
    if len(headers) > 1:
        size_bytes += sum(
            len(name.encode()) + len(text or b"")
            for name, text in headers
            if has_flaw or name not in INTERNAL
        )
    return size_bytes


def without_half(headers: Sequence[Header]) -> Headers:
    """Return the headers without the RMQ_HALF that `parse_half` reads, and without signatures.

    A second RMQ_HALF stays: a copy must keep the flaw of its original. A signature covers the
    original record, and no copy of it.
    """
    mine = _half_at(headers)
    return [header for number, header in enumerate(headers) if number != mine and header[0] != SIGN]


def half_value(headers: Sequence[Header]) -> bytes:
    """Return the bytes, perhaps none, of the RMQ_HALF that counts.

    Raises DecodeError: there is no RMQ_HALF; the record's writer must act.
    """
    return headers[_half_at(headers)][1] or b""


def user_headers(headers: Sequence[Header]) -> Headers:
    """Return the user's own headers of a half record, byte-exact and in order."""
    return [header for header in headers if header[0] not in INTERNAL]


def real_headers(
    user: Headers, transaction_id: str, born_timestamp: int, message_index: int = 0
) -> Headers:
    """Return a real record's headers: the user's, then id, birth (ms), and an index above 0."""
    headers = [
        *user,
        (TRANSACTION_ID, transaction_id.encode()),
        (BORN_TIMESTAMP, b"%d" % born_timestamp),
    ]
    if message_index:
        headers.append((MESSAGE_INDEX, b"%d" % message_index))
    return headers


def real_identity(headers: Sequence[Header] | None) -> tuple[str, int] | None:
    """Return transaction id and message index of a real record; None: another producer wrote it.

    Both are the same however often the message is delivered. Of a name that occurs twice the last
    one counts: the daemon adds its headers after the user's.

    Raises DecodeError: one of the two is not as the daemon writes it; the record's writer must act.
    """
    named = dict(headers or ())
    identity = named.get(TRANSACTION_ID)
    if not identity:
        return None
    try:
        transaction_id = identity.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"{TRANSACTION_ID} is not UTF-8", identity) from error
    if MESSAGE_INDEX not in named:
        return transaction_id, 0
    text = named[MESSAGE_INDEX] or b""
    if not text.isdigit() or text.startswith(b"0") or len(text) > _INDEX_DIGITS_MAX:
        raise DecodeError(f"{MESSAGE_INDEX} is no number from 1 on, in ASCII", text)
    return transaction_id, int(text)


def _half_at(headers: Sequence[Header]) -> int:
    """Return which header is the RMQ_HALF that counts. DecodeError: there is none."""
    if headers[-1][0] == HALF:  # where the client and the daemon put it
        return len(headers) - 1
    for number, (name, _) in enumerate(headers):
        if name == HALF:
            return number
    raise DecodeError(f"no {HALF} header", None)


def _check_room(metadata: HalfMetadata, encoded: bytes) -> None:
    """Raise DecodeError for what the daemon could neither put back nor discard readably."""
    if metadata.origin_offset < 0 and len(encoded) > ORIGINAL_METADATA_BYTES_MAX:
        raise DecodeError(
            f"{HALF}: {len(encoded)} bytes, at most {ORIGINAL_METADATA_BYTES_MAX}", encoded
        )
    size_bytes = len(metadata.transaction_id.encode()) + len(metadata.producer_group.encode())
    if size_bytes > IDENTITY_BYTES_MAX:
        raise DecodeError(
            f"{HALF}: id and group of {size_bytes} bytes, at most {IDENTITY_BYTES_MAX}", encoded
        )


def _flaw(headers: Sequence[Header]) -> str:
    for name, value in headers:
        limit = _LIMITS.get(name)
        if limit is not None and len(value or b"") > limit:
            raise DecodeError(f"{name}: {len(value or b'')} bytes, at most {limit}", None)
    names = [name for name, _ in headers]
    if names.count(SIGN) > 1:
        raise DecodeError(f"more than one {SIGN} header", None)
    for internal in INTERNAL:
        if names.count(internal) > 1:
            return f"more than one {internal} header"
    forged = [name for name in names if name in RESERVED and name not in INTERNAL]
    return f"reserved header {forged[0]}" if forged else ""
