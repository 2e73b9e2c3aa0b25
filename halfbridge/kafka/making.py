"""Makes clients of the client library; no other module does, but for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer, libversion, version

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import ConfigError
from halfbridge.kafka.tokens import with_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping


def made(client: Any, properties: Mapping[str, Any], **keywords: Any) -> Any:
    """Return a client of the library. ConfigError: the user must correct a property."""
    try:
        return client(with_tokens(properties), **keywords)
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        # The last three errors: properties that take a function or a mapping, such as `stats_cb`.
        is_reported = isinstance(error, KafkaException)
        raise ConfigError(
            field="kafka",
            value=failure_of(error).text if is_reported else str(error),
            origin="Kafka client",
            allowed="properties that librdkafka knows",
        ) from error


def made_consumer(properties: Mapping[str, Any], **keywords: Any) -> Any:
    """Return a consumer of the library. ConfigError: as `made`."""
    return made(Consumer, properties, **keywords)


def made_producer(properties: Mapping[str, Any], **keywords: Any) -> Any:
    """Return a producer of the library. ConfigError: as `made`."""
    return made(Producer, properties, **keywords)


def client_versions() -> tuple[str, str]:
    """Return the versions of confluent-kafka and of librdkafka."""
    return str(version()[0] if isinstance(version(), tuple) else version()), str(libversion()[0])
