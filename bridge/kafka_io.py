"""The old place of the client library's errors, and of how its clients are made."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from halfbridge.bridge import failure
from halfbridge.bridge.errors import BridgeError
from halfbridge.bridge.kafka.errors import failure_of, made

__all__ = ["INFERRED", "made", "map_error", "not_proven"]

INFERRED = KafkaError(KafkaError._MSG_TIMED_OUT, failure.INFERRED.text, retriable=True)


def not_proven(record: Any) -> KafkaError | None:
    """Return INFERRED for an acknowledged record that names no offset; None where it does."""
    return INFERRED if record.offset() is None else None


def map_error(error: Any) -> BridgeError:
    """Return the BridgeError that says who must act."""
    if isinstance(error, BridgeError):
        return error
    return failure.bridge_error(failure_of(error))
