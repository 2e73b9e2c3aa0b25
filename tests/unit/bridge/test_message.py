"""Messages are checked where they are made, with errors that say what to do."""

from typing import Any

import pytest

from halfbridge.bridge.message import Answer, Message, Resolution, view_of
from halfbridge.kafka.errors import BridgeError, InvalidMessageError
from halfbridge.serde.headers import CHECK, CONTEXT, HALF, RESERVED
from tests.kit.records import A_REQUEST


def test_a_message_keeps_what_it_was_given() -> None:
    """Null and empty stay apart; a list of headers becomes a tuple."""
    message = Message("t", key=b"", value=None, headers=[("a", b""), ("a", None)], partition=0)
    assert (message.key, message.value) == (b"", None)
    assert message.headers == (("a", b""), ("a", None))
    assert message.real_partition == 0
    assert Message("t").real_partition == -1


def test_headers_may_be_a_dict() -> None:
    """They become pairs in the order of the dict, which the message does not share."""
    given = {"a": b"1", "b": None}
    message = Message("t", headers=given)
    given["c"] = b"3"
    assert message.headers == message.header_pairs == (("a", b"1"), ("b", None))
    assert message == Message("t", headers=[("a", b"1"), ("b", None)])
    assert Message("t", headers={}).header_pairs == ()


def test_sizes_count_utf8_and_bytes() -> None:
    """Header names count in UTF-8; null counts nothing."""
    message = Message("t", key=b"12", value=b"345", headers=[("é", b"1"), ("n", None)])
    assert (message.body_bytes, message.header_bytes) == (5, 4)
    assert (Message("t").body_bytes, Message("t").header_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "field", "text"),
    [
        ({"key": "42"}, "key", r"key\.encode\(\)"),
        ({"value": "x"}, "value", r"value\.encode\(\)"),
        ({"value": bytearray(b"x")}, "value", "bytearray"),
        ({"headers": {b"a": b""}}, "headers", "pair"),
        ({"headers": {"a": "b"}}, "header a", "encode it"),
        ({"headers": 7}, "headers", "list of"),
        ({"headers": ["ab"]}, "headers", "pair"),
        ({"headers": [(b"a", b"")]}, "headers", "pair"),
        ({"headers": [("a", "b")]}, "header a", "encode it"),
        ({"headers": [("\ud800", b"b")]}, "headers", "UTF-8"),
        ({"partition": -1}, "partition", "at least 0"),
        ({"partition": True}, "partition", "whole number"),
        ({"immunity_ms": 1.5}, "immunity_ms", "whole number"),
    ],
)
def test_wrong_parts_are_refused(arguments: dict[str, Any], field: str, text: str) -> None:
    """A wrong type is named together with the way to mend it."""
    with pytest.raises(InvalidMessageError, match=text) as caught:
        Message("t", **arguments)
    assert caught.value.field == field
    assert isinstance(caught.value, BridgeError)


@pytest.mark.parametrize("count", [0, -1, 1_001, True, 1.0, "1"])
def test_an_answer_has_a_count_that_a_transaction_can_have(count: Any) -> None:
    """1 to 1,000, or none; and a Resolution."""
    with pytest.raises(InvalidMessageError, match="message_count") as caught:
        Answer(Resolution.COMMIT, count)
    assert caught.value.field == "message_count"
    assert Answer(Resolution.COMMIT, 1_000).message_count == 1_000
    with pytest.raises(InvalidMessageError, match="resolution"):
        Answer("COMMIT")


@pytest.mark.parametrize("topic", ["", b"t", None])
def test_topic_must_be_text(topic: Any) -> None:
    """A topic is a non-empty name."""
    with pytest.raises(InvalidMessageError, match="topic"):
        Message(topic)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_headers_are_refused(name: str) -> None:
    """Conformance 35: internal properties cannot be forged by the client's user."""
    with pytest.raises(InvalidMessageError, match=f"{name} is reserved"):
        Message("t", headers=[(name, b"1")])


REQUEST = A_REQUEST._replace(
    transaction_id="a1", half_offset=2, producer_group="g", real_topic="orders", born_timestamp=3
)


class _Record:
    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def test_the_context_is_shown_apart_from_the_headers() -> None:
    """A checker finds what its sender left for it; internal headers are no headers."""
    headers = [("mine", b"1"), (CONTEXT, b"left"), (HALF, b"x"), (CHECK, b"y")]
    view = view_of(REQUEST, _Record(), headers)
    assert (view.context, view.headers) == (b"left", (("mine", b"1"),))
    assert view_of(REQUEST, _Record(), headers[:1]).context is None
