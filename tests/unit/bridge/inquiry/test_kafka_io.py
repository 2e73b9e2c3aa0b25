"""What counts as an answer."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from halfbridge.bridge.inquiry.kafka_io import offset_of

UNANSWERED = -1001


def _answer(offset: int) -> Future[ListOffsetsResultInfo]:
    future: Future[ListOffsetsResultInfo] = Future()
    future.set_result(ListOffsetsResultInfo(offset, -1, -1))
    return future


def test_an_offset() -> None:
    """An empty partition's is 0."""
    assert [offset_of(_answer(offset), 1) for offset in (0, 7)] == [0, 7]


def test_a_broker_that_does_not_answer_has_no_end_to_tell() -> None:
    """Whoever asks again is answered; whoever took it for an end would call the log truncated."""
    with pytest.raises(KafkaException) as raised:
        offset_of(_answer(UNANSWERED), 1)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT


def test_a_client_that_does_not_answer_is_told_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operators' commands turn them into one line; another exception would be a traceback."""
    monkeypatch.setattr("halfbridge.bridge.inquiry.kafka_io._CLIENT_GRACE_S", 0.0)
    with pytest.raises(KafkaException) as raised:
        offset_of(Future(), 0)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
