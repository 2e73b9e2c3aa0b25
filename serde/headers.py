"""Header names, and what a half record's headers say. The only place that knows them."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any

from serde.avro import HALF_METADATA
from serde.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serde.records import HalfMetadata

HALF = "RMQ_HALF"
CONTEXT = "RMQ_CONTEXT"
CHECK = "RMQ_CHECK"
DEAD = "RMQ_DEAD"
TRANSACTION_ID = "__transactionId__"
BORN_TIMESTAMP = "__bornTimestamp__"
# What a client may add to a half record, each once: what the daemon has to know, and what the
# sender leaves for whoever answers a check. Neither is delivered.
INTERNAL = (HALF, CONTEXT)
RESERVED = frozenset((*INTERNAL, CHECK, DEAD, TRANSACTION_ID, BORN_TIMESTAMP))

# For a name that is not UTF-8 the client returns a broken list and an error at once. Python's own
# call of a method stops looking for that once it is warm; methodcaller looks every time.
_headers = methodcaller("headers")

Header = tuple[str, "bytes | None"]
Headers = list[Header]


def headers_of(record: Any) -> Headers | None:
    """Return the headers of a record as the Kafka client hands it over; None without any.

    Raises:
        DecodeError: a name is not UTF-8 text. The Python client cannot say what it is, and its
            list is broken from then on: the record's headers must not be asked for again.
    """
    try:
        headers: Headers | None = _headers(record)
    except (SystemError, UnicodeDecodeError) as error:
        raise DecodeError("a header name is not UTF-8: the headers cannot be read", None) from error
    return headers


def parse_half(headers: Sequence[Header] | None) -> tuple[HalfMetadata, str]:
    """Return what a half record's headers say.

    Returns:
        The decoded RMQ_HALF, and why this message must never be delivered (a reserved name among
        the user's headers, a second RMQ_HALF or RMQ_CONTEXT); empty when all is well.

    Raises:
        DecodeError: no RMQ_HALF, or one that cannot be read; the record's writer must act.
    """
    if not headers:
        raise DecodeError(f"no {HALF} header", None)
    mine = headers[_half_at(headers)][1]
    if mine is None:
        raise DecodeError(f"no {HALF} header", None)
    metadata = HALF_METADATA.decode(mine)
    if metadata.message_index < 0 or not metadata.producer_group or not metadata.real_topic:
        raise DecodeError(f"{HALF} names no message index, producer group or real topic", mine)
    return metadata, _flaw(headers) if len(headers) > 1 else ""


def without_half(headers: Sequence[Header]) -> Headers:
    """Return the headers without the RMQ_HALF that `parse_half` reads.

    A second one stays: what is flawed must not be without flaw once it was copied.
    """
    mine = _half_at(headers)
    return [header for number, header in enumerate(headers) if number != mine]


def user_headers(headers: Sequence[Header]) -> Headers:
    """Return the user's own headers of a half record, byte-exact and in order."""
    return [header for header in headers if header[0] not in INTERNAL]


def real_headers(user: Headers, transaction_id: str, born_timestamp: int) -> Headers:
    """Return the headers of a real record: the user's, then the id and the birth, in ASCII."""
    return [
        *user,
        (TRANSACTION_ID, transaction_id.encode()),
        (BORN_TIMESTAMP, b"%d" % born_timestamp),
    ]


def _half_at(headers: Sequence[Header]) -> int:
    """Return which header is the RMQ_HALF that counts.

    Raises:
        DecodeError: there is none.
    """
    if headers[-1][0] == HALF:  # where the client and the daemon put it
        return len(headers) - 1
    for number, (name, _) in enumerate(headers):
        if name == HALF:
            return number
    raise DecodeError(f"no {HALF} header", None)


def _flaw(headers: Sequence[Header]) -> str:
    names = [name for name, _ in headers]
    for internal in INTERNAL:
        if names.count(internal) > 1:
            return f"more than one {internal} header"
    forged = [name for name in names if name in RESERVED and name not in INTERNAL]
    return f"reserved header {forged[0]}" if forged else ""
