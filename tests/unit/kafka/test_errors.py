"""Errors of the client library, sorted by who must act."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.kafka.adapter import KafkaClients
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    AbortableError,
    BridgeError,
    ConfigError,
    FatalError,
    InvalidMessageError,
    ProducerFencedError,
    RetriableError,
    TopicSetupError,
    bridge_error,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaError(KafkaError._FENCED, "x", True), ProducerFencedError),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), ProducerFencedError),
        (KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", True), FatalError),
        (KafkaError(KafkaError.UNKNOWN, "x", False, False, True), AbortableError),
        (KafkaError(KafkaError.UNKNOWN, "x", False, True, False), RetriableError),
        (KafkaError(KafkaError._MSG_TIMED_OUT), RetriableError),
        (KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), RetriableError),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), TopicSetupError),
        (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), TopicSetupError),
        (KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), InvalidMessageError),
        (KafkaError(KafkaError.INVALID_RECORD), InvalidMessageError),
        (KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED), ConfigError),
        (KafkaError(KafkaError.UNKNOWN), FatalError),
        (RuntimeError("closed"), FatalError),
    ],
)
def test_each_kind_of_error_has_its_actor(
    error: KafkaError | Exception, expected: type[BridgeError]
) -> None:
    """Fenced before fatal, fatal before abortable, and what nothing names is fatal."""
    wrapped = KafkaException(error) if isinstance(error, KafkaError) else error
    for each in (error, wrapped):
        mapped = bridge_error(failure_of(each))
        assert type(mapped) is expected
        assert str(mapped)


def test_an_error_of_ours_stays_itself() -> None:
    """What says already who must act is not mapped again."""
    error = RetriableError("once")
    assert bridge_error(error) is error


@pytest.mark.parametrize("properties", [{"no.such": "1"}, {"stats_cb": 7}])
def test_an_unknown_property_is_a_config_error(properties: dict[str, object]) -> None:
    """The refusal names the property; no client is left behind."""
    clients = KafkaClients()
    for make in (clients.writer, clients.reader, clients.member, clients.admin):
        with pytest.raises(ConfigError, match=next(iter(properties))):
            make({"bootstrap.servers": "b:1", "group.id": "g", **properties})
