"""Calls the Kafka client's serializers, such as those of a schema registry, and sorts errors."""

from __future__ import annotations

from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka.serialization import MessageField, SerializationContext

from halfbridge.kafka.errors import InvalidMessageError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.serde.headers import Header

_CAUSES_MAX = 10  # errors within one another; a registry's client raises two or three
_SHOWN_MAX = 300  # characters of a serializer's error
# Statuses of HTTP by which a server asks for the same request later; so do all from 500 on.
_LATER = (408, 429)
_SERVER_ERRORS = 500  # RFC 9110, 15.6


def serialized(
    serializer: Callable[[Any, Any], Any],
    data: object,
    *,
    topic: str,
    field: Literal["key", "value"],
    headers: list[Header],
) -> bytes | None:
    """Return what a serializer of confluent-kafka makes of a key or value.

    The serializer may append to `headers`, such as the schema's id. It may ask a registry, and
    blocks as long as the timeout and the retries of the registry's client allow.

    Raises:
        InvalidMessageError: the data does not fit the schema, the registry refuses the schema, or
            no bytes were returned; the caller corrects it.
        RetriableError: the registry does not answer, or fails; repeat the call later.
    """
    context = SerializationContext(topic, MessageField(field), headers)
    try:
        found = serializer(data, context)
    except Exception as error:  # fastavro, jsonschema, protobuf, httpx and users raise their own
        why = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN_MAX]
        if any(map(_is_away, _causes(error))):
            raise RetriableError(
                f"the schema registry does not answer ({why}); nothing was sent: repeat the call"
            ) from error
        raise InvalidMessageError(
            f"{field} for {topic} does not pass its serializer: {why}", field=field
        ) from error
    if iscoroutine(found):
        found.close()
        raise InvalidMessageError(
            f"the serializer of the {field} is asynchronous: give a blocking one, and call this in"
            " a thread",
            field=field,
        )
    if found is not None and type(found) is not bytes:
        raise InvalidMessageError(
            f"the serializer of the {field} returned {type(found).__name__}, and not bytes",
            field=field,
        )
    return found


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _is_away(error: BaseException) -> bool:
    """Return whether an error says that a server cannot be reached or cannot answer now.

    httpx, whose name depends on its version, is known by the name of its class.
    """
    status = getattr(error, "http_status_code", None)  # SchemaRegistryError
    if isinstance(status, int):
        return status in _LATER or status >= _SERVER_ERRORS
    return isinstance(error, (ConnectionError, TimeoutError)) or any(
        each.__name__ == "TransportError" for each in type(error).__mro__
    )
