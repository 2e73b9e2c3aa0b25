"""Converts errors of the client library to KafkaFailure; no other module does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from halfbridge.kafka.errors import Code, KafkaFailure

if TYPE_CHECKING:
    from halfbridge.kafka.ports import ClientError


def failure_of(error: ClientError) -> KafkaFailure:
    """Return the KafkaFailure of a KafkaError, KafkaException, SystemError or KafkaFailure."""
    if isinstance(error, KafkaFailure):
        return error
    if isinstance(error, SystemError):
        # A fatal error in `flush`: the C code returns a result and an exception at the same time.
        return KafkaFailure(Code.FATAL, f"Kafka client: {error}", is_fatal=True)
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):
        return KafkaFailure(KafkaError.UNKNOWN, f"Kafka client: {error!r}", name="UNKNOWN")
    return KafkaFailure(
        error.code(),
        error.str(),
        name=error.name(),
        is_fatal=error.fatal(),
        is_retriable=error.retriable(),
        requires_abort=error.txn_requires_abort(),
    )


def raised(error: KafkaException | SystemError) -> KafkaFailure:
    """Return the KafkaFailure of an exception that a producer's call raised.

    A producer with a fatal error may leave a second exception pending (confluent-kafka 2.16), which
    the interpreter raises from the next C code that it runs.
    """
    try:
        return failure_of(error)
    except SystemError:
        return failure_of(error)
