"""Kafka client properties that users cannot set, since a guarantee rests on them."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 (a constant's type)

# A property -> librdkafka's second name of it.
_SECOND_NAMES = {
    "acks": "request.required.acks",
    "bootstrap.servers": "metadata.broker.list",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "enable.auto.commit": "auto.commit.enable",
    "linger.ms": "queue.buffering.max.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "retries": "message.send.max.retries",
}
# What no client of halfbridge's may have otherwise, and why.
GUARANTEED: Mapping[str, str] = {
    "acks": "a half message must be durable",
    "enable.idempotence": "a retry must not store twice",
    "enable.gapless.guarantee": "a lost message must not be passed over",
    "max.in.flight": "a retry must not change the order",
    "partitioner": "the half partition is part of the protocol",
    "allow.auto.create.topics": "nothing relies on auto-creation",
}


def under_all_names(owned: Mapping[str, str]) -> dict[str, str]:
    """Return `owned` with the second names of its properties, which it says the same of."""
    seconds = {_SECOND_NAMES[name]: why for name, why in owned.items() if name in _SECOND_NAMES}
    return {**owned, **seconds}
