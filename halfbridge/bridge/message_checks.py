"""What is refused before a message is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.headers import RESERVED, Header

_HEADERS_TO_SHOW = 200  # characters: two lines of a terminal show which header is meant


def check_whole_number(field: str, value: object) -> None:
    """Refuse a value that is no whole number, or is below 0.

    Raises:
        InvalidMessageError: the caller corrects `field`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidMessageError(
            f"{field} must be a whole number, at least 0, or None, not {value!r}", field=field
        )


def not_bytes(field: str, value: object) -> InvalidMessageError:
    """Return the error of a value that is neither bytes nor None."""
    hint = f": encode it, for example {field}.encode()" if isinstance(value, str) else ""
    return InvalidMessageError(
        f"{field} must be bytes or None, not {type(value).__name__}{hint}", field=field
    )


def not_a_message(given: object) -> InvalidMessageError:
    """Return the error of a send that was given something else, such as a topic's name."""
    topic = repr(given) if isinstance(given, str) else "'orders'"
    return InvalidMessageError(
        f"send takes a Message, not {type(given).__name__}:"
        f" send(Message({topic}, key=b'...', value=b'...'))",
        field="message",
    )


def checked_headers(headers: object) -> tuple[Header, ...]:
    """Return headers as pairs.

    Raises:
        InvalidMessageError: the caller corrects the headers.
    """
    if isinstance(headers, Mapping):
        headers = tuple(headers.items())
    if not isinstance(headers, (list, tuple)):
        raise InvalidMessageError(
            "headers must be a list of (name, bytes) pairs or a dict, not "
            f"{type(headers).__name__}",
            field="headers",
        )
    return tuple(_checked_header(header) for header in headers)


def _checked_header(header: object) -> Header:
    match header:
        case (str() as name, value):
            pass
        case _:
            shown = repr(header)[:_HEADERS_TO_SHOW]
            raise InvalidMessageError(
                f"a header must be a pair of name and bytes, not {shown}", field="headers"
            )
    if value is not None and not isinstance(value, bytes):
        raise not_bytes(f"header {name}", value)
    if name in RESERVED:
        raise InvalidMessageError(
            f"header name {name} is reserved; choose another", field="headers"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            f"header name {name!r} has no UTF-8 form", field="headers"
        ) from error
    return name, value
