"""The values that users pass and receive, and the checks before a message is sent. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.cloud_events import CloudEvent
from halfbridge.bridge.payloads import json_bytes, key_bytes
from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.headers import CONTEXT, RESERVED, Header
from halfbridge.serde.limits import METADATA_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.kafka.ports import Record
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import CheckRequest


class Resolution(str, Enum):
    """How a local transaction ended, as its owner or a checker sees it.

    Source: RocketMQ 5 TransactionResolution. UNKNOWN means "I looked and cannot tell yet"; an
    answered UNKNOWN counts towards the daemon's check_count_max, a failing checker does not.
    """

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Answer:
    """A Resolution with a message count, which a checker may return in place of a Resolution.

    Attributes:
        message_count: With COMMIT: how many messages the transaction has, 1 to 1,000, as the sender
            counted when the local transaction ran. If one of them is missing, the daemon delivers
            none, and all become dead letters (INCOMPLETE). None: all messages that are there.

    Raises:
        InvalidMessageError: no Resolution, or a count that no transaction can have; the author of
            the checker corrects it.
    """

    resolution: Resolution
    message_count: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.resolution, Resolution):
            raise InvalidMessageError(
                f"resolution must be a Resolution, not {self.resolution!r}", field="resolution"
            )
        if self.message_count is not None:
            check_whole_number("message_count", self.message_count)
            if not 1 <= self.message_count <= TRANSACTION_MESSAGES_MAX:
                raise InvalidMessageError(
                    f"message_count must be 1 to {TRANSACTION_MESSAGES_MAX}, "
                    f"not {self.message_count}",
                    field="message_count",
                )


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent in a transaction. Bytes arrive exactly as given.

    `Message.json` and `Message.serialized` make one of other values than bytes. Its size is limited
    by the half topic's max.message.bytes, and by what a Transaction takes.

    Attributes:
        topic: The real topic, where consumers read once the transaction is committed.
        key: Bytes or None (null); None and b"" are different things to Kafka.
        value: Bytes or None (a tombstone).
        headers: Pairs of name and bytes (or None), in order; names may repeat. Or a dict.
        partition: Partition of the real topic; None: chosen from the key.
        immunity_ms: Least age before the first check, milliseconds, at most
            `BridgeConfig.immunity_ms_max`; None: the daemon's transaction_timeout_ms.
        cloud_event: Adds the headers of CloudEvents when the message is sent; None: none.
        timestamp_ms: Refused unless None: a real record carries the time of its publication. The
            time of an event belongs in a header, such as `ce_time`.

    Raises:
        InvalidMessageError: a part has a wrong type or a reserved name; the caller corrects it.

    Source: RocketMQ Message; `immunity_ms` is its CHECK_IMMUNITY_TIME_IN_SECONDS.
    """

    topic: str
    _: KW_ONLY
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] | Mapping[str, bytes | None] = ()
    partition: int | None = None
    immunity_ms: int | None = None
    cloud_event: CloudEvent | None = None
    timestamp_ms: InitVar[None] = None

    def __post_init__(self, timestamp_ms: None) -> None:
        if type(self.topic) is not str or not self.topic:
            raise InvalidMessageError(f"topic must be text, not {self.topic!r}", field="topic")
        if self.key is not None and type(self.key) is not bytes:
            raise not_bytes("key", self.key)
        if self.value is not None and type(self.value) is not bytes:
            raise not_bytes("value", self.value)
        if self.headers != ():
            object.__setattr__(self, "headers", checked_headers(self.headers))
        if self.partition is not None:
            check_whole_number("partition", self.partition)
        if self.immunity_ms is not None:
            check_whole_number("immunity_ms", self.immunity_ms)
        if self.cloud_event is not None:
            if not isinstance(self.cloud_event, CloudEvent):
                raise InvalidMessageError(
                    f"cloud_event must be a CloudEvent or None, not {self.cloud_event!r}",
                    field="cloud_event",
                )
            self.cloud_event.check_beside(self.header_pairs)
        if timestamp_ms is not None:
            raise _no_timestamp()

    @classmethod
    def json(
        cls,
        topic: str,
        *,
        value: object,
        key: str | bytes | int | None = None,
        headers: Sequence[Header] | Mapping[str, bytes | None] = (),
        partition: int | None = None,
        immunity_ms: int | None = None,
        cloud_event: CloudEvent | None = None,
    ) -> Message:
        """Return a message with a JSON value, by the rules of docs/how-to/payloads.md.

        The value is a dict, list, dataclass, model of pydantic, text or number, or None: a
        tombstone. A key that is text is sent in UTF-8, an int as its decimal digits. All else is
        as in Message.

        Raises:
            InvalidMessageError: a type has no rule; the text begins with the path of its field,
                such as `value.lines[2].price`. The caller converts it.
        """
        return cls(
            topic,
            key=key_bytes(key),
            value=json_bytes(value),
            headers=headers,
            partition=partition,
            immunity_ms=immunity_ms,
            cloud_event=cloud_event,
        )

    @classmethod
    def serialized(
        cls,
        topic: str,
        *,
        value: object,
        serializer: Callable[[Any, Any], Any],
        key: object = None,
        key_serializer: Callable[[Any, Any], Any] | None = None,
        headers: Sequence[Header] | Mapping[str, bytes | None] = (),
        partition: int | None = None,
        immunity_ms: int | None = None,
        cloud_event: CloudEvent | None = None,
    ) -> Message:
        """Return a message whose value a serializer of confluent-kafka makes.

        `serializer` (an AvroSerializer, ProtobufSerializer, JSONSerializer, ...) is called with the
        value and a SerializationContext of topic, field and headers. It may ask a schema registry,
        and blocks for as long as the registry's client waits. Without `key_serializer` the key is
        str, bytes, int or None, as in `Message.json`. All else is as in Message.

        Raises:
            InvalidMessageError: a value does not fit its schema, or the registry refuses the
                schema; the caller corrects it.
            RetriableError: the registry does not answer; repeat the call later.
        """
        # Imported here: this module loads no Kafka client.
        from halfbridge.kafka.serializers import serialized  # noqa: PLC0415  (see above)

        added = list(checked_headers(headers))
        if key_serializer is None:
            made_key = key_bytes(key)
        else:
            made_key = serialized(key_serializer, key, topic=topic, field="key", headers=added)
        return cls(
            topic,
            key=made_key,
            value=serialized(serializer, value, topic=topic, field="value", headers=added),
            headers=added,
            partition=partition,
            immunity_ms=immunity_ms,
            cloud_event=cloud_event,
        )

    @property
    def header_pairs(self) -> tuple[Header, ...]:
        """The headers as they are sent: pairs, whether pairs or a dict were given."""
        return self.headers  # type: ignore[return-value] # made so by __post_init__

    @property
    def real_partition(self) -> int:
        """The partition as it is encoded: -1 for a choice by the key."""
        return PARTITION_BY_KEY if self.partition is None else self.partition

    @property
    def header_bytes(self) -> int:
        """Bytes of header names (UTF-8) and values; of a CloudEvent's the most there may be."""
        if not self.headers and self.cloud_event is None:
            return 0
        headers = self.header_pairs
        if self.cloud_event is not None:
            headers += self.cloud_event.longest()
        return sum(len(name.encode()) + len(value or b"") for name, value in headers)

    @property
    def body_bytes(self) -> int:
        """Bytes of key and value."""
        return (len(self.key) if self.key else 0) + (len(self.value) if self.value else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """The first half message of an undecided transaction, as shown to the checker.

    Attributes:
        topic: Its real topic.
        partition: Partition of the real topic; None: chosen from the key.
        headers: The user's, as sent.
        transaction_id: The message transaction, as in its SendReceipt.
        check_number: Counted checks so far plus one.
        attempt: How often this check_number has been asked, from 1.
        born_timestamp: The sender's clock, epoch milliseconds.
        resume_count: How often an operator resumed the transaction after a discard.
        context: The header RMQ_CONTEXT, by which a sender informs its checker (the Spark sink sets
            it), or None.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    transaction_id: str
    check_number: int
    attempt: int
    born_timestamp: int
    producer_group: str
    resume_count: int
    context: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """The position of a durable half message.

    Attributes:
        message_index: Place in its transaction, from 0.
        half_partition: Partition of the half topic; the decision goes to the same partition of the
            op topic.
        half_offset: Offset in the half partition.
    """

    transaction_id: str
    message_index: int
    half_partition: int
    half_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReceipt:
    """The position of a durable decision, which an earlier decision may still defeat.

    Attributes:
        resolution: COMMIT or ROLLBACK.
        op_offset: Offset in the op partition; the decision with the lowest offset wins.
        late: The decision came no sooner than the first check was due, by the brokers' append
            times: a check may have settled the transaction before it. None if that is not known:
            this client has no acknowledgement of the first message (`repeat_commit`, a rollback
            after a send that failed).
    """

    transaction_id: str
    resolution: Resolution
    op_partition: int
    op_offset: int
    late: bool | None


def view_of(request: CheckRequest, record: Record, headers: Headers) -> MessageView:
    """Return the view of a check request, and of its record, for the checker."""
    partition = request.real_partition
    return MessageView(
        topic=request.real_topic,
        partition=None if partition == PARTITION_BY_KEY else partition,
        key=record.key(),
        value=record.value(),
        headers=tuple(header for header in headers if header[0] not in RESERVED),
        transaction_id=request.transaction_id,
        check_number=request.check_number,
        attempt=request.attempt,
        born_timestamp=request.born_timestamp,
        producer_group=request.producer_group,
        resume_count=request.resume_count,
        context=next((value for name, value in headers if name == CONTEXT), None),
    )


_HEADERS_TO_SHOW = 200  # characters: two lines of a terminal show which header is meant


def check_whole_number(field: str, value: object) -> None:
    """Refuse a value that is no whole number, or is below 0.

    Raises InvalidMessageError: the caller corrects it.
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


def _no_timestamp() -> InvalidMessageError:
    """Return the error of a message with a timestamp: brokers may refuse it, for a whole batch."""
    return InvalidMessageError(
        "timestamp_ms is not carried: a real record has the time of its publication, so that a"
        " reader of a time range misses no late commit. Send the event's time in a header, for"
        " example cloud_event=CloudEvent(..., time=...)",
        field="timestamp_ms",
    )


def not_a_message(given: object) -> InvalidMessageError:
    """Return the error of a send that was given something else, such as a topic's name."""
    topic = repr(given) if isinstance(given, str) else "'orders'"
    return InvalidMessageError(
        f"send takes a Message, not {type(given).__name__}:"
        f" send(Message({topic}, key=b'...', value=b'...'))",
        field="message",
    )


def checked_context(context: object) -> bytes | None:
    """Return `context` if it is valid, else raise InvalidMessageError: the caller shortens it."""
    if context is None:
        return None
    if isinstance(context, bytes) and len(context) <= METADATA_BYTES_MAX:
        return context
    shown = f"{len(context)} bytes" if isinstance(context, bytes) else type(context).__name__
    raise InvalidMessageError(
        f"context must be bytes, at most {METADATA_BYTES_MAX}, or None, not {shown}",
        field="context",
    )


def checked_headers(headers: object) -> tuple[Header, ...]:
    """Return headers as pairs. InvalidMessageError: the caller corrects them."""
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
