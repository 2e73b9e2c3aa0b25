"""Frames cut out of a stream of bytes."""

from __future__ import annotations

import struct

import pytest

from tests.kit.proxy_frames import Api, Frames, NotKafkaError, answer_header, request_header


def framed(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_come_out_whole_however_bytes_come_in(step: int) -> None:
    """Lengths and bodies may be split anywhere; nothing is lost, nothing is joined."""
    sent = [framed(bytes([n]) * (4 + n * 5)) for n in range(6)]
    stream = b"".join(sent)
    frames = Frames()

    found = [f for at in range(0, len(stream), step) for f in frames.feed(stream[at : at + step])]

    assert found == sent


@pytest.mark.parametrize("length", [-1, 0, 3, 2**31 - 1])
def test_a_length_that_no_frame_has(length: int) -> None:
    """Bytes that are not Kafka's are named as such, not waited for."""
    with pytest.raises(NotKafkaError):
        Frames().feed(struct.pack(">i", length))


def test_headers() -> None:
    """Key, version and correlation id of a request, correlation id of its answer."""
    request = framed(struct.pack(">hhi", Api.END_TXN, 3, -7) + b"rest")
    assert request_header(request) == (Api.END_TXN, 3, -7)
    assert answer_header(framed(struct.pack(">i", -7))) == -7
    with pytest.raises(NotKafkaError):
        request_header(framed(b"1234"))
