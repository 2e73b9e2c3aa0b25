"""Messages that are CloudEvents: headers made when the message is sent."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from halfbridge import CloudEvent, InvalidMessageError, Message, Resolution
from halfbridge.bridge.transaction_records import half_headers
from halfbridge.serde.headers import real_identity
from halfbridge.sql.local_messages.rows import columns_of
from halfbridge.testkit.memory import MemoryStack

PLACED = CloudEvent(source="/shop", type="order.placed")
CET = timezone(timedelta(hours=1))


def test_the_id_of_an_event_is_that_of_its_record() -> None:
    """Transaction id and index, also where one message object is sent twice."""
    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer("shop", checker=lambda _: Resolution.COMMIT) as producer:
            message = Message.json(topic, value={"n": 1}, cloud_event=PLACED)
            with producer.begin() as tx:
                tx.send(message)
                tx.send_async(message).result()
            stack.wait_until_decided()
        records = stack.read_committed(topic)
    seen = [dict(record.headers) for record in records]
    assert [each["ce_id"] for each in seen] == [f"{tx.id}-0".encode(), f"{tx.id}-1".encode()]
    assert [real_identity(record.headers) for record in records] == [(tx.id, 0), (tx.id, 1)]
    for each in seen:
        assert each["ce_specversion"] == b"1.0"
        assert (each["ce_source"], each["ce_type"]) == (b"/shop", b"order.placed")
        assert each["content-type"] == b"application/json"
        sent = datetime.fromisoformat((each["ce_time"] or b"").decode())
        assert sent.timestamp() * 1000 == int(each["__bornTimestamp__"] or b"")


def sent(message: Message, index: int = 0) -> dict[str, bytes | None]:
    """Return the headers of a half record."""
    headers = half_headers(
        message,
        transaction_id="f" * 32,
        now_ms=1_800_000_000_123,
        producer_group="g",
        index=index,
        immunity_ms=0,
        context=b"c",
    )
    assert len(dict(headers)) == len(headers)
    return dict(headers)


def test_attributes_are_headers() -> None:
    """The event's own time and type of content; others are kept."""
    at = datetime(2026, 11, 28, 9, 30, tzinfo=CET)
    event = CloudEvent(source="/a", type="b", time=at, content_type=None)
    headers = sent(Message("t", headers={"ce_subject": b"42"}, cloud_event=event))
    assert headers["ce_time"] == b"2026-11-28T09:30:00+01:00"
    assert headers["ce_subject"] == b"42"
    assert "content-type" not in headers
    assert not [name for name in sent(Message("t")) if name.startswith("ce_")]


@pytest.mark.parametrize("index", [0, 999])
@pytest.mark.parametrize("time", [None, datetime(2026, 11, 28, 9, 30, 0, 5, tzinfo=CET)])
def test_an_event_counts_towards_the_limits(index: int, time: datetime | None) -> None:
    """A message is never smaller for the limits than it is as a record."""
    event = CloudEvent(source="é", type="b", time=time)
    message = Message("t", headers={"a": b"1"}, cloud_event=event)
    real = [(name, value) for name, value in sent(message, index).items() if "RMQ" not in name]
    size = sum(len(name.encode()) + len(value or b"") for name, value in real)
    assert 0 <= message.header_bytes - size <= 2


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"source": ""}, "source"),
        ({"source": b"/a"}, "source"),
        ({"type": "a\nb"}, "type"),
        ({"type": "\ud800"}, "type"),
        ({"content_type": ""}, "content_type"),
        ({"time": datetime(2026, 11, 28)}, "time"),  # noqa: DTZ001  (the fault)
        ({"time": "now"}, "time"),
    ],
)
def test_wrong_attributes_are_refused(arguments: dict[str, Any], field: str) -> None:
    """Where they are given, before anything is sent."""
    with pytest.raises(InvalidMessageError, match=field) as caught:
        CloudEvent(**{"source": "/a", "type": "b", **arguments})
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["ce_id", "ce_time", "content-type"])
def test_no_header_is_there_twice(name: str) -> None:
    """A message that brings one of an event's headers itself is refused."""
    with pytest.raises(InvalidMessageError, match=name):
        Message("t", headers=[(name, b"1")], cloud_event=PLACED)


def test_only_a_cloud_event_makes_one() -> None:
    """Not a dict of the same names."""
    with pytest.raises(InvalidMessageError, match="must be a CloudEvent"):
        Message("t", cloud_event={"source": "/a", "type": "b"})


def test_a_local_message_takes_no_event() -> None:
    """The relay chooses the transaction id later, so the row could not hold the event's."""
    with pytest.raises(InvalidMessageError, match="ce_id") as caught:
        columns_of(Message("t", cloud_event=PLACED))
    assert caught.value.field == "cloud_event"
