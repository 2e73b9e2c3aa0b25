"""Errors of the client library, made the project's own here and nowhere else."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from halfbridge.bridge.errors import ConfigError
from halfbridge.bridge.failure import Code, KafkaFailure


def failure_of(error: Any) -> KafkaFailure:
    """Return the KafkaFailure of what a client reported.

    Args:
        error: A KafkaError, as records, acknowledgements and `error_cb` have it, a KafkaException,
            a SystemError of a producer, or a KafkaFailure, which is returned as it is.
    """
    if isinstance(error, KafkaFailure):
        return error
    if isinstance(error, SystemError):
        # So a producer tells of a fatal error in `flush`: the C code returns two answers at once.
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
    """Return the KafkaFailure of what a call of a producer raised.

    A producer with a fatal error may leave a second exception behind (confluent-kafka 2.16), which
    the interpreter raises out of whatever C code it comes to next.
    """
    try:
        return failure_of(error)
    except SystemError:
        return failure_of(error)


def made(client: Any, properties: dict[str, Any], **keywords: Any) -> Any:
    """Return a client of the library.

    Raises:
        ConfigError: it does not know a property, or does not take its value; the user corrects it.
    """
    try:
        return client(properties, **keywords)
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        # The last three: a property whose value is a function or a mapping, such as `stats_cb`.
        is_told = isinstance(error, KafkaException)
        raise ConfigError(
            field="kafka",
            value=failure_of(error).text if is_told else str(error),
            origin="Kafka client",
            allowed="properties that librdkafka knows",
        ) from error
