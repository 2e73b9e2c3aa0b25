"""Error codes are put where Kafka's protocol has them, and nothing else is touched."""

from __future__ import annotations

import struct

import pytest

from tests.kit.proxy_answers import with_error
from tests.kit.proxy_frames import Api, NotKafkaError

CODE = 9999
THROTTLE = struct.pack(">i", 0)
PLAIN_TOPIC = struct.pack(">ih", 2, 3) + b"abc" + struct.pack(">ii", 5, 17)
COMPACT_TOPIC = b"\x03\x04abc\x06" + struct.pack(">i", 17)
LONG_NAME = b"n" * 200  # its length takes two bytes as a varint
LONG_TOPIC = b"\x03\xc9\x01" + LONG_NAME + b"\x06" + struct.pack(">i", 17)


def framed(body: bytes) -> bytes:
    """Return an answer's frame with correlation id 5."""
    return struct.pack(">ii", 4 + len(body), 5) + body


@pytest.mark.parametrize(
    ("api", "version", "before"),
    [
        (Api.END_TXN, 1, THROTTLE),
        (Api.LIST_OFFSETS, 5, THROTTLE + PLAIN_TOPIC),
        (Api.LIST_OFFSETS, 7, b"\0" + THROTTLE + COMPACT_TOPIC),
        (Api.END_TXN, 3, b"\0" + THROTTLE),
        (Api.ADD_OFFSETS_TO_TXN, 0, THROTTLE),
        (Api.HEARTBEAT, 3, THROTTLE),
        (Api.HEARTBEAT, 4, b"\0" + THROTTLE),
        (Api.TXN_OFFSET_COMMIT, 2, THROTTLE + PLAIN_TOPIC),
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + COMPACT_TOPIC),
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + LONG_TOPIC),
    ],
)
def test_the_first_error_code_is_replaced(api: Api, version: int, before: bytes) -> None:
    """In plain and in flexible versions, with topics or without."""
    rest = b"whatever follows"
    answer = framed(before + struct.pack(">h", 0) + rest)

    changed = with_error(api, version, answer, code=CODE)

    assert changed == framed(before + struct.pack(">h", CODE) + rest)


@pytest.mark.parametrize(("version", "before"), [(8, PLAIN_TOPIC), (10, b"\0" + COMPACT_TOPIC)])
def test_a_record_that_is_refused_has_no_offset(version: int, before: bytes) -> None:
    """A broker's answer to a Produce that it refuses names none."""
    answer = framed(before + struct.pack(">hq", 0, 17) + b"whatever follows")

    changed = with_error(Api.PRODUCE, version, answer, code=CODE)

    assert changed == framed(before + struct.pack(">hq", CODE, -1) + b"whatever follows")


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (Api.FETCH, 4, THROTTLE + b"\0\0"),  # not known
        (999, 0, THROTTLE + b"\0\0"),
        (Api.PRODUCE, 13, b"\0" + COMPACT_TOPIC + b"\0\0"),  # topics by id
        (Api.PRODUCE, 8, struct.pack(">i", 0) + bytes(20)),  # no topic in it
        (Api.END_TXN, 3, b"\1" + THROTTLE + b"\0\0"),  # tagged fields
        (Api.END_TXN, 1, THROTTLE),  # it ends before the code
        (Api.TXN_OFFSET_COMMIT, 3, b"\0" + THROTTLE + b"\xff"),
    ],
)
def test_what_has_no_known_error_code_is_refused(api: int, version: int, body: bytes) -> None:
    """A fault that was not injected must not look like one that was survived."""
    with pytest.raises(NotKafkaError, match=f"answer to {int(api)}, version {version}"):
        with_error(api, version, framed(body), code=CODE)
