"""Where one transaction is looked for, by the time in its id. Pure."""

from __future__ import annotations

from typing import NamedTuple

_ID_DIGITS = 32  # a UUID in hexadecimal (RFC 9562)
_ID_VERSION = "7"
_VERSION_AT = 12  # its version follows its 48 bits of Unix milliseconds
_TIME_DIGITS = 12  # these 48 bits
_MS = 1  # the unit of that time
_S = 1000 * _MS
# A transaction settles within this, or the search takes longer and says how far it is.
USUAL_MS = 600 * _S
# By how much a client's clock may be off before the search takes a further step. The time in an id
# is a client's, append times are the brokers'.
_AT_MS = 1 * _S
_NEAR_MS = 10 * _S
FAR_MS = 60 * _S
# How long after its begin the first half message is usually stored, and seldom.
_SOON_MS = 2 * _S
_LATE_MS = 30 * _S
# By how much the clocks of two brokers may differ.
BROKERS_SKEW_MS = 5 * _S


class Slice(NamedTuple):
    """A range of time that is read, milliseconds since 1970; `until_ms` None: the log's end."""

    from_ms: int
    until_ms: int | None


def birth_ms(transaction_id: str) -> int | None:
    """Return the time in a transaction id; None where the id is no UUIDv7 in hexadecimal digits."""
    text = transaction_id.lower()
    is_hex = len(text) == _ID_DIGITS and not set(text) - set("0123456789abcdef")
    if not is_hex or text[_VERSION_AT] != _ID_VERSION:
        return None
    return int(text[:_TIME_DIGITS], 16)


def slices(begin_ms: int, until_ms: int | None, *, is_exact: bool) -> list[Slice]:
    """Return what is read for the first half message, the likeliest range of time first.

    Example: an id was made at 12:00:00. The first range is 11:59:59 to 12:00:02, the second one
    11:59:50 to 11:59:59, and the last ones are 12:00:30 to 12:10:00, and 12:10:00 to the end.

    Args:
        begin_ms: The time in the id, or the time that the operator gave.
        until_ms: Where the search ends; None: at the ends of the logs.
        is_exact: The operator gave the time: nothing before it is read.
    """
    usual_end_ms = begin_ms + USUAL_MS
    if is_exact:
        ranges = [Slice(begin_ms, usual_end_ms), Slice(usual_end_ms, None)]
    else:
        at, near, far = begin_ms - _AT_MS, begin_ms - _NEAR_MS, begin_ms - FAR_MS
        soon, late = begin_ms + _SOON_MS, begin_ms + _LATE_MS
        ranges = [
            Slice(at, soon),
            Slice(near, at),
            Slice(soon, late),
            Slice(far, near),
            Slice(late, usual_end_ms),
            Slice(usual_end_ms, None),
        ]
    if until_ms is None:
        return ranges
    cut = [
        Slice(each.from_ms, until_ms if each.until_ms is None else min(each.until_ms, until_ms))
        for each in ranges
        if each.from_ms < until_ms
    ]
    return cut or [Slice(min(begin_ms, until_ms), until_ms)]
