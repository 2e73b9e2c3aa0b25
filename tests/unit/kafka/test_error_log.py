"""ErrorLog: the same kind of error is logged once in a while, not at each reconnection."""

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import LOG_AGAIN_S, ErrorLog, Reasons, safe_repr
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
from halfbridge.kafka.threads import SystemClock


class _Clock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_each_kind_is_reported_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """A second of reconnections is one line; the next one says how many were kept back."""
    clock = _Clock()
    troubles = ErrorLog(logging.getLogger("halfbridge.kafka"), clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            troubles.note(KafkaFailure(Code.TRANSPORT, "refused"))
            clock.now += 0.05
        troubles.note(KafkaFailure(Code.ALL_BROKERS_DOWN, "all brokers are down"))
        clock.now += LOG_AGAIN_S
        troubles.note(KafkaFailure(Code.TRANSPORT, "refused"))
    assert caplog.messages == [
        "Kafka: refused",
        "Kafka: all brokers are down",
        "Kafka: refused (and 19 times since the last report)",
    ]


def test_a_log_handler_that_raises_is_kept_from_the_client() -> None:
    """Out of a callback it would cost the records that the client was about to hand over."""
    log = logging.getLogger("halfbridge.raises")
    seen = []

    def raising(record: logging.LogRecord) -> bool:
        seen.append(record)
        raise RuntimeError("a filter of the user's")

    log.addFilter(raising)
    ErrorLog(log).note(KafkaFailure(Code.TRANSPORT, "refused"))
    assert len(seen) == 1


class _Unspeakable(BaseException):
    def __repr__(self) -> str:
        raise SystemExit


def test_an_answer_that_cannot_be_shown_is_reported_all_the_same() -> None:
    """The reason of an uncounted answer holds what a checker raised or returned, in words."""
    assert safe_repr(ValueError("database down")) == "ValueError('database down')"
    assert safe_repr(_Unspeakable()) == "a _Unspeakable, whose repr raised SystemExit"


def test_a_call_that_nobody_answers_is_reported_with_what_the_connections_said() -> None:
    """The failed call itself says only that time was up; a refusal needs no other reason."""
    reasons = Reasons()
    silent = KafkaFailure(Code.TIMED_OUT, "timed out")
    assert reasons.explain(silent) == "timed out"
    reasons.note(KafkaFailure(Code.TRANSPORT, "no such host"))
    reasons.note(KafkaFailure(Code.ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert reasons.explain(silent) == "timed out (no such host)"
    assert reasons.explain(KafkaFailure(Code.NOT_COORDINATOR, "moved")) == "moved"


# --- codes of failures, and who must act on them -------------------------------------------


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
