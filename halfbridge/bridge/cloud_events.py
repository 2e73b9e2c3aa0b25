"""CloudEvents 1.0 as headers of a record: binary mode of their Kafka binding. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.serde.headers import Header

CONTENT_TYPE = "content-type"
_TEXTS = ("source", "type", "content_type")
# A transaction id has as many characters, whatever it is.
_LONGEST_ID = "0" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent:
    """Makes a message an event of CloudEvents 1.0: `Message(..., cloud_event=CloudEvent(...))`.

    The client adds the headers `ce_specversion`, `ce_id`, `ce_source`, `ce_type`, `ce_time` and
    `content-type` when it sends. `ce_id` is the transaction id, "-" and the message's index, the
    same however often the message is delivered. Give other attributes as headers of the message,
    such as `ce_subject`.

    Attributes:
        source: Where the event comes from, a URI reference such as "/shop/orders".
        type: What has happened, such as "com.example.order.placed".
        time: When it happened, with a time zone; None: when the message is sent.
        content_type: MIME type of the value; None: no such header.

    Raises:
        InvalidMessageError: an empty or missing text, or a time without a zone; the caller
            corrects it.

    Source: CloudEvents' Kafka protocol binding, binary content mode.
    """

    source: str
    type: str
    time: datetime | None = None
    content_type: str | None = "application/json"

    def __post_init__(self) -> None:
        for name in _TEXTS:
            text = getattr(self, name)
            if (name, text) == ("content_type", None):
                continue
            if not isinstance(text, str) or not text or "\n" in text or not _is_utf8(text):
                raise _refused(name, f"one line of text, not {text!r}")
        time: object = self.time
        if time is None or (isinstance(time, datetime) and time.utcoffset() is not None):
            return
        raise _refused("time", f"a datetime with a time zone, or None, not {time!r}")

    def headers(self, transaction_id: str, index: int, now_ms: int) -> tuple[Header, ...]:
        """Return the headers of the message with this index, sent at `now_ms` (epoch)."""
        time = self.time or datetime.fromtimestamp(now_ms / MS_PER_S, timezone.utc)
        timespec = "auto" if self.time else "milliseconds"
        headers = (
            ("ce_specversion", b"1.0"),
            ("ce_id", f"{transaction_id}-{index}".encode()),
            ("ce_source", self.source.encode()),
            ("ce_type", self.type.encode()),
            ("ce_time", time.isoformat(timespec=timespec).encode()),
        )
        if self.content_type is None:
            return headers
        return (*headers, (CONTENT_TYPE, self.content_type.encode()))

    def longest(self) -> tuple[Header, ...]:
        """Return the headers with an index of most digits, for limits of size."""
        return self.headers(_LONGEST_ID, TRANSACTION_MESSAGES_MAX - 1, 0)

    def check_beside(self, headers: Iterable[Header]) -> None:
        """Refuse a message that has one of these headers itself.

        Raises InvalidMessageError: the caller removes the header.
        """
        mine = {name for name, _ in self.longest()}
        for name, _ in headers:
            if name in mine:
                raise InvalidMessageError(
                    f"cloud_event makes the header {name}; the message has one too: remove it",
                    field="headers",
                )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(name: str, wanted: str) -> InvalidMessageError:
    return InvalidMessageError(f"{name} of a CloudEvent must be {wanted}", field=name)
