"""Codes of failures, and who must act on them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    AbortableError,
    BridgeError,
    Code,
    ConfigError,
    FatalError,
    InvalidMessageError,
    KafkaFailure,
    ProducerFencedError,
    RetriableError,
    TopicSetupError,
    bridge_error,
)


@pytest.mark.parametrize("code", Code)
def test_codes_are_the_client_librarys(code: Code) -> None:
    """Each code has the number and the name that the client library has for it."""
    name = f"_{code.name}" if code < 0 else code.name
    assert getattr(KafkaError, name) == code
    assert failure_of(KafkaError(code)).name == KafkaFailure(code).name


@pytest.mark.parametrize(
    ("failure", "who"),
    [
        (KafkaFailure(Code.TIMED_OUT), RetriableError),
        (KafkaFailure(Code.NOT_COORDINATOR), RetriableError),
        (KafkaFailure(77, is_retriable=True), RetriableError),
        (KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED), TopicSetupError),
        (KafkaFailure(Code.UNKNOWN_PARTITION), TopicSetupError),
        (KafkaFailure(Code.MSG_SIZE_TOO_LARGE), InvalidMessageError),
        (KafkaFailure(Code.AUTHENTICATION), ConfigError),
        (KafkaFailure(Code.PRODUCER_FENCED, is_fatal=True), ProducerFencedError),
        (KafkaFailure(Code.INVALID_TXN_STATE, requires_abort=True), AbortableError),
        (KafkaFailure(Code.TIMED_OUT, is_fatal=True), FatalError),
        (KafkaFailure(77), FatalError),
    ],
    ids=str,
)
def test_a_failure_says_who_must_act(failure: KafkaFailure, who: type[BridgeError]) -> None:
    """Every failure becomes one error of the tree, with the code's name in its text."""
    error = bridge_error(failure)
    assert type(error) is who
    assert failure.name in str(error)


def test_an_error_of_the_client_library_keeps_what_it_says() -> None:
    """Code, text and the three properties that decide what follows."""
    error = KafkaError(KafkaError._TIMED_OUT, "gone", retriable=True)
    for given in (error, KafkaException(error)):
        failure = failure_of(given)
        assert (failure.code, failure.text, failure.is_retriable) == (-185, "gone", True)
        assert not failure.is_fatal
        assert not failure.requires_abort
    assert failure_of(failure) is failure
