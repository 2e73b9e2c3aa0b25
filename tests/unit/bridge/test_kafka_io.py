"""Kafka's errors, sorted by who must act."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.errors import (
    AbortableError,
    BridgeError,
    ConfigError,
    FatalError,
    InvalidMessageError,
    ProducerFencedError,
    RetriableError,
    TopicSetupError,
)
from halfbridge.bridge.kafka_io import make_producer, map_error


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
        mapped = map_error(each)
        assert type(mapped) is expected
        assert str(mapped)


def test_an_error_of_ours_stays_itself() -> None:
    """What was mapped once is not mapped again."""
    error = RetriableError("once")
    assert map_error(error) is error


def test_an_unknown_property_is_a_config_error() -> None:
    """The refusal of librdkafka names the property; no client is left behind."""
    config = BridgeConfig(bootstrap_servers="b:1", producer_group="g", kafka={"no.such": "1"})
    with pytest.raises(ConfigError, match=r"no\.such"):
        make_producer(config, message_bytes_max=1_000_000)
